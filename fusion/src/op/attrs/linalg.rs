//! Attributes of Fourier transforms, matrix factorisations and normalisation.

use crate::attr::{AttrDef, AttrKind, Attrs, EnumDef};
use crate::op::enums::{FftType, Transpose};

static FFT_TYPE: EnumDef = EnumDef { name: "fft_type", members: &["FFT", "IFFT", "RFFT", "IRFFT"] };
static TRANSPOSE: EnumDef = EnumDef { name: "transpose", members: &["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"] };

pub(in crate::op) static FFT: [AttrDef; 2] = [
    AttrDef::required("fft_type", AttrKind::Enum(&FFT_TYPE)),
    AttrDef::required("fft_length", AttrKind::Ints),
];

/// Attributes of `fft`. The lengths are the sizes of the last dimensions of the operand, or of the
/// result for [`FftType::Irfft`].
#[must_use]
pub fn fft(fft_type: FftType, fft_length: &[i64]) -> Attrs {
    Attrs::from([fft_type.into(), fft_length.into()])
}

pub(in crate::op) static CHOLESKY: [AttrDef; 1] = [AttrDef::required("lower", AttrKind::Bool)];

/// Attributes of `cholesky`; `lower` selects the triangle that is read and returned.
#[must_use]
pub fn cholesky(lower: bool) -> Attrs {
    Attrs::from([lower.into()])
}

pub(in crate::op) static TRIANGULAR_SOLVE: [AttrDef; 4] = [
    AttrDef::required("left_side", AttrKind::Bool),
    AttrDef::required("lower", AttrKind::Bool),
    AttrDef::required("unit_diagonal", AttrKind::Bool),
    AttrDef::required("transpose_a", AttrKind::Enum(&TRANSPOSE)),
];

/// Attributes of `triangular_solve`: whether the matrix is left of the unknown, which triangle is
/// read, whether the diagonal counts as ones, and how the matrix is transposed first.
#[must_use]
pub fn triangular_solve(left_side: bool, lower: bool, unit_diagonal: bool, transpose_a: Transpose) -> Attrs {
    Attrs::from([left_side.into(), lower.into(), unit_diagonal.into(), transpose_a.into()])
}

pub(in crate::op) static BATCH_NORM: [AttrDef; 2] =
    [AttrDef::required("epsilon", AttrKind::Float), AttrDef::required("feature_index", AttrKind::Int)];

/// Attributes of `batch_norm_training`, `batch_norm_inference` and `batch_norm_grad`.
#[must_use]
pub fn batch_norm(epsilon: f32, feature_index: i64) -> Attrs {
    Attrs::from([epsilon.into(), feature_index.into()])
}
