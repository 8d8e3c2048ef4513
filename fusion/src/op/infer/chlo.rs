//! The CHLO ops that are not elementwise, following the verifiers of `openxla/stablehlo`
//! (`stablehlo/dialect/ChloOps.cpp`).

use smallvec::SmallVec;

use super::contraction::{DotDims, free_dims, paired, precision, result_dtype};
use crate::DType;
use crate::attr::AttrValue;
use crate::dtype::DTypeSet;
use crate::error::{OpError, OpErrorKind};
use crate::ir::Results;
use crate::op::def::{Call, one};
use crate::shape::TensorType;

/// `top_k`: the last dimension becomes `k` long, in values and in indices.
pub(in crate::op) fn top_k(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    call.dtype_in(0, call.def.dtypes)?;
    let mut dims = operand.dims().to_vec();
    let Some(last) = dims.last_mut() else {
        return Err(call.shape_error(format!("the operand is {operand}"), "it must have a dimension"));
    };
    let k = call.attr().int(0);
    match u64::try_from(k) {
        Ok(k) if k <= *last => *last = k,
        _ => {
            return Err(call.attr_error(
                format!("k is {k} and the last dimension of the operand is {last}"),
                format!("k must be from 0 to {last}"),
            ));
        }
    }
    // The indices are `i32`.
    if operand.dims().last().is_some_and(|&size| size > i32::MAX as u64) {
        return Err(call.error(
            OpErrorKind::Limit,
            format!("the operand is {operand}"),
            format!("the last dimension has at most {} elements", i32::MAX),
        ));
    }
    Ok([call.ty(operand.dtype(), &dims)?, call.ty(DType::I32, &dims)?].into_iter().collect())
}

/// The kind of lhs dimension that is divided into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ragged {
    /// A free one: each group is multiplied with the part of rhs that rhs's group dimension
    /// selects.
    Free {
        /// The group dimension of rhs.
        group: usize,
    },
    /// A contracting one: each group is summed into a result of its own.
    Contracting,
    /// A batching one: the groups do not affect the product.
    Batching,
}

/// Dimension numbers of a `ragged_dot` call whose rule has accepted it or is running.
#[derive(Clone, Debug)]
pub struct RaggedDims<'a> {
    /// The dimension numbers of the products.
    pub dot: DotDims<'a>,
    /// The kind of the ragged dimension.
    pub kind: Ragged,
    /// The ragged dimension of lhs.
    pub ragged: usize,
    /// The dimensions of lhs whose indices may have different group sizes: those of the same kind
    /// before the ragged one, preceded by the batching ones.
    pub prefix: SmallVec<[usize; 6]>,
    /// Number of groups.
    pub groups: u64,
}

impl<'a> RaggedDims<'a> {
    /// The dimension numbers of a call.
    ///
    /// # Errors
    /// If they do not fit the operands.
    pub fn of(call: &Call<'a>) -> Result<RaggedDims<'a>, OpError> {
        let (lhs, rhs, sizes) = (call.operand(0), call.operand(1), call.operand(2));
        let dot = DotDims::of(call.attr());
        let group = call.attr().group(0);
        let (raggeds, group_dims) = (group.ints(4), group.ints(5));
        let &[ragged] = raggeds else {
            return Err(call.attr_error(
                format!("lhs_ragged_dimensions has {} entries", raggeds.len()),
                "lhs has exactly one ragged dimension",
            ));
        };
        let ragged_axis = call.axis("lhs_ragged_dimensions", ragged, lhs.rank())?;
        let as_axes = |axes: &[i64]| axes.iter().map(|&axis| axis as usize).collect::<SmallVec<[usize; 6]>>();
        let before = |axes: &[i64]| as_axes(axes.split(|&axis| axis == ragged).next().unwrap_or(&[]));
        let mut prefix = as_axes(dot.lhs_batch);
        let kind = if dot.lhs_batch.contains(&ragged) {
            prefix = before(dot.lhs_batch);
            Ragged::Batching
        } else if dot.lhs_contract.contains(&ragged) {
            prefix.extend(before(dot.lhs_contract));
            Ragged::Contracting
        } else {
            let used = |axis: i64| dot.lhs_batch.contains(&axis) || dot.lhs_contract.contains(&axis);
            prefix.extend((0..ragged).filter(|&axis| !used(axis)).map(|axis| axis as usize));
            Ragged::Free { group: 0 }
        };
        let groups = group_count(call, &prefix)?;
        let kind = match (kind, group_dims) {
            (Ragged::Free { .. }, &[group]) => {
                let axis = call.axis("rhs_group_dimensions", group, rhs.rank())?;
                if dot.rhs_batch.contains(&group) || dot.rhs_contract.contains(&group) {
                    return Err(call.attr_error(
                        format!("the group dimension of rhs is {group}"),
                        "it must be neither a batching nor a contracting one",
                    ));
                }
                if rhs.dims()[axis] != groups {
                    return Err(call.shape_error(
                        format!(
                            "the group dimension of rhs is {}, but group_sizes is {sizes}",
                            rhs.dims()[axis]
                        ),
                        "rhs must have one part per group",
                    ));
                }
                Ragged::Free { group: axis }
            }
            (Ragged::Contracting | Ragged::Batching, []) => kind,
            (kind, _) => {
                let (what, wanted) = match kind {
                    Ragged::Free { .. } => ("free", "one"),
                    Ragged::Contracting => ("contracting", "none"),
                    Ragged::Batching => ("batching", "none"),
                };
                return Err(call.attr_error(
                    format!(
                        "the ragged dimension is {what}, but rhs_group_dimensions has {} entries",
                        group_dims.len()
                    ),
                    format!("it must have {wanted}"),
                ));
            }
        };
        Ok(RaggedDims { dot, kind, ragged: ragged_axis, prefix, groups })
    }
}

/// The number of groups by the shape of `group_sizes`: one size per group, or one per group and
/// index of the dimensions `prefix` of lhs.
fn group_count(call: &Call<'_>, prefix: &[usize]) -> Result<u64, OpError> {
    let (lhs, sizes) = (call.operand(0), call.operand(2));
    match *sizes.dims() {
        [groups] => Ok(groups),
        [ref prefixes @ .., groups] if prefix.iter().map(|&axis| &lhs.dims()[axis]).eq(prefixes) => {
            Ok(groups)
        }
        _ => {
            let per: Vec<String> = prefix.iter().map(|&axis| lhs.dims()[axis].to_string()).collect();
            Err(call.shape_error(
                format!("group_sizes is {sizes}"),
                format!(
                    "its shape must be [groups], or [{}, groups] after the dimensions of lhs",
                    per.join(", ")
                ),
            ))
        }
    }
}

/// `ragged_dot`: as `dot_general`, without the group dimension of rhs, and with a leading dimension
/// for the groups if each has a result of its own.
pub(in crate::op) fn ragged_dot(call: &Call<'_>) -> Result<Results, OpError> {
    let (lhs, rhs) = (call.operand(0), call.operand(1));
    call.dtype_in(0, call.def.dtypes)?;
    call.dtype_in(1, call.def.dtypes)?;
    call.dtype_in(2, DTypeSet::INT)?;
    paired(call, DotDims::of(call.attr()))?;
    let RaggedDims { dot, kind, groups, .. } = RaggedDims::of(call)?;
    precision(call, 1)?;
    let dtype = result_dtype(call, call.attr().dtype(2))?;
    if !call.def.dtypes.contains(dtype) {
        let given = format!("the requested result type is {dtype}");
        return Err(call.error(
            OpErrorKind::DType,
            given,
            "it must have a zero for elements outside of every group",
        ));
    }
    let mut out: SmallVec<[u64; 8]> = SmallVec::new();
    if kind == Ragged::Contracting {
        out.push(groups);
    }
    out.extend(dot.lhs_batch.iter().map(|&axis| lhs.dims()[axis as usize]));
    out.extend(free_dims(lhs, dot.lhs_batch, dot.lhs_contract));
    let mut without_group = dot.rhs_contract.to_vec();
    if let Ragged::Free { group } = kind {
        without_group.push(group as i64);
    }
    out.extend(free_dims(rhs, dot.rhs_batch, &without_group));
    Ok(one(call.ty(dtype, &out)?))
}

/// Positions of the attributes of a scan.
pub(crate) mod scan_attr {
    pub(crate) const DIMENSION: usize = 0;
    pub(crate) const SIZE: usize = 1;
    pub(crate) const REVERSE: usize = 2;
    pub(crate) const OPERANDS: usize = 4;
    pub(crate) const RESULTS: usize = 5;
}

/// The dimensions of a `scan` call whose rule has accepted it or is running.
#[derive(Clone, Debug)]
pub struct ScanDims {
    /// The dimension of inputs and outputs along which the scan goes.
    pub axis: usize,
    /// Number of steps.
    pub size: u64,
    /// Whether it goes from the last slice to the first.
    pub reverse: bool,
    /// Number of operands that are inputs; the others are initial carried values.
    pub inputs: usize,
    /// Number of results that are outputs; the others are final carried values.
    pub outputs: usize,
}

impl ScanDims {
    /// The dimensions of a call.
    ///
    /// # Errors
    /// If the attributes do not fit the operands.
    pub fn of(call: &Call<'_>) -> Result<ScanDims, OpError> {
        let returned = call.bodies[0].return_types().len();
        // Two numbers with the sum `len`.
        let segments = |name: &str, place: usize, len: usize| match *call.attr().ints(place) {
            [first, rest] if first >= 0 && rest >= 0 && first.checked_add(rest) == Some(len as i64) => {
                Ok((first as usize, rest as usize))
            }
            ref given => Err(call.attr_error(
                format!("{name} is {given:?}"),
                format!("it must be two numbers whose sum is {len}"),
            )),
        };
        let (inputs, inits) = segments("operandSegmentSizes", scan_attr::OPERANDS, call.operands.len())?;
        let (outputs, carries) = segments("resultSegmentSizes", scan_attr::RESULTS, returned)?;
        if inits != carries {
            return Err(call.attr_error(
                format!("{inits} values are carried in, but {carries} out"),
                "as many must be carried in as out",
            ));
        }
        if inputs + outputs == 0 {
            return Err(call.attr_error("there are neither inputs nor outputs", "there must be one of them"));
        }
        let dimension = call.attr().int(scan_attr::DIMENSION);
        let mut size =
            match call.attrs.values()[scan_attr::SIZE] {
                AttrValue::Int(size) => Some(u64::try_from(size).map_err(|_| {
                    call.attr_error(format!("scan_dim_size is {size}"), "it must be at least 0")
                })?),
                _ => None,
            };
        let mut axis = usize::try_from(dimension).unwrap_or(usize::MAX);
        for (index, input) in call.operands[..inputs].iter().enumerate() {
            axis = call.axis("dimension", dimension, input.rank())?;
            let dim = input.dims()[axis];
            if size.is_some_and(|size| size != dim) {
                return Err(call.shape_error(
                    format!(
                        "dimension {dimension} of {} is {dim}, but there are {} steps",
                        call.name(index),
                        size.unwrap_or(0)
                    ),
                    "it must be the same in all inputs, and equal to scan_dim_size if that is given",
                ));
            }
            size = Some(dim);
        }
        let size = size.ok_or_else(|| {
            call.attr_error(
                "there are no inputs and no scan_dim_size",
                "one of them must give the number of steps",
            )
        })?;
        let reverse = call.attrs.values()[scan_attr::REVERSE] == AttrValue::Bool(true);
        Ok(ScanDims { axis, size, reverse, inputs, outputs })
    }
}

/// `scan`: the slices of the outputs, concatenated along the dimension, then the final carried
/// values.
pub(in crate::op) fn scan(call: &Call<'_>) -> Result<Results, OpError> {
    let ScanDims { axis, size, inputs, outputs, .. } = ScanDims::of(call)?;
    let mut params: Vec<TensorType> = Vec::new();
    for input in &call.operands[..inputs] {
        let mut dims = input.dims().to_vec();
        dims.remove(axis);
        params.push(call.ty(input.dtype(), &dims)?);
    }
    params.extend(call.operands[inputs..].iter().cloned());
    let returned: Vec<TensorType> = call.bodies[0].return_types().cloned().collect();
    // The outputs may have any type; carried values keep theirs.
    let wanted = [&returned[..outputs], &params[inputs..]].concat();
    call.body_type(0, &params, &wanted)?;
    let mut results = Results::new();
    for (index, ty) in returned.into_iter().enumerate() {
        if index >= outputs {
            results.push(ty);
            continue;
        }
        if axis > ty.rank() {
            return Err(call.attr_error(
                format!("dimension is {} and the body returns {ty}", call.attr().int(scan_attr::DIMENSION)),
                format!("the output of its slices has dimensions 0 to {}", ty.rank()),
            ));
        }
        let mut dims = ty.dims().to_vec();
        dims.insert(axis, size);
        results.push(call.ty(ty.dtype(), &dims)?);
    }
    Ok(results)
}
