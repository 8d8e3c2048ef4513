//! Portable programs with ops that run bodies: the ops inside determine whether the call is
//! portable.
//!
//! An op of a body may round, step or overflow. So P1 to P3 are checked for the ops that run for
//! this data, one after the other, with the shadows of their operands. A branch that is not taken
//! is not checked.

use std::sync::Arc;

use fuseline_fusion::element::{Elements, Store, to_int};
use fuseline_fusion::{Body, Literal, OpCode, Ref, Signature, TensorType};

use super::program::{ProgramSampler, SampledValue};

/// Maximum number of iterations of a loop in a portable program.
const MAX_STEPS: usize = 16;

impl ProgramSampler {
    /// The results of a call of such an op, if a portable program may contain it.
    pub(super) fn flow(
        &self,
        signature: &Signature,
        operands: &[&SampledValue],
    ) -> Option<Vec<SampledValue>> {
        let bodies = signature.bodies();
        let owned = |values: &[&SampledValue]| values.iter().map(|&value| value.clone()).collect::<Vec<_>>();
        let scalar = |value: &SampledValue| to_int(value.data.dtype(), Elements::of(&value.data).get(0));
        match signature.op() {
            OpCode::While => {
                let mut carried = owned(operands);
                for _ in 0..MAX_STEPS {
                    if scalar(&self.run(&bodies[0], &carried)?[0]) == 0 {
                        return Some(carried);
                    }
                    carried = self.run(&bodies[1], &carried)?;
                }
                None
            }
            OpCode::Map => self.map(&bodies[0], operands, &signature.results()[0]),
            op => {
                let chosen = scalar(operands[0]);
                let branch = if op == OpCode::If { usize::from(chosen == 0) } else { chosen as usize };
                self.run(&bodies[branch.min(bodies.len() - 1)], &owned(&operands[1..]))
            }
        }
    }

    /// Runs a body; returns its results.
    fn run(&self, body: &Body, params: &[SampledValue]) -> Option<Vec<SampledValue>> {
        fn at<'a>(value: &Ref, params: &'a [SampledValue], made: &'a [SampledValue]) -> &'a SampledValue {
            match *value {
                Ref::Param(index) => &params[index as usize],
                Ref::Result(index) => &made[index as usize],
            }
        }
        let mut made: Vec<SampledValue> = Vec::new();
        for node in body.graph().nodes() {
            let operands: Vec<&SampledValue> =
                node.operands().iter().map(|value| at(value, params, &made)).collect();
            let signature = node.signature();
            if self.needs_exact(signature.def()) && !operands.iter().all(|operand| operand.is_exact()) {
                return None;
            }
            let results = self.results(signature, &operands)?;
            made.extend(results);
        }
        Some(body.returns().iter().map(|value| at(value, params, &made).clone()).collect())
    }

    /// Runs the body at each position.
    fn map(&self, body: &Body, operands: &[&SampledValue], ty: &TensorType) -> Option<Vec<SampledValue>> {
        let element = |data: &Literal, index: usize| {
            let scalar = TensorType::scalar(data.dtype());
            Store::filled(scalar, Elements::of(data).get(index)).finish()
        };
        let results: Option<Vec<SampledValue>> = (0..ty.elems().get())
            .map(|index| {
                let params: Vec<SampledValue> = operands
                    .iter()
                    .map(|operand| SampledValue {
                        data: Arc::new(element(&operand.data, index)),
                        tolerance: operand.tolerance,
                        shadows: operand.shadows.each_ref().map(|data| Arc::new(element(data, index))),
                    })
                    .collect();
                self.run(body, &params)?.pop()
            })
            .collect();
        let results = results?;
        let all = |data: fn(&SampledValue) -> &Literal| {
            let bits = results.iter().map(|result| Elements::of(data(result)).get(0));
            Arc::new(Store::collect(ty.clone(), bits).finish())
        };
        Some(vec![SampledValue {
            data: all(|result| &result.data),
            tolerance: results.iter().map(|result| result.tolerance).fold(0.0, f64::max),
            shadows: [all(|result| &result.shadows[0]), all(|result| &result.shadows[1])],
        }])
    }
}
