//! What the tests of the lowering share.

use std::sync::Arc;

use super::plain::{Plain, plain};
use super::{Numerics, ScalarPack, Target};
use crate::canon::{CanonRegion, can_lift};
use crate::graph::Graph;
use crate::interp::{self, Arithmetic};
use crate::literal::{Literal, Scalar};
use crate::op::{ProgramOptions, ProgramSampler, Seeded};
use crate::program::testing::graph_of;

pub(crate) type Data = Vec<Arc<Literal>>;

/// A sampled program as a region, its scalars lifted, and what its parameters are.
pub(crate) fn sampled_region(options: ProgramOptions, seed: u64, ops: usize) -> (CanonRegion, Data) {
    let sampled = ProgramSampler::sample(options, &mut Seeded::new(seed), ops);
    let program = &sampled.program;
    let (graph, _) = graph_of(program);
    let data: Data = program.values.iter().map(|value| value.data.clone()).collect();
    let lifted = graph.params().iter().map(can_lift).collect();
    (CanonRegion::new(graph, lifted), data)
}

/// How many ops a graph is lowered to, without fences.
pub(super) fn plain_ops(graph: Graph) -> usize {
    let outputs: Vec<u32> = (0..graph.result_count() as u32).collect();
    let lifted = vec![false; graph.params().len()];
    let region = CanonRegion::new(graph, lifted.into());
    let pack = ScalarPack::of(Target::Any, &region, Numerics::Fast);
    let plain = plain(&region, &outputs, &pack, &[]);
    let mut ops = 0;
    let _ = plain.function.graph().any_op(&mut |_| {
        ops += 1;
        false
    });
    ops
}

/// What a region's function gives each replica; `operands` are those of the region.
pub(super) fn run(
    region: &CanonRegion,
    numerics: Numerics,
    function: &Plain,
    operands: &[Data],
) -> Vec<Data> {
    run_packed(region, &ScalarPack::of(Target::Any, region, numerics), function, operands)
}

/// The same with scalars that travel otherwise.
pub(super) fn run_packed(
    region: &CanonRegion,
    pack: &ScalarPack,
    function: &Plain,
    operands: &[Data],
) -> Vec<Data> {
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
