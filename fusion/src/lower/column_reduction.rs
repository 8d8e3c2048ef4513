//! Splits column reductions into windows, for XLA's CPU backend.
//!
//! Input: a [`Plain`] function. Output: the same function with column reductions, whose results are
//! adjacent in memory (such as the sums of a matrix's columns), split: a reduction over windows of
//! at most [`WINDOW`] elements comes first.
//!
//! XLA's CPU backend (API 0.81) emits a reduction as one loop per result. LLVM vectorizes that loop
//! along a row. Down a column consecutive elements are a row apart, and the loop stays scalar. A
//! window of a few elements is unrolled, and LLVM vectorizes the loop around it, over the columns.
//! XLA has a pass that splits every reduction like this, rows included, and thereby turns their
//! vector loops into scalar ones. That pass is disabled (`runtime/src/device/compiler.rs`); this
//! module keeps its benefit.
//!
//! With and without the pass on the same module, in turns (2 cores of an AMD EPYC, 2026-11-23, best
//! of 1,200 runs): sums of rows of 64x256 in the benchmark's `norms` 449 and 92 µs a step, maxima
//! of rows of 512x256 368 and 33 µs, sums of rows of 512x256 33 and 11; sums of columns of 512x256
//! 14 and 87 µs, and 15 in windows. The pass looks at one dimension at a time; sums of 8x64x256
//! over the first two, which are one here, take 78 µs with it, 70 without, and 18 in windows.
//!
//! Invariants:
//! - COLRED-3: integer results keep their bits. Floats are combined in another order, with no
//!   longer chain of dependent steps than before. The pass is therefore for
//!   [`super::Numerics::Fast`] only.

use std::sync::Arc;

use smallvec::SmallVec;

use super::legalized::{Plain, Writer, rewritten_body, signed};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::ir::{Body, Graph, OpCode, Ref, Refs, Signature};
use crate::literal::Literal;
use crate::op::{attrs, neutral};
use crate::shape::Shape;

/// Maximum number of elements of a window. Sizes from 8 to 64 perform the same.
const WINDOW: u64 = 32;

/// Minimum number of columns that fill a vector: one of AVX.
const SIDE_BY_SIDE: u64 = 8;

/// Minimum number of elements. For fewer, the extra loop costs more than it saves.
const MANY: u64 = 2048;

/// The function with its column reductions split.
#[must_use]
pub fn in_windows(plain: Plain) -> Plain {
    if !has_columns(plain.function.graph()) {
        return plain;
    }
    plain.rewritten(
        |_| (),
        |writer, (), node, operands| {
            let results = writer.windowed(node.signature(), operands);
            results.into_iter().map(|result| (result, result)).collect()
        },
    )
}

fn has_columns(graph: &Graph) -> bool {
    graph.any_op(&mut |signature| Columns::of(signature).is_some())
}

/// A body with its column reductions split.
fn windowed_body(body: &Arc<Body>) -> Arc<Body> {
    if !has_columns(body.graph()) {
        return body.clone();
    }
    Arc::new(rewritten_body(body, |writer, node, operands| writer.windowed(node.signature(), operands)))
}

/// The operand of a column reduction. Adjacent dimensions that are all reduced, or all kept, are
/// collapsed into one.
struct Columns {
    dims: SmallVec<[(u64, bool); 6]>,
    /// The combining op.
    op: OpCode,
}

impl Columns {
    /// The column reduction of a call; `None` for all other calls.
    fn of(signature: &Signature) -> Option<Columns> {
        if signature.op() != OpCode::Reduce || signature.operands().len() != 2 {
            return None;
        }
        let operand = &signature.operands()[0];
        let op = combined_by(&signature.bodies()[0], operand.dtype())?;
        let reduced = signature.attrs().view().ints(0);
        let mut dims: SmallVec<[(u64, bool); 6]> = SmallVec::new();
        for (axis, &size) in operand.dims().iter().enumerate().filter(|(_, size)| **size != 1) {
            let is_reduced = reduced.contains(&(axis as i64));
            match dims.last_mut() {
                Some((other, same)) if *same == is_reduced => *other *= size,
                _ => dims.push((size, is_reduced)),
            }
        }
        let is_long = dims.iter().any(|&(size, is_reduced)| is_reduced && size > WINDOW);
        let is_wide = matches!(dims.last(), Some((size, false)) if *size >= SIDE_BY_SIDE);
        (is_long && is_wide && operand.elems().get() as u64 >= MANY).then_some(Columns { dims, op })
    }

    fn shape(&self) -> Shape {
        let dims: SmallVec<[u64; 6]> = self.dims.iter().map(|&(size, _)| size).collect();
        Shape::new(&dims).expect("bug: merged dimensions give too many elements")
    }

    fn is_long(&self) -> bool {
        self.dims.iter().any(|&(size, is_reduced)| is_reduced && size > WINDOW)
    }

    /// The window sizes and the padding at the end along each dimension. The dimensions become
    /// those of the windows' results.
    fn step(&mut self) -> (Vec<i64>, Vec<(i64, i64)>) {
        let window = |(size, is_reduced): &mut (u64, bool)| {
            let window = if *is_reduced { WINDOW.min(*size) } else { 1 };
            let windows = size.div_ceil(window);
            let filling = windows * window - *size;
            *size = windows;
            (window as i64, (0, filling as i64))
        };
        self.dims.iter_mut().map(window).unzip()
    }
}

/// The op with which a body combines two elements, if it is associative and commutative (up to
/// rounding) and has an identity element. Short floats are excluded, because they would be rounded
/// after each window.
fn combined_by(body: &Body, dtype: DType) -> Option<OpCode> {
    let [node] = body.graph().nodes() else { return None };
    let op = node.signature().op();
    let is_free = match op {
        OpCode::Add | OpCode::Multiply | OpCode::Maximum | OpCode::Minimum => {
            !dtype.is_complex() && dtype != DType::Bool
        }
        OpCode::And | OpCode::Or | OpCode::Xor => true,
        _ => false,
    };
    let is_whole = dtype == DType::Bool || dtype.is_int() || matches!(dtype, DType::F32 | DType::F64);
    let is_pair = matches!(node.operands(), [Ref::Param(0), Ref::Param(1)] | [Ref::Param(1), Ref::Param(0)]);
    let is_uniform = body.graph().params().iter().all(|ty| ty.dtype() == dtype && ty.rank() == 0);
    (is_free && is_whole && is_pair && is_uniform && body.returns() == [Ref::Result(0)]).then_some(op)
}

impl Writer {
    /// Writes a call with its column reductions split.
    fn windowed(&mut self, signature: &Arc<Signature>, operands: Refs) -> Refs {
        if let Some(columns) = Columns::of(signature) {
            return Refs::from_slice(&[self.columns(signature, columns, &operands)]);
        }
        if !signature.bodies().iter().any(|body| has_columns(body.graph())) {
            return self.graph.push_signature(signature.clone(), operands);
        }
        let bodies: Vec<Arc<Body>> = signature.bodies().iter().map(windowed_body).collect();
        self.graph.push_signature(signed(signature.op(), signature, &bodies), operands)
    }

    fn columns(&mut self, signature: &Arc<Signature>, mut columns: Columns, operands: &[Ref]) -> Ref {
        let dtype = signature.operands()[0].dtype();
        // Negative zero is the identity of addition; adding positive zero would change -0.
        let start = match columns.op {
            OpCode::Add if dtype.is_float() => Literal::of_f64(dtype, -0.0),
            op => neutral(op, dtype),
        };
        let mut value = operands[0];
        if columns.shape() != *signature.operands()[0].shape() {
            value = self.op(OpCode::Reshape, attrs::reshape(columns.shape()), &[value]);
        }
        let start = self.op(OpCode::Constant, attrs::constant(Arc::new(start)), &[]);
        while columns.is_long() {
            let (sizes, filling) = columns.step();
            let windows = attrs::reduce_window(&sizes, &sizes, &filling);
            value = self.reduced(OpCode::ReduceWindow, windows, signature.bodies(), &[value, start]);
        }
        let reduced = (0..).zip(&columns.dims).filter(|(_, dim)| dim.1).map(|(axis, _)| axis);
        let reduced = attrs::dimensions(&reduced.collect::<Vec<i64>>());
        let result = self.reduced(OpCode::Reduce, reduced, signature.bodies(), &[value, operands[1]]);
        let shape = signature.results()[0].shape();
        match self.type_of(result).shape() == shape {
            true => result,
            false => self.op(OpCode::Reshape, attrs::reshape(shape.clone()), &[result]),
        }
    }

    fn reduced(&mut self, op: OpCode, attrs: Attrs, bodies: &[Arc<Body>], operands: &[Ref]) -> Ref {
        let made = self.graph.push(op, attrs, bodies, operands);
        made.unwrap_or_else(|error| panic!("bug: the lowering emits an op that is rejected: {error}"))[0]
    }
}
