//! Loops and branches on the device, whose bodies are recorded from closures.

use std::ops::Range;

use fuseline_fusion::op::{Comparison, attrs};
use fuseline_fusion::{Attrs, Literal, OpCode, OpError, OpErrorKind, Site};
use fuseline_runtime::internals::{RecordCall, bug};
use fuseline_runtime::{Error, Result};

use super::{Tensor, here};
use crate::handle::handles;
use crate::stream::Stream;
use crate::trace::{self, Open, Recorded, TensorTree, with_tensors};

/// A loop under construction: the names of its closures, and the call site.
pub(super) struct Loop<'a> {
    pub(super) stream: &'a Stream,
    pub(super) condition: &'static str,
    pub(super) body: &'static str,
    pub(super) site: Site,
}

impl Loop<'_> {
    pub(super) fn begin(&self, what: &'static str) -> Open {
        Open::begin(self.stream.shared(), OpCode::While, what, &self.site)
    }

    /// Checks that an iteration returns as many tensors as it gets. The op table checks their
    /// types.
    pub(super) fn same_count(&self, found: usize, wanted: usize) -> Result<()> {
        if found == wanted {
            return Ok(());
        }
        let given = format!("{} returns {found} tensors", self.body);
        let rule = format!("the body must return as many tensors as are carried, which is {wanted}");
        let error = OpError::new(OpCode::While.name(), OpErrorKind::Body, given, rule);
        Err(Error::op(error, self.site.clone()))
    }

    pub(super) fn record(
        self,
        carried: &[Tensor],
        condition: Recorded,
        body: Recorded,
    ) -> Result<Vec<Tensor>> {
        let carried: Vec<&Tensor> = carried.iter().collect();
        let call = RecordCall::new(OpCode::While, &super::NO_ATTRS, handles(&carried), &self.site);
        Ok(trace::record_with(self.stream.shared(), call, vec![condition, body])?.into_vec())
    }

    fn run<T: TensorTree>(
        self,
        init: T,
        condition: impl FnOnce(T) -> Result<Tensor>,
        body: impl FnOnce(T) -> Result<T>,
    ) -> Result<T> {
        let carried = init.tensors();
        let open = self.begin(self.condition);
        let test = open.end(&[condition(open.params_like(&init, &carried)?)?])?;
        let open = self.begin(self.body);
        let next = body(open.params_like(&init, &carried)?)?;
        let returned = next.tensors();
        self.same_count(returned.len(), carried.len())?;
        let round = open.end(&returned)?;
        drop(returned);
        with_tensors(&next, self.record(&carried, test, round)?)
    }

    /// As [`Loop::run`], with an integer that counts from `start` up to but not including `end`.
    fn count<T: TensorTree>(
        self,
        start: &Tensor,
        end: &Tensor,
        init: T,
        body: impl FnOnce(Tensor, T) -> Result<T>,
    ) -> Result<T> {
        let site = self.site.clone();
        let less = |i: &Tensor| {
            let attrs = attrs::compare_for(Comparison::Lt, i.dtype());
            i.binary_promoted(OpCode::Compare, &attrs, end, &site)
        };
        let carried = (start.clone(), init);
        let (_, result) = self.run(
            carried,
            |(i, _)| less(&i),
            |(i, carry)| {
                let next = i.plus_one(&site)?;
                Ok((next, body(i, carry)?))
            },
        )?;
        Ok(result)
    }
}

impl Tensor {
    pub(super) fn plus_one(&self, site: &Site) -> Result<Tensor> {
        let one = self.constant_like(Literal::of_f64(self.dtype(), 1.0), site)?;
        self.record(OpCode::Add, Attrs::none(), &[self, &one], site.clone())
    }
}

/// Loops and branches on the device.
///
/// Each closure is called once, when the op is recorded, with placeholders that stand for the
/// values of an iteration or branch. The ops that it records become a body of one op, which runs on
/// the device without involving the host. Closures may use outside tensors, and numbers, which are
/// lifted as usual: another number compiles nothing.
///
/// An op belongs to the closure if one of its operands does. An op whose operands all come from
/// outside is recorded outside, so it runs once. To run it in one branch only, pass what it reads
/// to the call as `operands`. Ops without operands, such as zeros, are recorded inside on the
/// stream of a placeholder (`x.on_stream().zeros(..)`).
///
/// Inside a closure there is no data to read. Decisions that depend on data use the loop's
/// condition, [`Stream::cond`] or [`Tensor::select`]. Every use of a placeholder after its closure
/// has returned fails. A closure that fails or panics leaves the stream as it was. Calls nest.
///
/// The mode in force is that of the whole op. If it fails on the device, the error names this call.
/// An invalid call inside a closure fails at its own line, when it is recorded.
impl Stream {
    /// Runs `body` while `condition`, which returns one bool, is true; it is evaluated before each
    /// iteration. The carried values keep their types.
    ///
    /// The square root of 2 by Newton's method, until it does not change:
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let two = engine.scalar(2.0f32);
    /// let (root, _) = engine.stream().while_loop(
    ///     (engine.scalar(1.0f32), engine.scalar(f32::INFINITY)),
    ///     |(x, before)| x.not_equal(&before),
    ///     |(x, _)| {
    ///         let next = ((&x + &(&two / &x)?)? * 0.5)?;
    ///         Ok((next, x))
    ///     },
    /// )?;
    /// assert!((root.item::<f32>()? - 2f32.sqrt()).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a closure fails, `condition` returns anything but one bool, or `body` other types than
    /// it gets.
    #[track_caller]
    pub fn while_loop<T: TensorTree>(
        &self,
        init: T,
        condition: impl FnOnce(T) -> Result<Tensor>,
        body: impl FnOnce(T) -> Result<T>,
    ) -> Result<T> {
        let (what, of) = ("the condition of while_loop", "the body of while_loop");
        Loop { stream: self, condition: what, body: of, site: here() }.run(init, condition, body)
    }

    /// Runs `body` for each number of a range, which it gets as an `i32` scalar. The bounds are
    /// lifted: another count compiles nothing.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
    /// let y = engine.stream().for_range(0..10, x, |_, x| x * 2.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1024.0, 2048.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When `body` fails or returns other types than it gets.
    #[track_caller]
    pub fn for_range<T: TensorTree>(
        &self,
        range: Range<i32>,
        init: T,
        body: impl FnOnce(Tensor, T) -> Result<T>,
    ) -> Result<T> {
        let (start, end) = (self.scalar(range.start), self.scalar(range.end));
        let (condition, of) = ("the condition of for_range", "the body of for_range");
        Loop { stream: self, condition, body: of, site: here() }.count(&start, &end, init, body)
    }

    /// As [`Stream::for_range`], from `start` up to but not including `end`, integer scalars of one
    /// type that may be computed.
    ///
    /// # Errors
    /// When the bounds are not such scalars, `body` fails or returns other types than it gets.
    #[track_caller]
    pub fn for_between<T: TensorTree>(
        &self,
        start: &Tensor,
        end: &Tensor,
        init: T,
        body: impl FnOnce(Tensor, T) -> Result<T>,
    ) -> Result<T> {
        let (condition, of) = ("the condition of for_between", "the body of for_between");
        Loop { stream: self, condition, body: of, site: here() }.count(start, end, init, body)
    }

    /// Runs one of two branches, selected by `pred`, one bool. Both get `operands` and return the
    /// same types.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.tensor(&[3.0f32, 4.0], &[2])?;
    /// let large = (&x * &x)?.sum(&[0])?.greater(&engine.scalar(1.0f32))?;
    /// let y = engine.stream().cond(&large, x, |x| x * 0.5, Ok)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.5, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When `pred` is not one bool, a closure fails, or the branches return different types.
    #[track_caller]
    pub fn cond<T: TensorTree, R: TensorTree>(
        &self,
        pred: &Tensor,
        operands: T,
        on_true: impl FnOnce(T) -> Result<R>,
        on_false: impl FnOnce(T) -> Result<R>,
    ) -> Result<R> {
        let mut choice = Choice::new(self, OpCode::If, &operands, here());
        choice.branch("the true branch of cond", on_true)?;
        choice.branch("the false branch of cond", on_false)?;
        choice.record(pred)
    }

    /// Runs the branch with number `index`, an `i32` scalar, or the last one if `index` is out of
    /// range. All branches get `operands` and return the same types.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.tensor(&[1.0f32, 4.0], &[2])?;
    /// let which = engine.scalar(1i32);
    /// let y = engine.stream().switch(&which, x, &[&|x| x.neg(), &|x| x.sqrt(), &|x| x * 2.0])?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When `index` is not an `i32` scalar, there is no branch, a closure fails, or the branches
    /// return different types.
    #[track_caller]
    pub fn switch<T: TensorTree, R: TensorTree>(
        &self,
        index: &Tensor,
        operands: T,
        branches: &[&dyn Fn(T) -> Result<R>],
    ) -> Result<R> {
        let mut choice = Choice::new(self, OpCode::Case, &operands, here());
        for branch in branches {
            choice.branch("a branch of switch", branch)?;
        }
        choice.record(index)
    }
}

/// A conditional under construction.
struct Choice<'a, T, R> {
    stream: &'a Stream,
    op: OpCode,
    operands: &'a T,
    tensors: Vec<Tensor>,
    bodies: Vec<Recorded>,
    /// The result of the first branch.
    first: Option<R>,
    site: Site,
}

impl<'a, T: TensorTree, R: TensorTree> Choice<'a, T, R> {
    fn new(stream: &'a Stream, op: OpCode, operands: &'a T, site: Site) -> Choice<'a, T, R> {
        let tensors = operands.tensors();
        Choice { stream, op, operands, tensors, bodies: Vec::new(), first: None, site }
    }

    fn branch(&mut self, what: &'static str, branch: impl FnOnce(T) -> Result<R>) -> Result<()> {
        let open = Open::begin(self.stream.shared(), self.op, what, &self.site);
        let result = branch(open.params_like(self.operands, &self.tensors)?)?;
        self.bodies.push(open.end(&result.tensors())?);
        self.first.get_or_insert(result);
        Ok(())
    }

    fn record(self, selector: &Tensor) -> Result<R> {
        let operands: Vec<&Tensor> = [selector].into_iter().chain(&self.tensors).collect();
        let call = RecordCall::new(self.op, &super::NO_ATTRS, handles(&operands), &self.site);
        let results = trace::record_with(self.stream.shared(), call, self.bodies)?;
        match self.first {
            Some(first) => with_tensors(&first, results),
            None => Err(bug!("{} was recorded without branches", self.op)),
        }
    }
}
