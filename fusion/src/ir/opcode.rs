//! The numbers of the ops.

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
