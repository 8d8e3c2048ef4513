//! The passes of the lowering, one at a time: what they make of a region computes what the region does.
#![allow(missing_docs, reason = "a test")]

mod columns;
mod exact;
mod expand;
mod narrow;
mod scalars;

use std::collections::HashMap;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, can_lift};
use fuseline_fusion::interp::{self, Arithmetic};
use fuseline_fusion::lower::passes::Plain;
use fuseline_fusion::lower::{Numerics, ScalarPack, Target};
use fuseline_fusion::op::{ProgramOptions, ProgramSampler, Seeded};
use fuseline_fusion::program::{Program, ProgramId};
use fuseline_fusion::{Graph, Literal, Ref, Scalar};

type Data = Vec<Arc<Literal>>;

/// A sampled program as a region, its scalars lifted, and what its parameters are.
fn sampled_region(options: ProgramOptions, seed: u64, ops: usize) -> (CanonRegion, Data) {
    let sampled = ProgramSampler::sample(options, &mut Seeded::new(seed), ops);
    let program = &sampled.program;
    let (graph, _) = graph_of(program);
    let data: Data = program.values.iter().map(|value| value.data.clone()).collect();
    let lifted = graph.params().iter().map(can_lift).collect();
    (CanonRegion::new(graph, lifted), data)
}

/// What a region's function gives each replica; `operands` are those of the region.
fn run(region: &CanonRegion, numerics: Numerics, function: &Plain, operands: &[Data]) -> Vec<Data> {
    run_packed(region, &ScalarPack::of(Target::Any, region, numerics), function, operands)
}

/// The same with scalars that travel otherwise.
fn run_packed(region: &CanonRegion, pack: &ScalarPack, function: &Plain, operands: &[Data]) -> Vec<Data> {
    let params: Vec<Data> = operands
        .iter()
        .map(|operands| {
            let with_flag = || operands.iter().zip(region.lifted());
            let mut params: Data =
                with_flag().filter(|pair| !pair.1).map(|(operand, _)| operand.clone()).collect();
            let scalars = with_flag().filter(|pair| *pair.1);
            let words = pack.pack(scalars.map(|(operand, _)| Scalar::of(operand).expect("a scalar")));
            for range in pack.arguments() {
                let words = Literal::from_slice(&[range.len() as u64], &words[range]);
                params.push(Arc::new(words.expect("as many as there are")));
            }
            params
        })
        .collect();
    interp::run_body_replicated(Arithmetic::REFERENCE, &function.function, &params).expect("runs")
}

/// A program as a graph, with the place of each value; the values that come with data are the parameters, in order.
fn graph_of(program: &Program) -> (Graph, HashMap<ProgramId, Ref>) {
    let mut graph = Graph::new();
    let mut known: HashMap<ProgramId, Ref> =
        program.values.iter().map(|value| (value.id, graph.param(value.data.ty().clone()))).collect();
    for op in &program.ops {
        let operands = op.operands.iter().map(|id| known[id]).collect();
        let results = graph.push_signature(op.signature.clone(), operands);
        known.extend(op.results.iter().copied().zip(results));
    }
    (graph, known)
}
