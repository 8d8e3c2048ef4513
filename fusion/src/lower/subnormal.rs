//! Gives subnormal numbers one meaning on a device that flushes them to zero.
//!
//! Input: a [`Plain`] function and the element types that the device flushes. Output: the same
//! function, in which results of ops that compute contain no subnormal numbers of these types,
//! whatever the compiler does with the ops.
//!
//! XLA's CPU backend runs code with the processor's `FTZ` and `DAZ` on. That gives most ops the
//! meaning that [`subnormal::access`] states and the interpreter follows. The others need an
//! explicit flush on the bits, which the compiler cannot see through:
//!
//! | what | because |
//! |---|---|
//! | functions that return a small operand unchanged | a `select` moves bits |
//! | functions that take a number apart | their code reads its bits |
//! | conversions to a shorter float, where the processor has no instruction for it or the pair of conversions is eliminated | integer code computes it, or no code at all |
//! | ops that an identity element, a copied operand or a dimension of size 1 turns into a copy | the simplifier removes them |
//! | parameters of `bf16` that are moved or returned | LLVM may promote them to `f32` ([`subnormal::PROMOTED`]) |
//! | parameters of `bf16` of which a maximum or a `bool` is computed | newer code compares and selects their bits |
//! | ops on constants | the compiler computes them, and keeps subnormal numbers |
//!
//! Invariants:
//! - SUB-1: a result is flushed, or comes from a processor instruction that flushes.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::legalized::{Plain, Writer, rewritten_body, signed};
use crate::attr::Attrs;
use crate::dtype::{DType, DTypeSet};
use crate::element::{Elements, to_f64};
use crate::ir::{Body, Node, OpCode, Ref, Refs, Signature};
use crate::literal::Literal;
use crate::op::{Comparison, attrs, unsigned};
use crate::shape::TensorType;
use crate::subnormal::{self, Access};

/// The function with its flushes.
pub(super) fn flushed(plain: Plain, flushed: DTypeSet) -> Plain {
    if flushed == DTypeSet::NONE {
        return plain;
    }
    let promoted = subnormal::PROMOTED.and(flushed);
    let params = (0..).zip(plain.function.graph().params());
    let mut flushing = Flushing {
        flushed,
        known: FxHashMap::default(),
        params: params
            .filter(|(_, ty)| promoted.contains(ty.dtype()))
            .map(|(param, _)| (Ref::Param(param), None))
            .collect(),
        demanded: demanded_bits(&plain.function, flushed).into_iter(),
        copies: FxHashMap::default(),
    };
    let plain = plain.rewritten(
        |_| (),
        |writer, (), node, operands| {
            let results = flushing.node(writer, node, operands);
            results.into_iter().map(|result| (result, result)).collect()
        },
    );
    if !plain.function.returns().iter().any(|value| flushing.params.contains_key(value)) {
        return plain;
    }
    // Such an op had no code: for example, a collective of one replica expands to nothing.
    plain.with_returns(|writer, value| flushing.flushed_param(writer, value))
}

/// A value that the compiler knows at compile time.
#[derive(Clone, Copy)]
struct KnownValue {
    /// Whether an element may be subnormal.
    is_raw: bool,
    /// The number that all elements have; NaN if they differ, `None` if unknown.
    splat: Option<f64>,
}

struct Flushing {
    flushed: DTypeSet,
    known: FxHashMap<Ref, KnownValue>,
    /// Parameters of a promoted type, each with its flushed value once an op needed it.
    params: FxHashMap<Ref, Option<Ref>>,
    /// For each node not yet written, whether the bits of its results are demanded.
    demanded: std::vec::IntoIter<bool>,
    /// Equivalence classes of values that the simplifier may find to be copies of each other, as a
    /// union-find forest. An op that moves bits joins its results and operands. A leader has no
    /// entry.
    copies: FxHashMap<Ref, Ref>,
}

/// For each node, whether the program can distinguish a subnormal number in its results from zero.
///
/// An op that computes reads a subnormal number as zero, so an op before it that only moves the
/// number need not flush it. This avoids a flush of weights that are transposed and multiplied.
fn demanded_bits(function: &Body, flushed: DTypeSet) -> Vec<bool> {
    let graph = function.graph();
    let mut is_demanded = vec![false; graph.result_count()];
    let demand = |is_demanded: &mut Vec<bool>, values: &[Ref]| {
        for value in values {
            if let Ref::Result(result) = *value {
                is_demanded[result as usize] = true;
            }
        }
    };
    demand(&mut is_demanded, function.returns());
    let mut nodes = Vec::with_capacity(graph.nodes().len());
    let mut end = graph.result_count();
    for node in graph.nodes().iter().rev() {
        let signature = node.signature();
        let results = end - signature.results().len()..end;
        end = results.start;
        let only_moves = signature.bodies().is_empty()
            && !may_create_subnormals(signature.op())
            && signature.results().iter().all(|ty| flushed.contains(ty.dtype().part()));
        let is_node_demanded = !only_moves || is_demanded[results].contains(&true);
        if is_node_demanded && demands_bits(signature) {
            demand(&mut is_demanded, node.operands());
        }
        nodes.push(is_node_demanded);
    }
    nodes.reverse();
    nodes
}

impl Flushing {
    fn is_flushed(&self, dtype: DType) -> bool {
        self.flushed.contains(dtype.part())
    }

    /// Writes a node with the flushes that it needs; returns its results.
    fn node(&mut self, writer: &mut Writer, node: &Node, mut operands: Refs) -> Refs {
        let signature = node.signature();
        let access = subnormal::access(signature);
        let is_demanded = self.demanded.next().unwrap_or(true);
        if access == Access::Bits
            && let Some(constant) = self.flushed_constant(signature)
        {
            let results = Refs::from_slice(&[writer.op(OpCode::Constant, constant, &[])]);
            self.note(node.signature(), &operands, &results, true);
            return results;
        }
        if is_demanded && demands_bits(signature) {
            operands.iter_mut().for_each(|operand| *operand = self.flushed_param(writer, *operand));
        }
        if access == Access::Flushes {
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
            true => writer.graph.push_signature(signature.clone(), operands.clone()),
            false => {
                let signature = signed(signature.op(), signature, &bodies);
                writer.graph.push_signature(signature, operands.clone())
            }
        };
        let is_folded = signature.bodies().is_empty()
            && !operands.is_empty()
            && operands.iter().all(|operand| self.known.contains_key(operand));
        if may_create_subnormals(signature.op()) {
            for (result, ty) in results.iter_mut().zip(signature.results()) {
                if self.is_promoted(ty.dtype()) {
                    *result = flush(writer, *result);
                }
            }
        }
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
        if access == Access::Bits {
            let moved =
                || results.iter().chain(operands.iter().filter(|value| !self.known.contains_key(value)));
            let leaders: Refs = moved().map(|&value| self.leader(value)).collect();
            if let Some((&first, others)) = leaders.split_first() {
                self.copies
                    .extend(others.iter().filter(|&&leader| leader != first).map(|&leader| (leader, first)));
            }
        }
        // The compiler no longer knows a value that was flushed behind a barrier.
        if access == Access::Bits || !is_folded {
            self.note(signature, &operands, &results, is_folded);
        }
        results
    }

    /// The leader of the value's class.
    fn leader(&self, mut value: Ref) -> Ref {
        while let Some(&parent) = self.copies.get(&value) {
            value = parent;
        }
        value
    }

    /// Whether all ops flush this type, even those that only move elements.
    fn is_promoted(&self, dtype: DType) -> bool {
        self.is_flushed(dtype) && subnormal::PROMOTED.contains(dtype)
    }

    /// The flushed value of a parameter of a promoted type; any other value as it is.
    fn flushed_param(&mut self, writer: &mut Writer, value: Ref) -> Ref {
        match self.params.get_mut(&value) {
            None => value,
            Some(flushed) => *flushed.get_or_insert_with(|| flush(writer, value)),
        }
    }

    /// The attributes of a constant of a promoted type with its subnormal numbers flushed; `None`
    /// if it has none.
    fn flushed_constant(&self, signature: &Signature) -> Option<Attrs> {
        if signature.op() != OpCode::Constant {
            return None;
        }
        let data = signature.attrs().view().dense(0);
        if !self.is_promoted(data.dtype()) || !subnormal::has_subnormal(data) {
            return None;
        }
        let mut data = Literal::clone(data);
        subnormal::flush(&mut data);
        Some(attrs::constant(Arc::new(data)))
    }

    /// Whether the compiled code of an op that should flush may fail to flush.
    fn may_keep(&self, signature: &Signature, operands: &[Ref], is_folded: bool) -> bool {
        if is_copy(signature) {
            return true;
        }
        // The smallest number of this type is a subnormal `f32`, and the type has no zero to flush
        // it to.
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
            || is_choice_of_one(op, &operands.iter().map(|&operand| self.leader(operand)).collect::<Refs>())
    }

    /// Records what the compiler knows of results.
    fn note(&mut self, signature: &Signature, operands: &[Ref], results: &[Ref], is_folded: bool) {
        let known = match signature.op() {
            OpCode::Constant => {
                let data = signature.attrs().view().dense(0);
                let is_raw = self.is_flushed(data.dtype())
                    && !self.is_promoted(data.dtype())
                    && subnormal::has_subnormal(data);
                KnownValue { is_raw, splat: Some(splat(data)) }
            }
            OpCode::Iota => KnownValue { is_raw: false, splat: Some(f64::NAN) },
            _ if is_folded => {
                let of = |operand: &Ref| self.known[operand];
                let is_raw = operands.iter().any(|operand| of(operand).is_raw);
                let moves = matches!(
                    signature.op(),
                    OpCode::BroadcastInDim | OpCode::Reshape | OpCode::Transpose | OpCode::Convert
                );
                KnownValue { is_raw, splat: if moves { of(&operands[0]).splat } else { None } }
            }
            _ => return,
        };
        self.known.extend(results.iter().map(|&result| (result, known)));
    }

    /// A body with its flushes. Captured values count as unknown.
    fn body(&self, body: &Arc<Body>) -> Arc<Body> {
        // Arguments of a body are results of ops, or were flushed for the op with the body.
        let mut inner = Flushing {
            flushed: self.flushed,
            known: FxHashMap::default(),
            params: FxHashMap::default(),
            demanded: Vec::new().into_iter(),
            copies: FxHashMap::default(),
        };
        let rewritten = rewritten_body(body, |writer, node, operands| inner.node(writer, node, operands));
        let graph = body.graph();
        let is_same = rewritten.graph().nodes().len() == graph.nodes().len()
            && !graph.any_op(&mut |signature| self.flushed_constant(signature).is_some());
        if is_same { body.clone() } else { Arc::new(rewritten) }
    }
}

/// The number that all elements have; NaN if they differ.
fn splat(data: &Literal) -> f64 {
    let dtype = data.dtype();
    let size = dtype.size();
    let Some(first) = data.bytes().get(..size) else { return f64::NAN };
    if dtype.is_complex() || data.bytes().chunks_exact(size).any(|element| element != first) {
        return f64::NAN;
    }
    to_f64(dtype, Elements::of(data).get(0))
}

/// Whether an operand with this value may make the op a copy of another operand, or of its
/// negation.
fn is_identity(op: OpCode, place: usize, value: f64) -> bool {
    match op {
        OpCode::Multiply => value.abs() == 1.0,
        OpCode::Divide | OpCode::Power => place == 1 && value.abs() == 1.0,
        OpCode::Add | OpCode::Subtract => value == 0.0,
        OpCode::Maximum | OpCode::Minimum | OpCode::Clamp => value.is_infinite(),
        _ => false,
    }
}

/// Whether an op that selects one of several numbers may have the same number twice, by the leaders
/// of its operands.
fn is_choice_of_one(op: OpCode, operands: &[Ref]) -> bool {
    match (op, operands) {
        (OpCode::Maximum | OpCode::Minimum, [a, b]) => a == b,
        (OpCode::Clamp, [low, value, high]) => low == value || value == high || low == high,
        _ => false,
    }
}

/// Whether the plugin's code for a call returns a small operand unchanged.
fn keeps_small(signature: &Signature) -> bool {
    match signature.op() {
        OpCode::Tanh
        | OpCode::Sine
        | OpCode::Tan
        | OpCode::Atan
        | OpCode::ExponentialMinusOne
        | OpCode::Atan2
        | OpCode::Remainder
        // The simplifier replaces the logarithm of an exponential by its operand.
        | OpCode::Log => true,
        OpCode::Convert => {
            let (from, to) = (signature.operands()[0].dtype(), signature.attrs().view().dtype(0));
            matches!((from, to), (DType::F32 | DType::F64, DType::BF16) | (DType::F64, DType::F32))
        }
        _ => false,
    }
}

/// Whether the plugin's code for a call inspects the bits of a number, so that subnormal numbers
/// are not zero to it.
fn reads_bits(signature: &Signature) -> bool {
    match signature.op() {
        OpCode::Atan2 | OpCode::Cbrt | OpCode::Power => true,
        OpCode::Log | OpCode::LogPlusOne => signature.operands()[0].dtype().is_complex(),
        _ => false,
    }
}

/// Whether a subnormal number in an operand makes a difference to the plugin's code for a call. If
/// the op computes, that is so only on types in [`subnormal::PROMOTED`]: newer versions of XLA (API
/// 0.106 and 0.115) compare and select a `bf16` by its bits.
fn demands_bits(signature: &Signature) -> bool {
    let is_promoted = |ty: &TensorType| subnormal::PROMOTED.contains(ty.dtype());
    match signature.op() {
        OpCode::Maximum | OpCode::Minimum | OpCode::Clamp => signature.operands().iter().any(is_promoted),
        OpCode::Convert if signature.attrs().view().dtype(0) == DType::Bool => {
            signature.operands().iter().any(is_promoted)
        }
        _ => subnormal::access(signature) == Access::Bits,
    }
}

/// Whether a reduction never combines two elements, so its result is its operand and its body,
/// which would flush, does not run.
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

/// Whether results of the op may be subnormal even if no operand is.
fn may_create_subnormals(op: OpCode) -> bool {
    matches!(op, OpCode::BitcastConvert | OpCode::CustomCall)
}

/// The value behind a barrier. XLA's folder reads the bits of a constant in another layout than it
/// was computed in (API 0.81: results of `convolution` and `dot_general`), so it must not fold the
/// flush of a constant.
fn hidden(writer: &mut Writer, value: Ref) -> Ref {
    writer.op(OpCode::OptimizationBarrier, Attrs::none(), &[value])
}

/// Replaces each subnormal number by a zero of the same sign, on the bits.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canon::CanonRegion;
    use crate::groups::Groups;
    use crate::ir::Graph;
    use crate::lower::{Aliases, Numerics, Target, lower_for};
    use crate::op::attrs::DotDimensionNumbers;

    /// The number of selects, and so of flushes, in the module that returns the last result of the
    /// graph.
    fn flushes(graph: Graph) -> usize {
        let lifted = vec![false; graph.params().len()].into_boxed_slice();
        let last = graph.result_count() as u32 - 1;
        let region = CanonRegion::new(graph, lifted);
        let module = lower_for(Target::CPU, &region, &[last], &Aliases::none(), Numerics::Fast, &[]);
        module.text().matches("stablehlo.select").count()
    }

    fn matrix(dtype: DType) -> TensorType {
        TensorType::of(dtype, &[2, 2]).expect("small")
    }

    /// A parameter of the type, transposed `times` times.
    fn transposed(dtype: DType, times: usize) -> (Graph, Ref) {
        let mut graph = Graph::new();
        let mut value = graph.param(matrix(dtype));
        for _ in 0..times {
            value = graph
                .push(OpCode::Transpose, attrs::transpose(&[1, 0]), &[], &[value])
                .expect("a transpose")[0];
        }
        (graph, value)
    }

    #[test]
    fn a_choice_between_copies_is_flushed() {
        let mut graph = Graph::new();
        let value = graph.param(matrix(DType::F32));
        let pred = graph.param(matrix(DType::Bool));
        let same =
            graph.push(OpCode::Select, Attrs::none(), &[], &[pred, value, value]).expect("a choice")[0];
        graph.push(OpCode::Minimum, Attrs::none(), &[], &[same, value]).expect("the less");
        assert_eq!(flushes(graph), 2, "one flush and the select itself");
        // Two different values are not mistaken for copies.
        let mut graph = Graph::new();
        let values = [0; 2].map(|_| graph.param(matrix(DType::F32)));
        graph.push(OpCode::Minimum, Attrs::none(), &[], &values).expect("the less");
        assert_eq!(flushes(graph), 0);
    }

    #[test]
    fn a_promoted_parameter_that_is_moved_is_flushed_once() {
        assert_eq!(flushes(transposed(DType::BF16, 1).0), 1);
        assert_eq!(flushes(transposed(DType::BF16, 2).0), 1);
        assert_eq!(flushes(transposed(DType::F32, 1).0), 0);
        assert_eq!(flushes(transposed(DType::F16, 1).0), 0);
    }

    #[test]
    fn a_promoted_parameter_that_is_compared_by_its_bits_is_flushed() {
        for (dtype, count) in [(DType::BF16, 2), (DType::F32, 0)] {
            let mut graph = Graph::new();
            let values = [0; 2].map(|_| graph.param(matrix(dtype)));
            graph.push(OpCode::Maximum, Attrs::none(), &[], &values).expect("the greater");
            assert_eq!(flushes(graph), count, "{dtype:?}");
            let mut graph = Graph::new();
            let value = graph.param(matrix(dtype));
            graph.push(OpCode::Convert, attrs::convert(DType::Bool), &[], &[value]).expect("a conversion");
            assert_eq!(flushes(graph), count / 2, "{dtype:?}");
        }
        // Results of other ops are flushed already.
        let mut graph = Graph::new();
        let value = graph.param(matrix(DType::BF16));
        let sum = graph.push(OpCode::Add, Attrs::none(), &[], &[value, value]).expect("a sum")[0];
        graph.push(OpCode::Maximum, Attrs::none(), &[], &[sum, sum]).expect("the greater");
        assert_eq!(flushes(graph), 1, "the maximum of two copies");
    }

    #[test]
    fn a_promoted_parameter_that_a_collective_of_one_replica_returns_is_flushed() {
        for (dtype, count) in [(DType::BF16, 1), (DType::F32, 0)] {
            let mut graph = Graph::new();
            let value = graph.param(matrix(dtype));
            let attrs = attrs::all_gather(Groups::new(&[[0]]), 0);
            graph.push(OpCode::AllGather, attrs, &[], &[value]).expect("a gather");
            assert_eq!(flushes(graph), count, "{dtype:?}");
        }
    }

    #[test]
    fn a_parameter_that_only_flushing_ops_read_is_not_flushed() {
        let (mut graph, value) = transposed(DType::BF16, 2);
        let dims = DotDimensionNumbers { lhs_contracting: &[1], rhs_contracting: &[0], ..Default::default() };
        let attrs = attrs::dot_general(dims, DType::BF16);
        graph.push(OpCode::DotGeneral, attrs, &[], &[value, value]).expect("a product");
        assert_eq!(flushes(graph), 0);
        // A select exposes the bits.
        let (mut graph, value) = transposed(DType::BF16, 1);
        let sum = graph.push(OpCode::Add, Attrs::none(), &[], &[value, value]).expect("a sum")[0];
        let pred = graph.param(matrix(DType::Bool));
        graph.push(OpCode::Select, Attrs::none(), &[], &[pred, value, sum]).expect("a choice");
        assert_eq!(flushes(graph), 2, "one flush and the select itself");
    }
}
