//! The compiler flags that the engine sets, each with its purpose.
//!
//! A flag is a row of [`COMPILER_FLAGS`]. No other place in the workspace names a flag. Whether a
//! plugin accepts a flag is found out when the plugin is first used
//! ([`Capabilities`](super::Capabilities)). A flag that it refuses is left out, and an event says
//! so.

use std::fmt;

use fuseline_fusion::lower::Numerics;
use fuseline_pjrt::Flag;

/// A compiler flag that the engine sets.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CompilerFlag {
    /// XLA's name, without dashes.
    pub name: &'static str,
    /// Returns the value.
    pub(super) value: fn() -> Flag,
    /// The platform, as PJRT clients name it.
    pub platform: &'static str,
    /// The compiles that it is for.
    pub usage: FlagUsage,
    /// The flag that has the same effect in newer plugins. This one is set only where that one is
    /// refused.
    pub successor: Option<&'static str>,
    /// The reason for the flag.
    pub purpose: &'static str,
    /// The PJRT API versions of the builds that were seen to accept it.
    pub accepted_by: &'static [&'static str],
    /// The PJRT API versions of the builds that were seen to refuse it.
    pub refused_by: &'static [&'static str],
    /// What happens without it.
    pub fallback: &'static str,
}

/// The compiles that a flag is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlagUsage {
    /// All compiles.
    Always,
    /// All compiles with [`Numerics::Exact`].
    Exact,
    /// All compiles with [`Numerics::Fast`].
    Fast,
    /// All compiles with [`Numerics::Fast`] for processors on which vectors of 512 bits pay.
    WideVectors,
    /// Compiles with [`Numerics::Exact`], and compiles of regions without a large product.
    OneThread,
    /// Compiles of regions in which a `reduce_window` sums floats.
    WindowSum,
    /// Baseline compiles.
    Baseline,
}

impl CompilerFlag {
    /// The value.
    #[must_use]
    pub fn value(&self) -> Flag {
        (self.value)()
    }
}

impl FlagUsage {
    /// Whether all compiles with these numerics are meant.
    pub(super) fn is_for_all(self, numerics: Numerics) -> bool {
        match self {
            FlagUsage::Always => true,
            FlagUsage::Exact => numerics == Numerics::Exact,
            FlagUsage::Fast => numerics == Numerics::Fast,
            FlagUsage::WideVectors => numerics == Numerics::Fast && has_wide_vectors(),
            FlagUsage::OneThread | FlagUsage::WindowSum | FlagUsage::Baseline => false,
        }
    }
}

impl fmt::Display for FlagUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FlagUsage::Always => "always",
            FlagUsage::Exact => "with exact numerics",
            FlagUsage::Fast => "with fast numerics",
            FlagUsage::WideVectors => "with fast numerics, on processors with fast vectors of 512 bits",
            FlagUsage::OneThread => "with exact numerics, and for regions without a large product",
            FlagUsage::WindowSum => "for sums of windows",
            FlagUsage::Baseline => "for baseline compiles",
        })
    }
}

/// Whether vectors of 512 bits pay. The first processors that had them lowered their clock for
/// them. Processors with both of these extensions (AMD from Zen 4, Intel from Sapphire Rapids on)
/// do not.
fn has_wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512vbmi2")
        && std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The builds of XLA's CPU plugin that the flags were checked on, by PJRT API version: those of
/// November 2025, June 2026 and October 2026.
const ALL: &[&str] = &["0.81", "0.106", "0.115"];

/// All compiler flags that the engine sets.
///
/// Notes on the figures:
///
/// - The sizes for which XLA uses XNNPACK depend on the processor. It keeps a packed copy of a
///   product's right operand as long as that has the same address
///   (`XnnFusionThunk::UpdateXnnExecutable` in API 0.81, where the operand is a parameter).
///   `tests/engine/donation.rs` has a case, and `gpt2/width 768` of the benchmark was wrong from
///   its fourth step on.
/// - With exact numerics, fences stop contraction (`fusion/src/lower/exact`). `xla_cpu_max_isa`,
///   which could do so too, is accepted for one compile and ignored. The fusion emitters would be
///   faster (black_scholes 3.5 times, norms twice), but 2 of about 700 random programs differ with
///   them (`tan`, 2026-11-22), and a check on the first inputs proves nothing for others.
/// - Windows make sums of rows 3 to 5 times as slow and maxima 11 times. The lowering does what
///   columns gain by them (`fusion/src/lower/column_reduction.rs`, with the figures).
/// - LLVM uses vectors of 256 bits by default. Relative times with 512, in turns with 256 (2 cores
///   of an AMD EPYC of family 26, 2026-11-23, best of 800 runs of the executables of `fuseline
///   bench`): `norms/64x256` 0.63, `chain/50 ops on 1k` 0.64, `black_scholes/64k` 0.68, `gpt2/width
///   64` 0.78, `nbody/64` 0.83, six others from 0.90 to 1.09, within their variation.
/// - At optimization level 0, a compile takes 0.5 to 0.7 of the time, and its code is 2 to 11 times
///   as slow, the more of it is elementwise (ten programs of `fuseline bench`, 2026-11-23). Level 1
///   saves nothing.
pub const COMPILER_FLAGS: &[CompilerFlag] = &[
    CompilerFlag {
        name: "xla_cpu_scheduler_type",
        value: || "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED".into(),
        platform: "cpu",
        usage: FlagUsage::Always,
        successor: None,
        purpose: "orders ops for memory: XLA's default order can need 34 times as much",
        accepted_by: &["0.106", "0.115"],
        refused_by: &["0.81"],
        fallback: "xla_cpu_enable_concurrency_optimized_scheduler is set instead",
    },
    CompilerFlag {
        name: "xla_cpu_enable_concurrency_optimized_scheduler",
        value: || false.into(),
        platform: "cpu",
        usage: FlagUsage::Always,
        successor: Some("xla_cpu_scheduler_type"),
        purpose: "orders ops for memory: XLA's default order can need 34 times as much",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "regions may need more memory",
    },
    CompilerFlag {
        name: "xla_cpu_enable_fast_min_max",
        value: || false.into(),
        platform: "cpu",
        usage: FlagUsage::Always,
        successor: None,
        purpose: "the maximum of NaN and a number is NaN; with fast ones it is the number",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "`fuseline qualify` says whether NaN is kept",
    },
    CompilerFlag {
        name: "xla_cpu_use_xnnpack",
        value: || false.into(),
        platform: "cpu",
        usage: FlagUsage::Always,
        successor: None,
        purpose: "XNNPACK reads the old data of an operand that was updated in place",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "`fuseline qualify` says whether updates in place are seen",
    },
    CompilerFlag {
        name: "xla_disable_hlo_passes",
        value: || "algsimp".into(),
        platform: "cpu",
        usage: FlagUsage::Exact,
        successor: None,
        purpose: "disables algebra across ops, which changes roundings",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "the differential check runs regions op by op where bits differ",
    },
    CompilerFlag {
        name: "xla_cpu_experimental_ynn_fusion_type",
        value: || "".into(),
        platform: "cpu",
        usage: FlagUsage::Exact,
        successor: None,
        purpose: "disables kernels of a library that has its own exponential",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "the differential check runs regions op by op where bits differ",
    },
    CompilerFlag {
        name: "xla_allow_excess_precision",
        value: || false.into(),
        platform: "cpu",
        usage: FlagUsage::Exact,
        successor: None,
        purpose: "rounds intermediate values to their type",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "the differential check runs regions op by op where bits differ",
    },
    CompilerFlag {
        name: "xla_cpu_use_fusion_emitters",
        value: || false.into(),
        platform: "cpu",
        usage: FlagUsage::Exact,
        successor: None,
        purpose: "the fusion emitters approximate an op in a fusion in another way than alone",
        accepted_by: &["0.81", "0.106"],
        refused_by: &["0.115"],
        fallback: "the differential check runs regions op by op where bits differ",
    },
    CompilerFlag {
        name: "xla_cpu_use_fusion_emitters",
        value: || false.into(),
        platform: "cpu",
        usage: FlagUsage::WindowSum,
        successor: None,
        purpose: "the fusion emitters sum a window in another order than that of its elements",
        accepted_by: &["0.81", "0.106"],
        refused_by: &["0.115"],
        fallback: "sums of windows round differently, by up to 8 units in the last place where terms cancel",
    },
    CompilerFlag {
        name: "xla_disable_hlo_passes",
        value: || "tree_reduction_rewriter".into(),
        platform: "cpu",
        usage: FlagUsage::Fast,
        successor: None,
        purpose: "does not split reductions into windows, which makes sums of rows 3 to 5 times as slow",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "reductions of rows are slower",
    },
    CompilerFlag {
        name: "xla_cpu_prefer_vector_width",
        value: || 512i64.into(),
        platform: "cpu",
        usage: FlagUsage::WideVectors,
        successor: None,
        purpose: "uses vectors of 512 bits, with which elementwise code takes 0.63 to 1.09 of the time",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "elementwise code is slower on processors that have such vectors",
    },
    CompilerFlag {
        name: "xla_cpu_multi_thread_eigen",
        value: || false.into(),
        platform: "cpu",
        usage: FlagUsage::OneThread,
        successor: None,
        purpose: "computes products on one thread, which is faster for small ones and fixes their roundings",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "small products are slower; with exact numerics, the differential check decides",
    },
    CompilerFlag {
        name: "xla_backend_optimization_level",
        value: || 0i64.into(),
        platform: "cpu",
        usage: FlagUsage::Baseline,
        successor: None,
        purpose: "baseline compiles take 0.5 to 0.7 of the time of optimized ones",
        accepted_by: ALL,
        refused_by: &[],
        fallback: "there is no baseline tier",
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_row_states_where_it_was_checked() {
        for row in COMPILER_FLAGS {
            let seen: Vec<&str> = row.accepted_by.iter().chain(row.refused_by).copied().collect();
            let distinct: BTreeSet<&str> = seen.iter().copied().collect();
            assert_eq!(seen.len(), distinct.len(), "{}: a build both accepts and refuses it", row.name);
            assert!(!seen.is_empty() && !row.purpose.is_empty() && !row.fallback.is_empty(), "{row:?}");
        }
    }

    #[test]
    fn a_successor_is_a_row_before() {
        for (index, row) in COMPILER_FLAGS.iter().enumerate() {
            let is_before = |name| COMPILER_FLAGS[..index].iter().any(|other| other.name == name);
            assert!(row.successor.is_none_or(is_before), "{}", row.name);
        }
    }
}
