//! Legalization: expresses ops in other ops where XLA deviates from the specification.
//!
//! If XLA's CPU backend computes something else than the specification for some element type, or
//! crashes, the module expresses the op differently. Each case documents what goes wrong without
//! it. The interpreter, which follows the specification, is the reference for the tests of each
//! expansion.
//!
//! Observed with XLA's CPU backend (API 0.81, jaxlib 0.10.2). Cases that XLA rejects with an error
//! are not here, because a region that does not compile has a fallback. Cases that return data of
//! another type than declared, or abort the process, are.

mod bits;
mod chlo;
mod collective;
mod combine;
mod complex;
mod control;
mod dynamic;
mod loops;
mod normalize;
mod operands;
#[cfg(test)]
mod tests;
mod zeta;

use std::sync::Arc;

pub(super) use bits::{bitcast_convert, reduce_precision};
pub(super) use chlo::{ragged_dot, scan, top_k};
pub(super) use collective::{
    all_gather, all_reduce, all_to_all, collective_broadcast, collective_permute, reduce_scatter,
};
pub use combine::common_float;
pub(super) use combine::{reduce, reduce_window, scatter, select_and_scatter};
pub(super) use complex::{convert, iota, part};
pub(super) use control::{map, sort};
pub(super) use dynamic::dynamic;
pub use loops::is_scalar_code;
pub(super) use normalize::batch_norm;
pub use zeta::{BERNOULLI, ZETA_TERMS};

use super::attrs;
use super::conv_attr;
use super::def::{Call, Dialect, Lowered};
use super::enums::{Comparison, RngDistribution};
use super::infer::contraction::{ConvDims, DOT_DTYPE};
use crate::attr::{AttrValue, Attrs};
use crate::dtype::{DType, DTypeClass, RealElement};
use crate::error::{OpError, OpErrorKind};
use crate::ir::{Body, Graph, OpCode, Ref};
use crate::literal::{Literal, Scalar};
use crate::shape::{Shape, TensorType};

/// Elementwise unary ops.
pub(super) fn unary(call: &Call<'_>) -> Lowered {
    let lowered = match call.def.dialect {
        Dialect::Stablehlo => bits::unary(call),
        Dialect::Chlo => chlo::unary(call),
    };
    lowered.unless_misfolded(call)
}

impl Lowered {
    /// Moves calls to `f32` that XLA's folder computes wrongly on constants of short floats, if
    /// they are lowered as themselves. It negates `f8E8M0FNU` although the type has no negative
    /// numbers, rounds 0.156 of `f8E3M4` to an integer as NaN, and returns 128 for
    /// `exponential_minus_one` of NaN in `f8E4M3`.
    fn unless_misfolded(self, call: &Call<'_>) -> Lowered {
        let dtype = call.operand(0).dtype();
        let misfolded = match call.def.code {
            OpCode::RoundNearestAfz | OpCode::RoundNearestEven if dtype == DType::F8E3M4 => true,
            OpCode::ExponentialMinusOne if dtype == DType::F8E4M3 => true,
            _ => dtype == DType::F8E8M0FNU,
        };
        if misfolded && self == Lowered::Itself { expanded(in_f32(call, dtype)) } else { self }
    }
}

/// The op itself, the default of the lowering.
pub(super) fn itself(_call: &Call<'_>) -> Lowered {
    Lowered::Itself
}

/// `add` of `bool` is `or` and `multiply` is `and`. XLA's CPU backend adds and multiplies bytes
/// instead (openxla/stablehlo test `add_op_test_i1`).
///
/// For integer division see [`mended_division`], for integer powers [`power_by_parity`].
pub(super) fn binary(call: &Call<'_>) -> Lowered {
    let lowered = match (call.def.code, call.operand(0).dtype()) {
        _ if call.def.dialect == Dialect::Chlo => chlo::binary(call),
        (OpCode::Add, DType::Bool) => Lowered::As(OpCode::Or),
        (OpCode::Multiply, DType::Bool) => Lowered::As(OpCode::And),
        (OpCode::Maximum | OpCode::Minimum, dtype) if dtype.is_complex() => {
            expanded(complex::selected_by_order(call))
        }
        (OpCode::Divide | OpCode::Remainder, dtype) if dtype.is_int() => expanded(mended_division(call)),
        (OpCode::Power, dtype) if dtype.is_int() && dtype.bits() >= 8 => expanded(power_of_digits(call)),
        // Types of 2 and 4 bits, whose exponents have no seventh bit.
        (OpCode::Power, dtype) if dtype.class() == DTypeClass::Signed => expanded(power_by_parity(call)),
        _ => Lowered::Itself,
    };
    lowered.unless_misfolded(call)
}

/// XLA would inline a composite too, but would not legalize its ops.
pub(super) fn composite(call: &Call<'_>) -> Lowered {
    Lowered::Inline(call.bodies[0].clone())
}

/// Guards division against constants. If both operands are constants, XLA folds them with the
/// machine's division, and a divisor of 0 kills the process, as does -1 under the smallest value.
/// The expansion divides by 1 in these cases and then selects the defined result. The generated
/// code guards divisions in the same way, so this costs almost nothing at run time.
fn mended_division(call: &Call<'_>) -> Result<Lowered, OpError> {
    let ty = call.operand(1);
    let (mut graph, params) = Builder::of(call);
    let (lhs, rhs) = (params[0], params[1]);
    let (zero, one, ones) = (graph.int(0, ty)?, graph.int(1, ty)?, graph.int(-1, ty)?);
    let equal = attrs::compare_for(Comparison::Eq, ty.dtype());
    let by_zero = graph.op(OpCode::Compare, equal.clone(), &[rhs, zero])?;
    let signed = ty.dtype().class() == DTypeClass::Signed;
    let divides = call.def.code == OpCode::Divide;
    let mut odd = by_zero;
    let mut negated = None;
    if signed {
        let by_ones = graph.op(OpCode::Compare, equal, &[rhs, ones])?;
        odd = graph.op(OpCode::Or, Attrs::none(), &[by_zero, by_ones])?;
        if divides {
            negated = Some((by_ones, graph.op(OpCode::Negate, Attrs::none(), &[lhs])?));
        }
    }
    let divisor = graph.op(OpCode::Select, Attrs::none(), &[odd, one, rhs])?;
    let mut result = graph.op(call.def.code, Attrs::none(), &[lhs, divisor])?;
    if let Some((by_ones, negated)) = negated {
        result = graph.op(OpCode::Select, Attrs::none(), &[by_ones, negated, result])?;
    }
    // The remainder of a division by -1 equals that by 1.
    let of_zero = if divides { ones } else { lhs };
    let result = graph.op(OpCode::Select, Attrs::none(), &[by_zero, of_zero, result])?;
    Ok(graph.returning(&[result]))
}

/// Powers of integers. XLA uses only the lowest six bits of the exponent, in a loop that it
/// unrolls. The expansion splits the exponent into digits of six bits, lowest first, and multiplies
/// the powers to each digit; each base is the 64th power of the one before. With a constant
/// exponent, all but a few multiplications are folded.
///
/// A negative exponent is treated as its unsigned bits. Powers of 1 and -1 come out right, because
/// for -1 only the lowest bit matters. Any other base gives 0, because the power is not an integer.
fn power_of_digits(call: &Call<'_>) -> Result<Lowered, OpError> {
    const DIGIT: u32 = 6;
    let ty = call.operand(1);
    let (dtype, word) = (ty.dtype(), unsigned(ty.dtype().bits()));
    let (mut graph, params) = Builder::of(call);
    let exponent = if word == dtype {
        params[1]
    } else {
        graph.op(OpCode::BitcastConvert, attrs::convert(word), &params[1..])?
    };
    let low = graph.word((1 << DIGIT) - 1, word, ty.shape())?;
    let half = graph.word(1 << (DIGIT - 1), dtype, ty.shape())?;
    let mut base = params[0];
    let mut result = None;
    for from in (0..dtype.bits()).step_by(DIGIT as usize) {
        let mut digit = exponent;
        if from > 0 {
            let step = graph.op(OpCode::Power, Attrs::none(), &[base, half])?;
            base = graph.op(OpCode::Multiply, Attrs::none(), &[step, step])?;
            let by = graph.word(from.into(), word, ty.shape())?;
            digit = graph.op(OpCode::ShiftRightLogical, Attrs::none(), &[exponent, by])?;
        }
        digit = graph.op(OpCode::And, Attrs::none(), &[digit, low])?;
        if word != dtype {
            digit = graph.op(OpCode::BitcastConvert, attrs::convert(dtype), &[digit])?;
        }
        let power = graph.op(OpCode::Power, Attrs::none(), &[base, digit])?;
        result = Some(match result {
            None => power,
            Some(product) => graph.op(OpCode::Multiply, Attrs::none(), &[product, power])?,
        });
    }
    let mut result = result.expect("bug: a type without bits");
    if dtype.class() == DTypeClass::Signed {
        let (zero, one) = (graph.int(0, ty)?, graph.int(1, ty)?);
        let negative = attrs::compare_for(Comparison::Lt, dtype);
        let negative = graph.op(OpCode::Compare, negative, &[params[1], zero])?;
        let size = graph.op(OpCode::Abs, Attrs::none(), &params[..1])?;
        let not_one = attrs::compare_for(Comparison::Ne, dtype);
        let not_one = graph.op(OpCode::Compare, not_one, &[size, one])?;
        let fraction = graph.op(OpCode::And, Attrs::none(), &[negative, not_one])?;
        result = graph.op(OpCode::Select, Attrs::none(), &[fraction, zero, result])?;
    }
    Ok(graph.returning(&[result]))
}

/// XLA's folder returns 0 for negative exponents unless the base is 1, but powers of -1 are 1 and
/// -1. A power of -1 depends only on the parity of the exponent, so for that base the lowest bit
/// replaces the exponent.
fn power_by_parity(call: &Call<'_>) -> Result<Lowered, OpError> {
    let ty = call.operand(0);
    let (mut graph, params) = Builder::of(call);
    let (base, exponent) = (params[0], params[1]);
    let (one, ones) = (graph.int(1, ty)?, graph.int(-1, ty)?);
    let is_ones = graph.op(OpCode::Compare, attrs::compare_for(Comparison::Eq, ty.dtype()), &[base, ones])?;
    let parity = graph.op(OpCode::And, Attrs::none(), &[exponent, one])?;
    let exponent = graph.op(OpCode::Select, Attrs::none(), &[is_ones, parity, exponent])?;
    let result = graph.op(OpCode::Power, Attrs::none(), &[base, exponent])?;
    Ok(graph.returning(&[result]))
}

/// XLA folds a clamp of `bool` constants to other values than the generated code computes, so
/// `bool` uses `or` and `and`. It clamps complex numbers by another order.
pub(super) fn clamp(call: &Call<'_>) -> Lowered {
    match call.operand(1).dtype() {
        DType::Bool => expanded(clamped_bool(call)),
        dtype if dtype.is_complex() => expanded(complex::clamped_by_order(call)),
        _ => Lowered::Itself,
    }
}

fn clamped_bool(call: &Call<'_>) -> Result<Lowered, OpError> {
    let ty = call.operand(1);
    let (mut graph, mut params) = Builder::of(call);
    for (end, own) in params.iter_mut().zip(call.operands) {
        if own != ty {
            let repeat = attrs::broadcast_in_dim(ty.shape().clone(), &[]);
            *end = graph.op(OpCode::BroadcastInDim, repeat, &[*end])?;
        }
    }
    let raised = graph.op(OpCode::Or, Attrs::none(), &[params[0], params[1]])?;
    let lowered = graph.op(OpCode::And, Attrs::none(), &[raised, params[2]])?;
    Ok(graph.returning(&[lowered]))
}

/// XLA's CPU backend accumulates products of `f8E8M0FNU` in that type, whose numbers are powers of
/// two, whatever the result type is. See [`Builder::sum_type`].
pub(super) fn dot_general(call: &Call<'_>) -> Lowered {
    if has_scales(call) { expanded(dot_of_scales(call)) } else { Lowered::Itself }
}

fn dot_of_scales(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, mut params) = Builder::of(call);
    let dtype = call.attr().dtype(DOT_DTYPE);
    let sum_type = graph.sum_type(call, &mut params, dtype)?;
    let mut values = call.attrs.values().to_vec();
    values[DOT_DTYPE] = AttrValue::DType(sum_type);
    let sum = graph.op(OpCode::DotGeneral, values.into_iter().collect(), &params)?;
    let result = graph.convert(sum, sum_type, dtype)?;
    Ok(graph.returning(&[result]))
}

/// Whether an operand of a contraction has type `f8E8M0FNU`.
fn has_scales(call: &Call<'_>) -> bool {
    call.operands[..2].iter().any(|ty| ty.dtype() == DType::F8E8M0FNU)
}

/// Sums of `f8E8M0FNU` are computed as in [`dot_general`]. Two properties of the kernel become ops
/// of their own:
///
/// - XLA's folder convolves integer constants in a wider type and saturates the sum, where sums
///   wrap. A barrier stops the folder. It costs nothing here, because a kernel is read from memory
///   in any case.
/// - XLA's CPU backend has fast convolutions only for kernels that are not reversed. Reversing a
///   kernel beforehand is cheap: 0.25 ms instead of 1.0 for 32 images of 8x8x16 and a kernel of 3x3
///   (2 cores, 2026-11; least of 200 runs of `convolution` with `window_reversal`, read included).
pub(super) fn convolution(call: &Call<'_>) -> Lowered {
    let is_float = call.attr().dtype(conv_attr::DTYPE).is_float();
    let is_turned = call.attr().bools(conv_attr::REVERSAL).contains(&true);
    if is_float && !is_turned && !has_scales(call) {
        return Lowered::Itself;
    }
    expanded(convolved_as_prepared(call))
}

fn convolved_as_prepared(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, mut params) = Builder::of(call);
    let dtype = call.attr().dtype(conv_attr::DTYPE);
    let sum_type = graph.sum_type(call, &mut params, dtype)?;
    let kernel = prepared_kernel(&mut graph, call, params[1])?;
    let mut values = call.attrs.values().to_vec();
    let reversal = call.attr().bools(conv_attr::REVERSAL);
    values[conv_attr::REVERSAL] = vec![false; reversal.len()].as_slice().into();
    values[conv_attr::DTYPE] = AttrValue::DType(sum_type);
    let sum = graph.op(OpCode::Convolution, values.into_iter().collect(), &[params[0], kernel])?;
    let result = graph.convert(sum, sum_type, dtype)?;
    Ok(graph.returning(&[result]))
}

/// The kernel for a convolution without reversal, reversed in advance if the call requires it.
fn prepared_kernel(graph: &mut Builder, call: &Call<'_>, mut kernel: Ref) -> Result<Ref, OpError> {
    let spatial = ConvDims::of(call)?.kernel_spatial;
    let reversal = call.attr().bools(conv_attr::REVERSAL);
    let turned: Vec<i64> =
        spatial.iter().zip(reversal).filter(|pair| *pair.1).map(|pair| *pair.0 as i64).collect();
    if !turned.is_empty() {
        kernel = graph.op(OpCode::Reverse, attrs::dimensions(&turned), &[kernel])?;
    }
    if !call.attr().dtype(conv_attr::DTYPE).is_float() {
        kernel = graph.op(OpCode::OptimizationBarrier, Attrs::none(), &[kernel])?;
    }
    Ok(kernel)
}

/// `pad` without negative amounts.
pub(super) fn pad(call: &Call<'_>) -> Lowered {
    let attr = call.attr();
    let amounts = [attr.ints(0), attr.ints(1), attr.ints(2)];
    if amounts[..2].iter().all(|amounts| amounts.iter().all(|&amount| amount >= 0)) {
        return Lowered::Itself;
    }
    let (mut graph, params) = Builder::of(call);
    let padded = graph.padded(params[0], params[1], amounts);
    expanded(padded.map(|result| graph.returning(&[result])))
}

/// Clamps strides. A stride near 2^63 overflows in XLA, which returns an empty result or aborts the
/// process. All strides past the end are equivalent.
pub(super) fn slice(call: &Call<'_>) -> Lowered {
    let attr = call.attr();
    let most = call.operand(0).dims().iter().map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX).max(1));
    let strides: Vec<i64> = attr.ints(2).iter().zip(most).map(|(&step, most)| step.min(most)).collect();
    if strides == attr.ints(2) {
        return Lowered::Itself;
    }
    let (mut graph, params) = Builder::of(call);
    let sliced = graph.op(OpCode::Slice, attrs::slice(attr.ints(0), attr.ints(1), &strides), &params);
    expanded(sliced.map(|result| graph.returning(&[result])))
}

/// Clamps start positions in the module. XLA's simplifier merges two slices by adding their
/// positions, and clamps only the sum: of 4 of 5 elements, a slice of 3 from the third on starts
/// one element too late. Updates are clamped too, although XLA does not merge them: it recognizes
/// an in-place update by its having the same position as the read.
pub(super) fn dynamic_slice(call: &Call<'_>) -> Lowered {
    expanded(placed_inside(call))
}

fn placed_inside(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, mut params) = Builder::of(call);
    let dims = call.operand(0).dims();
    let (sizes, first): (Vec<u64>, usize) = match call.def.code {
        OpCode::DynamicSlice => (call.attr().ints(0).iter().map(|&size| size as u64).collect(), 1),
        _ => (call.operand(1).dims().to_vec(), 2),
    };
    for (axis, (&dim, size)) in dims.iter().zip(sizes).enumerate() {
        let ty = call.operand(first + axis);
        // At most the greatest index of the type.
        let bits = ty.dtype().bits() - u32::from(ty.dtype().class() == DTypeClass::Signed);
        let most = dim.saturating_sub(size).min(u64::MAX >> (64 - bits));
        let last = graph.splat(most, ty.dtype(), ty.shape())?;
        let zero = graph.int(0, ty)?;
        let place = &mut params[first + axis];
        *place = graph.op(OpCode::Clamp, Attrs::none(), &[zero, *place, last])?;
    }
    let result = graph.op(call.def.code, call.attrs.clone(), &params)?;
    Ok(graph.returning(&[result]))
}

/// XLA's CPU backend returns unsigned bits for every declared type.
pub(super) fn rng_bit_generator(call: &Call<'_>) -> Lowered {
    match call.attr().dtype(1) {
        dtype if dtype.class() == DTypeClass::Unsigned => Lowered::Itself,
        dtype => expanded(drawn_as_words(call, dtype)),
    }
}

fn drawn_as_words(call: &Call<'_>, dtype: DType) -> Result<Lowered, OpError> {
    let mut values = call.attrs.values().to_vec();
    values[1] = AttrValue::DType(unsigned(dtype.bits()));
    let (mut graph, params) = Builder::of(call);
    let drawn = graph.0.push(call.def.code, values.into_iter().collect(), &[], &params)?;
    let bits = graph.op(OpCode::BitcastConvert, attrs::convert(dtype), &[drawn[1]])?;
    Ok(graph.returning(&[drawn[0], bits]))
}

/// XLA factorises matrices of short floats and rounds each step: its factor of the `f8E4M3FN`
/// number 2 is 1.5, although the root is nearer to 1.375. They are factorised in `f32`.
pub(super) fn factorised(call: &Call<'_>) -> Lowered {
    let dtype = call.operand(0).dtype();
    if dtype.size() >= 4 { Lowered::Itself } else { expanded(in_f32(call, dtype)) }
}

/// A call on short floats of one type, computed in `f32`.
fn in_f32(call: &Call<'_>, dtype: DType) -> Result<Lowered, OpError> {
    let (mut graph, mut params) = Builder::of(call);
    for param in &mut params {
        *param = graph.convert(*param, dtype, DType::F32)?;
    }
    let wide = graph.op(call.def.code, call.attrs.clone(), &params)?;
    let result = graph.convert(wide, DType::F32, dtype)?;
    Ok(graph.returning(&[result]))
}

/// XLA's generator draws words of 32 and 64 bits and aborts the process for shorter integers. These
/// are drawn as 32-bit words with the same bounds.
///
/// A uniform float that rounds up to `b`, which is excluded, becomes `a`: half as many numbers
/// round to `a` as to the others.
pub(super) fn rng(call: &Call<'_>) -> Lowered {
    let dtype = call.operand(0).dtype();
    let uniform = call.attr().member(0) == RngDistribution::Uniform as u8;
    match dtype.is_float() {
        true if uniform => expanded(drawn_below(call)),
        false if dtype.bits() < 32 => expanded(drawn_wide(call, dtype)),
        _ => Lowered::Itself,
    }
}

fn drawn_below(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let drawn = graph.op(call.def.code, call.attrs.clone(), &params)?;
    let mut ends = [params[0], params[1]];
    for end in &mut ends {
        let shape = call.attr().shape(1).clone();
        *end = graph.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &[]), &[*end])?;
    }
    let below = attrs::compare_for(Comparison::Lt, call.operand(0).dtype());
    let below = graph.op(OpCode::Compare, below, &[drawn, ends[1]])?;
    let result = graph.op(OpCode::Select, Attrs::none(), &[below, drawn, ends[0]])?;
    Ok(graph.returning(&[result]))
}

fn drawn_wide(call: &Call<'_>, dtype: DType) -> Result<Lowered, OpError> {
    let wide = if dtype.class() == DTypeClass::Signed { DType::I32 } else { DType::U32 };
    let (mut graph, params) = Builder::of(call);
    let a = graph.convert(params[0], dtype, wide)?;
    let b = graph.convert(params[1], dtype, wide)?;
    let drawn = graph.op(call.def.code, call.attrs.clone(), &[a, b, params[2]])?;
    let result = graph.convert(drawn, wide, dtype)?;
    Ok(graph.returning(&[result]))
}

/// A graph under construction. Its ops cannot be rejected, because they follow from an accepted
/// call.
struct Builder(Graph);

impl Builder {
    fn of(call: &Call<'_>) -> (Builder, Vec<Ref>) {
        let mut graph = Graph::new();
        let params = call.operands.iter().map(|ty| graph.param(ty.clone())).collect();
        (Builder(graph), params)
    }

    fn op(&mut self, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Result<Ref, OpError> {
        Ok(self.0.push(op, attrs, &[], operands)?[0])
    }

    fn ty(&self, value: Ref) -> TensorType {
        self.0.type_of(value).expect("bug: an expansion uses a value that it did not create").clone()
    }

    /// Converts a value to another element type.
    fn convert(&mut self, value: Ref, from: DType, to: DType) -> Result<Ref, OpError> {
        match to {
            _ if from == to => Ok(value),
            DType::F8E8M0FNU => self.converted_if_positive(value),
            _ => self.op(OpCode::Convert, attrs::convert(to), &[value]),
        }
    }

    /// Converts numbers to `f8E8M0FNU`, which has only positive ones. XLA's folder produces numbers
    /// for the others as well.
    fn converted_if_positive(&mut self, value: Ref) -> Result<Ref, OpError> {
        let ty = self.ty(value);
        let zero = self.int(0, &ty)?;
        let positive = attrs::compare_for(Comparison::Gt, ty.dtype());
        let positive = self.op(OpCode::Compare, positive, &[value, zero])?;
        let number = self.op(OpCode::Convert, attrs::convert(DType::F8E8M0FNU), &[value])?;
        let nan = Literal::from_bytes(TensorType::scalar(DType::F8E8M0FNU), vec![0xff]).expect("one byte");
        let nan = self.op(OpCode::Constant, attrs::constant(Arc::new(nan)), &[])?;
        let nan =
            self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(ty.shape().clone(), &[]), &[nan])?;
        self.op(OpCode::Select, Attrs::none(), &[positive, number, nan])
    }

    /// The type in which a contraction to type `result` accumulates its products. If an operand is
    /// `f8E8M0FNU`, it has at least 32 bits, and such operands are converted to it.
    fn sum_type(&mut self, call: &Call<'_>, operands: &mut [Ref], result: DType) -> Result<DType, OpError> {
        if !has_scales(call) {
            return Ok(result);
        }
        let sum_type = if result.bits() > 32 { result } else { DType::F32 };
        for (value, ty) in operands.iter_mut().zip(&call.operands[..2]) {
            if ty.dtype() == DType::F8E8M0FNU {
                *value = self.convert(*value, DType::F8E8M0FNU, sum_type)?;
            }
        }
        Ok(sum_type)
    }

    /// Pads an operand by amounts that may be negative. XLA's CPU backend has no code for negative
    /// ones and relies on its simplifier. They are cut off after the positive ones were added.
    fn padded(
        &mut self,
        operand: Ref,
        value: Ref,
        [low, high, interior]: [&[i64]; 3],
    ) -> Result<Ref, OpError> {
        let added = |amounts: &[i64]| -> Vec<i64> { amounts.iter().map(|&amount| amount.max(0)).collect() };
        let is_cut = low.iter().chain(high).any(|&amount| amount < 0);
        let padded =
            self.op(OpCode::Pad, attrs::pad(&added(low), &added(high), interior), &[operand, value])?;
        if !is_cut {
            return Ok(padded);
        }
        let from: Vec<i64> = low.iter().map(|&amount| amount.min(0).saturating_neg()).collect();
        let dims = self.ty(padded);
        let to = dims.dims().iter().zip(high).map(|(&size, &amount)| size as i64 + amount.min(0));
        let (to, ones): (Vec<i64>, Vec<i64>) = to.map(|to| (to, 1)).unzip();
        self.op(OpCode::Slice, attrs::slice(&from, &to, &ones), &[padded])
    }

    /// A constant in every element.
    fn splat<T: RealElement>(&mut self, value: T, dtype: DType, shape: &Shape) -> Result<Ref, OpError> {
        let value = attrs::constant(Arc::new(Scalar::new(value).to_literal()));
        let scalar = self.op(OpCode::Constant, value, &[])?;
        let scalar = self.convert(scalar, T::DTYPE, dtype)?;
        self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape.clone(), &[]), &[scalar])
    }

    /// An integer in every element.
    fn int(&mut self, value: i8, ty: &TensorType) -> Result<Ref, OpError> {
        self.splat(value, ty.dtype(), ty.shape())
    }

    /// An unsigned integer of the given width in every element.
    fn word(&mut self, value: u64, word: DType, shape: &Shape) -> Result<Ref, OpError> {
        self.splat(value, word, shape)
    }

    /// Inlines the ops of a body on values with the types of its parameters; returns its results.
    fn inline(&mut self, body: &Body, params: &[Ref]) -> Vec<Ref> {
        let mut made: Vec<Ref> = Vec::new();
        let moved = |value: &Ref, made: &[Ref]| match *value {
            Ref::Param(index) => params[index as usize],
            Ref::Result(index) => made[index as usize],
        };
        for node in body.graph().nodes() {
            let operands = node.operands().iter().map(|value| moved(value, &made)).collect();
            made.extend(self.0.push_signature(node.signature().clone(), operands));
        }
        body.returns().iter().map(|value| moved(value, &made)).collect()
    }

    fn body(self, returns: &[Ref]) -> Body {
        Body::new(self.0, returns).expect("bug: an expansion returns a value that it did not create")
    }

    fn returning(self, values: &[Ref]) -> Lowered {
        Lowered::Body(self.body(values))
    }
}

/// The unsigned integer of a width in bits.
pub(crate) fn unsigned(bits: u32) -> DType {
    match bits {
        2 => DType::U2,
        4 => DType::U4,
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        _ => DType::U64,
    }
}

/// The lowering of an expansion. If it exceeds the limits, because an intermediate value is larger
/// than operands and results, the op stays as it is. Any other error is a bug; release builds keep
/// the op then.
fn expanded(lowered: Result<Lowered, OpError>) -> Lowered {
    let too_large = |error: &OpError| matches!(error.fault(), OpErrorKind::Limit | OpErrorKind::Overflow);
    debug_assert!(
        lowered.as_ref().err().is_none_or(too_large),
        "bug: an expansion was rejected: {lowered:?}"
    );
    lowered.unwrap_or(Lowered::Itself)
}

/// Hides constants with a NaN from XLA's folder (API 0.81), which computes the maximum of a
/// constant NaN and a constant infinity as the infinity. A barrier prevents folding. A scalar is
/// written as its bits instead, because a function of elements cannot contain a barrier.
pub(super) fn constant(call: &Call<'_>) -> Lowered {
    let data = call.attr().dense(0);
    if !data.has_nan() {
        return Lowered::Itself;
    }
    expanded(if data.ty().rank() == 0 { scalar_from_bits(call, data) } else { behind_barrier(call, data) })
}

fn behind_barrier(call: &Call<'_>, data: &Arc<Literal>) -> Result<Lowered, OpError> {
    let (mut graph, _) = Builder::of(call);
    let constant = graph.op(OpCode::Constant, attrs::constant(data.clone()), &[])?;
    let hidden = graph.op(OpCode::OptimizationBarrier, Attrs::none(), &[constant])?;
    Ok(graph.returning(&[hidden]))
}

fn scalar_from_bits(call: &Call<'_>, data: &Literal) -> Result<Lowered, OpError> {
    let part = data.dtype().part();
    let (mut graph, _) = Builder::of(call);
    let mut parts = Vec::new();
    for raw in data.bytes().chunks_exact(part.size()) {
        let word = TensorType::scalar(unsigned(part.bits()));
        let bits = Literal::from_bytes(word, raw.to_vec())
            .expect("bug: a word must be as long as the bits that it holds");
        let bits = graph.op(OpCode::Constant, attrs::constant(Arc::new(bits)), &[])?;
        parts.push(graph.op(OpCode::BitcastConvert, attrs::convert(part), &[bits])?);
    }
    let value = match parts.as_slice() {
        &[value] => value,
        parts => graph.op(OpCode::Complex, Attrs::none(), parts)?,
    };
    Ok(graph.returning(&[value]))
}
