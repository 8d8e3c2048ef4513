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
        summary: "The discrete Fourier transform along the last dimensions, forward or inverse, \
                  complex or real.",
        rule: "RFFT maps real to complex numbers, IRFFT complex to real numbers, and FFT and IFFT \
               complex to complex numbers. `fft_length` has 1 to 3 sizes, which are the sizes of \
               the last dimensions. On the complex side of RFFT and IRFFT, the last dimension has \
               length / 2 + 1 elements instead.",
        attrs: &attrs::FFT,
        dtypes: DTypeSet::of(&[DType::F32, DType::F64]).or(DTypeSet::COMPLEX),
        infer: linalg::fft,
        ..LINALG
    },
    OpDef {
        code: OpCode::Cholesky,
        name: "cholesky",
        summary: "The Cholesky factor of each matrix: the triangular matrix whose product with \
                  its adjoint is the operand. The other triangle is zero.",
        rule: "The last two dimensions are equal, and the others are batch dimensions. Only the \
               triangle that `lower` selects is read. If a matrix is not Hermitian and positive \
               definite, its result is NaN. The result has the operand's type.",
        operands: Operands::Fixed(&["a"]),
        attrs: &attrs::CHOLESKY,
        infer: linalg::cholesky,
        lower: legalize::factorised,
        ..LINALG
    },
    OpDef {
        code: OpCode::TriangularSolve,
        name: "triangular_solve",
        summary: "The solution `x` of `a x = b`, or of `x a = b`, where `a` is a triangular matrix.",
        rule: "The last two dimensions of `a` are equal. Both operands have the same element type \
               and the same batch dimensions. A matrix of `b` has as many rows as one of `a`, or \
               as many columns if `left_side` is false. The result has the type of `b`.",
        operands: Operands::Fixed(&["a", "b"]),
        attrs: &attrs::TRIANGULAR_SOLVE,
        infer: linalg::triangular_solve,
        lower: legalize::factorised,
        ..LINALG
    },
    OpDef {
        code: OpCode::BatchNormTraining,
        name: "batch_norm_training",
        summary: "The operand with each feature normalised to mean `offset` and standard \
                  deviation `scale`. The other results are the mean and the variance of each \
                  feature.",
        rule: "Dimension `feature_index` of the operand counts the features. `scale` and `offset` \
               have one element per feature. The first result has the operand's type, the other \
               two have the type of `scale`.",
        operands: Operands::Fixed(&["operand", "scale", "offset"]),
        ..BATCH_NORM
    },
    OpDef {
        code: OpCode::BatchNormInference,
        name: "batch_norm_inference",
        summary: "The operand with each feature normalised by a given mean and variance, then \
                  scaled and shifted.",
        rule: "Dimension `feature_index` of the operand counts the features. `scale`, `offset`, \
               `mean` and `variance` have one element per feature. The result has the operand's \
               type.",
        operands: Operands::Fixed(&["operand", "scale", "offset", "mean", "variance"]),
        infer: linalg::batch_norm_inference,
        ..BATCH_NORM
    },
    OpDef {
        code: OpCode::BatchNormGrad,
        name: "batch_norm_grad",
        summary: "The gradients of `batch_norm_training` for operand, scale and offset.",
        rule: "`scale`, `mean` and `variance` have one element per feature. `grad_output` has the \
               operand's type. The first result has the operand's type, the other two have the \
               type of `scale`.",
        operands: Operands::Fixed(&["operand", "scale", "mean", "variance", "grad_output"]),
        ..BATCH_NORM
    },
];
