//! Legalizes ops of the CHLO dialect that XLA's plugins lack or compute inaccurately.

use std::sync::Arc;

use super::zeta::zeta_or_polygamma;
use super::{Builder, Lowered, complex, expanded, in_f32, unsigned};
use crate::attr::{AttrValue, Attrs};
use crate::dtype::{DType, DTypeClass};
use crate::error::OpError;
use crate::ir::{Body, OpCode, Ref};
use crate::literal::Literal;
use crate::op::attrs::{self, DotDimensionNumbers};
use crate::op::def::Call;
use crate::op::enums::Comparison;
use crate::op::infer::chlo::{Ragged, RaggedDims, ScanDims};
use crate::shape::{Shape, TensorType};

/// Unary ops.
///
/// - `conj` of a float: the plugins (API 0.81) reject it, because they support complex numbers
///   only.
/// - `sinh`: see [`hyperbolic_sine`]; of complex numbers, see [`complex::unary`].
/// - The inverse functions below: the plugins compute them in the shorter type and round each step,
///   which leaves errors of up to 3 units in the last place. Computed in `f32`, they are accurate
///   to the last place of the shorter type.
pub(in crate::op) fn unary(call: &Call<'_>) -> Lowered {
    let dtype = call.operand(0).dtype();
    match call.def.code {
        _ if dtype.is_complex() => complex::unary(call),
        OpCode::Conj => expanded(unchanged(call)),
        OpCode::Sinh => expanded(hyperbolic_sine(call)),
        OpCode::Asin => expanded(arc_sine(call)),
        OpCode::Acos | OpCode::Acosh | OpCode::Asinh | OpCode::Atanh if dtype.size() <= 2 => {
            expanded(in_f32(call, dtype))
        }
        OpCode::Atan => expanded(angle_over_one(call)),
        OpCode::Digamma => expanded(digamma(call)),
        // The plugins legalize the dialect for floats of 16 bits and more.
        _ if dtype.is_small_float() => expanded(in_f32(call, dtype)),
        _ => Lowered::Itself,
    }
}

/// `atan` as the angle of the point (1, x). Newer versions of XLA's CPU backend have a vector
/// function for `atan`. A build of October 2026 (API 0.115) calls it wrongly for vectors of 16
/// `f32` or 4 `f64`: results are 0 or stale memory, with `xla_cpu_prefer_vector_width=512`, and for
/// `f64` with default options too. None of 29 other functions differed between widths of 128, 256
/// and 512.
///
/// Floats of 8 bits and fewer are computed in `f32`.
fn angle_over_one(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (given, shape) = (call.operand(0).dtype(), call.operand(0).shape());
    let dtype = if given.is_small_float() { DType::F32 } else { given };
    let (mut graph, params) = Builder::of(call);
    let x = graph.convert(params[0], given, dtype)?;
    let one = graph.splat(1.0f64, dtype, shape)?;
    // Behind a barrier: with a known 1, XLA would turn the op back into `atan`.
    let one = graph.plain(OpCode::OptimizationBarrier, &[one])?;
    let angle = graph.plain(OpCode::Atan2, &[x, one])?;
    let result = graph.convert(angle, dtype, given)?;
    Ok(graph.returning(&[result]))
}

/// `digamma`, which is NaN at zero, as at its other poles. Newer versions of XLA (API 0.115) return
/// an infinity there.
///
/// Floats of 8 bits and fewer are computed in `f32`.
fn digamma(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (given, shape) = (call.operand(0).dtype(), call.operand(0).shape());
    let dtype = if given.is_small_float() { DType::F32 } else { given };
    let (mut graph, params) = Builder::of(call);
    let x = graph.convert(params[0], given, dtype)?;
    let result = graph.digamma(x, dtype, shape)?;
    let result = graph.convert(result, dtype, given)?;
    Ok(graph.returning(&[result]))
}

/// `asin` as `2 atan2(x, 1 + sqrt((1 - x) (1 + x)))`, as the plugins legalize it. Near zero, where
/// half of the result underflows, it returns its operand.
fn arc_sine(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (given, shape) = (call.operand(0).dtype(), call.operand(0).shape());
    let dtype = if given.size() <= 2 { DType::F32 } else { given };
    // `near`: a sixth of its square is less than half a unit in the last place. `least`: smaller
    // numbers count as zero if the plugin flushes them, and the formula holds.
    let (near, least) = match dtype {
        DType::F64 => (f64::exp2(-27.0), f64::MIN_POSITIVE),
        _ => (f64::exp2(-13.0), f64::from(f32::MIN_POSITIVE)),
    };
    let (mut graph, params) = Builder::of(call);
    let x = graph.convert(params[0], given, dtype)?;
    let [one, two, near, least] = [1.0, 2.0, near, least].map(|number| graph.splat(number, dtype, shape));
    let (one, two, near, least) = (one?, two?, near?, least?);
    let below = graph.plain(OpCode::Subtract, &[one, x])?;
    let above = graph.plain(OpCode::Add, &[one, x])?;
    let cosine = graph.plain(OpCode::Multiply, &[below, above])?;
    let cosine = graph.plain(OpCode::Sqrt, &[cosine])?;
    let adjacent = graph.plain(OpCode::Add, &[one, cosine])?;
    let half = graph.plain(OpCode::Atan2, &[x, adjacent])?;
    let angle = graph.plain(OpCode::Multiply, &[half, two])?;
    let magnitude = graph.plain(OpCode::Abs, &[x])?;
    let is_near = graph.op(OpCode::Compare, attrs::compare_for(Comparison::Lt, dtype), &[magnitude, near])?;
    let is_normal =
        graph.op(OpCode::Compare, attrs::compare_for(Comparison::Ge, dtype), &[magnitude, least])?;
    let is_itself = graph.plain(OpCode::And, &[is_near, is_normal])?;
    let result = graph.plain(OpCode::Select, &[is_itself, x, angle])?;
    let result = graph.convert(result, dtype, given)?;
    Ok(graph.returning(&[result]))
}

/// Returns the operand. A conversion to the operand's own type represents the op in the module.
fn unchanged(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let same = graph.op(OpCode::Convert, attrs::convert(call.operand(0).dtype()), &params)?;
    Ok(graph.returning(&[same]))
}

/// `sinh` by the formulas of the dialect, `e^(x + log(1/2)) - e^(-x + log(1/2))` and
/// [`Builder::sinh`]. XLA applies the second to negative numbers too, where the quotient magnifies
/// the error of `e` to 4 units in the last place (conformance case `sinh_float64_20_20_chlo`).
fn hyperbolic_sine(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (given, shape) = (call.operand(0).dtype(), call.operand(0).shape());
    let dtype = if given.size() <= 2 { DType::F32 } else { given };
    let (mut graph, params) = Builder::of(call);
    let x = graph.convert(params[0], given, dtype)?;
    let magnitude = graph.plain(OpCode::Abs, &[x])?;
    let log_half = graph.splat(0.5f64.ln(), dtype, shape)?;
    let rising = graph.plain(OpCode::Add, &[magnitude, log_half])?;
    let rising = graph.plain(OpCode::Exponential, &[rising])?;
    let falling = graph.plain(OpCode::Subtract, &[log_half, magnitude])?;
    let falling = graph.plain(OpCode::Exponential, &[falling])?;
    let far = graph.plain(OpCode::Subtract, &[rising, falling])?;
    let result = graph.sinh(x, far, dtype, shape)?;
    let result = graph.convert(result, dtype, given)?;
    Ok(graph.returning(&[result]))
}

impl Builder {
    /// `digamma` of floats of 16 bits and more.
    pub(super) fn digamma(&mut self, x: Ref, dtype: DType, shape: &Shape) -> Result<Ref, OpError> {
        let value = self.plain(OpCode::Digamma, &[x])?;
        let [zero, nan] = [0.0, f64::NAN].map(|number| self.splat(number, dtype, shape));
        let is_zero = self.op(OpCode::Compare, attrs::compare_for(Comparison::Eq, dtype), &[x, zero?])?;
        self.plain(OpCode::Select, &[is_zero, nan?, value])
    }

    /// `sinh` of floats: `far` for magnitudes from 1 on, else `(e + e / (e + 1)) / 2` with `e =
    /// exp(|x|) - 1`.
    fn sinh(&mut self, x: Ref, far: Ref, dtype: DType, shape: &Shape) -> Result<Ref, OpError> {
        let magnitude = self.plain(OpCode::Abs, &[x])?;
        let grown = self.plain(OpCode::ExponentialMinusOne, &[magnitude])?;
        let one = self.splat(1.0f64, dtype, shape)?;
        let divisor = self.plain(OpCode::Add, &[grown, one])?;
        let quotient = self.plain(OpCode::Divide, &[grown, divisor])?;
        let near = self.plain(OpCode::Add, &[grown, quotient])?;
        let half = self.splat(0.5f64, dtype, shape)?;
        let near = self.plain(OpCode::Multiply, &[near, half])?;
        let less = attrs::compare_for(Comparison::Lt, dtype);
        let is_near = self.op(OpCode::Compare, less, &[magnitude, one])?;
        let result = self.plain(OpCode::Select, &[is_near, near, far])?;
        self.with_sign_of(result, x, dtype, shape)
    }

    /// `sinh` and `cosh` of floats of 32 or 64 bits, from `e^|x| / 2` and `e^-|x| / 2`. The first
    /// is a product that overflows no earlier than the result.
    pub(super) fn hyperbolic(&mut self, x: Ref, dtype: DType, shape: &Shape) -> Result<(Ref, Ref), OpError> {
        let magnitude = self.plain(OpCode::Abs, &[x])?;
        let half = self.splat(0.5f64, dtype, shape)?;
        let root = self.plain(OpCode::Multiply, &[magnitude, half])?;
        let root = self.plain(OpCode::Exponential, &[root])?;
        let rising = self.plain(OpCode::Multiply, &[root, half])?;
        let rising = self.plain(OpCode::Multiply, &[rising, root])?;
        let falling = self.plain(OpCode::Negate, &[magnitude])?;
        let falling = self.plain(OpCode::Exponential, &[falling])?;
        let falling = self.plain(OpCode::Multiply, &[falling, half])?;
        let cosh = self.plain(OpCode::Add, &[rising, falling])?;
        let far = self.plain(OpCode::Subtract, &[rising, falling])?;
        Ok((self.sinh(x, far, dtype, shape)?, cosh))
    }

    /// A non-negative float (zeros and NaN included) with the sign of another one.
    pub(super) fn with_sign_of(
        &mut self,
        value: Ref,
        sign: Ref,
        dtype: DType,
        shape: &Shape,
    ) -> Result<Ref, OpError> {
        let word = unsigned(dtype.bits());
        let value = self.op(OpCode::BitcastConvert, attrs::convert(word), &[value])?;
        let sign = self.op(OpCode::BitcastConvert, attrs::convert(word), &[sign])?;
        let bit = self.word(1 << (dtype.bits() - 1), word, shape)?;
        let sign = self.plain(OpCode::And, &[sign, bit])?;
        let signed = self.plain(OpCode::Or, &[value, sign])?;
        self.op(OpCode::BitcastConvert, attrs::convert(dtype), &[signed])
    }
}

/// Binary ops. The plugins (API 0.81) lack `mulhi`.
pub(in crate::op) fn binary(call: &Call<'_>) -> Lowered {
    match call.def.code {
        OpCode::Mulhi if call.operand(0).dtype().bits() < 64 => expanded(upper_half(call)),
        OpCode::Mulhi => expanded(upper_half_of_halves(call)),
        OpCode::Polygamma | OpCode::Zeta => zeta_or_polygamma(call),
        _ if call.operand(0).dtype().is_small_float() => expanded(in_f32(call, call.operand(0).dtype())),
        OpCode::NextAfter => expanded(next_after(call)),
        _ => Lowered::Itself,
    }
}

/// `next_after` on the bits of the operands. XLA compares the operands as numbers. A processor that
/// flushes subnormal numbers finds zero equal to a subnormal number, and the result would be the
/// target instead of the next number.
fn next_after(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (dtype, shape) = (call.operand(0).dtype(), call.operand(0).shape());
    let word = unsigned(dtype.bits());
    let sign_bit = 1u64 << (dtype.bits() - 1);
    let (mut graph, params) = Builder::of(call);
    let nan = [graph.is_nan(params[0], call.operand(0))?, graph.is_nan(params[1], call.operand(1))?];
    let mut bits = |value| graph.op(OpCode::BitcastConvert, attrs::convert(word), &[value]);
    let (x, y) = (bits(params[0])?, bits(params[1])?);
    let [zero, one] = [graph.word(0, word, shape)?, graph.word(1, word, shape)?];
    let [sign, magnitude] = [graph.word(sign_bit, word, shape)?, graph.word(sign_bit - 1, word, shape)?];
    let (x_size, y_size) =
        (graph.plain(OpCode::And, &[x, magnitude])?, graph.plain(OpCode::And, &[y, magnitude])?);
    let (x_sign, y_sign) = (graph.plain(OpCode::And, &[x, sign])?, graph.plain(OpCode::And, &[y, sign])?);
    let mut is = |direction, a, b| graph.op(OpCode::Compare, attrs::compare_for(direction, word), &[a, b]);
    let (x_zero, y_zero) = (is(Comparison::Eq, x_size, zero)?, is(Comparison::Eq, y_size, zero)?);
    let (same, same_sign) = (is(Comparison::Eq, x, y)?, is(Comparison::Eq, x_sign, y_sign)?);
    let is_farther = is(Comparison::Gt, y_size, x_size)?;
    let outwards = graph.plain(OpCode::And, &[same_sign, is_farther])?;
    let (larger, smaller) = (graph.plain(OpCode::Add, &[x, one])?, graph.plain(OpCode::Subtract, &[x, one])?);
    let step = graph.plain(OpCode::Select, &[outwards, larger, smaller])?;
    let least = graph.plain(OpCode::Or, &[y_sign, one])?;
    let step = graph.plain(OpCode::Select, &[x_zero, least, step])?;
    let both_zero = graph.plain(OpCode::And, &[x_zero, y_zero])?;
    let equal = graph.plain(OpCode::Or, &[same, both_zero])?;
    // NaN returns itself.
    let is_end = graph.plain(OpCode::Or, &[equal, nan[1]])?;
    let step = graph.plain(OpCode::Select, &[is_end, y, step])?;
    let step = graph.plain(OpCode::Select, &[nan[0], x, step])?;
    let result = graph.op(OpCode::BitcastConvert, attrs::convert(dtype), &[step])?;
    Ok(graph.returning(&[result]))
}

/// The upper half of a product that fits in a wider type.
fn upper_half(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (dtype, shape) = (call.operand(0).dtype(), call.operand(0).shape());
    let signed = dtype.class() == DTypeClass::Signed;
    let wide = if signed { DType::I64 } else { DType::U64 };
    let (mut graph, params) = Builder::of(call);
    let lhs = graph.convert(params[0], dtype, wide)?;
    let rhs = graph.convert(params[1], dtype, wide)?;
    let product = graph.plain(OpCode::Multiply, &[lhs, rhs])?;
    let bits = graph.splat(dtype.bits() as u8, wide, shape)?;
    let shift = if signed { OpCode::ShiftRightArithmetic } else { OpCode::ShiftRightLogical };
    let upper = graph.op(shift, Attrs::none(), &[product, bits])?;
    let result = graph.convert(upper, wide, dtype)?;
    Ok(graph.returning(&[result]))
}

/// The upper half of a 128-bit product, from the products of the halves of its factors. Lower
/// halves are unsigned, and upper ones are signed like the factors. No partial sum exceeds 64 bits:
/// the greatest unsigned one is `((2^32 - 1)^2 + 2 (2^32 - 1))`.
fn upper_half_of_halves(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (dtype, shape) = (call.operand(0).dtype(), call.operand(0).shape());
    let signed = dtype.class() == DTypeClass::Signed;
    let shift = if signed { OpCode::ShiftRightArithmetic } else { OpCode::ShiftRightLogical };
    let (mut graph, params) = Builder::of(call);
    let (bits, mask) = (graph.splat(32u8, dtype, shape)?, graph.splat(u64::from(u32::MAX), dtype, shape)?);
    let lower = |graph: &mut Builder, value| graph.plain(OpCode::And, &[value, mask]);
    let upper = |graph: &mut Builder, value| graph.op(shift, Attrs::none(), &[value, bits]);
    let product = |graph: &mut Builder, a, b| graph.plain(OpCode::Multiply, &[a, b]);
    let sum = |graph: &mut Builder, a, b| graph.plain(OpCode::Add, &[a, b]);
    let (a0, a1) = (lower(&mut graph, params[0])?, upper(&mut graph, params[0])?);
    let (b0, b1) = (lower(&mut graph, params[1])?, upper(&mut graph, params[1])?);
    // The product of the lower halves is unsigned for every type.
    let lowest = product(&mut graph, a0, b0)?;
    let carried = graph.plain(OpCode::ShiftRightLogical, &[lowest, bits])?;
    let crossed = product(&mut graph, a1, b0)?;
    let first = sum(&mut graph, crossed, carried)?;
    let crossed = product(&mut graph, a0, b1)?;
    let first_lower = lower(&mut graph, first)?;
    let second = sum(&mut graph, crossed, first_lower)?;
    let highest = product(&mut graph, a1, b1)?;
    let (first, second) = (upper(&mut graph, first)?, upper(&mut graph, second)?);
    let result = sum(&mut graph, highest, first)?;
    let result = sum(&mut graph, result, second)?;
    Ok(graph.returning(&[result]))
}

/// The plugins (API 0.81) do not know the stability attribute of `top_k`. Their `top_k` is stable,
/// which satisfies both values.
///
/// Short floats are ordered as `f32`: among elements of `f8E5M2FNUZ`, XLA's CPU backend orders the
/// number before the smallest normal one above it.
pub(in crate::op) fn top_k(call: &Call<'_>) -> Lowered {
    let short = call.operand(0).dtype().is_small_float();
    if !short && call.attrs.values()[1] == AttrValue::Absent {
        return Lowered::Itself;
    }
    expanded(unstable_top_k(call, short))
}

fn unstable_top_k(call: &Call<'_>, short: bool) -> Result<Lowered, OpError> {
    let dtype = call.operand(0).dtype();
    let ordered = if short { DType::F32 } else { dtype };
    let (mut graph, params) = Builder::of(call);
    let operand = graph.convert(params[0], dtype, ordered)?;
    let mut found = graph.0.push(OpCode::TopK, attrs::top_k(call.attr().int(0)), &[], &[operand])?.to_vec();
    found[0] = graph.convert(found[0], ordered, dtype)?;
    Ok(graph.returning(&found))
}

/// XLA's CPU backend has no implementation of `ragged_dot`. This one is a `dot_general` in which a
/// mask zeroes everything outside of the groups:
///
/// - in the result, if each group is multiplied with its own part of rhs: every row is multiplied
///   with the rhs of every group, and one product is kept;
/// - in both operands, if each group is summed into a result of its own. If only one operand were
///   masked, a zero could meet an infinity.
///
/// The cost is one product per group, as in JAX where it has no kernel for the op.
pub(in crate::op) fn ragged_dot(call: &Call<'_>) -> Lowered {
    expanded(masked_dot(call))
}

fn masked_dot(call: &Call<'_>) -> Result<Lowered, OpError> {
    let dims = RaggedDims::of(call)?;
    let (lhs, rhs) = (call.operand(0), call.operand(1));
    let dot = DotDimensionNumbers {
        lhs_batching: dims.dot.lhs_batch,
        rhs_batching: dims.dot.rhs_batch,
        lhs_contracting: dims.dot.lhs_contract,
        rhs_contracting: dims.dot.rhs_contract,
    };
    let (mut graph, params) = Builder::of(call);
    match dims.kind {
        Ragged::Batching => {
            let product = graph.dot(call, dot, params[0], params[1])?;
            Ok(graph.returning(&[product]))
        }
        Ragged::Free { group } => {
            let bounds = graph.group_bounds(params[2], call.operand(2))?;
            let product = graph.dot(call, dot, params[0], params[1])?;
            let ty = graph.ty(product);
            // The order of dimensions in the product: batching, free of lhs, free of rhs.
            let batch = dims.dot.lhs_batch;
            let free = |operand: &TensorType, batch: &[i64], contract: &[i64]| -> Vec<i64> {
                let free = |axis: &i64| !batch.contains(axis) && !contract.contains(axis);
                (0..operand.rank() as i64).filter(free).collect()
            };
            let lhs_axes = [batch, &free(lhs, batch, dims.dot.lhs_contract)].concat();
            let rhs_free = free(rhs, dims.dot.rhs_batch, dims.dot.rhs_contract);
            let place = |axis: usize| lhs_axes.iter().position(|&lhs| lhs == axis as i64).unwrap_or(0);
            let own = rhs_free.iter().position(|&rhs| rhs == group as i64).unwrap_or(0);
            let group_axis = lhs_axes.len() + own;
            let axes: Vec<usize> = dims.prefix.iter().map(|&axis| place(axis)).collect();
            let mask = graph.in_group(&bounds, &axes, place(dims.ragged), group_axis, ty.shape())?;
            let kept = graph.select_or_zero(mask, product, &ty)?;
            let zero = graph.zero_scalar(ty.dtype())?;
            let add = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(ty.dtype()))?);
            let along = attrs::dimensions(&[group_axis as i64]);
            let result = graph.0.push(OpCode::Reduce, along, &[add], &[kept, zero])?;
            Ok(graph.returning(&result))
        }
        Ragged::Contracting => {
            let bounds = graph.group_bounds(params[2], call.operand(2))?;
            let mut parts = Vec::new();
            let counterpart = |axis: usize| {
                let pairs = dims.dot.lhs_batch.iter().zip(dims.dot.rhs_batch);
                let mut pairs = pairs.chain(dims.dot.lhs_contract.iter().zip(dims.dot.rhs_contract));
                pairs.find(|pair| *pair.0 == axis as i64).map_or(0, |pair| *pair.1 as usize)
            };
            for (operand, is_rhs) in [(lhs, false), (rhs, true)] {
                // The groups become the first dimension of both operands, and a batching dimension
                // of the product.
                let place = |axis: usize| 1 + if is_rhs { counterpart(axis) } else { axis };
                let ty = call.ty(operand.dtype(), &[&[dims.groups], operand.dims()].concat())?;
                let kept: Vec<i64> = (1..=operand.rank() as i64).collect();
                let repeat = attrs::broadcast_in_dim(ty.shape().clone(), &kept);
                let repeated = graph.op(OpCode::BroadcastInDim, repeat, &[params[usize::from(is_rhs)]])?;
                let axes: Vec<usize> = dims.prefix.iter().map(|&axis| place(axis)).collect();
                let mask = graph.in_group(&bounds, &axes, place(dims.ragged), 0, ty.shape())?;
                parts.push(graph.select_or_zero(mask, repeated, &ty)?);
            }
            let moved = |axes: &[i64]| axes.iter().map(|axis| axis + 1).collect::<Vec<i64>>();
            let with_group = |axes: &[i64]| [vec![0], moved(axes)].concat();
            let dot = DotDimensionNumbers {
                lhs_batching: &with_group(dot.lhs_batching),
                rhs_batching: &with_group(dot.rhs_batching),
                lhs_contracting: &moved(dot.lhs_contracting),
                rhs_contracting: &moved(dot.rhs_contracting),
            };
            let product = graph.dot(call, dot, parts[0], parts[1])?;
            Ok(graph.returning(&[product]))
        }
    }
}

/// Starts and ends of the groups of a `ragged_dot`: two `i64` values of type `ty`.
struct Bounds {
    starts: Ref,
    ends: Ref,
    ty: TensorType,
}

impl Builder {
    /// A scalar of zero.
    fn zero_scalar(&mut self, dtype: DType) -> Result<Ref, OpError> {
        let zero = Literal::zeros(TensorType::scalar(dtype));
        self.op(OpCode::Constant, attrs::constant(Arc::new(zero)), &[])
    }

    /// A `dot_general` with the result type and the precision of a `ragged_dot`.
    fn dot(
        &mut self,
        call: &Call<'_>,
        dims: DotDimensionNumbers<'_>,
        lhs: Ref,
        rhs: Ref,
    ) -> Result<Ref, OpError> {
        let mut values = attrs::dot_general(dims, call.attr().dtype(2)).values().to_vec();
        values[1] = call.attrs.values()[1].clone();
        self.op(OpCode::DotGeneral, values.into_iter().collect(), &[lhs, rhs])
    }

    fn select_or_zero(&mut self, mask: Ref, value: Ref, ty: &TensorType) -> Result<Ref, OpError> {
        let zero = self.zero_scalar(ty.dtype())?;
        let zeros =
            self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(ty.shape().clone(), &[]), &[zero])?;
        self.plain(OpCode::Select, &[mask, value, zeros])
    }

    /// Prefix sums of the group sizes along the last dimension: inclusive for the ends, exclusive
    /// for the starts.
    fn group_bounds(&mut self, sizes: Ref, ty: &TensorType) -> Result<Bounds, OpError> {
        let sizes = self.convert(sizes, ty.dtype(), DType::I64)?;
        let (rank, groups) = (ty.rank(), ty.dims().last().map_or(1, |&groups| groups.max(1) as i64));
        let (mut window, mut padding) = (vec![1; rank], vec![(0, 0); rank]);
        (window[rank - 1], padding[rank - 1]) = (groups, (groups - 1, 0));
        let zero = self.zero_scalar(DType::I64)?;
        let add = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::I64))?);
        let along = attrs::reduce_window(&window, &vec![1; rank], &padding);
        let ends = self.0.push(OpCode::ReduceWindow, along, &[add], &[sizes, zero])?[0];
        let starts = self.plain(OpCode::Subtract, &[ends, sizes])?;
        let ty = self.ty(ends);
        Ok(Bounds { starts, ends, ty })
    }

    /// A mask of the elements whose index along `ragged` is in the group given by the index along
    /// `group`. Any other dimensions of the bounds are the dimensions `prefix` of the shape.
    fn in_group(
        &mut self,
        bounds: &Bounds,
        prefix: &[usize],
        ragged: usize,
        group: usize,
        shape: &Shape,
    ) -> Result<Ref, OpError> {
        let shared = bounds.ty.rank() == 1;
        let axes = [if shared { &[] } else { prefix }, &[group]].concat();
        // Broadcast dimensions in ascending order, which all parts of XLA accept.
        let mut order: Vec<usize> = (0..axes.len()).collect();
        order.sort_by_key(|&dim| axes[dim]);
        let permutation = attrs::transpose(&order.iter().map(|&dim| dim as i64).collect::<Vec<_>>());
        let ascending: Vec<i64> = order.iter().map(|&dim| axes[dim] as i64).collect();
        let spread = |graph: &mut Builder, bound| {
            let turned = graph.op(OpCode::Transpose, permutation.clone(), &[bound])?;
            graph.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape.clone(), &ascending), &[turned])
        };
        let (starts, ends) = (spread(self, bounds.starts)?, spread(self, bounds.ends)?);
        let index = self.op(OpCode::Iota, attrs::iota(DType::I64, shape.clone(), ragged as i64), &[])?;
        let compare = |direction| attrs::compare_for(direction, DType::I64);
        let from = self.op(OpCode::Compare, compare(Comparison::Ge), &[index, starts])?;
        let to = self.op(OpCode::Compare, compare(Comparison::Lt), &[index, ends])?;
        self.plain(OpCode::And, &[from, to])
    }
}

/// The plugins (API 0.81) lack `scan`. It becomes a loop over the slices.
pub(in crate::op) fn scan(call: &Call<'_>) -> Lowered {
    expanded(loop_over_slices(call))
}

fn loop_over_slices(call: &Call<'_>) -> Result<Lowered, OpError> {
    let ScanDims { axis, size, reverse, inputs, outputs } = ScanDims::of(call)?;
    let results = (call.def.infer)(call)?;
    let body = &call.bodies[0];
    let (mut graph, params) = Builder::of(call);
    let (inputs, inits) = params.split_at(inputs);
    let mut state = Vec::new();
    for ty in &results[..outputs] {
        state.push(graph.splat(false, ty.dtype(), ty.shape())?);
    }
    state.extend(inits);
    if size == 0 {
        return Ok(graph.returning(&state));
    }
    let step = |graph: &mut Builder, number: Ref, state: &[Ref], inputs: &[Ref]| {
        let mut at = number;
        if reverse {
            let last = graph.number(size as i64 - 1)?;
            at = graph.plain(OpCode::Subtract, &[last, number])?;
        }
        let zero = graph.number(0)?;
        let starts = |rank: usize| (0..rank).map(move |dim| if dim == axis { at } else { zero });
        let mut arguments = Vec::new();
        for (&input, slice) in inputs.iter().zip(body.graph().params()) {
            let mut sizes: Vec<i64> = graph.ty(input).dims().iter().map(|&dim| dim as i64).collect();
            sizes[axis] = 1;
            let operands: Vec<Ref> = std::iter::once(input).chain(starts(sizes.len())).collect();
            let cut = graph.op(OpCode::DynamicSlice, attrs::dynamic_slice(&sizes), &operands)?;
            arguments.push(graph.reshaped(cut, slice.shape())?);
        }
        arguments.extend(&state[outputs..]);
        let mut next = graph.inline(body, &arguments);
        for (output, &whole) in next[..outputs].iter_mut().zip(state) {
            let ty = graph.ty(whole);
            let mut dims = ty.dims().to_vec();
            dims[axis] = 1;
            let update = graph.reshaped(*output, call.ty(ty.dtype(), &dims)?.shape())?;
            let operands: Vec<Ref> = [whole, update].into_iter().chain(starts(dims.len())).collect();
            *output = graph.plain(OpCode::DynamicUpdateSlice, &operands)?;
        }
        Ok(next)
    };
    let last = graph.repeat(size, &state, inputs, step)?;
    Ok(graph.returning(&last))
}
