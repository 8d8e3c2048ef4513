//! The enumerations of the specification, which are attributes of ops.

use crate::attr::AttrValue;

/// Makes enumerations attribute values: their code is the variant's number.
macro_rules! attr_values {
    ($($name:ident),+) => {
        $(impl From<$name> for AttrValue {
            fn from(value: $name) -> Self {
                AttrValue::Enum(value as u8)
            }
        })+
    };
}

attr_values!(Comparison, ComparisonType, RngAlgorithm, RngDistribution, FftType, Transpose);

/// How `compare` relates two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Comparison {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater or equal.
    Ge,
    /// Greater.
    Gt,
    /// Less or equal.
    Le,
    /// Less.
    Lt,
}

impl Comparison {
    /// Every direction, in code order.
    pub const ALL: [Comparison; 6] =
        [Comparison::Eq, Comparison::Ne, Comparison::Ge, Comparison::Gt, Comparison::Le, Comparison::Lt];
}

/// The order that `compare` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ComparisonType {
    /// IEEE 754: NaN is unordered, zeros are equal.
    Float,
    /// The total order of IEEE 754: `-NaN < -inf < -0 < +0 < inf < NaN`.
    TotalOrder,
    /// Signed integers.
    Signed,
    /// Unsigned integers and `bool`.
    Unsigned,
}

/// Which generator `rng_bit_generator` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RngAlgorithm {
    /// The plugin's choice. Its bits are not specified.
    Default,
    /// Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
    /// 2011).
    ThreeFry,
    /// Philox-4x32 with 10 rounds, from the same paper.
    Philox,
}

/// Which distribution `rng` draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RngDistribution {
    /// Uniform from `a` up to, not including, `b`.
    Uniform,
    /// Normal with mean `a` and standard deviation `b`.
    Normal,
}

/// Which transform `fft` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FftType {
    /// Complex to complex.
    Fft,
    /// The inverse of [`FftType::Fft`].
    Ifft,
    /// Real to complex. The second half of the last dimension is omitted, because the first
    /// determines it.
    Rfft,
    /// The inverse of [`FftType::Rfft`].
    Irfft,
}

impl FftType {
    /// Every type, in code order.
    pub const ALL: [FftType; 4] = [FftType::Fft, FftType::Ifft, FftType::Rfft, FftType::Irfft];
}

/// What `triangular_solve` does to the matrix before it solves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transpose {
    /// Nothing.
    No,
    /// Rows become columns.
    Transpose,
    /// Rows become columns, with conjugate elements.
    Adjoint,
}

impl Transpose {
    /// Every choice, in code order.
    pub const ALL: [Transpose; 3] = [Transpose::No, Transpose::Transpose, Transpose::Adjoint];
}
