//! Products summed over dimensions: `dot_general` and `convolution`.

use smallvec::SmallVec;

use super::window::{Window, WindowAttrs, window};
use crate::attr::{AttrValue, AttrView};
use crate::error::{OpError, OpErrorKind};
use crate::ir::{OpCode, Results};
use crate::op::attrs::ALGORITHM_TYPE;
use crate::op::conv_attr;
use crate::op::def::{Call, one};
use crate::shape::TensorType;

/// Dimension numbers of a `dot_general` call.
#[derive(Clone, Copy, Debug)]
pub struct DotDims<'a> {
    /// Batching dimensions of lhs.
    pub lhs_batch: &'a [i64],
    /// Batching dimensions of rhs.
    pub rhs_batch: &'a [i64],
    /// Contracting dimensions of lhs.
    pub lhs_contract: &'a [i64],
    /// Contracting dimensions of rhs.
    pub rhs_contract: &'a [i64],
}

impl<'a> DotDims<'a> {
    /// The dimension numbers of a call with these attributes.
    #[must_use]
    pub fn of(view: AttrView<'a>) -> DotDims<'a> {
        let group = view.group(0);
        DotDims {
            lhs_batch: group.ints(0),
            rhs_batch: group.ints(1),
            lhs_contract: group.ints(2),
            rhs_contract: group.ints(3),
        }
    }
}

/// Checks that batching and contracting dimensions of both sides are distinct, paired and of equal
/// sizes.
pub(super) fn paired(call: &Call<'_>, dims: DotDims<'_>) -> Result<(), OpError> {
    let (lhs, rhs) = (call.operand(0), call.operand(1));
    let sides =
        [("lhs", lhs, dims.lhs_batch, dims.lhs_contract), ("rhs", rhs, dims.rhs_batch, dims.rhs_contract)];
    for (side, operand, batch, contract) in sides {
        let name = format!("the batching and contracting dimensions of {side}");
        call.axes(&name, &[batch, contract].concat(), operand.rank())?;
    }
    let pairs =
        [("batching", dims.lhs_batch, dims.rhs_batch), ("contracting", dims.lhs_contract, dims.rhs_contract)];
    for (kind, left, right) in pairs {
        if left.len() != right.len() {
            return Err(call.attr_error(
                format!("lhs has {} {kind} dimensions, but rhs has {}", left.len(), right.len()),
                format!("{kind} dimensions must come in pairs"),
            ));
        }
        for (&l, &r) in left.iter().zip(right) {
            let (a, b) = (lhs.dims()[l as usize], rhs.dims()[r as usize]);
            if a != b {
                let error = call.shape_error(
                    format!("{kind} dimension {l} of lhs is {a}, but dimension {r} of rhs is {b}"),
                    format!("{kind} dimensions must be equal (lhs is {lhs}, rhs is {rhs})"),
                );
                let free = |operand: &TensorType, used: [&[i64]; 2], size: u64| {
                    (0..operand.rank())
                        .any(|axis| !used.concat().contains(&(axis as i64)) && operand.dims()[axis] == size)
                };
                return Err(if free(rhs, [dims.rhs_batch, dims.rhs_contract], a) {
                    error.hint("did you mean to transpose rhs?")
                } else if free(lhs, [dims.lhs_batch, dims.lhs_contract], b) {
                    error.hint("did you mean to transpose lhs?")
                } else {
                    error
                });
            }
        }
    }
    Ok(())
}

/// The sizes of the dimensions that are neither batching nor contracting.
pub(super) fn free_dims<'a>(
    operand: &'a TensorType,
    batch: &'a [i64],
    contract: &'a [i64],
) -> impl Iterator<Item = u64> + use<'a> {
    (0..operand.rank()).filter_map(move |axis| {
        let used = batch.contains(&(axis as i64)) || contract.contains(&(axis as i64));
        (!used).then(|| operand.dims()[axis])
    })
}

/// `dot_general`: for each batch index, the products of rows of lhs and rhs summed over the
/// contracting dimensions. The result has the batch dimensions, then the rest of lhs, then the rest
/// of rhs.
pub(in crate::op) fn dot_general(call: &Call<'_>) -> Result<Results, OpError> {
    let (lhs, rhs) = (call.operand(0), call.operand(1));
    let dims = DotDims::of(call.attr());
    paired(call, dims)?;
    precision(call, 1)?;
    algorithm(call)?;
    let dtype = result_dtype(call, call.attr().dtype(DOT_DTYPE))?;
    let mut out: SmallVec<[u64; 8]> = dims.lhs_batch.iter().map(|&axis| lhs.dims()[axis as usize]).collect();
    out.extend(free_dims(lhs, dims.lhs_batch, dims.lhs_contract));
    out.extend(free_dims(rhs, dims.rhs_batch, dims.rhs_contract));
    Ok(one(call.ty(dtype, &out)?))
}

/// Position of the result's element type among the attributes of a `dot_general`.
pub(crate) const DOT_DTYPE: usize = 3;

/// Number of multiplications of a checked call; 0 for ops without any.
pub(in crate::op) fn products(call: &Call<'_>, result: Option<&TensorType>) -> u128 {
    let Some(result) = result else { return 0 };
    let each: u128 = match call.def.code {
        OpCode::DotGeneral | OpCode::RaggedDot => {
            let dims = DotDims::of(call.attr());
            dims.lhs_contract.iter().map(|&axis| u128::from(call.operand(0).dims()[axis as usize])).product()
        }
        // Each result element uses the kernel elements of one output feature.
        OpCode::Convolution | OpCode::DynamicConv => match ConvDims::of(call) {
            Ok(dims) => {
                let features = call.operand(1).dims()[dims.kernel_output_feature].max(1);
                u128::from(call.operand(1).elems().0 / features)
            }
            Err(_) => 0,
        },
        _ => 0,
    };
    each * u128::from(result.elems().0)
}

/// Checks the precisions, which are attribute `place`: one per operand.
pub(super) fn precision(call: &Call<'_>, place: usize) -> Result<(), OpError> {
    match &call.attrs.values()[place] {
        AttrValue::Enums(precisions) => call.list_len("precision_config", precisions.len(), 2, "operand"),
        _ => Ok(()),
    }
}

/// The algorithms that StableHLO supports: types of lhs, rhs and accumulator (as in the attribute's
/// schema), and the number of primitive operations.
const ALGORITHMS: [([&str; 3], &[i64]); 8] = [
    (["f16", "f16", "f16"], &[1]),
    (["f16", "f16", "f32"], &[1]),
    (["bf16", "bf16", "bf16"], &[1]),
    (["bf16", "bf16", "f32"], &[1, 3, 6, 9]),
    (["tf32", "tf32", "f32"], &[1, 3]),
    (["f32", "f32", "f32"], &[1]),
    (["f64", "f64", "f64"], &[1]),
    (["f8", "f8", "f32"], &[1]),
];

/// Checks the algorithm of a `dot_general`, if one is given. A module with an unsupported one would
/// be rejected as a whole.
fn algorithm(call: &Call<'_>) -> Result<(), OpError> {
    let AttrValue::Struct(_) = &call.attrs.values()[2] else { return Ok(()) };
    let given = call.attr().group(2);
    let types = [0, 1, 2].map(|place| ALGORITHM_TYPE.members[usize::from(given.member(place))]);
    let families = types.map(|name| if name.starts_with("f8") { "f8" } else { name });
    let known = ALGORITHMS.iter().any(|(types, operations)| {
        *types == families && operations.contains(&given.int(5)) && (!given.bool(6) || families[0] == "f8")
    });
    if !known || given.int(3) != 1 || given.int(4) != 1 {
        return Err(call.attr_error(
            format!(
                "algorithm is {} x {} to {}, {} and {} components, {} operations, imprecise: {}",
                types[0],
                types[1],
                types[2],
                given.int(3),
                given.int(4),
                given.int(5),
                given.bool(6)
            ),
            "StableHLO has no such algorithm",
        ));
    }
    match &call.attrs.values()[1] {
        AttrValue::Enums(precisions) if precisions.iter().any(|&precision| precision != 0) => Err(call
            .attr_error(
                "both an algorithm and a precision_config are given",
                "with an algorithm, precision_config must be DEFAULT",
            )),
        _ => Ok(()),
    }
}

/// Checks the result type, which the caller chooses. The operands may have different types, but
/// float products do not become integers, and vice versa.
pub(super) fn result_dtype(call: &Call<'_>, result: crate::DType) -> Result<crate::DType, OpError> {
    for index in 0..2 {
        let operand = call.operand(index).dtype();
        if operand.is_float() && !result.is_float() {
            return Err(call.error(
                OpErrorKind::DType,
                format!("{} is {operand}, but the requested result type is {result}", call.name(index)),
                "a product of floats must be a float",
            ));
        }
    }
    Ok(result)
}

/// Checked dimension numbers of a `convolution` call.
#[derive(Clone, Debug)]
pub struct ConvDims {
    /// Batching dimension of the input.
    pub input_batch: usize,
    /// Feature dimension of the input.
    pub input_feature: usize,
    /// Spatial dimensions of the input.
    pub input_spatial: SmallVec<[usize; 6]>,
    /// Dimension of the kernel for the features of the input.
    pub kernel_input_feature: usize,
    /// Dimension of the kernel for the features of the result.
    pub kernel_output_feature: usize,
    /// Spatial dimensions of the kernel.
    pub kernel_spatial: SmallVec<[usize; 6]>,
    /// Batching dimension of the result.
    pub output_batch: usize,
    /// Feature dimension of the result.
    pub output_feature: usize,
    /// Spatial dimensions of the result.
    pub output_spatial: SmallVec<[usize; 6]>,
}

impl ConvDims {
    /// The dimension numbers of a call whose rule has accepted it or is running.
    ///
    /// # Errors
    /// If they do not fit the operands.
    pub fn of(call: &Call<'_>) -> Result<ConvDims, OpError> {
        let group = call.attr().group(conv_attr::DIMS);
        let rank = call.operand(0).rank();
        if call.operand(1).rank() != rank {
            return Err(call.shape_error(
                format!("lhs has rank {rank}, but rhs has rank {}", call.operand(1).rank()),
                "input and kernel must have the same rank",
            ));
        }
        // Each of input, kernel and output has two single dimensions and the spatial ones, all
        // distinct.
        let side = |name: &str, first: i64, second: i64, spatial: &[i64]| {
            let all = [&[first, second], spatial].concat();
            call.list_len(&format!("the {name} dimension numbers"), all.len(), rank, "dimension")?;
            let axes = call.axes(&format!("the {name} dimension numbers"), &all, rank)?;
            Ok((axes[0], axes[1], SmallVec::<[usize; 6]>::from_slice(&axes[2..])))
        };
        let input = side("input", group.int(0), group.int(1), group.ints(2))?;
        let kernel = side("kernel", group.int(3), group.int(4), group.ints(5))?;
        let output = side("output", group.int(6), group.int(7), group.ints(8))?;
        Ok(ConvDims {
            input_batch: input.0,
            input_feature: input.1,
            input_spatial: input.2,
            kernel_input_feature: kernel.0,
            kernel_output_feature: kernel.1,
            kernel_spatial: kernel.2,
            output_batch: output.0,
            output_feature: output.1,
            output_spatial: output.2,
        })
    }
}

/// The window of a `convolution` call: the kernel's spatial dimensions over the input's.
///
/// # Errors
/// If the attributes do not describe a window.
pub fn conv_window(call: &Call<'_>, dims: &ConvDims) -> Result<Window, OpError> {
    let attr = call.attr();
    let sizes: Vec<i64> =
        dims.kernel_spatial.iter().map(|&axis| call.operand(1).dims()[axis] as i64).collect();
    window(
        call,
        sizes.len(),
        WindowAttrs {
            sizes: &sizes.iter().map(|&size| size.max(1)).collect::<Vec<_>>(),
            strides: attr.ints(conv_attr::STRIDES),
            base_dilations: Some(attr.ints(conv_attr::LHS_DILATION)),
            window_dilations: Some(attr.ints(conv_attr::RHS_DILATION)),
            padding: attr.pairs(conv_attr::PADDING),
        },
    )
    .map(|mut window| {
        for (dim, &size) in window.iter_mut().zip(&sizes) {
            dim.size = size as u64;
        }
        window
    })
}

/// `convolution`: products of a kernel with the part of the input under it, summed over the window
/// and the input features.
pub(in crate::op) fn convolution(call: &Call<'_>) -> Result<Results, OpError> {
    let (lhs, rhs) = (call.operand(0), call.operand(1));
    call.same_dtype(1, 0)?;
    precision(call, conv_attr::PRECISION)?;
    let dims = ConvDims::of(call)?;
    let window = conv_window(call, &dims)?;
    let reversal = call.attr().bools(conv_attr::REVERSAL);
    call.list_len("window_reversal", reversal.len(), window.len(), "window dimension")?;
    let groups = |name: &str, place: usize| match call.attr().int(place) {
        count if count >= 1 => Ok(count as u64),
        count => Err(call.attr_error(format!("{name} is {count}"), "it must be at least 1")),
    };
    let feature_groups = groups("feature_group_count", conv_attr::FEATURE_GROUPS)?;
    let batch_groups = groups("batch_group_count", conv_attr::BATCH_GROUPS)?;
    if feature_groups > 1 && batch_groups > 1 {
        return Err(call.attr_error(
            format!("feature_group_count is {feature_groups} and batch_group_count is {batch_groups}"),
            "one of them must be 1",
        ));
    }
    let batch = lhs.dims()[dims.input_batch];
    let features = lhs.dims()[dims.input_feature];
    let kernel_in = rhs.dims()[dims.kernel_input_feature];
    let kernel_out = rhs.dims()[dims.kernel_output_feature];
    let divides = |what: &str, size: u64, by: u64, name: &str| {
        if size.is_multiple_of(by) {
            return Ok(());
        }
        Err(call.shape_error(
            format!("{what} is {size}, but {name} is {by}"),
            format!("{what} must be a multiple of {name}"),
        ))
    };
    divides("the batch of lhs", batch, batch_groups, "batch_group_count")?;
    divides("the features of lhs", features, feature_groups, "feature_group_count")?;
    divides("the output features of rhs", kernel_out, feature_groups, "feature_group_count")?;
    divides("the output features of rhs", kernel_out, batch_groups, "batch_group_count")?;
    if features / feature_groups != kernel_in {
        return Err(call.shape_error(
            format!(
                "lhs has {features} features in {feature_groups} groups, but the kernel takes {kernel_in}"
            ),
            "the kernel must take as many features as a group of lhs has",
        ));
    }
    let mut out = vec![0; lhs.rank()];
    out[dims.output_batch] = batch / batch_groups;
    out[dims.output_feature] = kernel_out;
    for (i, &axis) in dims.output_spatial.iter().enumerate() {
        out[axis] = window[i].positions(call, axis, lhs.dims()[dims.input_spatial[i]])?;
    }
    let dtype = result_dtype(call, call.attr().dtype(conv_attr::DTYPE))?;
    Ok(one(call.ty(dtype, &out)?))
}
