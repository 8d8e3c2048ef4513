//! Conformance cases whose results may differ from the expected ones on a correct device.
//!
//! Input: the name of a case, and a device. Output: the accepted difference.

use fuseline::Engine;

use crate::exceptions::is_listed;

/// A case that a correct device may fail because of its order of summation.
#[derive(Debug)]
pub struct Reordered {
    /// The name of the case.
    case: &'static str,
    /// The PJRT API versions of the builds that need it; empty if the width of the machine's
    /// vectors decides.
    builds: &'static [&'static str],
    /// The largest absolute difference, where it exceeds the case's tolerance.
    pub largest: f64,
    /// The reason.
    pub why: &'static str,
}

const COMPLEX_PRODUCTS: &str = "a complex product is a sum of real ones, which cancel; the build sums them in \
                                another order than the one that the case comes from";

const fn complex_product(case: &'static str, largest: f64) -> Reordered {
    Reordered { case, builds: &["0.106"], largest, why: COMPLEX_PRODUCTS }
}

const REORDERED: &[Reordered] = &[
    Reordered {
        case: "conv_general_dilated_float32_2_3_9_float32_12_1_3",
        builds: &[],
        largest: 1e-5,
        why: "products of up to 40 cancel, and 3 units in the last place of what is left are less than half \
              of one of theirs",
    },
    complex_product("dot_general_bfloat16_4_3_complex128_3_6", 2e-14),
    complex_product("dot_general_bfloat16_4_3_complex64_3_6", 8e-6),
    complex_product("dot_general_float16_4_3_complex128_3_6", 2e-14),
    complex_product("dot_general_float32_4_3_complex128_3_6", 2e-14),
    complex_product("dot_general_int16_4_3_complex64_3_6", 8e-6),
    complex_product("dot_general_uint16_4_3_complex64_3_6", 8e-6),
    complex_product("dot_general_uint32_4_3_complex128_3_6", 2e-14),
    Reordered {
        case: "random_gamma_float64_3_chlo",
        builds: &["0.115"],
        largest: 1e-15,
        why: "the last digit of a logarithm differs",
    },
    Reordered {
        case: "reduce_window_add_float32_12_12",
        builds: &["0.115"],
        largest: 2e-6,
        why: "the fusion emitters, which the build always uses, sum a window in another order, and terms cancel",
    },
];

/// Cases with subnormal numbers, which the plugin treats as zero (SUB-1, docs/numerics.md): the
/// only allowed difference of each.
const SUBNORMAL: &[(&str, &str)] = &[(
    "interpret_ceil_000_ceil_op_test_bf16",
    "output 0: element 5 is 0.0, expected 1.0 (1 elements differ)",
)];

/// How far a device may be off in a case.
#[must_use]
pub fn reordered(device: &Engine, name: &str) -> Option<&'static Reordered> {
    REORDERED.iter().find(|reordered| name == reordered.case && is_listed(device, reordered.builds))
}

/// The only difference that a device may show in a case with subnormal numbers, as the end of the
/// message about it.
#[must_use]
pub fn subnormal_difference(name: &str) -> Option<&'static str> {
    SUBNORMAL.iter().find(|(case, _)| name == *case).map(|(_, difference)| *difference)
}

/// Whether a device may differ from the expected results of a case.
#[must_use]
pub fn may_differ(name: &str) -> bool {
    REORDERED.iter().any(|reordered| name == reordered.case) || subnormal_difference(name).is_some()
}
