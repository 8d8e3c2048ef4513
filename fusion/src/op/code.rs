//! Opcodes, and the enumerations of the specification.

use crate::attr::AttrValue;

macro_rules! opcodes {
    ($($name:ident = $code:literal),* $(,)?) => {
        /// An operation of the StableHLO specification or of the CHLO dialect.
        ///
        /// The numbers are part of keys and saved programs (OP-2): new ops get new numbers, and
        /// numbers are never reused.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        #[allow(missing_docs, reason = "each op is documented by its row in the op table")]
        pub enum OpCode { $($name = $code),* }

        impl OpCode {
            /// Every op, in the order of the numbers.
            pub const ALL: &'static [OpCode] = &[$(OpCode::$name),*];
        }
    };
}

opcodes! {
    Abs = 1, Cbrt = 2, Ceil = 3, CountLeadingZeros = 4, Cosine = 5, Exponential = 6, ExponentialMinusOne = 7,
    Floor = 8, IsFinite = 9, Log = 10, LogPlusOne = 11, Logistic = 12, Negate = 13, Not = 14, Popcnt = 15,
    RoundNearestAfz = 16, RoundNearestEven = 17, Rsqrt = 18, Sign = 19, Sine = 20, Sqrt = 21, Tan = 22, Tanh = 23,
    Add = 24, And = 25, Atan2 = 26, Divide = 27, Maximum = 28, Minimum = 29, Multiply = 30, Or = 31, Power = 32,
    Remainder = 33, ShiftLeft = 34, ShiftRightArithmetic = 35, ShiftRightLogical = 36, Subtract = 37, Xor = 38,
    Compare = 39, Select = 40, Clamp = 41, Convert = 42, BitcastConvert = 43, ReducePrecision = 44,
    Constant = 45, Iota = 46,
    BroadcastInDim = 47, Reshape = 48, Transpose = 49, Slice = 50, Concatenate = 51, Pad = 52, Reverse = 53,
    DynamicSlice = 54, DynamicUpdateSlice = 55,
    Reduce = 56, DotGeneral = 57, Convolution = 58, ReduceWindow = 59, SelectAndScatter = 60,
    Gather = 61, Scatter = 62, RngBitGenerator = 63, OptimizationBarrier = 64,
    While = 65, If = 66, Case = 67, Sort = 68, Map = 69,
    Fft = 70, Cholesky = 71, TriangularSolve = 72, BatchNormTraining = 73, BatchNormInference = 74, BatchNormGrad = 75,
    GetDimensionSize = 76, DynamicBroadcastInDim = 78, DynamicConv = 79, DynamicGather = 80, DynamicIota = 81,
    DynamicPad = 82, DynamicReshape = 83, Rng = 84,
    Complex = 87, Real = 88, Imag = 89,
    Acos = 100, Acosh = 101, Asin = 102, Asinh = 103, Atan = 104, Atanh = 105, BesselI1e = 106, Conj = 107, Cosh = 108,
    Digamma = 109, Erf = 110, Erfc = 111, ErfInv = 112, IsInf = 113, IsNegInf = 114, IsPosInf = 115, Lgamma = 116,
    Mulhi = 117, NextAfter = 118, Polygamma = 119, RaggedDot = 120, Scan = 121, Sinh = 122, Square = 123, TopK = 124,
    Zeta = 125,
    AllGather = 141, AllReduce = 142, AllToAll = 143, CollectiveBroadcast = 144, CollectivePermute = 145,
    PartitionId = 146, ReduceScatter = 147, ReplicaId = 148,
    CustomCall = 160, Composite = 161,
}

impl OpCode {
    /// Stable number, used by the canonical encoding.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Inverse of [`OpCode::number`].
    #[must_use]
    pub fn from_number(number: u64) -> Option<OpCode> {
        OpCode::ALL.iter().copied().find(|code| u64::from(code.number()) == number)
    }
}

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

impl From<Comparison> for AttrValue {
    fn from(direction: Comparison) -> Self {
        AttrValue::Enum(direction as u8)
    }
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

impl From<ComparisonType> for AttrValue {
    fn from(order: ComparisonType) -> Self {
        AttrValue::Enum(order as u8)
    }
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

impl From<RngAlgorithm> for AttrValue {
    fn from(algorithm: RngAlgorithm) -> Self {
        AttrValue::Enum(algorithm as u8)
    }
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

impl From<RngDistribution> for AttrValue {
    fn from(distribution: RngDistribution) -> Self {
        AttrValue::Enum(distribution as u8)
    }
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

impl From<FftType> for AttrValue {
    fn from(fft_type: FftType) -> Self {
        AttrValue::Enum(fft_type as u8)
    }
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

impl From<Transpose> for AttrValue {
    fn from(transpose: Transpose) -> Self {
        AttrValue::Enum(transpose as u8)
    }
}
