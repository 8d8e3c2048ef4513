//! Loops along a dimension: [`Stream::scan`].

use std::iter;
use std::sync::Arc;

use fuseline_fusion::op::{Comparison, attrs};
use fuseline_fusion::{Attrs, DType, Literal, OpCode, OpError, OpErrorKind, Site, TensorType};
use fuseline_runtime::internals::{RecordCall, StreamShared, bug, home};
use fuseline_runtime::{Error, Result};

use super::control::Loop;
use super::dims::type_of;
use super::{Tensor, here};
use crate::handle::record;
use crate::stream::Stream;
use crate::trace::{TensorTree, with_tensors};

impl Stream {
    /// Iterates over the first dimension of `xs`, whose length all of them share. `step` gets the
    /// carried values and the slices at an index, and returns the new carried values and a result
    /// for that index. Returns the final carried values, and the results stacked along a new first
    /// dimension. JAX's `lax.scan`.
    ///
    /// A running sum:
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[4])?;
    /// let (total, sums) = engine.stream().scan(engine.scalar(0.0f32), x, |sum, x| {
    ///     let sum = (sum + x)?;
    ///     Ok((sum.clone(), sum))
    /// })?;
    /// assert_eq!(total.item::<f32>()?, 10.0);
    /// assert_eq!(sums.to_vec::<f32>()?, [1.0, 3.0, 6.0, 10.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When there are no `xs` or their lengths differ, or `step` fails or carries other types than
    /// it gets.
    #[track_caller]
    pub fn scan<C: TensorTree, X: TensorTree, Y: TensorTree>(
        &self,
        init: C,
        xs: X,
        step: impl FnOnce(C, X) -> Result<(C, Y)>,
    ) -> Result<(C, Y)> {
        let (condition, body) = ("the condition of scan", "the body of scan");
        Loop { stream: self, condition, body, site: here() }.scan(init, &xs, step, false)
    }

    /// As [`Stream::scan`], from the last index to the first. Each result stays at its index.
    ///
    /// # Errors
    /// As [`Stream::scan`].
    #[track_caller]
    pub fn scan_back<C: TensorTree, X: TensorTree, Y: TensorTree>(
        &self,
        init: C,
        xs: X,
        step: impl FnOnce(C, X) -> Result<(C, Y)>,
    ) -> Result<(C, Y)> {
        let (condition, body) = ("the condition of scan_back", "the body of scan_back");
        Loop { stream: self, condition, body, site: here() }.scan(init, &xs, step, true)
    }
}

/// An index along the first dimension, in the body of a scan.
struct At<'a> {
    place: &'a Tensor,
    zero: &'a Tensor,
    site: &'a Site,
}

impl At<'_> {
    /// The operands, followed by the start indices of the slice in a tensor of this rank.
    fn operands<'a>(&'a self, operands: &[&'a Tensor], rank: usize) -> Vec<&'a Tensor> {
        let starts = iter::once(self.place).chain(iter::repeat_n(self.zero, rank - 1));
        operands.iter().copied().chain(starts).collect()
    }

    fn read(&self, x: &Tensor) -> Result<Tensor> {
        let mut sizes: Vec<i64> = x.dims().iter().map(|&dim| dim as i64).collect();
        sizes[0] = 1;
        let operands = self.operands(&[x], x.rank());
        let part =
            x.record(OpCode::DynamicSlice, attrs::dynamic_slice(&sizes), &operands, self.site.clone())?;
        part.reshape_at(&x.dims()[1..], self.site.clone())
    }

    fn write(&self, whole: &Tensor, part: &Tensor) -> Result<Tensor> {
        let part = part.reshape_at(&[&[1], part.dims()].concat(), self.site.clone())?;
        let operands = self.operands(&[whole, &part], whole.rank());
        whole.record(OpCode::DynamicUpdateSlice, Attrs::none(), &operands, self.site.clone())
    }
}

/// Zeros that are recorded on a stream.
fn zeros(stream: &Arc<StreamShared>, ty: &TensorType, site: &Site) -> Result<Tensor> {
    let zero = Arc::new(Literal::zeros(TensorType::scalar(ty.dtype())));
    let attrs = attrs::constant(zero);
    let call = RecordCall::new(OpCode::Constant, &attrs, &[], site);
    let zero = record(stream, call)?.pop().ok_or_else(|| bug!("a constant has one result"))?;
    zero.stretched(ty.shape(), &zero, site)
}

/// The length of the first dimension, which all have.
fn length(xs: &[Tensor], site: &Site) -> Result<usize> {
    let refuse = |given: String, rule: &str| {
        Err(Error::op(OpError::new("scan", OpErrorKind::Shape, given, rule), site.clone()))
    };
    let Some(first) = xs.first() else {
        return refuse("no input tensors were given".to_owned(), "use for_range to loop over a count");
    };
    for x in xs {
        match (first.dims(), x.dims()) {
            ([length, ..], [other, ..]) if length == other => {}
            (_, []) => {
                return refuse(
                    format!("a scalar, {}, was given", x.ty()),
                    "it must have a dimension to scan along",
                );
            }
            _ => {
                let given = format!("{} and {} were given", first.ty(), x.ty());
                return refuse(given, "their first dimensions must have the same size");
            }
        }
    }
    match first.dims()[0] {
        length if length <= i32::MAX as usize => Ok(length),
        _ => refuse(format!("{} was given", first.ty()), "positions are counted in i32"),
    }
}

impl Loop<'_> {
    fn scan<C: TensorTree, X: TensorTree, Y: TensorTree>(
        self,
        init: C,
        xs: &X,
        step: impl FnOnce(C, X) -> Result<(C, Y)>,
        back: bool,
    ) -> Result<(C, Y)> {
        let site = self.site.clone();
        let (carried, inputs) = (init.tensors(), xs.tensors());
        let length = length(&inputs, &site)?;
        let home = home(self.stream.shared(), carried.iter().chain(&inputs).map(Tensor::handle)).clone();
        let along = |result: &Tensor| type_of(result.dtype(), &[&[length], result.dims()].concat());
        let index = TensorType::scalar(DType::I32);
        let number = |i: &Tensor, number: usize| i.constant_like(Literal::scalar(number as i32), &site);

        let open = self.begin(self.body);
        let i = open.param(index.clone())?;
        let carry = open.params_like(&init, &carried)?;
        if length == 0 {
            // There is no element to read, but only `step` knows the types of its results.
            let element = |x: &Tensor| open.param(type_of(x.dtype(), &x.dims()[1..])?);
            let elements = inputs.iter().map(element).collect::<Result<Vec<_>>>()?;
            let (next, result) = step(carry, with_tensors(xs, elements)?)?;
            self.same_count(next.tensors().len(), carried.len())?;
            let empty = |result: &Tensor| zeros(&home, &along(result)?, &site);
            let results = result.tensors().iter().map(empty).collect::<Result<Vec<_>>>()?;
            return Ok((init, with_tensors(&result, results)?));
        }
        let last = number(&i, length - 1)?;
        let place = match back {
            false => i.clone(),
            true => last.record(OpCode::Subtract, Attrs::none(), &[&last, &i], site.clone())?,
        };
        let at = At { place: &place, zero: &number(&i, 0)?, site: &site };
        let elements = inputs.iter().map(|x| at.read(x)).collect::<Result<Vec<_>>>()?;
        let (next, result) = step(carry, with_tensors(xs, elements)?)?;
        let mut round = vec![i.plus_one(&site)?];
        round.extend(next.tensors());
        self.same_count(round.len() - 1, carried.len())?;
        let mut starts = vec![zeros(&home, &index, &site)?];
        starts.extend(carried);
        for result in result.tensors() {
            let ty = along(&result)?;
            starts.push(zeros(&home, &ty, &site)?);
            round.push(at.write(&open.param(ty)?, &result)?);
        }
        let body = open.end(&round)?;

        let open = self.begin(self.condition);
        let params = open.params_like(&starts, &starts)?;
        let compare = attrs::compare_for(Comparison::Lt, DType::I32);
        let more =
            params[0].binary_promoted(OpCode::Compare, &compare, &number(&params[0], length)?, &site)?;
        let condition = open.end(&[more])?;

        let mut ends = self.record(&starts, condition, body)?.into_iter();
        drop(ends.next());
        let next = with_tensors(&next, ends.by_ref().take(round.len() - 1 - result.tensors().len()))?;
        Ok((next, with_tensors(&result, ends)?))
    }
}
