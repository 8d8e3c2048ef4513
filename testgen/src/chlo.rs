//! The CHLO ops that are not elementwise.

use std::sync::Arc;

use fuseline_fusion::op::Comparison;
use fuseline_fusion::op::attrs::{self, DotDimensionNumbers, RaggedDotDimensionNumbers};
use fuseline_fusion::{AttrValue, Attrs, Body, DTypeSet, Graph, OpCode, TensorType};

use super::bodies::associative;
use super::contraction::product_types;
use super::{Domain, Sample, SampleOperand, Sampler, axes};

pub(crate) fn top_k(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 1)?;
    let last = ty.dims().last().copied()?;
    let k = last - sampler.up_to(last);
    let mut values = attrs::top_k(k as i64).values().to_vec();
    if sampler.rarely(4) {
        values[1] = true.into();
    }
    Some(Sample::plain([operand], values.into_iter().collect()))
}

/// Positions of dimensions that were counted from left to right, permuted.
struct Layout(Vec<usize>);

impl Layout {
    fn of(sampler: &mut Sampler<'_>, rank: usize) -> Layout {
        Layout(sampler.permutation(rank))
    }

    fn dims(&self, sizes: &[u64]) -> Vec<u64> {
        let mut dims = vec![0; sizes.len()];
        self.0.iter().zip(sizes).for_each(|(&place, &size)| dims[place] = size);
        dims
    }
}

pub(crate) fn ragged_dot(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let (rhs_dtype, result) = product_types(sampler, dtype)?;
    let taken = sampler.def.dtypes;
    if !taken.contains(rhs_dtype) || !taken.contains(result) {
        return None;
    }
    let mut sizes = |count: usize| -> Vec<u64> { (0..count).map(|_| sampler.dim().min(4)).collect() };
    // Batching, contracting and free dimensions of lhs, then the free ones of rhs.
    let counts = [sizes(2), sizes(2), sizes(2), sizes(1)];
    let mut kept = counts.map(|sizes| sizes[..sampler.below(sizes.len() + 1)].to_vec());
    let kind = sampler.below(3);
    // The simplest choice is a free ragged dimension. At least one dimension of that kind is
    // needed.
    let ragged_kind = [2, 1, 0][kind];
    if kept[ragged_kind].is_empty() {
        kept[ragged_kind].push(1 + sampler.up_to(4));
    }
    let [batch, contract, free, own] = kept;
    let groups = 1 + sampler.up_to(3);
    let lhs_sizes = [&batch[..], &contract, &free].concat();
    let mut rhs_sizes = [&batch[..], &contract, &own].concat();
    if kind == 0 {
        rhs_sizes.push(groups);
    }
    let (left, right) = (Layout::of(sampler, lhs_sizes.len()), Layout::of(sampler, rhs_sizes.len()));
    let (lhs_dims, rhs_dims) = (left.dims(&lhs_sizes), right.dims(&rhs_sizes));
    let (lhs_batch, rest) = left.0.split_at(batch.len());
    let (lhs_contract, lhs_free) = rest.split_at(contract.len());
    let (rhs_batch, rest) = right.0.split_at(batch.len());
    let (rhs_contract, rhs_free) = rest.split_at(contract.len());
    let of_kind = [lhs_free, lhs_contract, lhs_batch][kind];
    let ragged = of_kind[sampler.below(of_kind.len())];
    // Group sizes for all, or for each index of the preceding dimensions.
    let mut size_dims = Vec::new();
    if sampler.rarely(2) {
        let mut before: Vec<usize> = if kind == 2 { Vec::new() } else { lhs_batch.to_vec() };
        if kind == 0 {
            let mut free = lhs_free.to_vec();
            free.sort_unstable();
            before.extend(free.iter().take_while(|&&axis| axis != ragged));
        } else {
            before.extend(of_kind.iter().take_while(|&&axis| axis != ragged));
        }
        size_dims.extend(before.iter().map(|&axis| lhs_dims[axis]));
    }
    size_dims.push(groups);
    let size_dtype = sampler.dtype_of(DTypeSet::INT)?;
    let group_sizes = TensorType::of(size_dtype, &size_dims).ok()?;
    let attrs = attrs::ragged_dot(
        RaggedDotDimensionNumbers {
            dot: DotDimensionNumbers {
                lhs_batching: &axes(lhs_batch),
                rhs_batching: &axes(rhs_batch),
                lhs_contracting: &axes(lhs_contract),
                rhs_contracting: &axes(rhs_contract),
            },
            lhs_ragged: ragged as i64,
            rhs_group: (kind == 0).then(|| rhs_free[rhs_free.len() - 1] as i64),
        },
        result,
    );
    let lhs = sampler.operand_of(dtype, &lhs_dims)?;
    let rhs = sampler.operand_of(rhs_dtype, &rhs_dims)?;
    Some(Sample::plain([lhs, rhs, SampleOperand::Fresh(group_sizes, Domain::Exponent)], attrs))
}

/// One or two inputs, each combined with a carried value. The outputs are the carried values and,
/// occasionally, whether the last element is greater.
pub(crate) fn scan(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (first, ty) = sampler.operand(sampler.row_dtypes(), 1)?;
    let axis = sampler.below(ty.rank());
    let mut dims = ty.dims().to_vec();
    dims.remove(axis);
    let mut dtypes = vec![ty.dtype()];
    let mut operands = vec![first];
    if sampler.rarely(3) {
        let dtype = sampler.dtype_of(sampler.row_dtypes())?;
        dtypes.push(dtype);
        operands.push(sampler.operand_of(dtype, ty.dims())?);
    }
    let slices: Vec<TensorType> =
        dtypes.iter().map(|&dtype| TensorType::of(dtype, &dims)).collect::<Result<_, _>>().ok()?;
    let mut graph = Graph::new();
    let inputs: Vec<_> = slices.iter().map(|ty| graph.param(ty.clone())).collect();
    let carries: Vec<_> = slices.iter().map(|ty| graph.param(ty.clone())).collect();
    let mut carried = Vec::new();
    for ((&input, &carry), &dtype) in inputs.iter().zip(&carries).zip(&dtypes) {
        let op = sampler.one_of(associative(dtype))?;
        carried.push(graph.push(op, Attrs::none(), &[], &[input, carry]).ok()?[0]);
    }
    let mut returns = carried.clone();
    if sampler.rarely(4) {
        let greater = attrs::compare_for(Comparison::Gt, dtypes[0]);
        returns.extend(graph.push(OpCode::Compare, greater, &[], &[inputs[0], carries[0]]).ok()?);
    }
    let outputs = returns.len();
    returns.extend(&carried);
    let body = Arc::new(Body::new(graph, &returns)?);
    let attrs = attrs::scan(axis as i64, sampler.rarely(3), dtypes.len(), outputs, carried.len());
    let mut values = attrs.values().to_vec();
    if sampler.rarely(4) {
        values[1] = AttrValue::Int(ty.dims()[axis] as i64);
    }
    for slice in &slices {
        operands.push(sampler.operand_like(slice, Domain::Any));
    }
    Some(Sample { operands, attrs: values.into_iter().collect(), bodies: vec![body] })
}
