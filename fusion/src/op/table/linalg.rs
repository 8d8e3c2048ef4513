//! Fourier transforms, matrix factorisations and normalisation.

use super::ROW;
use crate::dtype::{DType, DTypeSet};
use crate::interp;
use crate::op::attrs;
use crate::op::code::OpCode;
use crate::op::def::{Fusibility, Numerics, OpDef, Operands};
use crate::op::expand;
use crate::op::rules::linalg;
use crate::op::sample;

/// Defaults for the rows below.
const LINALG: OpDef = OpDef {
    dtypes: DTypeSet::FLOAT_COMPLEX,
    fusibility: Fusibility::Opaque,
    numerics: Numerics::Rounded,
    ..ROW
};

/// Defaults for normalisations, which are lowered and evaluated as the ops that the specification defines them by.
const BATCH_NORM: OpDef = OpDef {
    attrs: &attrs::BATCH_NORM,
    dtypes: DTypeSet::FLOAT,
    infer: linalg::batch_norm,
    lower: expand::batch_norm,
    eval: interp::linalg::by_definition,
    sample: sample::linalg::batch_norm,
    ..LINALG
};

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::Fft,
        name: "fft",
        summary: "The discrete Fourier transform over the last dimensions, forward or inverse, complex or real.",
        attrs: &attrs::FFT,
        dtypes: DTypeSet::of(&[DType::F32, DType::F64]).or(DTypeSet::COMPLEX),
        infer: linalg::fft,
        eval: interp::fft::fft,
        sample: sample::linalg::fft,
        ..LINALG
    },
    OpDef {
        code: OpCode::Cholesky,
        name: "cholesky",
        summary: "The triangular matrix whose product with its adjoint is the operand; zeros in the other triangle.",
        operands: Operands::Fixed(&["a"]),
        attrs: &attrs::CHOLESKY,
        infer: linalg::cholesky,
        lower: expand::factorised,
        eval: interp::linalg::cholesky,
        sample: sample::linalg::cholesky,
        ..LINALG
    },
    OpDef {
        code: OpCode::TriangularSolve,
        name: "triangular_solve",
        summary: "The matrix whose product with a triangular one is b.",
        operands: Operands::Fixed(&["a", "b"]),
        attrs: &attrs::TRIANGULAR_SOLVE,
        infer: linalg::triangular_solve,
        lower: expand::factorised,
        eval: interp::linalg::triangular_solve,
        sample: sample::linalg::triangular_solve,
        ..LINALG
    },
    OpDef {
        code: OpCode::BatchNormTraining,
        name: "batch_norm_training",
        summary: "The operand with each feature brought to mean `offset` and deviation `scale`; its mean and variance.",
        operands: Operands::Fixed(&["operand", "scale", "offset"]),
        ..BATCH_NORM
    },
    OpDef {
        code: OpCode::BatchNormInference,
        name: "batch_norm_inference",
        summary: "The operand with each feature normalised by a given mean and variance, scaled and moved.",
        operands: Operands::Fixed(&["operand", "scale", "offset", "mean", "variance"]),
        infer: linalg::batch_norm_inference,
        ..BATCH_NORM
    },
    OpDef {
        code: OpCode::BatchNormGrad,
        name: "batch_norm_grad",
        summary: "The gradients of operand, scale and offset of a `batch_norm_training`.",
        operands: Operands::Fixed(&["operand", "scale", "mean", "variance", "grad_output"]),
        ..BATCH_NORM
    },
];
