//! `gather` and `scatter`.

use std::sync::Arc;

use fuseline_fusion::element::{Bits, Store, from_int, to_int};
use fuseline_fusion::op::attrs::{self, IndexDimensionNumbers};
use fuseline_fusion::{DType, DTypeSet, TensorType};

use super::{Domain, Sample, SampleOperand, Sampler, axes};

/// An index that is out of bounds for dimensions of up to this size, including the window. It fits
/// in every integer type of whole bytes.
const FAR: u64 = 100;

/// The greatest integer of a type.
fn greatest(dtype: DType) -> i128 {
    (1 << (dtype.bits() - u32::from(DTypeSet::SIGNED.contains(dtype)))) - 1
}

/// Dimension numbers over an operand, and the shapes that go with them.
struct Plan {
    /// Operand dimensions with one element per window.
    collapsed: Vec<usize>,
    operand_batching: Vec<usize>,
    indices_batching: Vec<usize>,
    index_map: Vec<usize>,
    index_vector: usize,
    /// Dimensions of the result, or of the updates, that run along the window.
    window: Vec<usize>,
    /// Size of the window along each operand dimension.
    sizes: Vec<u64>,
    indices: Vec<u64>,
    /// Shape of the result, or of the updates.
    dims: Vec<u64>,
}

impl Plan {
    fn numbers<T>(&self, use_numbers: impl FnOnce(IndexDimensionNumbers<'_>) -> T) -> T {
        use_numbers(IndexDimensionNumbers {
            window: &axes(&self.window),
            collapsed: &axes(&self.collapsed),
            operand_batching: &axes(&self.operand_batching),
            indices_batching: &axes(&self.indices_batching),
            index_map: &axes(&self.index_map),
            index_vector: self.index_vector as i64,
        })
    }

    /// Number of index vectors.
    fn vectors(&self) -> u64 {
        self.without_vector(|dims| dims.iter().product())
    }

    fn without_vector<T>(&self, use_dims: impl FnOnce(&[u64]) -> T) -> T {
        let mut dims = self.indices.clone();
        if self.index_vector < dims.len() {
            dims.remove(self.index_vector);
        }
        use_dims(&dims)
    }

    /// Indices of a type from the components of each index vector, by the number of the vector;
    /// `None` if the type cannot represent one of them.
    fn given(&self, dtype: DType, mut component: impl FnMut(u64, usize) -> i128) -> Option<SampleOperand> {
        let ty = TensorType::of(dtype, &self.indices).ok()?;
        let inner: u64 = self.indices.get(self.index_vector + 1..).unwrap_or(&[]).iter().product();
        let count = self.index_map.len().max(1) as u64;
        let elements = (0..ty.elems().0).map(|element| {
            let (vector, k) = if self.index_vector < self.indices.len() {
                (element / (inner * count) * inner + element % inner, element / inner % count)
            } else {
                (element, 0)
            };
            let index = component(vector, k as usize);
            let bits = from_int(dtype, index);
            (to_int(dtype, bits) == index).then_some(bits)
        });
        let elements: Vec<Bits> = elements.collect::<Option<_>>()?;
        Some(SampleOperand::Given(Arc::new(Store::collect(ty, elements.into_iter()).finish())))
    }
}

/// A plan for an operand with the given sizes.
fn plan(sampler: &mut Sampler<'_>, whole: &[u64]) -> Option<Plan> {
    let rank = whole.len();
    let (mut collapsed, mut operand_batching, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    let mut sizes = Vec::new();
    for (axis, &dim) in whole.iter().enumerate() {
        match sampler.below(4) {
            1 if dim > 0 => {
                collapsed.push(axis);
                sizes.push(1);
            }
            2 if operand_batching.len() < 2 => {
                operand_batching.push(axis);
                sizes.push(dim.min(1));
            }
            _ => {
                kept.push(axis);
                // Half of the windows have one element, the most common use of indices.
                let least = dim.min(1);
                sizes.push(if sampler.rarely(2) { dim - sampler.up_to(dim) } else { least });
            }
        }
    }
    let candidates: Vec<usize> = (0..rank).filter(|axis| !operand_batching.contains(axis)).collect();
    let mapped = candidates.len() - sampler.below(candidates.len() + 1);
    let order = sampler.permutation(candidates.len());
    let index_map: Vec<usize> = order[..mapped].iter().map(|&place| candidates[place]).collect();

    // The batch: its own dimensions, and those paired with the operand's, permuted.
    let own = sampler.below(3);
    let places = sampler.permutation(operand_batching.len() + own);
    let mut batch = vec![0; places.len()];
    for (&place, &axis) in places.iter().zip(&operand_batching) {
        batch[place] = whole[axis];
    }
    for &place in &places[operand_batching.len()..] {
        batch[place] = sampler.dim().min(3);
    }
    // The index vector dimension may be anywhere; a single component needs none.
    let implied = index_map.len() == 1 && sampler.rarely(3);
    let index_vector = if implied { batch.len() } else { batch.len() - sampler.below(batch.len() + 1) };
    let mut indices = batch.clone();
    if !implied {
        indices.insert(index_vector, index_map.len() as u64);
    }
    let shift = |&place: &usize| place + usize::from(!implied && place >= index_vector);
    let indices_batching = places[..operand_batching.len()].iter().map(shift).collect();

    let window = sampler.subset(batch.len() + kept.len(), kept.len());
    let (mut batch, mut along) = (batch.into_iter(), kept.iter().map(|&axis| sizes[axis]));
    let count = batch.len() + along.len();
    let dims: Option<Vec<u64>> =
        (0..count).map(|axis| if window.contains(&axis) { along.next() } else { batch.next() }).collect();
    let dims = dims?;
    if dims.iter().product::<u64>() > 4 * super::MAX_ELEMS {
        return None;
    }
    Some(Plan {
        collapsed,
        operand_batching,
        indices_batching,
        index_map,
        index_vector,
        window,
        sizes,
        indices,
        dims,
    })
}

pub(crate) fn gather(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let plan = plan(sampler, ty.dims())?;
    let dtype = sampler.dtype_of(DTypeSet::INT)?;
    let sorted = ty.dims().iter().all(|&dim| dim <= FAR) && sampler.rarely(4);
    let indices = if sorted {
        let vectors = plan.vectors().max(1);
        plan.given(dtype, |vector, k| {
            let size = ty.dims()[plan.index_map[k]];
            (vector * size / vectors).into()
        })?
    } else {
        let size = plan.index_map.iter().map(|&axis| ty.dims()[axis]).max().unwrap_or(1);
        let indices = TensorType::of(dtype, &plan.indices).ok()?;
        sampler.operand_like(&indices, Domain::Index { size })
    };
    let sizes: Vec<i64> = plan.sizes.iter().map(|&size| size as i64).collect();
    let attrs = plan.numbers(|numbers| attrs::gather(numbers, &sizes, sorted));
    Some(Sample::plain([operand, indices], attrs))
}

pub(crate) fn scatter(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (first, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let whole = ty.dims();
    let plan = plan(sampler, whole)?;
    let (mut operands, mut dtypes) = (vec![first], vec![ty.dtype()]);
    if sampler.rarely(4) {
        let dtype = sampler.dtype_of(sampler.row_dtypes())?;
        operands.push(sampler.operand_of(dtype, whole)?);
        dtypes.push(dtype);
    }
    let index_dtype = sampler.dtype_of(DTypeSet::INT)?;
    // Distinct index vectors give adjacent windows along the first mapped dimension.
    let side_by_side = plan.index_map.first().map(|&axis| (plan.sizes[axis].max(1), whole[axis]));
    let unique = side_by_side
        .filter(|&(width, size)| plan.vectors() * width <= size && size <= FAR)
        .filter(|_| plan.operand_batching.is_empty());
    let overwrites = sampler.rarely(3) && (unique.is_some() || !sampler.portable());
    let body = if overwrites { sampler.overwrite(&dtypes)? } else { sampler.combiner(&dtypes)?.body };
    let use_unique = unique.is_some() && (overwrites || sampler.rarely(3));
    let (mut sorted_flag, mut unique_flag) = (false, false);
    let indices = match unique {
        Some((width, _)) if use_unique => {
            (sorted_flag, unique_flag) = (sampler.rarely(2), sampler.rarely(2));
            plan.given(index_dtype, |vector, k| if k == 0 { (vector * width).into() } else { 0 })?
        }
        _ if sampler.portable() => {
            // XLA drops a window as a whole, so each is either in bounds or far out of bounds.
            let choices: Vec<u64> =
                (0..plan.vectors() * plan.index_map.len().max(1) as u64).map(|_| sampler.up_to(7)).collect();
            let signed = DTypeSet::SIGNED.contains(index_dtype);
            let most = greatest(index_dtype);
            let is_far = |axis: usize| whole[axis] <= FAR && most >= FAR.into();
            let count = plan.index_map.len().max(1);
            plan.given(index_dtype, |vector, k| {
                let axis = plan.index_map[k];
                let room = i128::from(whole[axis] - plan.sizes[axis]).min(most);
                match i128::from(choices[vector as usize * count + k]) {
                    7 if signed && is_far(axis) => -i128::from(FAR),
                    6 if is_far(axis) => FAR.into(),
                    choice => choice % (room + 1),
                }
            })?
        }
        _ => {
            let size = plan.index_map.iter().map(|&axis| whole[axis]).max().unwrap_or(1);
            let indices = TensorType::of(index_dtype, &plan.indices).ok()?;
            sampler.operand_like(&indices, Domain::Index { size })
        }
    };
    operands.push(indices);
    for &dtype in &dtypes {
        operands.push(sampler.operand_of(dtype, &plan.dims)?);
    }
    let attrs = plan.numbers(|numbers| attrs::scatter(numbers, sorted_flag, unique_flag));
    Some(Sample { operands, attrs, bodies: vec![body] })
}
