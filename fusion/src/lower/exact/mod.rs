//! What keeps a plugin from computing across the ops of an exact region.
//!
//! Input: a [`Plain`] function. Output: the same function for [`Numerics::Exact`], of which a plugin makes the same bits
//! wherever it draws the line between what it computes together and what it does not.
//!
//! 1. An op that the plugin computes in two ways that round differently, depending on what stands around it, is replaced by
//!    ops that it computes in one ([`steady`]).
//! 2. *Fences* are put up: some results pass through `bitcast(bitcast(x) ^ 0)` before they are used. The zero is an argument
//!    of the executable, so that a compiler does not know that it is one. XLA's CPU backend lets LLVM contract a
//!    multiplication and an addition into one instruction that rounds once, or not, by what else uses the product and where
//!    it is computed; and it folds what is computed of constants by another implementation than the one that computes at
//!    run time. `optimization_barrier`, `reduce_precision` and casts there and back do not stop that.
//! 3. A sum of many elements stands in a branch of its own, or the order of the sum would follow from what is around it.
//!
//! Invariants:
//! - F1: the function computes the same bits with fences and branches as without.
//! - F2: behind an op that rounds, and behind one without operands, stands a fence, if another op of the function uses the
//!   result. What an op is expanded into has fences too, also where the op is the whole region: it is what the others are
//!   compared with. Bodies have none: a loop is one op, compiled with all that is in it.

pub(super) mod steady;

use std::sync::Arc;

use super::plain::{Plain, Writer, plain};
use super::unsteady::is_unsteady;
use super::{Numerics, ScalarPack, Target};
use crate::attr::Attrs;
use crate::canon::CanonRegion;
use crate::dtype::DType;
use crate::graph::{Body, Graph, Node, Ref, Refs};
use crate::literal::Literal;
use crate::op::{Fusibility, OpCode, Signature, attrs, rounds, unsigned};
use crate::shape::TensorType;

/// The exact function, if there is a zero for its fences.
#[must_use]
pub fn exact(plain: Plain, pack: &ScalarPack) -> Plain {
    let packed = plain.function.graph().params().len().checked_sub(1).map(|last| Ref::Param(last as u32));
    match pack.zero().zip(packed) {
        Some((word, packed)) => fenced(&steady::steady(plain), word, packed),
        None => plain,
    }
}

/// The first op of a region that no lowering keeps exact, if there are other ops: a plugin may compute it otherwise together with these
/// than alone.
#[must_use]
pub fn unsteady_op(region: &CanonRegion) -> Option<OpCode> {
    if region.graph().nodes().len() < 2 {
        return None;
    }
    let plain = plain(region, &[], &ScalarPack::of(Target::Any, region, Numerics::Exact), &[]);
    let mut signatures = plain.function.graph().nodes().iter().map(|node| node.signature());
    let found = signatures.find(|signature| {
        // What a loop or a branch runs is compiled apart from what stands around it.
        let is_apart = matches!(signature.op(), OpCode::While | OpCode::Case | OpCode::If);
        let is_either = |inner: &Signature| is_hidden(inner) || is_unsteady(inner);
        let inside = |body: &Arc<Body>| body.graph().any_op(&mut |inner| is_either(inner));
        is_hidden(signature) || (!is_apart && signature.bodies().iter().any(inside))
    });
    found.map(|signature| signature.op())
}

/// Whether the plugin makes an op of unsteady ones by itself.
fn is_hidden(signature: &Signature) -> bool {
    let Some(dtype) = signature.results().first().map(TensorType::dtype) else { return false };
    let is_rounded = || {
        signature.def().fusibility == Fusibility::Elementwise
            && rounds(signature)
    };
    match signature.op() {
        OpCode::Acosh
        | OpCode::Asinh
        | OpCode::Atanh
        | OpCode::BesselI1e
        | OpCode::Cosh
        | OpCode::Digamma
        | OpCode::Erfc
        | OpCode::ErfInv
        | OpCode::Lgamma
        | OpCode::Polygamma
        | OpCode::Zeta => dtype.is_float() && dtype.bits() <= 32,
        OpCode::Add | OpCode::Subtract | OpCode::Multiply | OpCode::Divide => false,
        _ => dtype.is_complex() && is_rounded(),
    }
}

/// The function with its fences; the zero is a word of the packed scalars.
fn fenced(plain: &Plain, word: usize, packed: Ref) -> Plain {
    let graph = plain.function.graph();
    let mut is_fenced = places(graph).into_iter();
    let zero = |writer: &mut Writer| writer.unpacked(packed, DType::U32, word);
    plain.rewritten(zero, |writer, &zero, node, operands| {
        let signature = node.signature();
        let results = if graph.nodes().len() > 1 && is_reordered(signature) {
            writer.apart(signature, &operands, zero)
        } else {
            writer.0.push_signature(signature.clone(), operands)
        };
        let behind = |result| match is_fenced.next() {
            Some(true) => (result, writer.fence(result, zero)),
            _ => (result, result),
        };
        results.into_iter().map(behind).collect()
    })
}

/// For each result of a graph, whether a fence stands behind it (F2).
fn places(graph: &Graph) -> Vec<bool> {
    let mut is_used = vec![false; graph.result_count()];
    for operand in graph.nodes().iter().flat_map(Node::operands) {
        if let Ref::Result(index) = *operand {
            is_used[index as usize] = true;
        }
    }
    let is_open = graph.nodes().iter().flat_map(|node| {
        let is_open = is_open(node.signature());
        node.signature().results().iter().map(move |_| is_open)
    });
    is_used.into_iter().zip(is_open).map(|(is_used, is_open)| is_used && is_open).collect()
}

/// Whether a compiler may compute the results of an op together with what is made of them, to other bits. A product may be contracted with
/// a sum; what the sum is used for, with the first steps of an approximation, whose arithmetic LLVM is allowed to reorder
/// (`exp(a * b + c)` on XLA's CPU backend).
fn is_open(signature: &Signature) -> bool {
    signature.operands().is_empty() || rounds(signature)
}

/// Whether a plugin may combine elements in another order when an op is computed together with others: XLA's CPU backend goes through a
/// sum in vectors where it stands alone, and element by element where its operand is computed on the way.
fn is_reordered(signature: &Signature) -> bool {
    signature.def().fusibility == Fusibility::Reduction && rounds(signature)
}

impl Writer {
    /// An op by itself: in a branch, which is always taken, and which a compiler does not compute together with what stands outside.
    fn apart(&mut self, signature: &Arc<Signature>, operands: &[Ref], zero: Ref) -> Refs {
        let branch = |make: &dyn Fn(&mut Writer, &[Ref]) -> Vec<Ref>| {
            let mut writer = Writer(Graph::new());
            let params: Vec<Ref> = signature.operands().iter().map(|ty| writer.0.param(ty.clone())).collect();
            let returns = make(&mut writer, &params);
            Arc::new(Body::new(writer.0, &returns).expect("bug: a branch returns what it does not make"))
        };
        let taken = branch(&|writer, params| {
            writer.0.push_signature(signature.clone(), params.iter().copied().collect()).to_vec()
        });
        let other = branch(&|writer, _| {
            let zeros = signature.results().iter().map(|ty| {
                let zero = Literal::zeros(TensorType::scalar(ty.dtype()));
                let zero = writer.op(OpCode::Constant, attrs::constant(Arc::new(zero)), &[]);
                writer.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(ty.shape().clone(), &[]), &[zero])
            });
            zeros.collect()
        });
        let index = self.op(OpCode::BitcastConvert, attrs::convert(DType::I32), &[zero]);
        let operands: Refs = std::iter::once(index).chain(operands.iter().copied()).collect();
        self.branches(&[taken, other], &operands)
    }

    /// A value behind a fence. `zero` is a `u32` scalar.
    fn fence(&mut self, value: Ref, zero: Ref) -> Ref {
        let ty = self.type_of(value);
        let dtype = ty.dtype();
        if dtype.is_complex() {
            let [real, imag] =
                [OpCode::Real, OpCode::Imag].map(|part| self.op(part, Attrs::none(), &[value]));
            let parts = [self.fence(real, zero), self.fence(imag, zero)];
            return self.op(OpCode::Complex, Attrs::none(), &parts);
        }
        let Some(crossed) = crossed_as(dtype) else { return value };
        let zero = match crossed {
            DType::U32 => zero,
            _ => self.op(OpCode::Convert, attrs::convert(crossed), &[zero]),
        };
        let spread = attrs::broadcast_in_dim(ty.shape().clone(), &[]);
        let zeros = self.op(OpCode::BroadcastInDim, spread, &[zero]);
        if crossed == dtype {
            return self.op(OpCode::Xor, Attrs::none(), &[value, zeros]);
        }
        let bits = self.op(OpCode::BitcastConvert, attrs::convert(crossed), &[value]);
        let same = self.op(OpCode::Xor, Attrs::none(), &[bits, zeros]);
        self.op(OpCode::BitcastConvert, attrs::convert(dtype), &[same])
    }
}

/// The type in which elements are crossed with a zero: of as many bits. `None` for those that have no fence.
#[must_use]
pub fn crossed_as(dtype: DType) -> Option<DType> {
    match dtype {
        _ if dtype == DType::Bool || dtype.is_int() => Some(dtype),
        _ if dtype.is_float() => matches!(dtype.bits(), 8 | 16 | 32 | 64).then(|| unsigned(dtype.bits())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// XLA makes functions of complex numbers of several real ones; sums it does not.
    #[test]
    fn functions_of_complex_numbers_are_hidden() {
        let (row, scalar) =
            (TensorType::of(DType::C64, &[4]).expect("small"), TensorType::scalar(DType::C64));
        let tanh = Signature::infer(OpCode::Tanh, Attrs::none(), &[], std::slice::from_ref(&row));
        assert!(is_hidden(&tanh.expect("it fits")));
        let add = Arc::new(Body::binary(OpCode::Add, scalar.clone()).expect("it adds"));
        let sum = Signature::infer(OpCode::Reduce, attrs::dimensions(&[0]), &[add], &[row, scalar]);
        assert!(!is_hidden(&sum.expect("it fits")));
    }
}
