//! Fourier transforms, matrix factorisations and normalisation.

use super::ROW;
use crate::dtype::{DType, DTypeSet};
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Fusibility, OpDef, Operands, Rounding};
use crate::op::infer::linalg;
use crate::op::legalize;

/// Defaults for the rows below.
const LINALG: OpDef = OpDef {
    dtypes: DTypeSet::FLOAT_COMPLEX,
    fusibility: Fusibility::Opaque,
    rounding: Rounding::Rounded,
    ..ROW
};

/// Defaults for normalisations, which are lowered and evaluated as the ops that define them in the
/// specification.
const BATCH_NORM: OpDef = OpDef {
    attrs: &attrs::BATCH_NORM,
    dtypes: DTypeSet::FLOAT,
    infer: linalg::batch_norm,
    lower: legalize::batch_norm,
    ..LINALG
};

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::Fft,
        name: "fft",
        summary: "The discrete Fourier transform over the last dimensions, forward or inverse, complex or real.",
        rule: "Operand and result are complex, but for RFFT (real to complex) and IRFFT (complex to real). `fft_length` has 1 to 3 sizes, those of the last dimensions on the real side; on the complex side of a real transform the last has length / 2 + 1 elements.",
        attrs: &attrs::FFT,
        dtypes: DTypeSet::of(&[DType::F32, DType::F64]).or(DTypeSet::COMPLEX),
        infer: linalg::fft,
        ..LINALG
    },
    OpDef {
        code: OpCode::Cholesky,
        name: "cholesky",
        summary: "The triangular matrix whose product with its adjoint is the operand; zeros in the other triangle.",
        rule: "The last two dimensions are equal, those before count matrices. Only the triangle that `lower` names is read; the matrix is Hermitian and positive definite, or the result is NaN. The result has the operand's type.",
        operands: Operands::Fixed(&["a"]),
        attrs: &attrs::CHOLESKY,
        infer: linalg::cholesky,
        lower: legalize::factorised,
        ..LINALG
    },
    OpDef {
        code: OpCode::TriangularSolve,
        name: "triangular_solve",
        summary: "The matrix whose product with a triangular one is b.",
        rule: "`a` has square matrices in its last two dimensions, and both operands the same element type and dimensions before them; the matrices of b have as many rows (columns, with `left_side` false). The result has the type of b.",
        operands: Operands::Fixed(&["a", "b"]),
        attrs: &attrs::TRIANGULAR_SOLVE,
        infer: linalg::triangular_solve,
        lower: legalize::factorised,
        ..LINALG
    },
    OpDef {
        code: OpCode::BatchNormTraining,
        name: "batch_norm_training",
        summary: "The operand with each feature brought to mean `offset` and deviation `scale`; its mean and variance.",
        rule: "`scale` and `offset` have one element per feature, the size of dimension `feature_index`. The results are the operand's type, and the mean and the variance of each feature.",
        operands: Operands::Fixed(&["operand", "scale", "offset"]),
        ..BATCH_NORM
    },
    OpDef {
        code: OpCode::BatchNormInference,
        name: "batch_norm_inference",
        summary: "The operand with each feature normalised by a given mean and variance, scaled and moved.",
        rule: "`scale`, `offset`, `mean` and `variance` have one element per feature, the size of dimension `feature_index`. The result has the operand's type.",
        operands: Operands::Fixed(&["operand", "scale", "offset", "mean", "variance"]),
        infer: linalg::batch_norm_inference,
        ..BATCH_NORM
    },
    OpDef {
        code: OpCode::BatchNormGrad,
        name: "batch_norm_grad",
        summary: "The gradients of operand, scale and offset of a `batch_norm_training`.",
        rule: "`scale`, `mean` and `variance` have one element per feature, `grad_output` the operand's type. The results are of the types of operand, scale and scale.",
        operands: Operands::Fixed(&["operand", "scale", "mean", "variance", "grad_output"]),
        ..BATCH_NORM
    },
];
