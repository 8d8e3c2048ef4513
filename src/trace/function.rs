//! Functions that are recorded once by ordinary tensor calls and called as one op.
//!
//! A front end's graph (an FX graph of `torch.compile`, a user's function) is run once on
//! placeholders and becomes a [`CustomOp`]. A call of it is one op, so its ops need not be recorded
//! again, and a region that consists of the call alone is one executable. [`Function::write_out`]
//! records the ops of the function instead, for mechanisms that need to see single ops, such as
//! shape classes, and for lowerings that a front end keeps ([`Stream::begin_inline_function`]).

use std::fmt;

use fuseline_fusion::ir::Ref;
use fuseline_fusion::op::Effect;
use fuseline_fusion::{Body, CustomOp, OpCode, Signature, Site, TensorType};
use fuseline_runtime::internals::{CaptureMode, Expected, RecordCall, checks, here};
use fuseline_runtime::{Error, Result};
use smallvec::SmallVec;

use super::{Captures, Check, Open};
use crate::handle::{Tensor, Tensors, handles, record};
use crate::stream::Stream;

/// A function that is being recorded, from [`Stream::begin_function`] on.
#[derive(Debug)]
pub struct FunctionTrace {
    open: Open,
    name: String,
    site: Site,
}

/// A function that was recorded.
pub struct Function {
    op: CustomOp,
    captures: Vec<Tensor>,
    /// The expectations for each value of flags. These values are the last results.
    expected: SmallVec<[SmallVec<[Expected; 1]>; 1]>,
    /// Whether [`Stream::begin_inline_function`] began it.
    is_inline: bool,
    /// For each node, the results that no later node uses. They are dropped after it, as a program
    /// would do.
    dying: Vec<Vec<usize>>,
}

impl Stream {
    /// Begins a function. Ops that are recorded on [`FunctionTrace::stream`], or anywhere with one
    /// of its values, become ops of the function. They are checked and typed as usual, and their
    /// values have no data. Outside tensors may be used: the function keeps them, and each call
    /// passes them. Numbers ([`Stream::lift`]) become constants.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// use fuseline::{DType, Engine, TensorType};
    ///
    /// let engine = Engine::reference();
    /// let trace = engine.stream().begin_function("example.scaled");
    /// let x = trace.param(&TensorType::of(DType::F32, &[2])?)?;
    /// let y = (&x.tanh()? * 2.0)?;
    /// let scaled = trace.end(&[y])?;
    /// let x = engine.tensor(&[0.0f32, 1.0], &[2])?;
    /// let y = scaled.call(engine.stream(), &[&x])?;
    /// assert_eq!(y[0].to_vec::<f32>()?, [0.0, 2.0 * 1.0f32.tanh()]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn begin_function(&self, name: &str) -> FunctionTrace {
        self.begin_function_with(CaptureMode::Tensors, name, here())
    }

    /// Begins a function for [`Function::write_out`], which then records exactly the ops that the
    /// original calls would record. Numbers stay lifted, each check has its own flag, and a check
    /// that fails names the call site of `write_out`. A front end that lowers one of its ops to
    /// many can keep the result this way.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// use fuseline::{DType, Engine, TensorType};
    ///
    /// let engine = Engine::reference();
    /// let trace = engine.stream().begin_inline_function("example.scaled");
    /// let x = trace.param(&TensorType::of(DType::F32, &[2])?)?;
    /// let y = (&x.tanh()? * 2.0)?;
    /// let scaled = trace.end(&[y])?;
    /// assert!(scaled.captures()[0].is_number());
    /// let x = engine.tensor(&[0.0f32, 1.0], &[2])?;
    /// let y = scaled.write_out(engine.stream(), &[&x])?;
    /// assert_eq!(y[0].to_vec::<f32>()?, [0.0, 2.0 * 1.0f32.tanh()]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn begin_inline_function(&self, name: &str) -> FunctionTrace {
        self.begin_function_with(CaptureMode::Inline, name, here())
    }

    fn begin_function_with(&self, outside: CaptureMode, name: &str, site: Site) -> FunctionTrace {
        let open = Open::begin_with(outside, self.shared(), OpCode::Composite, "a function", &site);
        FunctionTrace { open, name: name.to_owned(), site }
    }
}

impl FunctionTrace {
    /// The stream for ops without operands, such as constants.
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream::of(self.open.stream().clone())
    }

    /// Adds a parameter.
    ///
    /// # Errors
    /// When there are too many.
    pub fn param(&self, ty: &TensorType) -> Result<Tensor> {
        self.open.param(ty.clone())
    }

    /// Ends the function, which returns these values.
    ///
    /// # Errors
    /// When a value belongs to a body that has ended, or to another engine; when the function has
    /// more operands or results than an op may have ([`fuseline_fusion::limits`]), or its name is
    /// not a valid op name.
    pub fn end(self, returns: &[Tensor]) -> Result<Function> {
        let FunctionTrace { open, name, site } = self;
        let is_inline = open.trace.outside == CaptureMode::Inline;
        let base = open.trace.base().clone();
        let mut checks = open.checks()?;
        if !is_inline {
            checks = concatenated(checks)?.into_iter().collect();
        }
        let (flags, expected): (Vec<Tensor>, _) = checks.into_iter().unzip();
        let recorded = open.end(&[returns, &flags].concat())?;
        let captures = Captures::of(recorded.captures(), &base);
        let body = recorded.close(&captures, false);
        let op = CustomOp::new(&name, body.into()).map_err(|error| Error::op(error, site))?;
        let dying = dying(op.body());
        Ok(Function { op, captures: captures.tensors, expected, is_inline, dying })
    }
}

impl Function {
    /// The op of a call. Its operands are the parameters, then [`Function::captures`]. If indices
    /// were checked when the function was recorded, one more result holds the flags, which
    /// [`Function::call`] handles.
    #[must_use]
    pub fn op(&self) -> &CustomOp {
        &self.op
    }

    /// The outside tensors that the function uses. They live as long as the function.
    #[must_use]
    pub fn captures(&self) -> &[Tensor] {
        &self.captures
    }

    /// Records a call as one op and returns its results.
    ///
    /// # Errors
    /// When the number or types of the operands differ from those of the parameters; in Debug mode,
    /// when the op fails.
    #[track_caller]
    pub fn call(&self, stream: &Stream, operands: &[&Tensor]) -> Result<Tensors> {
        let operands: Vec<&Tensor> = operands.iter().copied().chain(&self.captures).collect();
        self.checked(stream.call(&self.op, &operands)?, &here())
    }

    /// The results without the flags, which the next read checks.
    fn checked(&self, mut results: Tensors, site: &Site) -> Result<Tensors> {
        let own = results.len().saturating_sub(self.expected.len());
        for (flags, expected) in results.drain(own..).zip(&self.expected) {
            let mut expected = expected.clone();
            if self.is_inline {
                expected.iter_mut().for_each(|expected| expected.site = site.clone());
            }
            checks::expect(flags.into_handle(), expected)?;
        }
        Ok(results)
    }

    /// Records the ops of the function instead of a call, each in the mode in force, and returns
    /// the results.
    ///
    /// # Errors
    /// As [`Function::call`].
    #[track_caller]
    pub fn write_out(&self, stream: &Stream, operands: &[&Tensor]) -> Result<Tensors> {
        let site = here();
        let given: Vec<&Tensor> = operands.iter().copied().chain(&self.captures).collect();
        let types = self.op.operands();
        if given.len() != types.len() || given.iter().zip(types).any(|(tensor, ty)| tensor.ty() != ty) {
            let given: Vec<&TensorType> = operands.iter().map(|tensor| tensor.ty()).collect();
            let wanted = &types[..types.len() - self.captures.len()];
            return Err(Error::misuse(
                format!("a call of {} takes {wanted:?}, {given:?} were given", self.op.name()),
                site,
            ));
        }
        let graph = self.op.body().graph();
        let mut made: SmallVec<[Option<Tensor>; 32]> = SmallVec::with_capacity(graph.result_count());
        for (node, dying) in graph.nodes().iter().zip(&self.dying) {
            let operands = node.operands().iter().map(|&operand| pick(&given, &made, operand));
            let results = record_node(stream, node.signature(), operands, &site)?;
            made.extend(results.into_iter().map(Some));
            dying.iter().for_each(|&result| made[result] = None);
        }
        let returns = self.op.body().returns().iter();
        self.checked(returns.map(|&value| pick(&given, &made, value).clone()).collect(), &site)
    }
}

fn record_node<'a>(
    stream: &Stream,
    signature: &Signature,
    operands: impl Iterator<Item = &'a Tensor>,
    site: &Site,
) -> Result<Tensors> {
    let operands: SmallVec<[&Tensor; 4]> = operands.collect();
    let call = RecordCall {
        op: signature.op(),
        attrs: signature.attrs(),
        bodies: signature.bodies(),
        operands: handles(&operands),
        effect: Effect::Pure,
        site,
    };
    if signature.results().len() == 1 {
        return Ok(Tensors::from([stream.shared().record_one(call, Tensor::from_handle)?]));
    }
    record(stream.shared(), call)
}

/// The flags of all checks as one value, and their expectations.
fn concatenated(checks: Vec<Check>) -> Result<Option<Check>> {
    let (mut flags, mut all) = (Vec::new(), SmallVec::new());
    for (value, expected) in checks {
        flags.push(value.reshape(&[expected.len()])?);
        all.extend(expected);
    }
    let flags: Vec<&Tensor> = flags.iter().collect();
    match flags.is_empty() {
        true => Ok(None),
        false => Ok(Some((Tensor::concatenate(&flags, 0)?, all))),
    }
}

/// The tensor that stands for a value of the function.
fn pick<'a>(given: &[&'a Tensor], made: &'a [Option<Tensor>], value: Ref) -> &'a Tensor {
    match value {
        Ref::Param(index) => given[index as usize],
        Ref::Result(index) => made[index as usize].as_ref().expect("bug: a value is used after its last use"),
    }
}

fn dying(body: &Body) -> Vec<Vec<usize>> {
    let graph = body.graph();
    let mut last = vec![None; graph.result_count()];
    for (index, node) in graph.nodes().iter().enumerate() {
        for value in node.operands().iter().copied().chain(node.results()) {
            if let Ref::Result(result) = value {
                last[result as usize] = Some(index);
            }
        }
    }
    for value in body.returns() {
        if let Ref::Result(result) = value {
            last[*result as usize] = None;
        }
    }
    let mut dying = vec![Vec::new(); graph.nodes().len()];
    for (result, node) in last.into_iter().enumerate() {
        if let Some(node) = node {
            dying[node].push(result);
        }
    }
    dying
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({:?}, {} captures)", self.op, self.captures.len())
    }
}
