//! Keeps a plugin from optimizing across the ops of an exact region.
//!
//! Input: a [`Plain`] function. Output: the same function for [`Numerics::Exact`]: a plugin
//! computes the same bits however it groups the ops into kernels.
//!
//! 1. Some ops round in one of two ways, depending on the ops around them. They are replaced by ops
//!    that always round the same way ([`stable_math::steady`]).
//! 2. *Fences* separate ops: some results pass through `bitcast(bitcast(x) ^ 0)` before they are
//!    used. The zero is an argument of the executable, so the compiler does not know its value.
//!    XLA's CPU backend lets LLVM contract a multiplication and an addition into one instruction
//!    that rounds once. Whether it does depends on the product's other uses and on where it is
//!    computed. The backend also folds constants with another implementation than that used at run
//!    time. `optimization_barrier`, `reduce_precision` and casts there and back do not prevent
//!    either.
//! 3. A sum of many elements gets a branch of its own. Otherwise the order of the sum would depend
//!    on the ops around it.
//!
//! Invariants:
//! - FENCE-1: the function computes the same bits with fences and branches as without.
//! - FENCE-2: the result of an op that rounds, or of one without operands, is fenced if another op
//!   of the function uses it. The expansion of an op has fences too, even if the op is the whole
//!   region, because it is the reference for other regions. Bodies have no fences: a loop is one
//!   op, compiled with everything inside.

pub(super) mod stable_math;

use std::sync::Arc;

use super::legalized::{Plain, Writer, plain};
use super::unsteady::is_unsteady;
use super::{Numerics, ScalarPack, Target};
use crate::attr::Attrs;
use crate::canon::CanonRegion;
use crate::dtype::DType;
use crate::ir::{Body, Graph, Node, OpCode, Ref, Refs, Signature};
use crate::literal::Literal;
use crate::op::{Fusibility, attrs, rounds, unsigned};
use crate::shape::TensorType;

/// The exact function, if the pack provides a zero for fences.
#[must_use]
pub fn exact(plain: Plain, pack: &ScalarPack) -> Plain {
    let packed = plain.function.graph().params().len().checked_sub(1).map(|last| Ref::Param(last as u32));
    match pack.zero().zip(packed) {
        Some((word, packed)) => fenced(&stable_math::steady(plain), word, packed),
        None => plain,
    }
}

/// The first op, in a region of several ops, whose bits no lowering can make independent of the ops
/// around it.
#[must_use]
pub fn context_dependent_op(region: &CanonRegion) -> Option<OpCode> {
    if region.graph().nodes().len() < 2 {
        return None;
    }
    let plain = plain(region, &[], &ScalarPack::of(Target::Any, region, Numerics::Exact), &[]);
    let mut signatures = plain.function.graph().nodes().iter().map(|node| node.signature());
    let found = signatures.find(|signature| {
        // XLA compiles the bodies of loops and branches separately from the ops around them.
        let is_apart = matches!(signature.op(), OpCode::While | OpCode::Case | OpCode::If);
        let is_either = |inner: &Signature| is_hidden(inner) || is_unsteady(inner);
        let inside = |body: &Arc<Body>| body.graph().any_op(&mut |inner| is_either(inner));
        is_hidden(signature) || (!is_apart && signature.bodies().iter().any(inside))
    });
    found.map(|signature| signature.op())
}

/// Whether the plugin itself expands an op into unsteady ones.
fn is_hidden(signature: &Signature) -> bool {
    let Some(dtype) = signature.results().first().map(TensorType::dtype) else { return false };
    let is_rounded = || signature.def().fusibility == Fusibility::Elementwise && rounds(signature);
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

/// The function with its fences. The zero is word `word` of the packed scalars.
fn fenced(plain: &Plain, word: usize, packed: Ref) -> Plain {
    let graph = plain.function.graph();
    let mut is_fenced = places(graph).into_iter();
    let zero = |writer: &mut Writer| writer.unpacked(packed, DType::U32, word);
    plain.rewritten(zero, |writer, &zero, node, operands| {
        let signature = node.signature();
        let results = if graph.nodes().len() > 1 && is_reordered(signature) {
            writer.separated(signature, &operands, zero)
        } else {
            writer.graph.push_signature(signature.clone(), operands)
        };
        let behind = |result| match is_fenced.next() {
            Some(true) => (result, writer.fence(result, zero)),
            _ => (result, result),
        };
        results.into_iter().map(behind).collect()
    })
}

/// For each result of a graph, whether it is fenced (FENCE-2).
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

/// Whether a compiler may fuse an op with the users of its results and so change bits. A product
/// may be contracted with a sum. A sum may be merged into the first steps of an approximation,
/// whose arithmetic LLVM may reassociate (`exp(a * b + c)` on XLA's CPU backend).
fn is_open(signature: &Signature) -> bool {
    signature.operands().is_empty() || rounds(signature)
}

/// Whether a plugin may combine elements in another order if an op is fused with others. XLA's CPU
/// backend vectorizes a sum that stands alone, and adds element by element if it computes the
/// operand in the same loop.
fn is_reordered(signature: &Signature) -> bool {
    signature.def().fusibility == Fusibility::Reduction && rounds(signature)
}

impl Writer {
    /// An op in a branch that is always taken. The compiler does not fuse it with ops outside of
    /// the branch.
    fn separated(&mut self, signature: &Arc<Signature>, operands: &[Ref], zero: Ref) -> Refs {
        let branch = |make: &dyn Fn(&mut Writer, &[Ref]) -> Vec<Ref>| {
            let mut writer = Writer::new(Graph::new());
            let params: Vec<Ref> =
                signature.operands().iter().map(|ty| writer.graph.param(ty.clone())).collect();
            let returns = make(&mut writer, &params);
            Arc::new(
                Body::new(writer.graph, &returns)
                    .expect("bug: a branch returns a value that it does not compute"),
            )
        };
        let taken = branch(&|writer, params| {
            writer.graph.push_signature(signature.clone(), params.iter().copied().collect()).to_vec()
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

    /// Passes a value through a fence. `zero` is a `u32` scalar.
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

/// The type of the fence's XOR, which has as many bits as the elements. `None` for types without
/// fences.
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

    /// XLA expands functions of complex numbers into several real ones, but not sums.
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
