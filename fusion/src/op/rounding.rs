//! How rounding affects the results of a call, and how far two executors may differ.

use super::def::Rounding;
use crate::dtype::DType;
use crate::ir::{Body, Graph, OpCode, Signature};
use crate::shape::TensorType;

/// The tolerance of a correct executor's result relative to the interpreter's result `x`, as a
/// fraction of `1 + |x|`, for inexact values of this type in a portable program; 0 for types whose
/// values are always exact.
///
/// It holds for programs of any length, and allows executors to keep short floats in longer ones.
#[must_use]
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 0.25,
        DType::F16 => 0.04,
        DType::F32 => 1e-4,
        DType::F64 => 1e-9,
        _ => 0.0,
    }
}

/// The rounding class of a call, bodies included. The classes in the op table are those of the
/// worst element types.
#[must_use]
pub fn rounding_class(signature: &Signature) -> Rounding {
    let from = signature.operands().first().map(TensorType::dtype);
    let to = signature.results().first().map(TensorType::dtype);
    match (signature.op(), from, to) {
        (OpCode::Convert, Some(from), Some(to)) => {
            match (from.part().float_format(), to.part().float_format()) {
                (Some(from), Some(to)) if from.exponent <= to.exponent && from.mantissa <= to.mantissa => {
                    Rounding::Exact
                }
                (_, Some(_)) => Rounding::Rounded,
                (Some(_), None) => Rounding::Step,
                (None, None) => Rounding::Exact,
            }
        }
        // The magnitude, a root of a sum of squares.
        (OpCode::Abs | OpCode::Sign, Some(from), _) if from.is_complex() => Rounding::Rounded,
        (op, ..)
            if matches!(op, OpCode::Reduce | OpCode::ReduceWindow | OpCode::Scatter | OpCode::Scan)
                || runs_bodies(op) =>
        {
            signature.bodies().iter().map(|body| body_class(body)).fold(Rounding::Exact, Rounding::worse)
        }
        // With one replica there is nothing to combine.
        (OpCode::AllReduce | OpCode::ReduceScatter, ..) => Rounding::Exact,
        // Selection is a step, so its operands are exact; what remains is the sum.
        (OpCode::SelectAndScatter, ..) => body_class(&signature.bodies()[1]),
        _ => signature.def().rounding,
    }
}

/// Whether an op of a call rounds, bodies included. [`rounding_class`] does not tell for a call
/// that is also a step.
#[must_use]
pub fn rounds(signature: &Signature) -> bool {
    match rounding_class(signature) {
        Rounding::Exact => false,
        Rounding::Rounded => true,
        Rounding::Step => signature.bodies().iter().any(|body| body.graph().any_op(&mut rounds)),
    }
}

fn body_class(body: &Body) -> Rounding {
    let graph: &Graph = body.graph();
    graph.nodes().iter().map(|node| rounding_class(node.signature())).fold(Rounding::Exact, Rounding::worse)
}

/// Whether an op only runs its bodies.
#[must_use]
pub fn runs_bodies(op: OpCode) -> bool {
    matches!(op, OpCode::While | OpCode::If | OpCode::Case | OpCode::Map)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Attrs;
    use crate::op::{Comparison, attrs};

    /// A sum beside the largest element: the body adds, compares and selects.
    #[test]
    fn a_body_that_jumps_may_also_round() {
        let scalar = TensorType::scalar(DType::F32);
        let mut graph = Graph::new();
        let params: Vec<_> = (0..4).map(|_| graph.param(scalar.clone())).collect();
        let mut push = |op, attrs, operands: &[_]| graph.push(op, attrs, &[], operands).unwrap()[0];
        let sum = push(OpCode::Add, Attrs::none(), &[params[0], params[2]]);
        let order = attrs::compare_for(Comparison::Lt, DType::F32);
        let is_less = push(OpCode::Compare, order, &[params[1], params[3]]);
        let largest = push(OpCode::Select, Attrs::none(), &[is_less, params[3], params[1]]);
        let body = Arc::new(Body::new(graph, &[sum, largest]).unwrap());
        let elements = TensorType::of(DType::F32, &[3]).unwrap();
        let operands = [elements.clone(), elements, scalar.clone(), scalar];
        let reduce = Signature::infer(OpCode::Reduce, attrs::dimensions(&[0]), &[body], &operands).unwrap();
        assert_eq!(rounding_class(&reduce), Rounding::Step);
        assert!(rounds(&reduce));
    }
}
