//! User-defined ops: named functions.

use std::sync::Arc;

use fuseline_fusion::op::{Fusibility, OPS, Replicas, Rounding, attrs};
use fuseline_fusion::{Attrs, Body, Graph, OpCode, OpDef, Ref, TensorType};

use super::{Sample, Sampler};

/// Whether a portable program may have the op inside a composite, where [`super::ProgramSampler`]
/// does not inspect it. This excludes ops whose rejection depends on more than their class.
fn is_simple(def: &OpDef) -> bool {
    let moves = matches!(def.fusibility, Fusibility::Elementwise | Fusibility::Movement);
    let exact = def.rounding == Rounding::Exact && def.code != OpCode::BitcastConvert;
    moves && (exact || matches!(def.code, OpCode::Add | OpCode::Subtract | OpCode::Multiply))
}

/// Another op as a function. It may also return an operand, and may have a barrier around its
/// results.
pub(crate) fn composite(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let portable = sampler.portable();
    let fits = |def: &&'static OpDef| {
        let is_composite = def.code == OpCode::Composite;
        let alone = sampler.depth == 0 || !matches!(def.replicas, Replicas::Together);
        !is_composite && alone && !def.exchanges() && (!portable || is_simple(def))
    };
    let rows: Vec<&'static OpDef> = OPS.iter().filter(fits).collect();
    let def = sampler.one_of(&rows)?;
    let inner = Sampler {
        depth: sampler.depth,
        replicas: sampler.replicas,
        varying_size: sampler.varying_size,
        ..Sampler::new(def, &mut *sampler.entropy, sampler.pool, sampler.dtypes, sampler.aim)
    };
    let Sample { operands, attrs, bodies } = inner.sample()?;
    let mut graph = Graph::new();
    let types = operands.iter().map(|operand| operand.ty(sampler.pool));
    let params: Vec<Ref> = types.cloned().map(|ty: TensorType| graph.param(ty)).collect();
    let mut returns = graph.push(def.code, attrs, &bodies, &params).ok()?.to_vec();
    if sampler.rarely(3) {
        returns.extend(params.first());
    }
    if sampler.rarely(3) {
        returns = graph.push(OpCode::OptimizationBarrier, Attrs::none(), &[], &returns).ok()?.to_vec();
    }
    let body = Arc::new(Body::new(graph, &returns)?);
    let name = sampler.one_of(&["f", "sampled.op", "a/b:c-d_2"])?;
    Some(Sample { operands, attrs: attrs::composite(name), bodies: vec![body] })
}
