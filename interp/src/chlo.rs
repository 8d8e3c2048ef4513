//! The CHLO ops that are not elementwise.

use std::sync::Arc;

use fuseline_fusion::element::{Elements, Store, to_int};
use fuseline_fusion::op::dims::{Ragged, RaggedDims, ScanDims};
use fuseline_fusion::{DType, DTypeClass, Literal, TensorType};

use super::contraction::{Term, all_terms, contract};
use super::index::{Indices, Walk, strides};
use super::kernel::order;
use super::{EvalCall, EvalError, check_steps, run_body};

/// `top_k`. Floats use the total order of IEEE 754, in which a positive NaN is the greatest.
///
/// # Errors
/// None.
pub(super) fn top_k(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, types) = (call.operand(0), call.signature.results());
    let elements = Elements::of(operand);
    let size = operand.dims().last().map_or(0, |&size| size as usize);
    let kept = types[0].dims().last().map_or(0, |&size| size as usize);
    let mut places: Vec<usize> = Vec::with_capacity(types[0].elems().get());
    if kept > 0 {
        for row in 0..elements.len() / size {
            let mut row: Vec<usize> = (row * size..(row + 1) * size).collect();
            row.sort_by_key(|&place| std::cmp::Reverse(order(operand.dtype(), elements.get(place))));
            places.extend(&row[..kept]);
        }
    }
    let values = places.iter().map(|&place| elements.get(place));
    let indices = places.iter().map(|&place| (place % size) as _);
    Ok(vec![
        Store::collect(types[0].clone(), values).finish(),
        Store::collect(types[1].clone(), indices).finish(),
    ])
}

/// `ragged_dot`. Group `i` starts at the sum of the sizes before it and has its own size. Elements
/// in no group count as zero. Elements outside of a group do not affect it, even if they are
/// infinite.
///
/// # Errors
/// If there are too many products.
pub(super) fn ragged_dot(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    contract!(ragged, call)
}

fn ragged<T: Term>(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let checked = call.signature.call();
    let dims = RaggedDims::of(&checked).expect("bug: checked dimension numbers are rejected");
    let (lhs, rhs, ty) = (call.operand(0), call.operand(1), call.result());
    let axes = |axes: &[i64]| axes.iter().map(|&axis| axis as usize).collect::<Vec<_>>();
    let (lhs_contract, rhs_contract) = (axes(dims.dot.lhs_contract), axes(dims.dot.rhs_contract));
    let (mut lhs_axes, mut rhs_axes) = (axes(dims.dot.lhs_batch), axes(dims.dot.rhs_batch));
    let batch = lhs_axes.len();
    let group_axis = match dims.kind {
        Ragged::Free { group } => Some(group),
        _ => None,
    };
    lhs_axes.extend(
        (0..lhs.ty().rank())
            .filter(|axis| !lhs_contract.contains(axis) && !lhs_axes[..batch].contains(axis))
            .collect::<Vec<_>>(),
    );
    rhs_axes.extend(
        (0..rhs.ty().rank())
            .filter(|axis| {
                !rhs_contract.contains(axis) && !rhs_axes[..batch].contains(axis) && Some(*axis) != group_axis
            })
            .collect::<Vec<_>>(),
    );
    let contracted: Vec<u64> = lhs_contract.iter().map(|&axis| lhs.dims()[axis]).collect();
    check_steps(call, &[ty.dims(), &contracted, &[dims.groups.max(1)]])?;
    let (lhs_terms, rhs_terms): (Vec<T>, Vec<T>) = (all_terms(lhs), all_terms(rhs));
    let groups = Groups::of(call.operand(2), &dims);
    let at = |index: &[u64], strides: &[isize]| -> usize {
        index.iter().zip(strides).map(|(&i, &stride)| i as usize * stride as usize).sum()
    };
    let (lhs_strides, rhs_strides) = (strides(lhs.dims()), strides(rhs.dims()));
    let (mut left, mut right) = (vec![0; lhs.ty().rank()], vec![0; rhs.ty().rank()]);

    let mut store = Store::filled(ty.clone(), 0);
    let mut positions = Indices::below(ty.dims());
    let mut place = 0;
    while let Some(position) = positions.advance() {
        let (own_group, rest) = match dims.kind {
            Ragged::Contracting => (position[0], &position[1..]),
            _ => (0, position),
        };
        lhs_axes.iter().zip(rest).for_each(|(&axis, &i)| left[axis] = i);
        let of_rhs = rest[..batch].iter().chain(&rest[lhs_axes.len()..]);
        rhs_axes.iter().zip(of_rhs).for_each(|(&axis, &i)| right[axis] = i);
        let mut sum = T::ZERO;
        for group in 0..if group_axis.is_some() { dims.groups } else { 1 } {
            if let Some(axis) = group_axis {
                if !groups.contains(&left, group) {
                    continue;
                }
                right[axis] = group;
            }
            let mut summed = Indices::below(&contracted);
            while let Some(index) = summed.advance() {
                for ((&l, &r), &i) in lhs_contract.iter().zip(&rhs_contract).zip(index) {
                    (left[l], right[r]) = (i, i);
                }
                if dims.kind == Ragged::Contracting && !groups.contains(&left, own_group) {
                    continue;
                }
                sum = sum.plus(lhs_terms[at(&left, &lhs_strides)], rhs_terms[at(&right, &rhs_strides)]);
            }
        }
        store.set(place, sum.write(ty.dtype()));
        place += 1;
    }
    Ok(vec![store.finish()])
}

/// The ranges of the groups along the ragged dimension.
struct Groups<'a> {
    dims: &'a RaggedDims<'a>,
    /// First index and end of each group, for each index of the prefix.
    bounds: Vec<(i64, i64)>,
    /// Strides in `bounds` along the dimensions of the prefix; empty if all share their groups.
    strides: Vec<usize>,
}

impl<'a> Groups<'a> {
    fn of(sizes: &Literal, dims: &'a RaggedDims<'a>) -> Groups<'a> {
        let elements = Elements::of(sizes);
        let mut bounds = Vec::with_capacity(elements.len());
        let mut start = 0i64;
        for index in 0..elements.len() {
            if (index as u64).is_multiple_of(dims.groups) {
                start = 0;
            }
            let end = start.wrapping_add(to_int(sizes.dtype(), elements.get(index)) as i64);
            bounds.push((start, end));
            start = end;
        }
        let prefix = sizes.ty().rank() - 1;
        let strides = strides(sizes.dims())[..prefix].iter().map(|&stride| stride as usize).collect();
        Groups { dims, bounds, strides }
    }

    /// Whether an index of lhs is in the group.
    fn contains(&self, index: &[u64], group: u64) -> bool {
        let prefix = self.dims.prefix.iter().map(|&axis| index[axis] as usize);
        let first: usize = prefix.zip(&self.strides).map(|(i, &stride)| i * stride).sum();
        let (start, end) = self.bounds[first + group as usize];
        (start..end).contains(&(index[self.dims.ragged] as i64))
    }
}

/// A walk over the elements of a tensor with index `at` along `axis`.
fn plane(dims: &[u64], axis: usize, at: u64) -> Walk {
    let strides = strides(dims);
    let others = || (0..dims.len()).filter(|&other| other != axis);
    let first = at as usize * strides[axis] as usize;
    Walk::new(first, others().map(|other| dims[other]), others().map(|other| strides[other]))
}

/// `scan`.
///
/// # Errors
/// If there are too many steps or the body fails.
pub(super) fn scan(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let dims = ScanDims::of(&call.signature.call()).expect("bug: a checked scan is rejected");
    let (body, types) = (call.body(0), call.signature.results());
    let params = body.graph().params();
    let largest = params.iter().map(|ty| ty.elems().0).max().unwrap_or(0).max(1);
    check_steps(call, &[&[dims.size, body.graph().nodes().len() as u64 + 1, largest]])?;
    let mut carried: Vec<Arc<Literal>> = call.operands[dims.inputs..].to_vec();
    let outputs = types[..dims.outputs].iter();
    let mut stores: Vec<(&TensorType, Store)> =
        outputs.map(|ty| (ty, Store::filled(ty.clone(), 0))).collect();
    for step in 0..dims.size {
        let at = if dims.reverse { dims.size - 1 - step } else { step };
        let slice = |(input, ty): (&Arc<Literal>, &TensorType)| {
            let elements = Elements::of(input);
            let slice = plane(input.dims(), dims.axis, at).map(|place| elements.get(place));
            Arc::new(Store::collect(ty.clone(), slice).finish())
        };
        let mut arguments: Vec<Arc<Literal>> =
            call.operands[..dims.inputs].iter().zip(params).map(slice).collect();
        arguments.append(&mut carried);
        let mut returned = run_body(call.arithmetic.in_order(), body, &arguments)?;
        carried = returned.split_off(dims.outputs);
        for ((ty, store), slice) in stores.iter_mut().zip(&returned) {
            let elements = Elements::of(slice);
            for (index, place) in plane(ty.dims(), dims.axis, at).enumerate() {
                store.set(place, elements.get(index));
            }
        }
    }
    let carried = carried.iter().map(|data| Literal::clone(data));
    Ok(stores.into_iter().map(|(_, store)| store.finish()).chain(carried).collect())
}
