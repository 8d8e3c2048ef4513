//! One meaning for subnormal numbers on a device that counts them as zero.
//!
//! Input: a [`Plain`] function and the element types that the device flushes. Output: the same
//! function, in which the results of ops that compute hold no subnormal number of these types,
//! whatever the compiler makes of the ops.
//!
//! XLA's CPU backend runs code with the processor's `FTZ` and `DAZ` on. That gives most ops the
//! meaning that [`subnormal::access`] states, which the interpreter follows. The rest needs a flush
//! that the compiler cannot see through, on the bits:
//!
//! | what | because |
//! |---|---|
//! | functions that return a small operand as it is | a `select` moves bits |
//! | functions that take a number apart | their code reads its bits |
//! | conversions to a shorter float, where the processor has no instruction for it or the pair of conversions is dropped | integers compute it, or nothing does |
//! | ops that an identity element, an equal operand or a dimension of size 1 makes a copy | the simplifier drops them |
//! | broadcasts of `bf16` | they may be conversions to `f32` and back |
//! | ops on constants | the compiler computes them, and keeps subnormal numbers |
//!
//! Invariants:
//! - SUB-1: a result is flushed, or an instruction of the processor that flushes makes it.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::plain::{Plain, Writer, pick, signed};
use crate::attr::Attrs;
use crate::dtype::{DType, DTypeSet};
use crate::graph::{Body, Graph, Node, Ref, Refs};
use crate::interp::number::{Elements, to_f64};
use crate::interp::subnormal::{self, Access};
use crate::literal::Literal;
use crate::op::{Comparison, OpCode, Signature, attrs, unsigned};
use crate::shape::TensorType;

/// The function with its flushes.
pub(super) fn flushed(plain: Plain, flushed: DTypeSet) -> Plain {
    if flushed == DTypeSet::NONE {
        return plain;
    }
    let mut flushing = Flushing { flushed, known: FxHashMap::default() };
    plain.rewritten(
        |_| (),
        |writer, (), node, operands| {
            let results = flushing.node(writer, node, operands);
            results.into_iter().map(|result| (result, result)).collect()
        },
    )
}

/// A value that the compiler knows.
#[derive(Clone, Copy)]
struct Known {
    /// Whether an element may be subnormal.
    is_raw: bool,
    /// The number that all elements are; NaN where they vary, `None` where nobody has looked.
    splat: Option<f64>,
}

struct Flushing {
    flushed: DTypeSet,
    known: FxHashMap<Ref, Known>,
}

impl Flushing {
    fn is_flushed(&self, dtype: DType) -> bool {
        self.flushed.contains(dtype.part())
    }

    /// A node with the flushes that it needs; its results.
    fn node(&mut self, writer: &mut Writer, node: &Node, mut operands: Refs) -> Refs {
        let signature = node.signature();
        if signature.op() == OpCode::BroadcastInDim && self.may_convert(signature) {
            return Refs::from_slice(&[broadcast_bits(writer, signature, operands[0])]);
        }
        let access = subnormal::access(signature);
        if access != Access::Bits {
            for (operand, ty) in operands.iter_mut().zip(signature.operands()) {
                let is_raw = self.known.get(operand).is_some_and(|known| known.is_raw);
                if is_raw {
                    *operand = hidden(writer, *operand);
                }
                if is_raw || (reads_bits(signature) && self.is_flushed(ty.dtype())) {
                    *operand = flush(writer, *operand);
                }
            }
        }
        let bodies = signature.bodies().iter().map(|body| self.body(body)).collect::<Vec<_>>();
        let is_same = bodies.iter().zip(signature.bodies()).all(|(new, old)| Arc::ptr_eq(new, old));
        let mut results = match is_same {
            true => writer.0.push_signature(signature.clone(), operands.clone()),
            false => {
                let signature = signed(signature.op(), signature, &bodies);
                writer.0.push_signature(signature, operands.clone())
            }
        };
        let is_folded = signature.bodies().is_empty()
            && !operands.is_empty()
            && operands.iter().all(|operand| self.known.contains_key(operand));
        if self.may_keep(signature, &operands, is_folded) {
            for (result, ty) in results.iter_mut().zip(signature.results()) {
                if self.is_flushed(ty.dtype()) {
                    if is_folded {
                        *result = hidden(writer, *result);
                    }
                    *result = flush(writer, *result);
                }
            }
        }
        // What is flushed behind a barrier is not known any more.
        if access == Access::Bits || !is_folded {
            self.note(signature, &operands, &results, is_folded);
        }
        results
    }

    /// Whether a broadcast may be compiled to conversions to `f32` and back, which lose subnormal
    /// numbers of `bf16`.
    fn may_convert(&self, signature: &Signature) -> bool {
        let operand = &signature.operands()[0];
        operand.dtype() == DType::BF16 && self.is_flushed(DType::BF16) && operand.rank() > 1
    }

    /// Whether a call that flushes may be compiled to code that does not.
    fn may_keep(&self, signature: &Signature, operands: &[Ref], is_folded: bool) -> bool {
        if is_copy(signature) {
            return true;
        }
        // The least number of this type is a subnormal `f32`, and it has no zero to be flushed to.
        let is_powers = signature.operands().first().is_some_and(|ty| ty.dtype() == DType::F8E8M0FNU);
        if subnormal::access(signature) != Access::Flushes || is_powers {
            return false;
        }
        let op = signature.op();
        let is_identity = |(place, operand): (usize, &Ref)| {
            let splat = self.known.get(operand).map(|known| known.splat);
            splat.is_some_and(|splat| splat.is_none_or(|value| is_identity(op, place, value)))
        };
        is_folded
            || keeps_small(signature)
            || operands.iter().enumerate().any(is_identity)
            || is_choice_of_one(op, operands)
    }

    /// Notes what is known of results.
    fn note(&mut self, signature: &Signature, operands: &[Ref], results: &[Ref], is_folded: bool) {
        let known = match signature.op() {
            OpCode::Constant => {
                let data = signature.attrs().view().dense(0);
                let is_raw = self.is_flushed(data.dtype()) && subnormal::has_subnormal(data);
                Known { is_raw, splat: Some(splat(data)) }
            }
            OpCode::Iota => Known { is_raw: false, splat: Some(f64::NAN) },
            _ if is_folded => {
                let of = |operand: &Ref| self.known[operand];
                let is_raw = operands.iter().any(|operand| of(operand).is_raw);
                let moves = matches!(
                    signature.op(),
                    OpCode::BroadcastInDim | OpCode::Reshape | OpCode::Transpose | OpCode::Convert
                );
                Known { is_raw, splat: if moves { of(&operands[0]).splat } else { None } }
            }
            _ => return,
        };
        self.known.extend(results.iter().map(|&result| (result, known)));
    }

    /// A body with its flushes. What it captures is not known to it.
    fn body(&self, body: &Arc<Body>) -> Arc<Body> {
        let graph = body.graph();
        let mut inner = Flushing { flushed: self.flushed, known: FxHashMap::default() };
        let mut writer = Writer(Graph::with_capacity_of(graph));
        let params: Vec<Ref> = graph.params().iter().map(|ty| writer.0.param(ty.clone())).collect();
        let mut results = Vec::with_capacity(graph.result_count());
        for node in graph.nodes() {
            let operands = node.operands().iter().map(|&operand| pick(operand, &params, &results)).collect();
            results.extend(inner.node(&mut writer, node, operands));
        }
        if writer.0.nodes().len() == graph.nodes().len() {
            return body.clone();
        }
        let returns: Vec<Ref> = body.returns().iter().map(|&value| pick(value, &params, &results)).collect();
        Arc::new(Body::new(writer.0, &returns).expect("bug: a body returns what it does not make"))
    }
}

/// The number that all elements are; NaN where they vary.
fn splat(data: &Literal) -> f64 {
    let dtype = data.dtype();
    let size = dtype.size();
    let Some(first) = data.bytes().get(..size) else { return f64::NAN };
    if dtype.is_complex() || data.bytes().chunks_exact(size).any(|element| element != first) {
        return f64::NAN;
    }
    to_f64(dtype, Elements::of(data).get(0))
}

/// Whether an operand of this value may make the op a copy of another operand, or of its negation.
fn is_identity(op: OpCode, place: usize, value: f64) -> bool {
    match op {
        OpCode::Multiply => value.abs() == 1.0,
        OpCode::Divide | OpCode::Power => place == 1 && value.abs() == 1.0,
        OpCode::Add | OpCode::Subtract => value == 0.0,
        OpCode::Maximum | OpCode::Minimum | OpCode::Clamp => value.is_infinite(),
        _ => false,
    }
}

/// Whether a choice between numbers has the same number twice.
fn is_choice_of_one(op: OpCode, operands: &[Ref]) -> bool {
    match (op, operands) {
        (OpCode::Maximum | OpCode::Minimum, [a, b]) => a == b,
        (OpCode::Clamp, [low, value, high]) => low == value || value == high || low == high,
        _ => false,
    }
}

/// Whether the plugin's code for a call returns a small operand as it is.
fn keeps_small(signature: &Signature) -> bool {
    match signature.op() {
        OpCode::Tanh
        | OpCode::Sine
        | OpCode::Tan
        | OpCode::Atan
        | OpCode::ExponentialMinusOne
        | OpCode::Atan2
        | OpCode::Remainder
        // The logarithm of an exponential is its operand.
        | OpCode::Log => true,
        OpCode::Convert => {
            let (from, to) = (signature.operands()[0].dtype(), signature.attrs().view().dtype(0));
            matches!((from, to), (DType::F32 | DType::F64, DType::BF16) | (DType::F64, DType::F32))
        }
        _ => false,
    }
}

/// Whether the plugin's code for a call takes a number apart by its bits, where a subnormal one is
/// not zero.
fn reads_bits(signature: &Signature) -> bool {
    match signature.op() {
        OpCode::Atan2 | OpCode::Cbrt | OpCode::Power => true,
        OpCode::Log | OpCode::LogPlusOne => signature.operands()[0].dtype().is_complex(),
        _ => false,
    }
}

/// Whether a reduction combines no two elements, so that its operand is its result, though its body
/// would flush.
fn is_copy(signature: &Signature) -> bool {
    let attr = signature.attrs().view();
    let dims = || signature.operands()[0].dims();
    let is_single = match signature.op() {
        OpCode::Reduce => attr.ints(0).iter().all(|&axis| dims()[axis as usize] == 1),
        OpCode::ReduceWindow => attr.ints(0).iter().all(|&size| size == 1),
        _ => return false,
    };
    is_single
        && signature.bodies().iter().any(|body| {
            body.graph().nodes().iter().any(|node| subnormal::access(node.signature()) == Access::Flushes)
        })
}

/// A broadcast of the bits, which no compiler takes for numbers.
fn broadcast_bits(writer: &mut Writer, signature: &Arc<Signature>, operand: Ref) -> Ref {
    let dtype = signature.operands()[0].dtype();
    let bits = writer.op(OpCode::BitcastConvert, attrs::convert(unsigned(dtype.bits())), &[operand]);
    let bits = writer.op(OpCode::BroadcastInDim, signature.attrs().clone(), &[bits]);
    writer.op(OpCode::BitcastConvert, attrs::convert(dtype), &[bits])
}

/// The value, behind a barrier. XLA's folder reads the bits of a constant in the order of another
/// layout than it was computed in (API 0.81: results of `convolution` and `dot_general`), so no
/// flush of a constant is left to it.
fn hidden(writer: &mut Writer, value: Ref) -> Ref {
    writer.op(OpCode::OptimizationBarrier, Attrs::none(), &[value])
}

/// A zero of the same sign in place of each subnormal number, by the bits.
fn flush(writer: &mut Writer, value: Ref) -> Ref {
    let ty = writer.type_of(value);
    if ty.dtype().is_complex() {
        let parts = [OpCode::Real, OpCode::Imag].map(|part| writer.op(part, Attrs::none(), &[value]));
        let parts = parts.map(|part| flush(writer, part));
        return writer.op(OpCode::Complex, Attrs::none(), &parts);
    }
    let Some(format) = ty.dtype().float_format() else { return value };
    let word = unsigned(ty.dtype().bits());
    let mut splat = |bits: u64| {
        let one = writer.op(OpCode::Constant, word_constant(word, bits), &[]);
        let shape = attrs::broadcast_in_dim(ty.shape().clone(), &[]);
        writer.op(OpCode::BroadcastInDim, shape, &[one])
    };
    let (sign, magnitude, normal) =
        (splat(format.sign()), splat(format.sign() - 1), splat(1 << format.mantissa));
    let bits = writer.op(OpCode::BitcastConvert, attrs::convert(word), &[value]);
    let size = writer.op(OpCode::And, Attrs::none(), &[bits, magnitude]);
    let is_small = writer.op(OpCode::Compare, attrs::compare_for(Comparison::Lt, word), &[size, normal]);
    let zero = writer.op(OpCode::And, Attrs::none(), &[bits, sign]);
    let result = writer.op(OpCode::Select, Attrs::none(), &[is_small, zero, bits]);
    writer.op(OpCode::BitcastConvert, attrs::convert(ty.dtype()), &[result])
}

fn word_constant(word: DType, bits: u64) -> Attrs {
    let bytes = bits.to_le_bytes()[..word.size()].to_vec();
    let literal = Literal::from_bytes(TensorType::scalar(word), bytes);
    attrs::constant(Arc::new(literal.expect("bug: a word of another size")))
}
