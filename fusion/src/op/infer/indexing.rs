//! `gather` and `scatter`: reads and writes at computed positions.

use smallvec::SmallVec;

use super::reduction::combiner;
use crate::attr::AttrView;
use crate::dtype::DTypeSet;
use crate::error::OpError;
use crate::ir::Results;
use crate::op::attrs::IndexDimensionNumbers;
use crate::op::def::{Call, one};
use crate::shape::TensorType;

impl<'a> IndexDimensionNumbers<'a> {
    /// The dimension numbers from their attribute group, whose order gather and scatter share.
    #[must_use]
    pub fn of(view: AttrView<'a>) -> IndexDimensionNumbers<'a> {
        let group = view.group(0);
        IndexDimensionNumbers {
            window: group.ints(0),
            collapsed: group.ints(1),
            operand_batching: group.ints(2),
            indices_batching: group.ints(3),
            index_map: group.ints(4),
            index_vector: group.int(5),
        }
    }

    /// Operand dimensions covered by a window, in order.
    #[must_use]
    pub fn window_axes(&self, operand_rank: usize) -> SmallVec<[usize; 6]> {
        (0..operand_rank)
            .filter(|&axis| {
                let axis = axis as i64;
                !self.collapsed.contains(&axis) && !self.operand_batching.contains(&axis)
            })
            .collect()
    }

    /// Sizes of the dimensions of the indices, without the index vector's.
    #[must_use]
    pub fn batch_dims(&self, indices: &TensorType) -> SmallVec<[u64; 6]> {
        (0..indices.rank())
            .filter(|&axis| axis as i64 != self.index_vector)
            .map(|axis| indices.dims()[axis])
            .collect()
    }

    fn check(
        &self,
        call: &Call<'_>,
        names: &Names,
        operand: &TensorType,
        indices: &TensorType,
    ) -> Result<(), OpError> {
        if self.index_vector < 0 || self.index_vector as usize > indices.rank() {
            return Err(call.attr_error(
                format!(
                    "index_vector_dim is {}, but the indices have rank {}",
                    self.index_vector,
                    indices.rank()
                ),
                format!("it must be 0 to {}", indices.rank()),
            ));
        }
        let components = indices.dims().get(self.index_vector as usize).copied().unwrap_or(1);
        if self.index_map.len() as u64 != components {
            return Err(call.attr_error(
                format!(
                    "{} has {} entries, but an index has {components} components",
                    names.index_map,
                    self.index_map.len()
                ),
                "there must be one entry per component",
            ));
        }
        call.axes(
            &format!("{} and {}", names.index_map, names.operand_batching),
            &[self.index_map, self.operand_batching].concat(),
            operand.rank(),
        )?;
        call.axes(
            &format!("{} and {}", names.collapsed, names.operand_batching),
            &[self.collapsed, self.operand_batching].concat(),
            operand.rank(),
        )?;
        call.axes(names.indices_batching, self.indices_batching, indices.rank())?;
        for (name, list) in [
            (names.window, self.window),
            (names.collapsed, self.collapsed),
            (names.operand_batching, self.operand_batching),
        ] {
            if !list.is_sorted() {
                return Err(call.attr_error(format!("{name} is {list:?}"), "it must be in ascending order"));
            }
        }
        if self.indices_batching.contains(&self.index_vector) {
            return Err(call.attr_error(
                format!("{} is {:?}", names.indices_batching, self.indices_batching),
                format!("it must not contain index_vector_dim, which is {}", self.index_vector),
            ));
        }
        if self.operand_batching.len() != self.indices_batching.len() {
            return Err(call.attr_error(
                format!(
                    "{} has {} entries, but {} has {}",
                    names.operand_batching,
                    self.operand_batching.len(),
                    names.indices_batching,
                    self.indices_batching.len()
                ),
                "batching dimensions must come in pairs",
            ));
        }
        for (&o, &i) in self.operand_batching.iter().zip(self.indices_batching) {
            let (a, b) = (operand.dims()[o as usize], indices.dims()[i as usize]);
            if a != b {
                return Err(call.shape_error(
                    format!(
                        "batching dimension {o} of the operand is {a}, but dimension {i} of the indices is {b}"
                    ),
                    "batching dimensions must be equal",
                ));
            }
        }
        Ok(())
    }
}

/// The specification's names of the dimension numbers of an op.
struct Names {
    window: &'static str,
    collapsed: &'static str,
    operand_batching: &'static str,
    indices_batching: &'static str,
    index_map: &'static str,
}

const GATHER: Names = Names {
    window: "offset_dims",
    collapsed: "collapsed_slice_dims",
    operand_batching: "operand_batching_dims",
    indices_batching: "start_indices_batching_dims",
    index_map: "start_index_map",
};

const SCATTER: Names = Names {
    window: "update_window_dims",
    collapsed: "inserted_window_dims",
    operand_batching: "input_batching_dims",
    indices_batching: "scatter_indices_batching_dims",
    index_map: "scatter_dims_to_operand_dims",
};

/// `gather`: for each index vector, the slice of the operand that starts there.
pub(in crate::op) fn gather(call: &Call<'_>) -> Result<Results, OpError> {
    let (operand, indices) = (call.operand(0), call.operand(1));
    call.dtype_in(1, DTypeSet::INT)?;
    let dims = IndexDimensionNumbers::of(call.attr());
    dims.check(call, &GATHER, operand, indices)?;
    let sizes = call.attr().ints(1);
    call.list_len("slice_sizes", sizes.len(), operand.rank(), "operand dimension")?;
    for (axis, (&size, &whole)) in sizes.iter().zip(operand.dims()).enumerate() {
        let one = dims.collapsed.contains(&(axis as i64)) || dims.operand_batching.contains(&(axis as i64));
        let most = if one { whole.min(1) } else { whole };
        if size < 0 || size as u64 > most {
            return Err(call.attr_error(
                format!("the slice size of operand dimension {axis} is {size}"),
                format!("it must be 0 to {most}"),
            ));
        }
    }
    let windows = dims.window_axes(operand.rank());
    call.list_len("offset_dims", dims.window.len(), windows.len(), "operand dimension that is kept")?;
    let batch = dims.batch_dims(indices);
    let rank = batch.len() + windows.len();
    call.axes("offset_dims", dims.window, rank)?;
    let (mut batch, mut windows) = (batch.into_iter(), windows.into_iter());
    let out: Option<Vec<u64>> = (0..rank)
        .map(|axis| {
            if dims.window.contains(&(axis as i64)) {
                windows.next().map(|axis| sizes[axis] as u64)
            } else {
                batch.next()
            }
        })
        .collect();
    let out = out.ok_or_else(|| {
        call.attr_error(
            format!("offset_dims is {:?}", dims.window),
            "it must leave room for the batch dimensions",
        )
    })?;
    let ty = call.ty(operand.dtype(), &out)?;
    if ty.elems().0 > 0 && sizes.contains(&0) {
        return Err(call.attr_error(
            format!("slice_sizes is {sizes:?} and the result is {ty}"),
            "a dimension that is collapsed must have a slice size of 1, unless the result is empty",
        ));
    }
    Ok(one(ty))
}

/// `scatter`: the inputs, with each update combined into the position that its index vector gives.
/// Updates out of bounds are dropped.
pub(in crate::op) fn scatter(call: &Call<'_>) -> Result<Results, OpError> {
    let count = (call.operands.len() - 1) / 2;
    let (inputs, indices, updates) =
        (&call.operands[..count], call.operand(count), &call.operands[count + 1..]);
    call.dtype_in(count, DTypeSet::INT)?;
    for index in 0..count {
        call.same_shape(index, 0)?;
        call.same_shape(count + 1 + index, count + 1)?;
        call.same_dtype(count + 1 + index, index)?;
    }
    let dims = IndexDimensionNumbers::of(call.attr());
    dims.check(call, &SCATTER, &inputs[0], indices)?;
    let types = combiner(call, 0, inputs)?;
    let update = &updates[0];
    call.axes("update_window_dims", dims.window, update.rank())?;
    let windows = dims.window_axes(inputs[0].rank());
    call.list_len("update_window_dims", dims.window.len(), windows.len(), "input dimension that is kept")?;
    for (&axis, &along) in dims.window.iter().zip(&windows) {
        let (part, whole) = (update.dims()[axis as usize], inputs[0].dims()[along]);
        if part > whole {
            return Err(call.shape_error(
                format!(
                    "dimension {axis} of the updates is {part}, but dimension {along} of the inputs is {whole}"
                ),
                "an update must fit inside the input",
            ));
        }
    }
    let batch: Vec<u64> = (0..update.rank())
        .filter(|&axis| !dims.window.contains(&(axis as i64)))
        .map(|axis| update.dims()[axis])
        .collect();
    let wanted = dims.batch_dims(indices);
    if batch.as_slice() != wanted.as_slice() {
        return Err(call.shape_error(
            format!(
                "the updates have batch dimensions {batch:?}, but the indices have {:?}",
                wanted.as_slice()
            ),
            "there must be one update per index vector",
        ));
    }
    Ok(inputs.iter().zip(&types).map(|(input, &dtype)| input.with_dtype(dtype)).collect())
}
