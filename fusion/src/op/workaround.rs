//! The deviations of XLA that legalization works around: one row each.
//!
//! [`legalize`](super::legalize) expresses an op in other ops where XLA's CPU backend deviates from
//! the specification, lacks the op, or crashes. Each such case is a [`Workaround`]. A plugin that
//! does not have the defect can be given the plain op: [`WorkaroundSet`] lists what to leave out.
//!
//! Invariant:
//! - WORKAROUND-1: a call that legalization replaces has a workaround ([`Workaround::of`]), except
//!   where its own body is inlined. So no replacement lacks a reason.

use std::fmt;

use super::OpDef;
use super::conv_attr;
use super::def::Call;
use crate::dtype::DType;
use crate::ir::OpCode;

/// How it can be found out whether a plugin has the defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Calls of the op by itself show it, with special values and with constants. So a
    /// qualification can find that a plugin does not have it.
    Calls,
    /// It shows only together with other ops, for some sizes, or by chance. A test has the case,
    /// and the workaround is never left out.
    Program,
}

macro_rules! workarounds {
    ($($(#[doc = $words:literal])+ $variant:ident = $name:literal, $evidence:ident, [$($build:literal),*];)+) => {
        /// A deviation of XLA that legalization works around.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Workaround {
            $($(#[doc = $words])+ $variant,)+
        }

        impl Workaround {
            /// Every workaround.
            pub const ALL: &'static [Workaround] = &[$(Workaround::$variant),+];

            /// A short name, for certificates and reports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Workaround::$variant => $name,)+ }
            }

            /// The defect, in a sentence.
            #[must_use]
            pub fn defect(self) -> &'static str {
                match self { $(Workaround::$variant => concat!($($words),+),)+ }
            }

            /// How it can be found out whether a plugin has the defect.
            #[must_use]
            pub fn evidence(self) -> Evidence {
                match self { $(Workaround::$variant => Evidence::$evidence,)+ }
            }

            /// The PJRT API versions of the builds of XLA's CPU backend on which the defect was
            /// seen.
            #[must_use]
            pub fn seen_on(self) -> &'static [&'static str] {
                match self { $(Workaround::$variant => &[$($build),*],)+ }
            }
        }
    };
}

workarounds! {
    /// Sums and products of `bool` are those of bytes.
    BoolArithmetic = "bool arithmetic", Calls, ["0.81"];
    /// Dividing constant integers by 0, or the least one by -1, ends the process.
    IntegerDivision = "integer division", Calls, ["0.81"];
    /// Powers of integers use six bits of the exponent, and the folder ignores -1 as a base.
    IntegerPower = "integer power", Calls, ["0.81"];
    /// There is no maximum and minimum of complex numbers in the order of the specification.
    ComplexExtremes = "complex extremes", Calls, ["0.81"];
    /// Complex numbers are clamped by another order, and constants of `bool` are misfolded.
    ClampOrder = "clamp order", Calls, ["0.81"];
    /// Products of `f8E8M0FNU` are summed in that type.
    ScaleContraction = "contraction of scales", Calls, ["0.81"];
    /// The folder convolves constant integers in a wider type and saturates the sum.
    IntegerConvolution = "integer convolution", Calls, ["0.81"];
    /// Convolutions with a reversed kernel are slow.
    ReversedKernel = "reversed kernel", Program, ["0.81"];
    /// There is no code for negative padding that the simplifier leaves.
    NegativePadding = "negative padding", Program, ["0.81"];
    /// A stride near 2^63 overflows.
    HugeStride = "huge stride", Program, ["0.81"];
    /// Two slices are merged by adding their positions before they are clamped.
    SliceOfSlice = "slice of slice", Program, ["0.81"];
    /// Random bits are unsigned whatever type is declared.
    SignedRandomBits = "signed random bits", Program, ["0.81"];
    /// Matrices of short floats are factorized with a rounding after each step.
    ShortFactors = "short factors", Calls, ["0.81"];
    /// Uniform random numbers may round up to the excluded bound, and short integers end the
    /// process.
    RandomBounds = "random bounds", Program, ["0.81"];
    /// The maximum of a constant NaN and a constant infinity is folded to the infinity.
    NanConstants = "nan constants", Program, ["0.81"];
    /// Bitcasts of `bool` crash the compiler, and two bitcasts in a row are merged to one that the
    /// verifier rejects.
    BitcastWidths = "bitcast widths", Program, ["0.81"];
    /// `reduce_precision` to no mantissa bits makes NaN of NaN, where there is no NaN.
    ReducePrecisionNan = "reduce_precision of nan", Program, ["0.81"];
    /// `ceil` and `floor` take subnormal numbers as zero.
    SubnormalRounding = "rounding of subnormals", Calls, ["0.81"];
    /// Leading zeros of a negative constant are counted in 64 bits.
    LeadingZeros = "leading zeros", Calls, ["0.81"];
    /// `conj` of a real number is refused.
    RealConj = "conj of reals", Calls, ["0.81"];
    /// `real` and `imag` of a real number are refused.
    RealParts = "parts of reals", Calls, ["0.81"];
    /// `sinh` cancels near zero. Of `f64`, only some arguments show it.
    Sinh = "sinh", Program, ["0.81"];
    /// `asin` underflows near zero.
    Asin = "asin", Calls, ["0.81"];
    /// `atan` of vectors of 16 `f32` or 4 `f64` returns zeros or stale memory.
    AtanVectors = "atan of vectors", Program, ["0.115"];
    /// `digamma` of zero is an infinity.
    DigammaOfZero = "digamma of zero", Calls, ["0.115"];
    /// Functions of complex numbers cancel, and ignore the signs of zeros.
    ComplexFunctions = "complex functions", Calls, ["0.81"];
    /// Functions of short floats are refused, misfolded, or rounded after each step.
    ShortFunctions = "short functions", Calls, ["0.81"];
    /// There is no `mulhi`.
    Mulhi = "mulhi", Calls, ["0.81"];
    /// `next_after` takes subnormal numbers as zero.
    NextAfter = "next_after", Calls, ["0.81"];
    /// `zeta` is wrong for negative numbers, and `polygamma` overflows.
    Zeta = "zeta and polygamma", Calls, ["0.81"];
    /// The magnitude of a complex iota ends the process.
    ComplexIota = "complex iota", Program, ["0.81"];
    /// Conversions of complex constants crash, and those to `f8E8M0FNU` are misfolded.
    ComplexConversion = "complex conversion", Program, ["0.81"];
    /// Bodies with other than scalar code, or in wider types than the operands, are refused,
    /// ignored, or end the process. So do windows with negative padding, and scatters into scalars.
    CombiningBodies = "combining bodies", Program, ["0.81"];
    /// A sort reads out of bounds if its comparator is not an order.
    SortOrder = "sort order", Program, ["0.81"];
    /// Collectives drop NaN, combine in the type of the operands, or are refused.
    Collectives = "collectives", Program, ["0.81"];
    /// The variance of a batch is a difference of large numbers.
    BatchVariance = "batch variance", Program, ["0.81"];
    /// Sizes that are operands are ignored, or the op is refused.
    DynamicSizes = "dynamic sizes", Calls, ["0.81"];
    /// There is no `ragged_dot` and no `scan`, and `top_k` misorders short floats.
    ChloOps = "ops of CHLO", Calls, ["0.81"];
}

impl Workaround {
    /// The workaround of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Workaround> {
        Workaround::ALL.iter().copied().find(|workaround| workaround.name() == name)
    }

    /// The reason for which legalization replaces a call. `None` if it never does.
    #[must_use]
    pub fn of(call: &Call<'_>) -> Option<Workaround> {
        let dtype = call.operands.first().map(|ty| ty.dtype());
        Workaround::of_row(call.def, dtype).or_else(|| {
            let reversed = || call.attr().bools(conv_attr::REVERSAL).contains(&true);
            (call.def.code == OpCode::Convolution).then(|| match dtype {
                Some(dtype) if !call.attr().dtype(conv_attr::DTYPE).is_float() && !dtype.is_float() => {
                    Workaround::IntegerConvolution
                }
                _ if reversed() => Workaround::ReversedKernel,
                _ => Workaround::ScaleContraction,
            })
        })
    }

    /// The workaround of an op on operands of a type, where no attribute decides.
    fn of_row(def: &OpDef, dtype: Option<DType>) -> Option<Workaround> {
        let is_complex = dtype.is_some_and(DType::is_complex);
        let is_bool = dtype == Some(DType::Bool);
        let is_int = dtype.is_some_and(|dtype| dtype.is_int());
        Some(match def.code {
            OpCode::Add | OpCode::Multiply if is_bool => Workaround::BoolArithmetic,
            OpCode::Maximum | OpCode::Minimum if is_complex => Workaround::ComplexExtremes,
            OpCode::Divide | OpCode::Remainder if is_int => Workaround::IntegerDivision,
            OpCode::Power if is_int => Workaround::IntegerPower,
            OpCode::Mulhi => Workaround::Mulhi,
            OpCode::Polygamma | OpCode::Zeta => Workaround::Zeta,
            OpCode::Clamp => Workaround::ClampOrder,
            OpCode::DotGeneral => Workaround::ScaleContraction,
            OpCode::Pad => Workaround::NegativePadding,
            OpCode::Slice => Workaround::HugeStride,
            OpCode::DynamicSlice | OpCode::DynamicUpdateSlice => Workaround::SliceOfSlice,
            OpCode::RngBitGenerator => Workaround::SignedRandomBits,
            OpCode::Cholesky | OpCode::TriangularSolve => Workaround::ShortFactors,
            OpCode::Rng => Workaround::RandomBounds,
            OpCode::Constant => Workaround::NanConstants,
            OpCode::BitcastConvert => Workaround::BitcastWidths,
            OpCode::ReducePrecision => Workaround::ReducePrecisionNan,
            OpCode::CountLeadingZeros => Workaround::LeadingZeros,
            OpCode::Real | OpCode::Imag => Workaround::RealParts,
            OpCode::Iota => Workaround::ComplexIota,
            OpCode::Convert => Workaround::ComplexConversion,
            OpCode::Reduce
            | OpCode::ReduceWindow
            | OpCode::Scatter
            | OpCode::SelectAndScatter
            | OpCode::Map => Workaround::CombiningBodies,
            OpCode::Sort => Workaround::SortOrder,
            OpCode::AllGather
            | OpCode::AllReduce
            | OpCode::AllToAll
            | OpCode::CollectiveBroadcast
            | OpCode::CollectivePermute
            | OpCode::ReduceScatter => Workaround::Collectives,
            OpCode::BatchNormTraining | OpCode::BatchNormInference | OpCode::BatchNormGrad => {
                Workaround::BatchVariance
            }
            OpCode::DynamicBroadcastInDim
            | OpCode::DynamicConv
            | OpCode::DynamicGather
            | OpCode::DynamicIota
            | OpCode::DynamicPad
            | OpCode::DynamicReshape
            | OpCode::GetDimensionSize => Workaround::DynamicSizes,
            OpCode::TopK | OpCode::RaggedDot | OpCode::Scan => Workaround::ChloOps,
            code => return Workaround::of_function(code, dtype?),
        })
    }

    /// The workaround of an elementwise function.
    fn of_function(code: OpCode, dtype: DType) -> Option<Workaround> {
        if dtype.is_complex() {
            return Some(Workaround::ComplexFunctions);
        }
        Some(match code {
            OpCode::Conj => Workaround::RealConj,
            OpCode::Sinh => Workaround::Sinh,
            OpCode::Asin => Workaround::Asin,
            OpCode::Ceil | OpCode::Floor if !dtype.is_small_float() => Workaround::SubnormalRounding,
            OpCode::NextAfter if !dtype.is_small_float() => Workaround::NextAfter,
            OpCode::Atan => Workaround::AtanVectors,
            OpCode::Digamma if !dtype.is_small_float() => Workaround::DigammaOfZero,
            _ if dtype.is_float() => Workaround::ShortFunctions,
            _ => return None,
        })
    }
}

impl fmt::Display for Workaround {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Workarounds that are left out, because the plugin does not have the defects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkaroundSet(u64);

const _: () = assert!(Workaround::ALL.len() <= 64, "a set has a bit for each workaround");

impl WorkaroundSet {
    /// The empty set.
    pub const NONE: WorkaroundSet = WorkaroundSet(0);

    /// Every workaround whose need shows in calls of single ops ([`Evidence::Calls`]).
    #[must_use]
    pub fn all_shown_by_calls() -> WorkaroundSet {
        let shown = Workaround::ALL.iter().filter(|workaround| workaround.evidence() == Evidence::Calls);
        shown.fold(WorkaroundSet::NONE, |set, &workaround| set.with(workaround))
    }

    /// The set with one more.
    #[must_use]
    pub fn with(self, workaround: Workaround) -> WorkaroundSet {
        WorkaroundSet(self.0 | 1 << workaround as u32)
    }

    /// Whether a workaround is in the set.
    #[must_use]
    pub fn contains(self, workaround: Workaround) -> bool {
        self.0 & 1 << workaround as u32 != 0
    }

    /// The workarounds, in the order of [`Workaround::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Workaround> {
        Workaround::ALL.iter().copied().filter(move |workaround| self.contains(*workaround))
    }
}

impl fmt::Display for WorkaroundSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Workaround::name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_lead_back() {
        for &workaround in Workaround::ALL {
            assert_eq!(Workaround::from_name(workaround.name()), Some(workaround));
            assert!(!workaround.seen_on().is_empty() && workaround.defect().ends_with('.'), "{workaround}");
        }
    }

    #[test]
    fn a_set_has_what_was_added() {
        let set = WorkaroundSet::NONE.with(Workaround::Sinh).with(Workaround::Mulhi);
        assert_eq!(set.iter().collect::<Vec<_>>(), [Workaround::Sinh, Workaround::Mulhi]);
        assert!(!set.contains(Workaround::Asin));
        assert_eq!(set.to_string(), "sinh, mulhi");
        assert_eq!(WorkaroundSet::NONE.to_string(), "none");
        assert!(!WorkaroundSet::all_shown_by_calls().contains(Workaround::SliceOfSlice));
    }
}
