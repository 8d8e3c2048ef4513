//! Legalizes ops with sizes as operands to ops of static sizes.
//!
//! XLA translates `dynamic_reshape`, `dynamic_iota` and `dynamic_broadcast_in_dim` but ignores
//! their size operands; it rejects the others. The slice sizes of a gather follow from the result's
//! shape. A padding does not: it moves elements to computed positions.

use super::{Builder, Lowered, expanded, prepared_kernel};
use crate::attr::{AttrValue, Attrs};
use crate::dtype::{DType, DTypeClass};
use crate::error::OpError;
use crate::ir::{OpCode, Ref};
use crate::op::attrs::{self, IndexDimensionNumbers};
use crate::op::conv_attr;
use crate::op::def::Call;
use crate::op::enums::Comparison;
use crate::op::infer::contraction::ConvDims;
use crate::op::infer::dynamic::{recorded_sizes, twin, twin_attrs};
use crate::op::infer::window::dilated;
use crate::shape::{Shape, TensorType};

/// All ops with a twin.
pub(in crate::op) fn dynamic(call: &Call<'_>) -> Lowered {
    expanded(match call.def.code {
        OpCode::DynamicPad => padded(call),
        OpCode::DynamicConv => convolved(call),
        _ => as_twin(call),
    })
}

fn as_twin(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (op, shared) = twin(call.def.code);
    let attrs = twin_attrs(call, &recorded_sizes(call)?).expect("bug: a checked shape is rejected");
    let (mut graph, params) = Builder::of(call);
    // The twin may itself need legalization.
    let operands = &call.operands[..shared];
    match (op.def().lower)(&Call { def: op.def(), operands, attrs: &attrs, bodies: &[] }) {
        Lowered::Body(body) => {
            for node in body.graph().nodes() {
                graph.0.push_signature(node.signature().clone(), node.operands().into());
            }
            Ok(graph.returning(body.returns()))
        }
        other => {
            let op = if let Lowered::As(other) = other { other } else { op };
            let result = graph.op(op, attrs, &params[..shared])?;
            Ok(graph.returning(&[result]))
        }
    }
}

/// How one dimension is spread out: element `i` goes to `low + i * step`, if that is less than
/// `size`. `low` and `step` have type `i64[1]`, and steps are at least 1.
struct Spread {
    axis: usize,
    low: Ref,
    step: Ref,
    size: u64,
}

/// A type of whole bytes that represents all values of the given one.
fn bytewise(dtype: DType) -> DType {
    match dtype.class() {
        DTypeClass::Signed if dtype.bits() < 8 => DType::I8,
        DTypeClass::Unsigned if dtype.bits() < 8 => DType::U8,
        DTypeClass::Float if dtype.bits() < 8 => DType::F32,
        _ => dtype,
    }
}

/// Type of a position or a step.
fn index_type() -> TensorType {
    TensorType::of(DType::I64, &[1]).expect("bug: a shape of one element is rejected")
}

impl Builder {
    /// Element `index` of a tensor as `i64[1]`.
    fn index_element(&mut self, value: Ref, ty: &TensorType, index: &[i64]) -> Result<Ref, OpError> {
        let past: Vec<i64> = index.iter().map(|&place| place + 1).collect();
        let ones = vec![1; index.len()];
        let element = self.op(OpCode::Slice, attrs::slice(index, &past, &ones), &[value])?;
        let element = self.op(OpCode::Reshape, attrs::reshape(index_type().shape().clone()), &[element])?;
        self.convert(element, ty.dtype(), DType::I64)
    }

    /// Replaces one dimension of a value by the spread one, with `fill` in the gaps.
    fn spread(
        &mut self,
        call: &Call<'_>,
        value: Ref,
        ty: &TensorType,
        spread: &Spread,
        fill: Ref,
    ) -> Result<Ref, OpError> {
        let (axis, along) = (spread.axis, call.ty(DType::I64, &[spread.size])?);
        let plain = Attrs::none;
        let to_line = attrs::broadcast_in_dim(along.shape().clone(), &[0]);
        let low = self.op(OpCode::BroadcastInDim, to_line.clone(), &[spread.low])?;
        let step = self.op(OpCode::BroadcastInDim, to_line, &[spread.step])?;
        // The element that each position takes, if any.
        let place = self.op(OpCode::Iota, attrs::iota(DType::I64, along.shape().clone(), 0), &[])?;
        let way = self.op(OpCode::Subtract, plain(), &[place, low])?;
        let index = self.op(OpCode::Divide, plain(), &[way, step])?;
        let rest = self.op(OpCode::Remainder, plain(), &[way, step])?;
        let (zero, count) = (self.int(0, &along)?, self.splat(ty.dims()[axis], DType::I64, along.shape())?);
        let compare = |direction| attrs::compare_for(direction, DType::I64);
        let starts = self.op(OpCode::Compare, compare(Comparison::Ge), &[way, zero])?;
        let hits = self.op(OpCode::Compare, compare(Comparison::Eq), &[rest, zero])?;
        let ends = self.op(OpCode::Compare, compare(Comparison::Lt), &[index, count])?;
        let within = self.op(OpCode::And, plain(), &[starts, ends])?;
        let within = self.op(OpCode::And, plain(), &[within, hits])?;
        let axes = [axis as i64];
        let kept: Vec<i64> = (0..ty.rank() as i64).filter(|other| !axes.contains(other)).collect();
        let mut sizes: Vec<i64> = ty.dims().iter().map(|&dim| dim as i64).collect();
        sizes[axis] = 1;
        let numbers = IndexDimensionNumbers {
            window: &kept,
            collapsed: &axes,
            index_map: &axes,
            index_vector: 1,
            ..IndexDimensionNumbers::default()
        };
        let taken = self.op(OpCode::Gather, attrs::gather(numbers, &sizes, false), &[value, index])?;
        let shape = self.0.type_of(taken).expect("bug: a gather without a result").shape().clone();
        let within =
            self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape.clone(), &axes), &[within])?;
        let fill = self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &[]), &[fill])?;
        self.op(OpCode::Select, plain(), &[within, taken, fill])
    }

    /// Spreads several dimensions of a value.
    fn spread_all(
        &mut self,
        call: &Call<'_>,
        mut value: Ref,
        ty: &TensorType,
        spreads: &[Spread],
        fill: Ref,
    ) -> Result<Ref, OpError> {
        // XLA's folder takes wrong elements for types of fewer than 8 bits.
        let (dtype, whole) = (ty.dtype(), bytewise(ty.dtype()));
        if dtype != whole {
            let ty = ty.with_dtype(whole);
            let value = self.convert(value, dtype, whole)?;
            let fill = self.convert(fill, dtype, whole)?;
            let spread = self.spread_all(call, value, &ty, spreads, fill)?;
            return self.convert(spread, whole, dtype);
        }
        let mut ty = ty.clone();
        let mut dims = ty.dims().to_vec();
        spreads.iter().for_each(|spread| dims[spread.axis] = spread.size);
        let shape = Shape::new(&dims).map_err(|error| call.size_error(&error))?;
        // There are no elements to take, or no positions for them.
        if ty.elems().0 == 0 || shape.elems().0 == 0 {
            return self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &[]), &[fill]);
        }
        for spread in spreads {
            value = self.spread(call, value, &ty, spread, fill)?;
            ty = self.0.type_of(value).expect("bug: a spread without a result").clone();
        }
        Ok(value)
    }
}

/// The padding after the last element is not read: it follows from the size of the result.
fn padded(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let shape = call.attr().shape(0);
    let one = graph.int(1, &index_type())?;
    let zero = graph.int(0, &index_type())?;
    let most = graph.splat(i64::MAX - 1, DType::I64, index_type().shape())?;
    let mut spreads = Vec::new();
    for (axis, &size) in shape.dims().iter().enumerate() {
        let low = graph.index_element(params[2], call.operand(2), &[axis as i64])?;
        let gap = graph.index_element(params[4], call.operand(4), &[axis as i64])?;
        // A negative gap has no meaning, but must not cause a division by zero.
        let gap = graph.op(OpCode::Clamp, Attrs::none(), &[zero, gap, most])?;
        let step = graph.op(OpCode::Add, Attrs::none(), &[gap, one])?;
        spreads.push(Spread { axis, low, step, size });
    }
    let result = graph.spread_all(call, params[0], call.operand(0), &spreads, params[1])?;
    Ok(graph.returning(&[result]))
}

/// Pads and dilates the input as far as the windows reach, then convolves without padding.
fn convolved(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, mut params) = Builder::of(call);
    let (dims, attr) = (ConvDims::of(call)?, call.attr());
    // Padding comes after the conversion, because `f8E8M0FNU` has no zero to pad with.
    let dtype = attr.dtype(conv_attr::DTYPE);
    let sum_type = graph.sum_type(call, &mut params, dtype)?;
    let ty = graph.ty(params[0]);
    // Recorded paddings have no part before the input, so they tell how far windows reach beyond
    // its end.
    let padding = &recorded_sizes(call)?[0];
    let dilation = attr.ints(conv_attr::LHS_DILATION);
    let mut spreads = Vec::new();
    for (place, &axis) in dims.input_spatial.iter().enumerate() {
        let low = graph.index_element(params[2], call.operand(2), &[place as i64, 0])?;
        let step = graph.splat(dilation[place], DType::I64, index_type().shape())?;
        let dilated = dilated(ty.dims()[axis], dilation[place] as u64);
        let size = u64::try_from(dilated + i128::from(padding[2 * place + 1])).unwrap_or(0);
        spreads.push(Spread { axis, low, step, size });
    }
    let zero = graph.int(0, &TensorType::scalar(ty.dtype()))?;
    let input = graph.spread_all(call, params[0], &ty, &spreads, zero)?;
    let kernel = prepared_kernel(&mut graph, call, params[1])?;
    let spatial = dims.input_spatial.len();
    let mut values = call.attrs.values().to_vec();
    values[conv_attr::PADDING] = vec![(0, 0); spatial].as_slice().into();
    values[conv_attr::LHS_DILATION] = vec![1; spatial].as_slice().into();
    values[conv_attr::REVERSAL] = vec![false; spatial].as_slice().into();
    values[conv_attr::DTYPE] = AttrValue::DType(sum_type);
    let sum = graph.op(OpCode::Convolution, values.into_iter().collect(), &[input, kernel])?;
    let result = graph.convert(sum, sum_type, dtype)?;
    Ok(graph.returning(&[result]))
}
