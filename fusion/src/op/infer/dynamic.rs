//! Ops with sizes as operands.
//!
//! The result's shape is known when such a call is recorded, so it is an attribute. The size
//! operands have to agree with it when the program runs. Without these operands, the call is one of
//! a static op, its [`twin`], whose rule checks the rest.

use super::contraction::{ConvDims, conv_window};
use super::window::dilated;
use crate::attr::{AttrValue, Attrs};
use crate::dtype::{DType, DTypeSet};
use crate::error::{OpError, OpErrorKind};
use crate::ir::{OpCode, Results};
use crate::op::attrs;
use crate::op::attrs::IndexDimensionNumbers;
use crate::op::def::{Call, one};
use crate::shape::{Shape, TensorType};

/// The values of the size operands, one list each.
pub type Sizes = Vec<Vec<i64>>;

/// The static twin of a dynamic op, and the number of operands that they share.
///
/// # Panics
/// If the op is not a dynamic one.
#[must_use]
pub fn twin(op: OpCode) -> (OpCode, usize) {
    match op {
        OpCode::DynamicBroadcastInDim => (OpCode::BroadcastInDim, 1),
        OpCode::DynamicConv => (OpCode::Convolution, 2),
        OpCode::DynamicGather => (OpCode::Gather, 2),
        OpCode::DynamicIota => (OpCode::Iota, 0),
        OpCode::DynamicPad => (OpCode::Pad, 2),
        OpCode::DynamicReshape => (OpCode::Reshape, 1),
        op => unreachable!("bug: {op} has no static twin"),
    }
}

/// Attributes of the twin for given sizes; `None` if a size is negative or a shape too large.
#[must_use]
pub fn twin_attrs(call: &Call<'_>, sizes: &Sizes) -> Option<Attrs> {
    let with = |value: AttrValue| {
        let mut values = call.attrs.values().to_vec();
        values[1] = value;
        values.into_iter().collect()
    };
    let shape = || {
        let dims: Option<Vec<u64>> = sizes[0].iter().map(|&size| u64::try_from(size).ok()).collect();
        Shape::new(&dims?).ok()
    };
    Some(match call.def.code {
        OpCode::DynamicBroadcastInDim => attrs::broadcast_in_dim(shape()?, call.attr().ints(1)),
        OpCode::DynamicConv => {
            let pairs: Vec<(i64, i64)> = sizes[0].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            with(pairs.as_slice().into())
        }
        OpCode::DynamicGather => with(sizes[0].as_slice().into()),
        OpCode::DynamicIota => with(shape()?.into()),
        OpCode::DynamicPad => attrs::pad(&sizes[0], &sizes[1], &sizes[2]),
        _ => attrs::reshape(shape()?),
    })
}

/// The recorded shape of the result.
fn recorded<'a>(call: &Call<'a>) -> &'a Shape {
    let place = call.def.attrs.iter().position(|def| def.name == "shape");
    call.attr().shape(place.expect("bug: a dynamic op without a recorded shape"))
}

/// Sizes that give the recorded shape. A shape does not determine a padding, so a padding is one of
/// several possible ones.
pub(crate) fn recorded_sizes(call: &Call<'_>) -> Result<Sizes, OpError> {
    let shape = recorded(call);
    let signed = |dims: &[u64]| dims.iter().map(|&dim| dim as i64).collect::<Vec<i64>>();
    Ok(match call.def.code {
        OpCode::DynamicGather => {
            let dims = IndexDimensionNumbers::of(call.attr());
            let whole = call.operand(0).dims();
            let windows = dims.window_axes(whole.len());
            let size = |axis: usize| {
                let place = windows.iter().position(|&window| window == axis);
                // A dimension without a window has one element per index. The twin's rule checks
                // the numbers.
                let place = place.map(|place| dims.window.get(place).copied().unwrap_or(-1));
                match place.map(|place| usize::try_from(place).ok().and_then(|place| shape.dims().get(place)))
                {
                    None => whole[axis].min(1) as i64,
                    Some(size) => size.map_or(0, |&size| size as i64),
                }
            };
            vec![(0..whole.len()).map(size).collect()]
        }
        OpCode::DynamicPad => {
            let operand = call.operand(0);
            if operand.rank() != shape.rank() {
                return Err(call.shape_error(
                    format!("the operand is {operand}, but the requested result shape is {shape}"),
                    "padding must keep the number of dimensions",
                ));
            }
            let zeros = vec![0; shape.rank()];
            let high = shape.dims().iter().zip(operand.dims());
            vec![zeros.clone(), high.map(|(&to, &from)| to as i64 - from as i64).collect(), zeros]
        }
        OpCode::DynamicConv => vec![recorded_padding(call, shape)?],
        _ => vec![signed(shape.dims())],
    })
}

/// A padding with which a convolution has the recorded shape: none at the start, and the rest at
/// the end.
fn recorded_padding(call: &Call<'_>, shape: &Shape) -> Result<Vec<i64>, OpError> {
    let rank = call.operand(0).rank();
    if shape.rank() != rank {
        return Err(call.shape_error(
            format!("lhs is {}, but the requested result shape is {shape}", call.operand(0)),
            "a convolution must keep the number of dimensions",
        ));
    }
    let dims = ConvDims::of(call)?;
    let unpadded = vec![0; 2 * dims.input_spatial.len()];
    let plain = twin_attrs(call, &vec![unpadded]).expect("bug: zero padding is rejected");
    let window = conv_window(&Call { attrs: &plain, ..*call }, &dims)?;
    let mut padding = Vec::new();
    for (place, dim) in window.iter().enumerate() {
        let base = dilated(call.operand(0).dims()[dims.input_spatial[place]], dim.base_dilation);
        let positions = i128::from(shape.dim(dims.output_spatial[place]));
        let reach = if positions == 0 {
            0
        } else {
            (positions - 1) * i128::from(dim.stride) + dilated(dim.size, dim.window_dilation)
        };
        let high = i64::try_from(reach - base).map_err(|_| {
            call.error(
                OpErrorKind::Overflow,
                format!(
                    "the requested size of dimension {} of the result is {positions}",
                    dims.output_spatial[place]
                ),
                "the padded operand has at most 2^63 - 1 elements per dimension",
            )
        })?;
        padding.extend([0, high]);
    }
    Ok(padding)
}

/// Checks that operand `index` is a list of `count` integers, one per `what`.
pub(super) fn sizes_fit(call: &Call<'_>, index: usize, count: usize, what: &str) -> Result<(), OpError> {
    call.dtype_in(index, DTypeSet::INT)?;
    let given = call.operand(index);
    if given.rank() == 1 && given.dims()[0] == count as u64 {
        return Ok(());
    }
    Err(call.shape_error(
        format!("{} has shape {}", call.name(index), given.shape()),
        format!("it must have one element per {what}, which is {count}"),
    ))
}

/// The rule of all ops with a twin.
pub(in crate::op) fn dynamic(call: &Call<'_>) -> Result<Results, OpError> {
    let (op, shared) = twin(call.def.code);
    let shape = recorded(call);
    match call.def.code {
        OpCode::DynamicConv => {
            call.dtype_in(2, DTypeSet::INT)?;
            let wanted = [call.operand(0).rank().saturating_sub(2) as u64, 2];
            if call.operand(2).dims() != wanted {
                return Err(call.shape_error(
                    format!("padding has shape {}", call.operand(2).shape()),
                    format!("it must have one pair per spatial dimension, so {wanted:?}"),
                ));
            }
        }
        OpCode::DynamicGather => sizes_fit(call, 2, call.operand(0).rank(), "operand dimension")?,
        OpCode::DynamicPad => {
            (2..5)
                .try_for_each(|index| sizes_fit(call, index, call.operand(0).rank(), "operand dimension"))?;
        }
        _ => sizes_fit(call, shared, shape.rank(), "dimension of the result")?,
    }
    if call.def.code == OpCode::DynamicBroadcastInDim {
        known_dimensions(call)?;
    }
    let sizes = recorded_sizes(call)?;
    let static_attrs = twin_attrs(call, &sizes).ok_or_else(|| {
        call.error(
            OpErrorKind::Overflow,
            format!("the requested result shape is {shape}"),
            "it must be a shape",
        )
    })?;
    let operands = &call.operands[..shared];
    let results = (op.def().infer)(&Call { def: call.def, operands, attrs: &static_attrs, bodies: &[] })?;
    if results[0].shape() != shape {
        return Err(call.shape_error(
            format!("the requested result shape is {shape}"),
            format!("the operands and attributes give {}", results[0].shape()),
        ));
    }
    Ok(results)
}

/// Checks the lists of dimensions that are known to expand or not: distinct dimensions of the
/// operand.
fn known_dimensions(call: &Call<'_>) -> Result<(), OpError> {
    let mut both = Vec::new();
    for value in &call.attrs.values()[2..] {
        if let AttrValue::Ints(axes) = value {
            both.extend_from_slice(axes);
        }
    }
    let names = "known_expanding_dimensions and known_nonexpanding_dimensions";
    call.axes(names, &both, call.operand(0).rank())?;
    Ok(())
}

/// `get_dimension_size`: a constant, because shapes are static.
pub(in crate::op) fn get_dimension_size(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    let axis = call.axis("dimension", call.attr().int(0), operand.rank())?;
    if i32::try_from(operand.dims()[axis]).is_err() {
        return Err(call.error(
            OpErrorKind::Overflow,
            format!("dimension {axis} of {operand} has {} elements", operand.dims()[axis]),
            "the result is i32, so it must be at most 2^31 - 1",
        ));
    }
    Ok(one(TensorType::scalar(DType::I32)))
}
