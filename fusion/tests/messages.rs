//! Messages for the most common mistakes: the op, the arguments, the rule, and the fix if there is
//! one.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use fuseline_fusion::op::Comparison;
use fuseline_fusion::op::attrs::{self, DotDimensionNumbers};
use fuseline_fusion::{Attrs, Body, DType, OpCode, Shape, Signature, TensorType};

fn f32(dims: &[u64]) -> TensorType {
    TensorType::of(DType::F32, dims).unwrap()
}

fn i32(dims: &[u64]) -> TensorType {
    TensorType::of(DType::I32, dims).unwrap()
}

fn shape(dims: &[u64]) -> Shape {
    Shape::new(dims).unwrap()
}

/// Checks the message of a refused call.
fn says(op: OpCode, attrs: Attrs, bodies: &[Arc<Body>], operands: &[TensorType], wanted: &str) {
    let error = Signature::infer(op, attrs, bodies, operands).expect_err(wanted);
    assert_eq!(error.to_string(), wanted);
}

#[test]
fn shapes_that_do_not_fit() {
    let product = || {
        let dims = DotDimensionNumbers {
            lhs_contracting: &[1],
            rhs_contracting: &[0],
            ..DotDimensionNumbers::default()
        };
        attrs::dot_general(dims, DType::F32)
    };
    let none = Attrs::none;
    for (op, attrs, operands, wanted) in [
        (
            OpCode::DotGeneral,
            product(),
            vec![f32(&[32, 64]), f32(&[10, 64])],
            "dot_general: contracting dimension 1 of lhs is 64, but dimension 0 of rhs is 10; \
             contracting dimensions must be equal (lhs is f32[32, 64], rhs is f32[10, 64]); did \
             you mean to transpose rhs?",
        ),
        (
            OpCode::DotGeneral,
            product(),
            vec![f32(&[32, 64]), f32(&[32, 10])],
            "dot_general: contracting dimension 1 of lhs is 64, but dimension 0 of rhs is 32; \
             contracting dimensions must be equal (lhs is f32[32, 64], rhs is f32[32, 10]); did \
             you mean to transpose lhs?",
        ),
        (
            OpCode::Add,
            none(),
            vec![f32(&[32, 64]), f32(&[64])],
            "add: rhs has shape [64] and lhs has shape [32, 64]; they must have the same shape; broadcast rhs to [32, 64] first",
        ),
        (OpCode::Add, none(), vec![f32(&[32])], "add: 1 operand was given; it takes 2 (lhs, rhs)"),
        (
            OpCode::Reshape,
            attrs::reshape(shape(&[5, 13])),
            vec![f32(&[8, 8])],
            "reshape: f32[8, 8] has 64 elements, but shape [5, 13] has 65; a reshape must keep the number of elements",
        ),
        (
            OpCode::BroadcastInDim,
            attrs::broadcast_in_dim(shape(&[8, 4]), &[0]),
            vec![f32(&[4])],
            "broadcast_in_dim: dimension 0 of the operand is 4, dimension 0 of the result is 8; a dimension can be broadcast only if it is 1 or stays the same; did you mean broadcast_dimensions = [1]?",
        ),
        (
            OpCode::Concatenate,
            attrs::concatenate(0),
            vec![f32(&[4, 3]), f32(&[4, 5])],
            "concatenate: inputs 1 has shape [4, 5], inputs 0 has shape [4, 3]; they must agree in every dimension but 0; did you mean dimension 1?",
        ),
        (
            OpCode::Concatenate,
            attrs::concatenate(0),
            vec![f32(&[4, 3]), f32(&[3])],
            "concatenate: inputs 1 has shape [3], inputs 0 has shape [4, 3]; they must agree in every dimension but 0",
        ),
        (
            OpCode::Transpose,
            attrs::transpose(&[0, 0]),
            vec![f32(&[4, 3])],
            "transpose: permutation is [0, 0]; dimension 0 must not appear twice",
        ),
        (
            OpCode::Transpose,
            attrs::transpose(&[1, 0]),
            vec![f32(&[4, 3, 2])],
            "transpose: permutation has 2 entries; it must have one per operand dimension, which is 3",
        ),
        (
            OpCode::Slice,
            attrs::slice(&[0, 2], &[4, 9], &[1, 1]),
            vec![f32(&[4, 8])],
            "slice: dimension 1 is sliced from 2 to 9; 0 <= start <= limit <= 8 must hold",
        ),
        (
            OpCode::DynamicSlice,
            attrs::dynamic_slice(&[2, 9]),
            vec![f32(&[4, 8]), i32(&[]), i32(&[])],
            "dynamic_slice: the slice size of dimension 1 is 9; it must be 0 to 8",
        ),
        (
            OpCode::Clamp,
            none(),
            vec![f32(&[3]), f32(&[4]), f32(&[])],
            "clamp: min has shape [3] and operand has shape [4]; they must have the same shape; \
             make min a scalar, or give it the same shape",
        ),
        (
            OpCode::Pad,
            attrs::pad(&[0], &[-9], &[0]),
            vec![f32(&[4]), f32(&[])],
            "pad: dimension 0 of the result would be -5; a dimension has at least 0 elements",
        ),
        (
            OpCode::Cholesky,
            attrs::cholesky(true),
            vec![f32(&[4, 5])],
            "cholesky: a has shape [4, 5]; it must have at least two dimensions, and the last two must be equal",
        ),
    ] {
        says(op, attrs, &[], &operands, wanted);
    }
}

#[test]
fn types_that_do_not_fit() {
    let none = Attrs::none;
    for (op, attrs, operands, wanted) in [
        (
            OpCode::Add,
            none(),
            vec![f32(&[4]), i32(&[4])],
            "add: rhs is i32 and lhs is f32; they must have the same element type; convert rhs to f32",
        ),
        (
            OpCode::Select,
            none(),
            vec![f32(&[4]), f32(&[4]), f32(&[4])],
            "select: pred is f32[4]; its element type must be bool",
        ),
        (
            OpCode::Sqrt,
            none(),
            vec![i32(&[4])],
            "sqrt: operand is i32[4]; its element type must be a float or complex; convert it to a float first",
        ),
        (
            OpCode::Compare,
            attrs::compare_for(Comparison::Lt, DType::F32),
            vec![f32(&[3]), i32(&[3])],
            "compare: rhs is i32 and lhs is f32; they must have the same element type; convert rhs to f32",
        ),
    ] {
        says(op, attrs, &[], &operands, wanted);
    }
}

#[test]
fn bodies_that_do_not_fit() {
    let add = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).unwrap());
    let f64 = |dims| TensorType::of(DType::F64, dims).unwrap();
    let reduce = |axis: i64, operands: &[TensorType], wanted| {
        says(OpCode::Reduce, attrs::dimensions(&[axis]), std::slice::from_ref(&add), operands, wanted);
    };
    reduce(
        2,
        &[f32(&[4, 5]), f32(&[])],
        "reduce: dimensions has dimension 2 of a tensor of rank 2; dimensions are 0 to 1",
    );
    reduce(
        1,
        &[f32(&[4, 5]), f64(&[])],
        "reduce: init_values 0 is f64 and inputs 0 is f32; they must have the same element type; convert init_values 0 to f32",
    );
    reduce(
        1,
        &[f64(&[4, 5]), f64(&[])],
        "reduce: body combines f32, but the operand is f64[4, 5]; the body's type must be the \
         operand's, or a wider one of the same family",
    );
    let bodies = [add.clone(), add.clone()];
    says(
        OpCode::While,
        Attrs::none(),
        &bodies,
        &[f32(&[])],
        "while: cond takes 2 values; it must take 1, one per carried value: [f32[]]; a body can \
         use only its parameters",
    );
}
