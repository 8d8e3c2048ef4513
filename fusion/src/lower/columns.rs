//! Reductions of columns, taken apart for XLA's CPU backend.
//!
//! Input: a [`Plain`] function. Output: the same function, in which a reduction whose results lie side by side in memory, as the
//! sums of a matrix's columns do, is made of windows of at most [`WINDOW`] elements first.
//!
//! XLA's CPU backend (API 0.81) writes a reduction as a loop for each result. Along a row LLVM makes vectors of that loop. Down a
//! column each element is a row away from the one before it, and the loop stays one of single elements. A window of a few elements it
//! unrolls, and then makes vectors of the loop around it, over the columns. XLA has a pass that takes every reduction apart like
//! this, rows as well, which there makes loops of single elements out of vectors: it is turned off (`src/device/compiler.rs`), and what is good
//! about it is done here.
//!
//! With and without the pass on the same module, in turns (2 cores of an AMD EPYC, 2026-11-23, best of 1,200 runs): sums of rows of 64x256
//! in the benchmark's `norms` 449 and 92 µs a step, maxima of rows of 512x256 368 and 33 µs, sums of rows of 512x256 33 and 11; sums of
//! columns of 512x256 14 and 87 µs, and 15 in windows. The pass looks at one dimension at a time; sums of 8x64x256 over the first
//! two, which are one here, take 78 µs with it, 70 without, and 18 in windows.
//!
//! Invariants:
//! - F3: integers have the bits that they had; floats are combined in another order, and not in more steps one after the other than
//!   before. So this is for [`super::Numerics::Fast`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::plain::{Plain, Writer, rewritten_body, signed};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::graph::{Body, Graph, Ref, Refs};
use crate::literal::Literal;
use crate::op::{OpCode, Signature, attrs, neutral};
use crate::shape::Shape;

/// Elements of a window. From 8 to 64 there is no difference.
const WINDOW: u64 = 32;

/// Columns from which there are vectors to make: those of AVX.
const SIDE_BY_SIDE: u64 = 8;

/// Elements below which the loops are over before one more would pay.
const MANY: u64 = 2048;

/// The function with its columns in windows.
pub(super) fn in_windows(plain: Plain) -> Plain {
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

/// A body, in which there may be columns.
fn windowed_body(body: &Arc<Body>) -> Arc<Body> {
    if !has_columns(body.graph()) {
        return body.clone();
    }
    Arc::new(rewritten_body(body, |writer, node, operands| writer.windowed(node.signature(), operands)))
}

/// The operand of a reduction of columns: dimensions that lie next to each other and are either reduced or not are one.
struct Columns {
    dims: SmallVec<[(u64, bool); 6]>,
    /// What combines elements.
    op: OpCode,
}

impl Columns {
    /// `None` for all other calls.
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
        Shape::new(&dims).expect("bug: dimensions taken together are too many")
    }

    fn is_long(&self) -> bool {
        self.dims.iter().any(|&(size, is_reduced)| is_reduced && size > WINDOW)
    }

    /// The windows along each dimension and what fills the last ones; the dimensions become those of the results.
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

/// The op by which a body combines two elements, if it is one that does not mind the order and has a neutral element. Short floats
/// would be rounded after each window.
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
    /// A call, with its columns in windows.
    fn windowed(&mut self, signature: &Arc<Signature>, operands: Refs) -> Refs {
        if let Some(columns) = Columns::of(signature) {
            return Refs::from_slice(&[self.columns(signature, columns, &operands)]);
        }
        if !signature.bodies().iter().any(|body| has_columns(body.graph())) {
            return self.0.push_signature(signature.clone(), operands);
        }
        let bodies: Vec<Arc<Body>> = signature.bodies().iter().map(windowed_body).collect();
        self.0.push_signature(signed(signature.op(), signature, &bodies), operands)
    }

    fn columns(&mut self, signature: &Arc<Signature>, mut columns: Columns, operands: &[Ref]) -> Ref {
        let dtype = signature.operands()[0].dtype();
        // Of the two zeros, this one changes nothing.
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
        let made = self.0.push(op, attrs, bodies, operands);
        made.unwrap_or_else(|error| panic!("bug: the lowering makes an op that is refused: {error}"))[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canon::CanonRegion;
    use crate::interp;
    use crate::lower::plain::plain;
    use crate::lower::{Aliases, Numerics, ScalarPack, Target, lower_for, testing};
    use crate::shape::TensorType;

    /// A region of one reduction.
    fn region(op: OpCode, dtype: DType, dims: &[u64], reduced: &[i64]) -> CanonRegion {
        let mut graph = Graph::new();
        let x = graph.param(TensorType::of(dtype, dims).expect("small"));
        let start = graph.param(TensorType::scalar(dtype));
        let body = Arc::new(Body::binary(op, TensorType::scalar(dtype)).expect("a body"));
        graph.push(OpCode::Reduce, attrs::dimensions(reduced), &[body], &[x, start]).expect("a reduction");
        CanonRegion::new(graph, Box::new([false; 2]))
    }

    fn windowed(region: &CanonRegion) -> Plain {
        in_windows(plain(region, &[0], &ScalarPack::of(Target::Any, region, Numerics::Fast), &[]))
    }

    fn ops(function: &Body) -> Vec<OpCode> {
        function.graph().nodes().iter().map(|node| node.signature().op()).collect()
    }

    /// Small whole numbers: every order of combining them gives the same float.
    fn data(dtype: DType, dims: &[u64]) -> Arc<Literal> {
        let number = |index: u64| {
            Literal::of_f64(dtype, (index * 7919 % 11) as f64 - 4.0 * f64::from(dtype.is_float()))
        };
        let bytes: Vec<u8> =
            (0..dims.iter().product()).flat_map(|index| number(index).bytes().to_vec()).collect();
        Arc::new(Literal::from_bytes(TensorType::of(dtype, dims).expect("small"), bytes).expect("as many"))
    }

    #[test]
    fn windows_give_what_the_reduction_gives() {
        use OpCode::{Add, And, Maximum, Minimum, Xor};
        let shapes: [(&[u64], &[i64]); 6] = [
            (&[40, 64], &[0]),
            // The last window is not full, and there are windows of windows.
            (&[1100, 9], &[0]),
            (&[8, 9, 40], &[1, 0]),
            (&[2, 50, 3, 8], &[1]),
            (&[33, 2, 33, 8], &[2, 0]),
            (&[1, 70, 1, 32], &[0, 1]),
        ];
        for (dims, reduced) in shapes {
            for (op, dtype) in [
                (Add, DType::F32),
                (Maximum, DType::F64),
                (Add, DType::I32),
                (Minimum, DType::U8),
                (And, DType::U32),
                (Xor, DType::I64),
            ] {
                let region = region(op, dtype, dims, reduced);
                let function = windowed(&region);
                assert!(
                    ops(&function.function).contains(&OpCode::ReduceWindow),
                    "{op} over {reduced:?} of {dims:?}"
                );
                // What it starts from goes in once.
                let operands = vec![data(dtype, dims), Arc::new(Literal::of_f64(dtype, 3.0))];
                let wanted = interp::run(region.graph(), &operands).expect("runs");
                let found = testing::run(&region, Numerics::Fast, &function, &[operands]);
                assert_eq!(found[0], wanted, "{op} of {dtype} over {reduced:?} of {dims:?}");
                let module = lower_for(Target::CPU, &region, &[0], &Aliases::none(), Numerics::Fast, &[]);
                assert!(module.text().contains("reduce_window"));
                module.verify().unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    #[test]
    fn other_reductions_stay() {
        let stays = |op, dtype, dims: &[u64], reduced: &[i64]| {
            ops(&windowed(&region(op, dtype, dims, reduced)).function) == [OpCode::Reduce]
        };
        assert!(!stays(OpCode::Add, DType::F32, &[64, 64], &[0]));
        // Rows; all there is; few columns; few rows; few elements; a type that would be rounded.
        assert!(stays(OpCode::Add, DType::F32, &[64, 64], &[1]));
        assert!(stays(OpCode::Add, DType::F32, &[64, 64], &[0, 1]));
        assert!(stays(OpCode::Add, DType::F32, &[64, 64, 1], &[1]));
        assert!(stays(OpCode::Add, DType::F32, &[4096, 4], &[0]));
        assert!(stays(OpCode::Add, DType::F32, &[32, 4096], &[0]));
        assert!(stays(OpCode::Add, DType::F32, &[40, 8], &[0]));
        assert!(stays(OpCode::Add, DType::BF16, &[64, 64], &[0]));
        let region = region(OpCode::Add, DType::F32, &[64, 64], &[0]);
        for (target, numerics) in [(Target::Any, Numerics::Fast), (Target::CPU, Numerics::Exact)] {
            let module = lower_for(target, &region, &[0], &Aliases::none(), numerics, &[]);
            assert!(!module.text().contains("reduce_window"), "{target:?}, {numerics}");
        }
    }

    /// Zeros keep their sign: a sum of nothing but -0 is -0.
    #[test]
    fn a_sum_of_negative_zeros_is_one() {
        let region = region(OpCode::Add, DType::F32, &[40, 64], &[0]);
        let zeros = Literal::from_bytes(
            TensorType::of(DType::F32, &[40, 64]).unwrap(),
            (-0.0f32).to_le_bytes().repeat(2560),
        );
        let operands = vec![Arc::new(zeros.unwrap()), Arc::new(Literal::scalar(-0.0f32))];
        let found = testing::run(&region, Numerics::Fast, &windowed(&region), &[operands]);
        assert!(found[0][0].bytes().chunks(4).all(|bytes| bytes == (-0.0f32).to_le_bytes()));
    }

    /// In the body of a loop, which captures what it reduces.
    #[test]
    fn columns_in_a_loop_are_in_windows() {
        let (ty, sums) =
            (TensorType::of(DType::F32, &[64, 64]).unwrap(), TensorType::of(DType::F32, &[64]).unwrap());
        let mut test = Graph::new();
        test.param(sums.clone());
        test.param(ty.clone());
        let yes = attrs::constant(Arc::new(Literal::scalar(true)));
        let yes = test.push(OpCode::Constant, yes, &[], &[]).unwrap()[0];
        let mut body = Graph::new();
        let state = body.param(sums.clone());
        let x = body.param(ty.clone());
        let start = attrs::constant(Arc::new(Literal::scalar(0.0f32)));
        let start = body.push(OpCode::Constant, start, &[], &[]).unwrap()[0];
        let add = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).unwrap());
        let sum = body.push(OpCode::Reduce, attrs::dimensions(&[0]), &[add], &[x, start]).unwrap()[0];
        let next = body.push(OpCode::Add, Attrs::none(), &[], &[state, sum]).unwrap()[0];
        let bodies =
            [Arc::new(Body::new(test, &[yes]).unwrap()), Arc::new(Body::new(body, &[next, x]).unwrap())];
        let mut graph = Graph::new();
        let params = [graph.param(sums), graph.param(ty)];
        graph.push(OpCode::While, Attrs::none(), &bodies, &params).expect("a loop");
        let region = CanonRegion::new(graph, Box::new([false; 2]));
        let module = lower_for(Target::CPU, &region, &[0], &Aliases::none(), Numerics::Fast, &[]);
        assert!(module.text().contains("reduce_window"));
        module.verify().unwrap_or_else(|error| panic!("{error}"));
    }
}
