//! The pretty forms of ops.
//!
//! One line per op describes what is between its name and its attributes, in a small language.
//! Items are separated by spaces:
//!
//! - `%`, an operand; `%*`, any number of operands separated by commas, and the comma after them if
//!   something follows;
//! - `$name`, the value of an attribute;
//! - `[` and `]` around an optional part; it is present if its first item is;
//! - `!name`, a form that [`super::op`] reads with its own code;
//! - anything else is literal.
//!
//! The form of other ops is their operands: `stablehlo.add %a, %b : tensor<2xf32>`. The forms are
//! those of the op definitions of StableHLO and CHLO (`assemblyFormat` in `StablehloOps.td` and
//! `ChloOps.td` of openxla/stablehlo).

/// The forms by op name, without dialect.
const FORMATS: [(&str, &str); 25] = [
    ("broadcast_in_dim", "% , dims = $broadcast_dimensions"),
    ("cholesky", "% [ , lower = $lower ]"),
    ("compare", "$comparison_direction , % , % [ , $compare_type ]"),
    ("composite", "$name %*"),
    ("concatenate", "%* dim = $dimension"),
    ("constant", "!constant"),
    ("convolution", "( %* ) dim_numbers = $dimension_numbers , window = !window"),
    ("custom_call", "$call_target_name ( %* )"),
    ("dot_general", "% , % !dot"),
    ("dynamic_broadcast_in_dim", "% , % , dims = $broadcast_dimensions"),
    ("dynamic_iota", "% , dim = $iota_dimension"),
    ("dynamic_slice", "% , %* sizes = $slice_sizes"),
    ("fft", "% , type = $fft_type , length = $fft_length"),
    ("get_dimension_size", "% , dim = $dimension"),
    ("iota", "dim = $iota_dimension"),
    ("pad", "% , % , low = $edge_padding_low , high = $edge_padding_high , interior = $interior_padding"),
    ("reduce", "!reduce"),
    ("reduce_precision", "% , format = !format"),
    ("reverse", "% , dims = $dimensions"),
    ("rng", "% , % , % , distribution = $rng_distribution"),
    ("rng_bit_generator", "% , algorithm = $rng_algorithm"),
    ("set_dimension_size", "% , % , dim = $dimension"),
    ("slice", "% !ranges"),
    ("top_k", "( % , k = $k [ , is_stable = $is_stable ] )"),
    ("transpose", "% , dims = $permutation"),
];

/// The form of an op.
pub(super) fn format(op: &str) -> &'static str {
    match op {
        "while" => "!while",
        _ => FORMATS.iter().find(|(name, _)| *name == op).map_or("%*", |(_, format)| format),
    }
}

#[cfg(test)]
mod tests {
    use super::FORMATS;
    use crate::attr::AttrDef;
    use crate::op::OPS;
    use crate::text::attrs::stated_def;

    /// The attributes of a form are in the op's row, and the list is sorted.
    #[test]
    fn forms_fit_the_op_table() {
        assert!(FORMATS.is_sorted_by_key(|(name, _)| name));
        let mut checked = 0;
        for (name, format) in FORMATS {
            let Some(def) = OPS.iter().find(|def| def.name == name) else { continue };
            let attrs: &'static [AttrDef] = def.attrs;
            for attr in format.split(' ').filter_map(|item| item.strip_prefix('$')) {
                assert!(stated_def(attrs, attr).is_some(), "{name} has no attribute {attr}");
                checked += 1;
            }
        }
        assert!(checked > 10);
    }
}
