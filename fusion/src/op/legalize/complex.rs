//! Legalizes ops on complex numbers.

use std::sync::Arc;

use super::{Builder, Lowered, expanded};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::error::OpError;
use crate::ir::{OpCode, Ref};
use crate::literal::Literal;
use crate::op::attrs;
use crate::op::def::Call;
use crate::op::enums::Comparison;
use crate::shape::Shape;

/// XLA accepts only complex numbers here. The real part of a float is the float; its imaginary part
/// is zero.
pub(in crate::op) fn part(call: &Call<'_>) -> Lowered {
    if call.operand(0).dtype().is_complex() { Lowered::Itself } else { expanded(part_of_real(call)) }
}

fn part_of_real(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let part = match call.def.code {
        OpCode::Real => graph.op(OpCode::Convert, attrs::convert(call.operand(0).dtype()), &params)?,
        _ => {
            // Not as a converted integer: `f8E8M0FNU` has no zero, and XLA's folder would produce
            // the smallest number.
            let zero = attrs::constant(Arc::new(Literal::of_f64(call.operand(0).dtype(), 0.0)));
            let zero = graph.op(OpCode::Constant, zero, &[])?;
            let shape = call.operand(0).shape().clone();
            graph.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &[]), &[zero])?
        }
    };
    Ok(graph.returning(&[part]))
}

/// XLA's simplifier replaces the magnitude of an iota by the iota, and aborts the process if it is
/// complex (API 0.81). Complex iotas are built from their real parts.
pub(in crate::op) fn iota(call: &Call<'_>) -> Lowered {
    if call.attr().dtype(0).is_complex() { expanded(iota_of_parts(call)) } else { Lowered::Itself }
}

fn iota_of_parts(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (part, shape) = (call.attr().dtype(0).part(), call.attr().shape(1));
    let (mut graph, _) = Builder::of(call);
    let real = graph.op(OpCode::Iota, attrs::iota(part, shape.clone(), call.attr().int(2)), &[])?;
    let imag = graph.splat(0.0f64, part, shape)?;
    let result = graph.plain(OpCode::Complex, &[real, imag])?;
    Ok(graph.returning(&[result]))
}

/// XLA's CPU backend has no maximum and minimum of complex numbers in the specification's order: by
/// real parts, then by imaginary parts.
pub(super) fn selected_by_order(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let result = graph.beyond(call.def.code, params[0], params[1], call.operand(0).dtype().part())?;
    Ok(graph.returning(&[result]))
}

/// Two conversions that XLA's folder computes wrongly:
///
/// - It crashes (a segmentation fault, API 0.81) when it converts a complex constant with equal
///   elements to real numbers. The real parts are converted instead.
/// - It produces positive numbers from all numbers that are converted to `f8E8M0FNU`; see
///   [`Builder::converted_if_positive`].
pub(in crate::op) fn convert(call: &Call<'_>) -> Lowered {
    let (from, to) = (call.operand(0).dtype(), call.attr().dtype(0));
    match to {
        _ if from.is_complex() && !to.is_complex() => expanded(converted_part(call)),
        DType::F8E8M0FNU if from != to => expanded(converted(call)),
        _ => Lowered::Itself,
    }
}

fn converted(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let result = graph.converted_if_positive(params[0])?;
    Ok(graph.returning(&[result]))
}

fn converted_part(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let part = graph.plain(OpCode::Real, &params)?;
    let (from, to) = (call.operand(0).dtype().part(), call.attr().dtype(0));
    // A conversion to the same type is kept too, to represent the op in the module.
    let result = match from == to {
        true => graph.op(OpCode::Convert, call.attrs.clone(), &[part])?,
        false => graph.convert(part, from, to)?,
    };
    Ok(graph.returning(&[result]))
}

/// XLA's CPU backend clamps complex numbers by other orders than the specification's, so its result
/// may lie outside of the bounds. This expansion takes a maximum and a minimum as in
/// [`selected_by_order`].
pub(super) fn clamped_by_order(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let [min, max] = [params[0], params[2]].map(|bound| {
        let shape = call.operand(1).shape();
        if graph.ty(bound).shape() == shape {
            return Ok(bound);
        }
        graph.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape.clone(), &[]), &[bound])
    });
    let part = call.operand(1).dtype().part();
    let raised = graph.beyond(OpCode::Maximum, min?, params[1], part)?;
    let result = graph.beyond(OpCode::Minimum, raised, max?, part)?;
    Ok(graph.returning(&[result]))
}

impl Builder {
    /// A product in which zero times infinity is zero, so that real and imaginary numbers stay so.
    fn times(&mut self, factors: [Ref; 2], dtype: DType, shape: &Shape) -> Result<Ref, OpError> {
        let (zero, one) = (self.splat(0.0f64, dtype, shape)?, self.splat(1.0f64, dtype, shape)?);
        let equal = attrs::compare_for(Comparison::Eq, dtype);
        let is_zero = self.op(OpCode::Compare, equal, &[factors[0], zero])?;
        let sign = self.with_sign_of(one, factors[1], dtype, shape)?;
        let factor = self.plain(OpCode::Select, &[is_zero, sign, factors[1]])?;
        self.plain(OpCode::Multiply, &[factors[0], factor])
    }

    /// The maximum or minimum of two complex values with parts of type `part`.
    fn beyond(&mut self, op: OpCode, lhs: Ref, rhs: Ref, part: DType) -> Result<Ref, OpError> {
        let direction = if op == OpCode::Maximum { Comparison::Gt } else { Comparison::Lt };
        let mut parts = |op| -> Result<_, OpError> {
            Ok([self.op(op, Attrs::none(), &[lhs])?, self.op(op, Attrs::none(), &[rhs])?])
        };
        let (re, im) = (parts(OpCode::Real)?, parts(OpCode::Imag)?);
        let beyond = attrs::compare_for(direction, part);
        let first = self.op(OpCode::Compare, beyond.clone(), &re)?;
        let same = self.op(OpCode::Compare, attrs::compare_for(Comparison::Eq, part), &re)?;
        // Equal numbers are identical, so either may be selected.
        let second = self.op(OpCode::Compare, beyond, &im)?;
        let tie = self.op(OpCode::And, Attrs::none(), &[same, second])?;
        let left = self.op(OpCode::Or, Attrs::none(), &[first, tie])?;
        self.op(OpCode::Select, Attrs::none(), &[left, lhs, rhs])
    }
}

/// Functions of one complex number.
///
/// - XLA computes the hyperbolic sine from two exponentials that cancel: `sin(1e-5 i)` is off by
///   0.13 percent in `complex<f32>`, and half of the range where `cosh` overflows is lost. The
///   other functions that are computed from it here have the same error.
/// - The square root and the inverse functions ignore the sign of a zero, which tells on which side
///   of a branch cut a number lies: `sqrt(-1 - 0i)` is `i`, not `-i` (C99, Annex G). The sign of
///   one part of the result is known.
pub(super) fn unary(call: &Call<'_>) -> Lowered {
    // The source of the signs of the result's parts: the same part of the operand, or the other
    // one.
    let signs = match call.def.code {
        OpCode::Cbrt => return expanded(cube_root(call)),
        OpCode::Sine | OpCode::Cosine | OpCode::Sinh | OpCode::Cosh => {
            return expanded(of_exponentials(call));
        }
        OpCode::Tan | OpCode::Tanh => return expanded(tangent(call)),
        OpCode::Asin | OpCode::Asinh | OpCode::Atan | OpCode::Atanh => [Some(false), Some(false)],
        OpCode::Acosh | OpCode::Sqrt => [None, Some(false)],
        OpCode::Acos => [None, Some(true)],
        _ => return Lowered::Itself,
    };
    expanded(signed(call, signs))
}

/// The element type and shape of the operand's parts.
fn part_type(call: &Call<'_>) -> (DType, Shape) {
    (call.operand(0).dtype().part(), call.operand(0).shape().clone())
}

fn signed(call: &Call<'_>, signs: [Option<bool>; 2]) -> Result<Lowered, OpError> {
    let (dtype, shape) = part_type(call);
    let (mut graph, params) = Builder::of(call);
    let result = graph.plain(call.def.code, &params)?;
    let mut parts = Vec::new();
    for (op, turned) in [OpCode::Real, OpCode::Imag].into_iter().zip(signs) {
        let mut part = graph.plain(op, &[result])?;
        if let Some(turned) = turned {
            let mut sign = graph.plain(op, &params)?;
            if turned {
                sign = graph.plain(OpCode::Negate, &[sign])?;
            }
            part = graph.plain(OpCode::Abs, &[part])?;
            part = graph.with_sign_of(part, sign, dtype, &shape)?;
        }
        parts.push(part);
    }
    let result = graph.plain(OpCode::Complex, &parts)?;
    Ok(graph.returning(&[result]))
}

/// `sin(a + bi) = sin a cosh b + i cos a sinh b` and similar formulas.
fn of_exponentials(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (dtype, shape) = part_type(call);
    let (mut graph, params) = Builder::of(call);
    let (re, im) = (graph.plain(OpCode::Real, &params)?, graph.plain(OpCode::Imag, &params)?);
    let hyperbolic = matches!(call.def.code, OpCode::Sinh | OpCode::Cosh);
    let (angle, exponent) = if hyperbolic { (im, re) } else { (re, im) };
    let (sinh, cosh) = graph.hyperbolic(exponent, dtype, &shape)?;
    let (sin, cos) = (graph.plain(OpCode::Sine, &[angle])?, graph.plain(OpCode::Cosine, &[angle])?);
    let (re, im) = match call.def.code {
        OpCode::Sine => ([sin, cosh], [cos, sinh]),
        OpCode::Cosine => ([cos, cosh], [sin, sinh]),
        OpCode::Sinh => ([cos, sinh], [sin, cosh]),
        _ => ([cos, cosh], [sin, sinh]),
    };
    let (re, mut im) = (graph.times(re, dtype, &shape)?, graph.times(im, dtype, &shape)?);
    if call.def.code == OpCode::Cosine {
        im = graph.plain(OpCode::Negate, &[im])?;
    }
    let result = graph.plain(OpCode::Complex, &[re, im])?;
    Ok(graph.returning(&[result]))
}

/// `tanh(x + iy)` by W. Kahan, "Branch Cuts for Complex Elementary Functions" (1987): with `t = tan
/// y`, `b = 1 + t^2` and `s = sinh x`, it is `(b s sqrt(1 + s^2) + i t) / (1 + b s^2)`; where `tanh
/// x` rounds to 1, it is `1 + 4i sin y cos y e^-2x`. `tan z` is `-i tanh(iz)`.
fn tangent(call: &Call<'_>) -> Result<Lowered, OpError> {
    const FLAT: f64 = 22.0;
    let (dtype, shape) = part_type(call);
    let (mut graph, params) = Builder::of(call);
    let (re, im) = (graph.plain(OpCode::Real, &params)?, graph.plain(OpCode::Imag, &params)?);
    let turned = call.def.code == OpCode::Tan;
    let (x, y) = if turned { (graph.plain(OpCode::Negate, &[im])?, re) } else { (re, im) };
    let one = graph.splat(1.0f64, dtype, &shape)?;
    let tangent = graph.plain(OpCode::Tan, &[y])?;
    let square = graph.plain(OpCode::Multiply, &[tangent, tangent])?;
    let secant = graph.plain(OpCode::Add, &[one, square])?;
    let (sinh, _) = graph.hyperbolic(x, dtype, &shape)?;
    let square = graph.plain(OpCode::Multiply, &[sinh, sinh])?;
    let root = graph.plain(OpCode::Add, &[one, square])?;
    let root = graph.plain(OpCode::Sqrt, &[root])?;
    let scaled = graph.plain(OpCode::Multiply, &[secant, square])?;
    let divisor = graph.plain(OpCode::Add, &[one, scaled])?;
    let near = graph.plain(OpCode::Multiply, &[secant, root])?;
    let near = graph.plain(OpCode::Multiply, &[near, sinh])?;
    let near = graph.plain(OpCode::Divide, &[near, divisor])?;
    let near_im = graph.plain(OpCode::Divide, &[tangent, divisor])?;
    let magnitude = graph.plain(OpCode::Abs, &[x])?;
    let far = graph.with_sign_of(one, x, dtype, &shape)?;
    let (two, four) = (graph.splat(-2.0f64, dtype, &shape)?, graph.splat(4.0f64, dtype, &shape)?);
    let falling = graph.plain(OpCode::Multiply, &[two, magnitude])?;
    let falling = graph.plain(OpCode::Exponential, &[falling])?;
    let (sin, cos) = (graph.plain(OpCode::Sine, &[y])?, graph.plain(OpCode::Cosine, &[y])?);
    let far_im = graph.plain(OpCode::Multiply, &[sin, cos])?;
    let far_im = graph.plain(OpCode::Multiply, &[far_im, four])?;
    let far_im = graph.plain(OpCode::Multiply, &[far_im, falling])?;
    let flat = graph.splat(FLAT, dtype, &shape)?;
    let is_far = attrs::compare_for(Comparison::Gt, dtype);
    let is_far = graph.op(OpCode::Compare, is_far, &[magnitude, flat])?;
    let re = graph.plain(OpCode::Select, &[is_far, far, near])?;
    let im = graph.plain(OpCode::Select, &[is_far, far_im, near_im])?;
    let parts = if turned { [im, graph.plain(OpCode::Negate, &[re])?] } else { [re, im] };
    let result = graph.plain(OpCode::Complex, &parts)?;
    Ok(graph.returning(&[result]))
}

/// XLA's CPU backend has no cube root of complex numbers: it is the cube root of the magnitude, at
/// a third of the angle.
pub(super) fn cube_root(call: &Call<'_>) -> Result<Lowered, OpError> {
    let part = call.operand(0).with_dtype(call.operand(0).dtype().part());
    let (mut graph, params) = Builder::of(call);
    let mut op = |op, operands: &[Ref]| graph.op(op, Attrs::none(), operands);
    let length = op(OpCode::Abs, &params)?;
    let length = op(OpCode::Cbrt, &[length])?;
    let (re, im) = (op(OpCode::Real, &params)?, op(OpCode::Imag, &params)?);
    let angle = op(OpCode::Atan2, &[im, re])?;
    let three = graph.int(3, &part)?;
    let mut op = |op, operands: &[Ref]| graph.op(op, Attrs::none(), operands);
    let angle = op(OpCode::Divide, &[angle, three])?;
    let (cosine, sine) = (op(OpCode::Cosine, &[angle])?, op(OpCode::Sine, &[angle])?);
    let (re, im) = (op(OpCode::Multiply, &[length, cosine])?, op(OpCode::Multiply, &[length, sine])?);
    let result = op(OpCode::Complex, &[re, im])?;
    Ok(graph.returning(&[result]))
}

/// XLA rejects bitcasts of complex numbers. A part of a 128-bit number is the two parts of a 64-bit
/// one; the first of two narrower numbers is the real part.
pub(super) fn bitcast(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (from, to) = (call.operand(0).dtype(), call.attr().dtype(0));
    let (mut graph, params) = Builder::of(call);
    if from == to {
        let same = graph.op(OpCode::Convert, attrs::convert(to), &params)?;
        return Ok(graph.returning(&[same]));
    }
    let [re, im] = [OpCode::Real, OpCode::Imag].map(|op| graph.op(op, Attrs::none(), &params));
    let dims = call.operand(0).dims();
    // Where the narrower numbers are along the last dimension: before the parts of each.
    let narrow = if from.bits() > to.bits() { dims.len() } else { dims.len() - 1 };
    let mut split = Vec::new();
    for part in [re?, im?] {
        // `[.., 2]` of the narrower type in both cases: the two parts of one number, or the real
        // parts of two.
        let halves = if from.bits() > to.bits() {
            graph.op(OpCode::BitcastConvert, attrs::convert(to.part()), &[part])?
        } else {
            part
        };
        split.push(halves);
    }
    let mut row: Vec<u64> = dims[..narrow].to_vec();
    let axis = if from.bits() > to.bits() { narrow } else { narrow + 1 };
    let mut stacked = row.clone();
    stacked.insert(narrow, 2);
    stacked.insert(axis, 1);
    let stacked = Shape::new(&stacked).map_err(|error| call.size_error(&error))?;
    let reshaped = split
        .iter()
        .map(|&half| graph.op(OpCode::Reshape, attrs::reshape(stacked.clone()), &[half]))
        .collect::<Result<Vec<_>, _>>()?;
    let mut pairs = graph.op(OpCode::Concatenate, attrs::concatenate(axis as i64), &reshaped)?;
    if to.bits() > from.bits() {
        pairs = graph.op(OpCode::BitcastConvert, attrs::convert(to.part()), &[pairs])?;
    }
    row.push(2);
    // `[.., 2, 2]` is split along its last dimension, `[.., 2]` along its only one.
    let whole = if from.bits() > to.bits() { [row.as_slice(), &[2]].concat() } else { row.clone() };
    let last = whole.len() - 1;
    let kept = Shape::new(&whole[..last]).map_err(|error| call.size_error(&error))?;
    let mut parts = Vec::new();
    for place in 0..2 {
        let (mut start, mut limit) =
            (vec![0; whole.len()], whole.iter().map(|&dim| dim as i64).collect::<Vec<_>>());
        (start[last], limit[last]) = (place, place + 1);
        let cut = graph.op(OpCode::Slice, attrs::slice(&start, &limit, &vec![1; whole.len()]), &[pairs])?;
        parts.push(graph.op(OpCode::Reshape, attrs::reshape(kept.clone()), &[cut])?);
    }
    let result = graph.op(OpCode::Complex, Attrs::none(), &parts)?;
    Ok(graph.returning(&[result]))
}
