//! Fast paths for the ops that make up most programs: elementwise ops on `f32`, their products and
//! sums, and all ops that move elements.
//!
//! Input: a call. Output: its result, or `None` for other calls. The general path handles all
//! calls.
//!
//! Invariants:
//! - INTERP-3: the fast paths apply the same operations to the same values in the same order as the
//!   general path, so the bits are the same. The functions of [`super::kernel`] compute elements,
//!   in `f64` with rounding. A sum of products advances for many results at once, each in its own
//!   order. If sums may be taken in any order (INTERP-4), [`cascade`] computes sums of many terms,
//!   with smaller errors.
//!
//! There is no unsafe code and no assumption about the processor: compilers can vectorize the
//! loops.

use fuseline_fusion::op::{Comparison, ComparisonType};
use fuseline_fusion::subnormal::flushed_f32;
use fuseline_fusion::{DType, Literal, OpCode, Ref, Signature, TensorType};

use super::buffer_pool::room;
use super::cascade::{self, BLOCK, Cascade};
use super::index::Walk;
use super::kernel::{self, Kernel};
use super::subnormal::round_and_flush;
use super::{EvalCall, SumOrder};

/// An `f32` element, as in memory.
type Word = [u8; 4];

/// The elements of an `f32` literal, as in memory.
fn words(literal: &Literal) -> &[Word] {
    literal.bytes().as_chunks().0
}

/// A literal from its elements, as in memory.
pub(super) fn literal(ty: &TensorType, bytes: Vec<u8>) -> Literal {
    Literal::from_bytes(ty.clone(), bytes).expect("bug: the interpreter computed data of the wrong type")
}

// ----- elementwise -----

/// Matches an op against those with a specialized loop, in which the op is a constant.
macro_rules! known {
    ($op:expr, $name:ident => $loop:expr, [$($op_code:ident)*]) => {
        match $op {
            $(OpCode::$op_code => {
                const $name: OpCode = OpCode::$op_code;
                Some($loop)
            })*
            _ => None,
        }
    };
}

/// An elementwise op on `f32`.
pub(super) fn map(kernel: Kernel, call: &EvalCall<'_>) -> Option<Literal> {
    let bytes = match kernel {
        Kernel::Unary(op, DType::F32) if call.result().dtype() == DType::F32 => unary(op, call),
        Kernel::Binary(op, DType::F32) if call.result().dtype() == DType::F32 => binary(op, call),
        Kernel::Compare(direction, ComparisonType::Float, DType::F32) => Some(compare(direction, call)),
        Kernel::Select if call.result().dtype().size() == size_of::<Word>() => Some(select(call)),
        _ => None,
    }?;
    Some(literal(call.result(), bytes))
}

fn unary(op: OpCode, call: &EvalCall<'_>) -> Option<Vec<u8>> {
    let operand = words(call.operand(0));
    known!(op, OP => each(operand, |x| kernel::unary_f64(OP, x)), [
        Abs Negate Sqrt Rsqrt Exponential ExponentialMinusOne Log LogPlusOne Logistic Tanh Sine Cosine Floor Ceil
    ])
}

fn each(operand: &[Word], f: impl Fn(f64) -> f64) -> Vec<u8> {
    let mut bytes = room(size_of_val(operand));
    for (result, &x) in bytes.as_chunks_mut().0.iter_mut().zip(operand) {
        *result = (f(f32::from_le_bytes(x).into()) as f32).to_le_bytes();
    }
    bytes
}

fn binary(op: OpCode, call: &EvalCall<'_>) -> Option<Vec<u8>> {
    let operands = [words(call.operand(0)), words(call.operand(1))];
    known!(op, OP => pairs(operands, |x, y| kernel::binary_f64(OP, x, y)), [
        Add Subtract Multiply Divide Maximum Minimum Power
    ])
}

fn pairs([lhs, rhs]: [&[Word]; 2], f: impl Fn(f64, f64) -> f64) -> Vec<u8> {
    let mut bytes = room(size_of_val(lhs));
    for (result, (&x, &y)) in bytes.as_chunks_mut().0.iter_mut().zip(lhs.iter().zip(rhs)) {
        *result = (f(f32::from_le_bytes(x).into(), f32::from_le_bytes(y).into()) as f32).to_le_bytes();
    }
    bytes
}

/// With a NaN, every comparison but `Ne` is false, like Rust's.
fn compare(direction: Comparison, call: &EvalCall<'_>) -> Vec<u8> {
    fn each(call: &EvalCall<'_>, f: impl Fn(f32, f32) -> bool) -> Vec<u8> {
        let pairs = words(call.operand(0)).iter().zip(words(call.operand(1)));
        pairs.map(|(&x, &y)| f(f32::from_le_bytes(x), f32::from_le_bytes(y)).into()).collect()
    }
    match direction {
        Comparison::Eq => each(call, |x, y| x == y),
        Comparison::Ne => each(call, |x, y| x != y),
        Comparison::Ge => each(call, |x, y| x >= y),
        Comparison::Gt => each(call, |x, y| x > y),
        Comparison::Le => each(call, |x, y| x <= y),
        Comparison::Lt => each(call, |x, y| x < y),
    }
}

/// Elements of four bytes. A scalar `pred` applies to all elements.
fn select(call: &EvalCall<'_>) -> Vec<u8> {
    let (which, [on, off]) = (call.operand(0), [call.operand(1), call.operand(2)]);
    if which.ty().rank() == 0 {
        return if which.bytes()[0] != 0 { on } else { off }.bytes().to_vec();
    }
    let elements = which.bytes().iter().zip(words(on).iter().zip(words(off)));
    let mut bytes = room(on.bytes().len());
    for (result, (&which, (&on, &off))) in bytes.as_chunks_mut().0.iter_mut().zip(elements) {
        *result = if which != 0 { on } else { off };
    }
    bytes
}

/// The cost per element of a call with a specialized loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// One or two processor instructions.
    Little,
    /// A function of many instructions.
    Much,
}

/// The cost of [`map`] per element; `None` if it does not handle the call.
pub(super) fn effort(signature: &Signature) -> Option<Effort> {
    let result = signature.results()[0].dtype();
    let op = match Kernel::of(signature)? {
        Kernel::Unary(op, DType::F32) | Kernel::Binary(op, DType::F32) if result == DType::F32 => op,
        Kernel::Compare(_, ComparisonType::Float, DType::F32) => return Some(Effort::Little),
        Kernel::Select if result.size() == size_of::<Word>() => return Some(Effort::Little),
        _ => return None,
    };
    match op {
        OpCode::Abs | OpCode::Negate | OpCode::Sqrt | OpCode::Rsqrt => Some(Effort::Little),
        OpCode::Add | OpCode::Subtract | OpCode::Multiply | OpCode::Divide => Some(Effort::Little),
        OpCode::Maximum | OpCode::Minimum => Some(Effort::Little),
        OpCode::Exponential | OpCode::ExponentialMinusOne | OpCode::Log | OpCode::LogPlusOne => {
            Some(Effort::Much)
        }
        OpCode::Logistic | OpCode::Tanh | OpCode::Sine | OpCode::Cosine => Some(Effort::Much),
        OpCode::Floor | OpCode::Ceil | OpCode::Power => Some(Effort::Much),
        _ => None,
    }
}

// ----- movement -----

/// The elements of a literal at the offsets of a walk, as in memory.
pub(super) fn gather(from: &Literal, walk: Walk) -> Vec<u8> {
    match from.dtype().size() {
        1 => gathered::<1>(from, walk),
        2 => gathered::<2>(from, walk),
        4 => gathered::<4>(from, walk),
        8 => gathered::<8>(from, walk),
        _ => gathered::<16>(from, walk),
    }
}

fn gathered<const SIZE: usize>(from: &Literal, walk: Walk) -> Vec<u8> {
    let elements: &[[u8; SIZE]] = from.bytes().as_chunks().0;
    let mut bytes = room(SIZE * walk.count_all());
    let (starts, len, step) = walk.rows();
    let rows = bytes.as_chunks_mut().0.chunks_exact_mut(len.max(1));
    for (row, start) in rows.zip(starts) {
        match step {
            _ if len == 1 => row[0] = elements[start],
            0 => row.fill(elements[start]),
            1 => row.copy_from_slice(&elements[start..start + len]),
            _ => {
                for (index, element) in (0..).zip(row) {
                    *element = elements[(start as isize + index * step) as usize];
                }
            }
        }
    }
    bytes
}

/// Copies elements of `size` bytes from the offsets of one walk to those of another, over blocks of
/// equal sizes.
pub(super) fn copy(from: &[u8], source: Walk, to: &mut [u8], target: Walk, size: usize) {
    let ((sources, len, from_step), (targets, _, to_step)) = (source.rows(), target.rows());
    for (source, target) in sources.zip(targets) {
        if from_step == 1 && to_step == 1 || len == 1 {
            to[target * size..][..len * size].copy_from_slice(&from[source * size..][..len * size]);
            continue;
        }
        for index in 0..len as isize {
            let at = |first: usize, step: isize| (first as isize + index * step) as usize * size;
            to[at(target, to_step)..][..size].copy_from_slice(&from[at(source, from_step)..][..size]);
        }
    }
}

// ----- sums -----

/// A `reduce` of one `f32` tensor by one op on `f32`. `walk` returns the positions of the results,
/// in the order of the elements.
pub(super) fn reduce(call: &EvalCall<'_>, walk: impl FnOnce() -> Walk) -> Option<Literal> {
    let op = reduces_by(call.signature)?;
    let (inputs, init) = (words(call.operand(0)), words(call.operand(1))[0]);
    let terms = inputs.len() / call.result().elems().get().max(1);
    let flushes = call.arithmetic.flushed.contains(DType::F32);
    if call.arithmetic.sums == SumOrder::AnyOrder && op == OpCode::Add && terms > BLOCK {
        let init = f32::from_le_bytes(init);
        let places = call.result().elems().get();
        let sums = match flushes {
            true => sums(inputs, places, walk(), init, flushing_add),
            false => sums(inputs, places, walk(), init, add),
        };
        return Some(of_floats(call.result(), sums.into_iter()));
    }
    let mut results = vec![f32::from_le_bytes(init); call.result().elems().get()];
    if flushes {
        known!(op, OP => {
            let f = |x, y| round_and_flush(kernel::binary_f64(OP, flushed_f32(x).into(), flushed_f32(y).into()));
            reduce_by(inputs, &mut results, walk(), f)
        }, [Add Multiply Maximum Minimum])?;
    } else {
        known!(op, OP => {
            let f = |x: f32, y: f32| kernel::binary_f64(OP, x.into(), y.into()) as f32;
            reduce_by(inputs, &mut results, walk(), f)
        }, [Add Multiply Maximum Minimum])?;
    }
    Some(of_floats(call.result(), results.into_iter()))
}

/// The op of a `reduce` of one `f32` tensor whose body is a single op.
pub(super) fn reduces_by(signature: &Signature) -> Option<OpCode> {
    let all = signature.operands().iter().chain(signature.results());
    if signature.operands().len() != 2 || !all.clone().all(|ty| ty.dtype() == DType::F32) {
        return None;
    }
    let body = signature.bodies().first()?;
    let [node] = body.graph().nodes() else { return None };
    let is_plain = node.operands() == [Ref::Param(0), Ref::Param(1)]
        && body.returns() == [Ref::Result(0)]
        && body.graph().params().iter().all(|ty| ty.dtype() == DType::F32);
    let op = node.signature().op();
    let is_known = matches!(op, OpCode::Add | OpCode::Multiply | OpCode::Maximum | OpCode::Minimum);
    (is_plain && is_known).then_some(op)
}

fn add(x: f32, y: f32) -> f32 {
    kernel::binary_f64(OpCode::Add, x.into(), y.into()) as f32
}

/// The same on a device that flushes subnormal numbers.
fn flushing_add(x: f32, y: f32) -> f32 {
    flushed_f32(add(flushed_f32(x), flushed_f32(y)))
}

/// Sums of many terms each, added to `init`. `walk` returns the positions of the results.
fn sums(
    inputs: &[Word],
    places: usize,
    walk: Walk,
    init: f32,
    add: impl Fn(f32, f32) -> f32 + Copy,
) -> Vec<f32> {
    let term = |&word: &Word| f32::from_le_bytes(word);
    let (starts, len, step) = walk.rows();
    let mut cascade = Cascade::new(places, add);
    for (start, row) in starts.zip(inputs.chunks(len.max(1))) {
        match step {
            0 => cascade.add_row(start, 1, std::iter::once(cascade::of_row(row, &term, &add))),
            _ => cascade.add_row(start, step as usize, row.iter().map(term)),
        }
    }
    let terms = inputs.len() / places.max(1);
    let sums = cascade.finish(if step == 0 { terms / len.max(1) } else { terms });
    sums.into_iter().map(|sum| add(init, sum)).collect()
}

fn reduce_by(inputs: &[Word], results: &mut [f32], walk: Walk, f: impl Fn(f32, f32) -> f32) {
    let next = |sum: f32, &x: &Word| f(sum, f32::from_le_bytes(x));
    let (starts, len, step) = walk.rows();
    for (start, row) in starts.zip(inputs.chunks(len.max(1))) {
        match step {
            0 => results[start] = row.iter().fold(results[start], next),
            1 => {
                for (result, x) in results[start..].iter_mut().zip(row) {
                    *result = next(*result, x);
                }
            }
            _ => {
                for (index, x) in row.iter().enumerate() {
                    let place = (start as isize + index as isize * step) as usize;
                    results[place] = next(results[place], x);
                }
            }
        }
    }
}

// ----- products -----

/// Products of `batch` matrices: `rows` by `depth`, and `depth` by `columns`. Each result is the
/// sum of its products, in order or in blocks.
pub(super) fn product(
    lhs: &[f32],
    rhs: &[f32],
    [batch, rows, depth, columns]: [usize; 4],
    order: SumOrder,
) -> Vec<f32> {
    let mut results = vec![0.0; batch * rows * columns];
    if results.is_empty() || depth == 0 {
        return results;
    }
    let matrices = lhs.chunks_exact(rows * depth).zip(rhs.chunks_exact(depth * columns));
    for ((lhs, rhs), results) in matrices.zip(results.chunks_exact_mut(rows * columns)) {
        for (factors, sums) in lhs.chunks_exact(depth).zip(results.chunks_exact_mut(columns)) {
            if order == SumOrder::InOrder || depth <= BLOCK {
                add_products(factors, rhs, sums);
                continue;
            }
            let mut cascade = Cascade::new(columns, |x, y| x + y);
            for (factors, terms) in factors.chunks(BLOCK).zip(rhs.chunks(BLOCK * columns)) {
                sums.fill(0.0);
                add_products(factors, terms, sums);
                cascade.add_row(0, 1, sums.iter().copied());
            }
            sums.copy_from_slice(&cascade.finish(depth.div_ceil(BLOCK)));
        }
    }
    results
}

/// Adds the products of a row and a column to each sum.
fn add_products(factors: &[f32], rhs: &[f32], sums: &mut [f32]) {
    // Four at a time, so that each sum is loaded and stored a quarter as often.
    let (fours, rest) = factors.as_chunks::<4>();
    let mut terms = rhs.chunks_exact(sums.len());
    for &[a, b, c, d] in fours {
        let mut next = || terms.next().unwrap_or_default();
        let [w, x, y, z] = [next(), next(), next(), next()];
        for ((((sum, w), x), y), z) in sums.iter_mut().zip(w).zip(x).zip(y).zip(z) {
            *sum = *sum + a * w + b * x + c * y + d * z;
        }
    }
    for (&factor, terms) in rest.iter().zip(terms) {
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += factor * term;
        }
    }
}

/// A literal with these elements.
pub(super) fn of_floats(ty: &TensorType, elements: impl Iterator<Item = f32>) -> Literal {
    let bytes: Vec<Word> = elements.map(f32::to_le_bytes).collect();
    literal(ty, bytes.into_flattened())
}

/// The elements of an `f32` literal at the offsets of a walk.
pub(super) fn floats(literal: &Literal, walk: Walk) -> Vec<f32> {
    let bytes = gather(literal, walk);
    bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fuseline_fusion::op::attrs::{self, DotDimensionNumbers};
    use fuseline_fusion::{Attrs, Body, Graph};
    use fuseline_testgen::{Entropy, Seeded};

    use super::*;
    use crate::{Arithmetic, contraction, elementwise, reduction};

    fn data(dims: &[u64], seed: u64) -> Arc<Literal> {
        let mut entropy = Seeded::new(seed);
        let ty = TensorType::of(DType::F32, dims).unwrap();
        // Among ordinary numbers, those where implementations may differ: NaN, infinities, zeros of
        // both signs, subnormal numbers.
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-40, f32::MAX, f32::MIN];
        let elements = (0..ty.elems().get()).map(|_| match entropy.draw(20) {
            at if (at as usize) < odd.len() => odd[at as usize],
            _ => (entropy.draw(1 << 24) as f32 / (1 << 20) as f32) - 8.0,
        });
        Arc::new(of_floats(&ty, elements.collect::<Vec<_>>().into_iter()))
    }

    /// The op on these operands; `None` if the table rejects it.
    fn node(op: OpCode, attrs: Attrs, bodies: &[Arc<Body>], operands: &[Arc<Literal>]) -> Option<Graph> {
        let mut graph = Graph::new();
        let params: Vec<Ref> = operands.iter().map(|data| graph.param(data.ty().clone())).collect();
        graph.push(op, attrs, bodies, &params).ok()?;
        Some(graph)
    }

    /// All NaNs count as one, because the specification and compilers leave open which NaN a sum of
    /// two is.
    fn bits(literal: &Literal) -> Vec<u32> {
        if literal.dtype() != DType::F32 {
            return literal.bytes().iter().map(|&byte| byte.into()).collect();
        }
        let bits = |&word: &Word| match f32::from_le_bytes(word) {
            x if x.is_nan() => f32::NAN.to_bits(),
            x => x.to_bits(),
        };
        words(literal).iter().map(bits).collect()
    }

    /// INTERP-3; and `effort` covers exactly the calls of `map`.
    #[test]
    fn elements_are_computed_as_in_the_general_way() {
        let [x, y] = [data(&[40, 50], 1), data(&[40, 50], 2)];
        let both = vec![x.clone(), y.clone()];
        let less = attrs::compare_for(Comparison::Lt, DType::F32);
        let less = node(OpCode::Compare, less, &[], &both).unwrap();
        let less = crate::call(less.nodes()[0].signature(), &both).unwrap().remove(0);
        let mut calls = vec![(OpCode::Select, Attrs::none(), vec![Arc::new(less), x.clone(), y])];
        for direction in Comparison::ALL {
            calls.push((OpCode::Compare, attrs::compare_for(direction, DType::F32), both.clone()));
        }
        for &op in OpCode::ALL {
            calls.push((op, Attrs::none(), vec![x.clone()]));
            calls.push((op, Attrs::none(), both.clone()));
        }
        let mut taken = 0;
        for (op, attrs, operands) in calls {
            let Some(graph) = node(op, attrs, &[], &operands) else { continue };
            let signature = graph.nodes()[0].signature();
            let Some(kernel) = Kernel::of(signature) else { continue };
            let call = EvalCall { arithmetic: Arithmetic::REFERENCE, signature, operands: &operands };
            let direct = map(kernel, &call);
            assert_eq!(direct.is_some(), effort(signature).is_some(), "{op}");
            let Some(direct) = direct else { continue };
            assert_eq!(bits(&direct), bits(&elementwise::map_each(kernel, &call)), "{op}");
            taken += 1;
        }
        assert_eq!(taken, 14 + 7 + 6 + 1);
    }

    /// INTERP-3.
    #[test]
    fn sums_are_those_of_the_general_way() {
        for dims in [&[4u64, 5, 6][..], &[7], &[1, 300], &[300, 1], &[3, 0, 2], &[0]] {
            for axes in [&[0i64][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2], &[]] {
                for op in [OpCode::Add, OpCode::Multiply, OpCode::Maximum, OpCode::Minimum] {
                    let body = Arc::new(Body::binary(op, TensorType::scalar(DType::F32)).unwrap());
                    let operands = [data(dims, 3), Arc::new(Literal::scalar(0.5f32))];
                    let graph = node(OpCode::Reduce, attrs::dimensions(axes), &[body], &operands);
                    let Some(graph) = graph else { continue };
                    let call = EvalCall {
                        arithmetic: Arithmetic::REFERENCE,
                        signature: graph.nodes()[0].signature(),
                        operands: &operands,
                    };
                    let (direct, each) = (reduction::reduce(&call), reduction::reduce_each(&call));
                    assert!(reduces_by(call.signature).is_some());
                    assert_eq!(
                        bits(&direct.unwrap()[0]),
                        bits(&each.unwrap()[0]),
                        "{op}, {dims:?}, {axes:?}"
                    );
                }
            }
        }
    }

    /// Every term is in the right sum for every walk: sums of small integers are exact.
    #[test]
    fn sums_in_any_order_have_the_same_terms() {
        let dims = [35u64, 34, 40];
        let count: u64 = dims.iter().product();
        let ty = TensorType::of(DType::F32, &dims).unwrap();
        let elements = (0..count).map(|at| (at * at % 97) as f32);
        let operands = [Arc::new(of_floats(&ty, elements)), Arc::new(Literal::scalar(3.0f32))];
        for axes in [&[0i64][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]] {
            let body = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).unwrap());
            let graph = node(OpCode::Reduce, attrs::dimensions(axes), &[body], &operands).unwrap();
            let signature = graph.nodes()[0].signature();
            let by = |sums| {
                let arithmetic = Arithmetic { sums, ..Arithmetic::REFERENCE };
                reduction::reduce(&EvalCall { arithmetic, signature, operands: &operands }).unwrap()
            };
            assert_eq!(bits(&by(SumOrder::AnyOrder)[0]), bits(&by(SumOrder::InOrder)[0]), "{axes:?}");
        }
    }

    /// Equal to products in order, for integers.
    #[test]
    fn products_in_any_order_have_the_same_terms() {
        let numbers = |count: usize| (0..count).map(|at| (at * at % 13) as f32).collect::<Vec<f32>>();
        for sizes in [[1, 1, 33, 1], [2, 3, 64, 2], [1, 2, 1_100, 3], [1, 1, 32, 5]] {
            let [batch, rows, depth, columns] = sizes;
            let (lhs, rhs) = (numbers(batch * rows * depth), numbers(batch * depth * columns));
            let by = |order| product(&lhs, &rhs, sizes, order);
            assert_eq!(by(SumOrder::AnyOrder), by(SumOrder::InOrder), "{sizes:?}");
        }
    }

    /// INTERP-3.
    #[test]
    fn running_sums_are_those_of_the_general_way() {
        let mut taken = 0;
        for (dims, axis) in
            [(&[4u64, 5, 6][..], 0), (&[4, 5, 6], 1), (&[4, 5, 6], 2), (&[9], 0), (&[1, 40], 1)]
        {
            // One of the initial values is changed by padding.
            for (op, init) in [
                (OpCode::Add, 0.0),
                (OpCode::Add, 0.5),
                (OpCode::Multiply, 1.0),
                (OpCode::Maximum, f32::NEG_INFINITY),
                (OpCode::Minimum, 0.25),
            ] {
                let body = Arc::new(Body::binary(op, TensorType::scalar(DType::F32)).unwrap());
                let (mut sizes, mut padding) = (vec![1; dims.len()], vec![(0, 0); dims.len()]);
                (sizes[axis], padding[axis]) = (dims[axis] as i64, (dims[axis] as i64 - 1, 0));
                // Also with a window that ends elsewhere.
                let reversed: Vec<_> = padding.iter().map(|&(low, high)| (high, low)).collect();
                for padding in [padding, reversed] {
                    let attrs = attrs::reduce_window(&sizes, &vec![1; dims.len()], &padding);
                    let operands = [data(dims, 3), Arc::new(Literal::scalar(init))];
                    let graph =
                        node(OpCode::ReduceWindow, attrs, std::slice::from_ref(&body), &operands).unwrap();
                    let signature = graph.nodes()[0].signature();
                    let call = EvalCall { arithmetic: Arithmetic::REFERENCE, signature, operands: &operands };
                    let each = reduction::reduce_windows_each(&call).unwrap();
                    let direct = reduction::reduce_window(&call).unwrap();
                    assert_eq!(bits(&direct[0]), bits(&each[0]), "{op} from {init}, {dims:?}, {axis}");
                    taken += usize::from(crate::estimate(&graph).is_some());
                }
            }
        }
        assert_eq!(taken, 25);
    }

    /// INTERP-3.
    #[test]
    fn products_are_those_of_the_general_way() {
        let sizes = [[1, 1, 1, 1], [2, 3, 4, 5], [3, 7, 9, 1], [3, 1, 9, 7], [1, 2, 11, 3], [2, 17, 6, 33]];
        for [batch, rows, depth, columns] in sizes.into_iter().chain([[1, 4, 0, 4], [0, 4, 4, 4]]) {
            // Contracted along the last dimension, and along the first one.
            let lhs = [(data(&[batch, rows, depth], 4), 2), (data(&[batch, depth, rows], 5), 1)];
            let rhs = [(data(&[batch, columns, depth], 6), 2), (data(&[batch, depth, columns], 7), 1)];
            for ((lhs, lhs_axis), (rhs, rhs_axis)) in
                lhs.iter().flat_map(|lhs| rhs.iter().map(move |rhs| (lhs, rhs)))
            {
                let dims = DotDimensionNumbers {
                    lhs_batching: &[0],
                    rhs_batching: &[0],
                    lhs_contracting: &[*lhs_axis],
                    rhs_contracting: &[*rhs_axis],
                };
                let operands = [lhs.clone(), rhs.clone()];
                let attrs = attrs::dot_general(dims, DType::F32);
                let graph = node(OpCode::DotGeneral, attrs, &[], &operands).unwrap();
                let call = EvalCall {
                    arithmetic: Arithmetic::REFERENCE,
                    signature: graph.nodes()[0].signature(),
                    operands: &operands,
                };
                let (direct, each) = (contraction::dot_general(&call), contraction::dot::<f32>(&call));
                let what = format!("{batch} of {rows} by {depth} by {columns}");
                assert_eq!(bits(&direct.unwrap()[0]), bits(&each.unwrap()[0]), "{what}");
            }
        }
    }
}
