//! `gather` and `scatter`: reads and writes at computed positions.

use fuseline_fusion::Literal;
use fuseline_fusion::element::{Bits, Elements, Store, to_int};
use fuseline_fusion::op::attrs::IndexDimensionNumbers;
use smallvec::SmallVec;

use super::function::Function;
use super::index::{Indices, clamp_index, strides};
use super::reduction::{combine, converted};
use super::{EvalCall, EvalError};

type Index = SmallVec<[i128; 6]>;

/// Reads index vectors.
struct Starts<'a> {
    dims: IndexDimensionNumbers<'a>,
    indices: &'a Literal,
    /// Stride of the components of an index vector.
    component: usize,
    /// Strides of the batch dimensions.
    strides: SmallVec<[usize; 6]>,
}

impl<'a> Starts<'a> {
    fn new(dims: IndexDimensionNumbers<'a>, indices: &'a Literal) -> Starts<'a> {
        let vector = dims.index_vector as usize;
        let mut strides: SmallVec<[usize; 6]> =
            strides(indices.dims()).into_iter().map(|stride| stride as usize).collect();
        let component = if vector < strides.len() { strides.remove(vector) } else { 0 };
        Starts { dims, indices, component, strides }
    }

    /// The start of the window of a batch index, in an operand of rank `rank`. `bound` maps a
    /// component of the index vector, given its operand dimension.
    fn at(&self, batch: &[u64], rank: usize, bound: impl Fn(usize, Bits) -> i128) -> Index {
        let mut start = Index::from_elem(0, rank);
        let first: usize = batch.iter().zip(&self.strides).map(|(&i, &stride)| i as usize * stride).sum();
        let elements = Elements::of(self.indices);
        for (k, &axis) in self.dims.index_map.iter().enumerate() {
            start[axis as usize] = bound(axis as usize, elements.get(first + k * self.component));
        }
        for (&axis, &along) in self.dims.operand_batching.iter().zip(self.dims.indices_batching) {
            let along = along - i64::from(along > self.dims.index_vector);
            start[axis as usize] = batch[along as usize].into();
        }
        start
    }
}

/// Offset of an index under strides.
fn offset(index: &[u64], strides: &[isize]) -> usize {
    index.iter().zip(strides).map(|(&i, &stride)| i as usize * stride as usize).sum()
}

/// The dimensions of a gather's result or of a scatter's updates: sizes and strides of the batch,
/// then of the window.
struct Parts {
    batch_dims: SmallVec<[u64; 6]>,
    batch_strides: SmallVec<[isize; 6]>,
    window_dims: SmallVec<[u64; 6]>,
    window_strides: SmallVec<[isize; 6]>,
}

impl Parts {
    fn new(dims: &[u64], window: &[i64]) -> Parts {
        let strides = strides(dims);
        let in_window = |axis: usize| window.contains(&(axis as i64));
        let axes = 0..dims.len();
        Parts {
            batch_dims: axes.clone().filter(|&axis| !in_window(axis)).map(|axis| dims[axis]).collect(),
            batch_strides: axes.clone().filter(|&axis| !in_window(axis)).map(|axis| strides[axis]).collect(),
            window_dims: axes.clone().filter(|&axis| in_window(axis)).map(|axis| dims[axis]).collect(),
            window_strides: axes.filter(|&axis| in_window(axis)).map(|axis| strides[axis]).collect(),
        }
    }
}

/// `gather`.
///
/// # Errors
/// None.
pub(super) fn gather(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, indices, ty) = (call.operand(0), call.operand(1), call.result());
    let dims = IndexDimensionNumbers::of(call.attr());
    let sizes = call.attr().ints(1);
    let starts = Starts::new(dims, indices);
    let parts = Parts::new(ty.dims(), dims.window);
    let whole = operand.dims();
    let operand_strides = strides(whole);
    let along = dims.window_axes(whole.len());
    let elements = Elements::of(operand);
    let mut store = Store::filled(ty.clone(), 0);
    let mut batches = Indices::below(&parts.batch_dims);
    while let Some(batch) = batches.advance() {
        let start = starts.at(batch, whole.len(), |axis, bits| {
            clamp_index(indices.dtype(), bits, whole[axis] - sizes[axis] as u64).into()
        });
        let from: usize =
            start.iter().zip(&operand_strides).map(|(&i, &stride)| i as usize * stride as usize).sum();
        let to = offset(batch, &parts.batch_strides);
        let mut window = Indices::below(&parts.window_dims);
        while let Some(inside) = window.advance() {
            let step: usize = inside
                .iter()
                .zip(&along)
                .map(|(&i, &axis)| i as usize * operand_strides[axis] as usize)
                .sum();
            store.set(to + offset(inside, &parts.window_strides), elements.get(from + step));
        }
    }
    Ok(vec![store.finish()])
}

/// `scatter`. Updates are applied in row-major order. Each element of an update that is out of
/// bounds is dropped, as the specification says. (XLA drops a whole window if a part of it is out
/// of bounds.)
///
/// # Errors
/// If the body fails.
pub(super) fn scatter(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let count = (call.operands.len() - 1) / 2;
    let mut function = Function::new(call.body(0), call.arithmetic);
    let types = function.types();
    let operands = || call.operands.iter().map(|operand| &**operand);
    let mut results: Vec<Store> = converted(operands(), &types)
        .iter()
        .zip(call.signature.results())
        .map(|(input, ty)| Store::collect(ty.clone(), (0..ty.elems().get()).map(|index| input.get(index))))
        .collect();
    let indices = call.operand(count);
    let updates = converted(operands().skip(count + 1), &types);
    let whole = call.operand(0).dims();
    let dims = IndexDimensionNumbers::of(call.attr());
    let starts = Starts::new(dims, indices);
    let parts = Parts::new(call.operand(count + 1).dims(), dims.window);
    let along = dims.window_axes(whole.len());
    let mut batches = Indices::below(&parts.batch_dims);
    while let Some(batch) = batches.advance() {
        let start = starts.at(batch, whole.len(), |_, bits| to_int(indices.dtype(), bits));
        let from = offset(batch, &parts.batch_strides);
        let mut window = Indices::below(&parts.window_dims);
        while let Some(inside) = window.advance() {
            let mut target = start.clone();
            for (&i, &axis) in inside.iter().zip(&along) {
                target[axis] += i128::from(i);
            }
            let within = |(&i, &dim): (&i128, &u64)| (0..i128::from(dim)).contains(&i);
            if !target.iter().zip(whole).all(within) {
                continue;
            }
            let place =
                target.iter().zip(whole).fold(0, |place, (&i, &dim)| place * dim as usize + i as usize);
            let from = from + offset(inside, &parts.window_strides);
            combine(&mut function, &mut results, place, updates.iter().map(|update| update.get(from)))?;
        }
    }
    Ok(results.into_iter().map(Store::finish).collect())
}
