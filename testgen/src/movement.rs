//! Ops that move elements without computing.

use fuseline_fusion::op::attrs;
use fuseline_fusion::{Attrs, DTypeSet, Shape, TensorType};

use super::{Domain, MAX_ELEMS, Sample, SampleOperand, Sampler, axes};

pub(crate) fn broadcast_in_dim(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let rank = ty.rank() + sampler.below(3);
    // The result dimension of each operand dimension, in any order.
    let targets = sampler.permutation(rank)[..ty.rank()].to_vec();
    let mut dims: Vec<u64> = (0..rank).map(|_| 1 + sampler.up_to(2)).collect();
    for (&target, &dim) in targets.iter().zip(ty.dims()) {
        // A dimension of one element is broadcast, or stays.
        dims[target] = if dim == 1 && sampler.rarely(2) { dims[target] } else { dim };
    }
    if dims.iter().product::<u64>() > MAX_ELEMS {
        return None;
    }
    Some(Sample::plain([operand], attrs::broadcast_in_dim(Shape::new(&dims).ok()?, &axes(&targets))))
}

pub(crate) fn reshape(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let mut dims = vec![ty.elems().0];
    // Splits dimensions, each by one of its divisors.
    for _ in 0..sampler.below(4) {
        let axis = sampler.below(dims.len());
        let divisors: Vec<u64> = match dims[axis] {
            0 => vec![1, 2],
            dim => (1..=dim).filter(|&by| dim.is_multiple_of(by)).collect(),
        };
        let by = sampler.one_of(&divisors)?;
        dims[axis] /= by;
        dims.insert(axis, by);
    }
    if ty.elems().0 == 1 && sampler.rarely(2) {
        dims.clear();
    }
    Some(Sample::plain([operand], attrs::reshape(Shape::new(&dims).ok()?)))
}

pub(crate) fn transpose(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let permutation = sampler.permutation(ty.rank());
    Some(Sample::plain([operand], attrs::transpose(&axes(&permutation))))
}

pub(crate) fn slice(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let (mut starts, mut limits, mut strides) = (Vec::new(), Vec::new(), Vec::new());
    for &dim in ty.dims() {
        let start = sampler.up_to(dim);
        starts.push(start as i64);
        // The simplest choice is up to the end.
        limits.push((dim - sampler.up_to(dim - start)) as i64);
        strides.push(if sampler.rarely(16) { i64::MAX } else { 1 + sampler.up_to(2) as i64 });
    }
    Some(Sample::plain([operand], attrs::slice(&starts, &limits, &strides)))
}

pub(crate) fn concatenate(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (first, ty) = sampler.operand(sampler.row_dtypes(), 1)?;
    let axis = sampler.below(ty.rank());
    let mut operands = vec![first];
    for _ in 0..sampler.below(4) {
        let mut dims = ty.dims().to_vec();
        if sampler.rarely(2) {
            dims[axis] = sampler.dim();
        }
        operands.push(sampler.operand_of(ty.dtype(), &dims)?);
    }
    Some(Sample::plain(operands, attrs::concatenate(axis as i64)))
}

pub(crate) fn pad(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let value = sampler.operand_of(ty.dtype(), &[])?;
    let (mut low, mut high, mut interior, mut dims) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for &dim in ty.dims() {
        let gap = sampler.one_of(&[0, 1, 2])?;
        let size = dim as i64 + gap * (dim as i64 - 1).max(0);
        let before = sampler.one_of(&[0, 1, 2, -1, -2, -3, 3])?.max(-size);
        let after = sampler.one_of(&[0, 1, 2, -1, -2, -3, 3])?.max(-size - before);
        dims.push((size + before + after) as u64);
        low.push(before);
        high.push(after);
        interior.push(gap);
    }
    if dims.iter().product::<u64>() > 4 * MAX_ELEMS {
        return None;
    }
    Some(Sample::plain([operand, value], attrs::pad(&low, &high, &interior)))
}

pub(crate) fn reverse(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let count = sampler.below(ty.rank() + 1);
    let turned: Vec<usize> = sampler.permutation(ty.rank())[..count].to_vec();
    Some(Sample::plain([operand], attrs::dimensions(&axes(&turned))))
}

/// Start indices of a dynamic slice of a tensor of the given type.
fn starts(sampler: &mut Sampler<'_>, ty: &TensorType) -> Option<Vec<SampleOperand>> {
    let dtype = sampler.dtype_of(DTypeSet::INT)?;
    let scalar = TensorType::scalar(dtype);
    let index = |&size: &u64| sampler.operand_like(&scalar, Domain::Index { size });
    Some(ty.dims().iter().map(index).collect())
}

pub(crate) fn dynamic_slice(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let sizes: Vec<i64> = ty.dims().iter().map(|&dim| (dim - sampler.up_to(dim)) as i64).collect();
    let mut operands = vec![operand];
    operands.extend(starts(sampler, &ty)?);
    Some(Sample::plain(operands, attrs::dynamic_slice(&sizes)))
}

pub(crate) fn dynamic_update_slice(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let dims: Vec<u64> = ty.dims().iter().map(|&dim| dim - sampler.up_to(dim)).collect();
    let update = sampler.operand_of(ty.dtype(), &dims)?;
    let mut operands = vec![operand, update];
    operands.extend(starts(sampler, &ty)?);
    Some(Sample::plain(operands, Attrs::none()))
}

pub(crate) fn optimization_barrier(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let mut operands = Vec::new();
    for _ in 0..=sampler.below(3) {
        operands.push(sampler.operand(sampler.row_dtypes(), 0)?.0);
    }
    Some(Sample::plain(operands, Attrs::none()))
}
