//! The passes of the lowering, one at a time: their output computes the same as the region.
#![allow(missing_docs, reason = "a test")]

mod columns;
mod exact;
mod expand;
mod narrow;
mod scalars;

use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::lower::passes::Plain;
use fuseline_fusion::lower::{Numerics, ScalarPack, Target};
use fuseline_fusion::{Literal, Scalar};
use fuseline_interp::{self as interp, Arithmetic};

type Data = Vec<Arc<Literal>>;

/// The results of a region's function on each replica; `operands` are those of the region.
fn run(region: &CanonRegion, numerics: Numerics, function: &Plain, operands: &[Data]) -> Vec<Data> {
    run_packed(region, &ScalarPack::of(Target::Any, region, numerics), function, operands)
}

/// The same with scalars packed into buffers.
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
