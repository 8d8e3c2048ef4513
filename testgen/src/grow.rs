//! Bodies of sampled ops.

use std::sync::Arc;

use fuseline_fusion::op::{Fusibility, OPS, Replicas, attrs};
use fuseline_fusion::{Body, Graph, Literal, OpCode, OpDef, Ref, TensorType};

use super::{Domain, SampleOperand, Sampler, fill};

/// Maximum number of ops in a body.
const MAX_OPS: usize = 3;

/// Maximum depth of a body whose ops may have bodies.
const MAX_DEPTH: usize = 2;

/// The ops of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ops {
    /// All ops.
    Any,
    /// Ops from scalars to scalars.
    Scalar,
}

/// All values of a graph, parameters first.
fn values(graph: &Graph) -> Vec<Ref> {
    let params = (0..graph.params().len() as u32).map(Ref::Param);
    params.chain((0..graph.result_count() as u32).map(Ref::Result)).collect()
}

/// Type of a value of the graph.
fn type_of(graph: &Graph, value: Ref) -> &TensorType {
    graph.type_of(value).expect("bug: a sampled body uses a value that it does not have")
}

/// Adds constant data.
pub(super) fn constant(graph: &mut Graph, data: Literal) -> Option<Ref> {
    Some(graph.push(OpCode::Constant, attrs::constant(Arc::new(data)), &[], &[]).ok()?[0])
}

impl Sampler<'_> {
    /// A graph with parameters of the given types and a few ops.
    pub(super) fn grown(&mut self, params: &[TensorType], ops: Ops) -> Graph {
        let mut graph = Graph::new();
        for ty in params {
            graph.param(ty.clone());
        }
        for _ in 0..self.below(MAX_OPS + 1) {
            // An op that cannot be sampled leaves the graph unchanged.
            let _ = self.grow(&mut graph, ops);
        }
        graph
    }

    /// Adds an op on values of a graph.
    pub(super) fn grow(&mut self, graph: &mut Graph, ops: Ops) -> Option<()> {
        let fits = |def: &&'static OpDef| {
            let kind = match ops {
                Ops::Any => def.bodies.is_empty() || self.depth < MAX_DEPTH,
                Ops::Scalar => def.fusibility == Fusibility::Elementwise && def.bodies.is_empty(),
            };
            // XLA merges two consecutive bitcasts into one that its verifier rejects, also across
            // bodies. Replicas may run the body of a loop or a branch in lockstep, but nothing
            // inside of it. They take different paths there, so they exchange nothing.
            let alone = match def.replicas {
                Replicas::Together => self.depth == 0 && matches!(self.def.replicas, Replicas::InStep),
                _ => true,
            };
            let bitcast = self.portable() && def.code == OpCode::BitcastConvert;
            kind && alone && !def.exchanges() && !bitcast
        };
        let rows: Vec<&'static OpDef> = OPS.iter().filter(fits).collect();
        let def = self.one_of(&rows)?;
        let known = values(graph);
        let pool: Vec<TensorType> = known.iter().map(|&value| type_of(graph, value).clone()).collect();
        let inner = Sampler {
            def,
            entropy: &mut *self.entropy,
            pool: &pool,
            dtypes: self.dtypes,
            aim: self.aim,
            depth: self.depth + 1,
            replicas: self.replicas,
            varying_size: self.varying_size,
        };
        let sample = inner.sample()?;
        if ops == Ops::Scalar && sample.operands.iter().any(|operand| operand.ty(&pool).rank() > 0) {
            return None;
        }
        let mut operands = Vec::new();
        for operand in &sample.operands {
            operands.push(match operand {
                SampleOperand::Pool(place) => known[*place],
                SampleOperand::Fresh(ty, domain) => {
                    constant(graph, fill(self.entropy, ty, *domain, self.aim))?
                }
                SampleOperand::Given(data) => constant(graph, Literal::clone(data))?,
            });
        }
        graph.push(def.code, sample.attrs, &sample.bodies, &operands).ok().map(|_| ())
    }

    /// A value of the type, with later values of the graph first; `None` if there is none.
    pub(super) fn value_of(&mut self, graph: &Graph, ty: &TensorType) -> Option<Ref> {
        let fitting: Vec<Ref> =
            values(graph).into_iter().rev().filter(|&value| type_of(graph, value) == ty).collect();
        self.one_of(&fitting)
    }

    /// Closes a graph with returns of the given types: its values, or constants.
    pub(super) fn returning(&mut self, mut graph: Graph, types: &[TensorType]) -> Option<Arc<Body>> {
        let mut returns = Vec::new();
        for ty in types {
            returns.push(match self.value_of(&graph, ty) {
                Some(value) => value,
                None => constant(&mut graph, fill(self.entropy, ty, Domain::Any, self.aim))?,
            });
        }
        Body::new(graph, &returns).map(Arc::new)
    }

    /// Closes a graph with one to three of its values.
    pub(super) fn returning_some(&mut self, graph: Graph) -> Option<Arc<Body>> {
        let mut known = values(&graph);
        known.reverse();
        let count = 1 + self.below(3);
        let returns: Option<Vec<Ref>> = (0..count).map(|_| self.one_of(&known)).collect();
        Body::new(graph, &returns?).map(Arc::new)
    }

    /// Closes a graph with one of its scalars.
    pub(super) fn returning_scalar(&mut self, graph: Graph) -> Option<Arc<Body>> {
        let mut scalars = values(&graph);
        scalars.retain(|&value| type_of(&graph, value).rank() == 0);
        scalars.reverse();
        let returned = self.one_of(&scalars)?;
        Body::new(graph, &[returned]).map(Arc::new)
    }
}
