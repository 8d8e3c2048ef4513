//! Reads and writes at positions given by lists of indices (`x[i, :, j]`), like NumPy's advanced
//! indexing.
//!
//! The indexed dimensions are moved to the front and merged. The lists are broadcast and become
//! positions in the merged dimension, so a read is one gather of rows and a write one scatter.
//! Masks are decomposed, since the number of positions depends on data.
//!
//! A read clamps an index out of range, and a write skips it. PyTorch's CPU reports an error, and
//! so does the device if values are checked.

use fuseline::fusion::DType;
use fuseline::{Tensor, unchecked};

use super::{cast, inverse, number, put, result, stretched};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "index.Tensor", lower: index },
    Row { name: "_index_put_impl", lower: index_put },
    Row {
        name: "_assert_async",
        lower: |call| assert(call, "Expected Tensor with single nonzero value, but got zero"),
    },
    Row { name: "_assert_async.msg", lower: |call| assert(call, call.text(1)?.unwrap_or_default()) },
    Row {
        name: "_functional_assert_async.msg",
        lower: |call| {
            let _ = assert(call, call.text(1)?.unwrap_or_default())?;
            result(call, call.tensor(2)?)
        },
    },
];

/// Checks that a tensor of one element is not zero, even if other value checks are off.
fn assert(call: &Call<'_>, rule: &str) -> Result<Results> {
    let x = call.tensor(0)?;
    if x.shape().elems().0 != 1 {
        return unsupported("the asserted tensor must have one element");
    }
    x.not_equal(&number(call, 0.0, &x)?)?.check_all("_assert_async", rule.to_owned())?;
    Ok(Results::new())
}

/// How a list of indices selects from a tensor.
struct Plan {
    /// The tensor's dimensions, the indexed ones first.
    order: Vec<i64>,
    /// The merged size of the indexed dimensions, then the sizes of the others.
    rows: Vec<usize>,
    /// The sizes that the lists broadcast to.
    lists: Vec<usize>,
    /// How many of the other dimensions precede those of the lists in the result.
    before: usize,
    /// A position in the merged dimension for each element of the lists: `[elements]`.
    places: Tensor,
}

impl Plan {
    fn of(call: &Call<'_>, x: &Tensor, op: &'static str) -> Result<Plan> {
        let given = call.maybe_tensors(1)?;
        let named: Vec<usize> = (0..given.len()).filter(|&axis| given[axis].is_some()).collect();
        let indices: Vec<&Tensor> = given.iter().flatten().collect();
        if named.is_empty() || indices.iter().any(|index| matches!(index.dtype(), DType::Bool | DType::U8)) {
            return unsupported("boolean indices are not supported, and at least one index is required");
        }
        let rank = indices.iter().map(|index| index.rank()).max().unwrap_or(0);
        let mut lists = vec![1; rank];
        for index in &indices {
            let from = rank - index.rank();
            for (list, &dim) in lists[from..].iter_mut().zip(index.dims()) {
                *list = if *list == 1 { dim } else { *list };
            }
        }
        let mut places: Option<Tensor> = None;
        for (&axis, index) in named.iter().zip(&indices) {
            let size = call.constant(x.dims()[axis] as f64, DType::I64)?;
            let index = cast(index, DType::I64)?;
            let is_behind = index.less(&number(call, 0.0, &index)?)?;
            let index = is_behind.select(&index.add(&stretched(&size, index.dims())?)?, &index)?;
            if call.stream.checks_indices() {
                index.check_wrapped_indices(x.dims()[axis], op)?;
            }
            let index = stretched(&index, &lists)?;
            places = Some(match places {
                None => index,
                Some(places) => places.mul(&stretched(&size, &lists)?)?.add(&index)?,
            });
        }
        let Some(places) = places else { return unsupported("at least one index is required") };
        let others: Vec<usize> = (0..x.rank()).filter(|axis| !named.contains(axis)).collect();
        let is_together = named.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let one: usize = named.iter().map(|&axis| x.dims()[axis]).product();
        Ok(Plan {
            order: named.iter().chain(&others).map(|&axis| axis as i64).collect(),
            rows: std::iter::once(one).chain(others.iter().map(|&axis| x.dims()[axis])).collect(),
            before: if is_together { named[0] } else { 0 },
            places: places.reshape(&[lists.iter().product()])?,
            lists,
        })
    }

    /// The tensor with the indexed dimensions merged at the front.
    fn rows(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.transpose(&self.order)?.reshape(&self.rows)?)
    }

    /// The inverse of `rows`.
    fn back(&self, rows: &Tensor, dims: &[usize]) -> Result<Tensor> {
        let turned: Vec<usize> = self.order.iter().map(|&axis| dims[axis as usize]).collect();
        Ok(rows.reshape(&turned)?.transpose(&inverse(&self.order))?)
    }

    /// The sizes with those of the lists first.
    fn listed(&self) -> Vec<usize> {
        [&self.lists, &self.rows[1..]].concat()
    }

    /// The permutation from the lists' dimensions first to their position in the result.
    fn placed(&self) -> Vec<i64> {
        let (lists, all) = (self.lists.len(), self.lists.len() + self.rows.len() - 1);
        let others = lists..lists + self.before;
        others.chain(0..lists).chain(lists + self.before..all).map(|axis| axis as i64).collect()
    }
}

fn index(call: &Call<'_>) -> Result<Results> {
    let (x, ty) = (call.tensor(0)?, call.out(0)?);
    if ty.elems().0 == 0 {
        return result(call, call.stream.zeros(ty.dtype(), ty.sizes())?);
    }
    let plan = Plan::of(call, &x, "index")?;
    let rows = plan.rows(&x)?;
    let taken = unchecked(|| rows.take(&plan.places, 0))?.reshape(&plan.listed())?;
    result(call, taken.transpose(&plan.placed())?)
}

/// Arguments: the target, indices, the source, and whether to accumulate.
fn index_put(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    let plan = Plan::of(call, &x, "index_put")?;
    let (listed, order) = (plan.listed(), plan.placed());
    if listed.contains(&0) {
        return result(call, x);
    }
    let placed: Vec<usize> = order.iter().map(|&axis| listed[axis as usize]).collect();
    let new = stretched(&cast(&call.tensor(2)?, x.dtype())?, &placed)?.transpose(&inverse(&order))?;
    let count: usize = plan.lists.iter().product();
    let new = new.reshape(&[&[count], &plan.rows[1..]].concat())?;
    let combine: fn(Tensor, Tensor) -> fuseline::Result<Tensor> = match (call.flag_or(3, false)?, x.dtype()) {
        (false, _) => |_, new| Ok(new),
        (true, DType::Bool) => |old, new| old.or(&new),
        (true, _) => |old, new| old.add(&new),
    };
    let written = put(&plan.rows(&x)?, &plan.places, &new, combine)?;
    result(call, plan.back(&written, x.dims())?)
}
