//! The reference interpreter: runs the graphs of `fuseline-fusion` in plain Rust, one op at a time.
//!
//! It has two uses. It is the oracle that every execution mode is compared with, and it is the
//! interpreter tier, which runs new regions on the CPU until they are compiled.
//!
//! Input: a [`Graph`] and a [`Literal`] per parameter. Output: a [`Literal`] per result. The crate
//! is pure: no threads, no I/O, no clock, no PJRT, no unsafe code. Its only state is memory that
//! one run of a graph reuses.
//!
//! | to | call |
//! |---|---|
//! | run one call | [`call`], [`call_by`], [`call_replicated`] |
//! | run a graph, all results or some | [`run`], [`run_for`], [`run_replicated`] |
//! | run a body | [`run_body`], [`run_body_replicated`] |
//! | estimate how long a graph takes | [`estimate`] |
//!
//! A table maps op codes to functions (`table.rs`). The op table itself knows no interpreter.
//!
//! Numbers: `f16`, `bf16` and `f32` are computed in `f64` and rounded once per op (sums of products
//! in `f32` at each term), `f64` in `f64`, complex numbers in two `f64`. Integers wrap at their
//! width. Subnormal numbers are kept, unless [`Arithmetic::flushed`] says that the device flushes
//! them. If the specification leaves an order open (sums), elements are combined in row-major
//! order, with the rounding of the body at each step.
//!
//! If the specification leaves a value open, the interpreter returns XLA's: for a division by zero,
//! a conversion out of range, the bits of a generator. If XLA deviates from the specification, the
//! op's function documents it and follows the specification.
//!
//! A program may run on several replicas ([`run_replicated`]). They execute its ops in lockstep,
//! each with its own data, and compute collective ops together.
//!
//! The cost of an op is linear in the elements (the products, the window elements) that it visits:
//! about a nanosecond each for the ops of most programs (`fast_f32.rs`), some ten for others. With
//! [`SumOrder::AnyOrder`], a library computes products and convolutions of `f32` (`gemm.rs`).
#![forbid(unsafe_code)]

mod buffer_pool;
mod cascade;
mod chlo;
mod collective;
mod complex;
mod composite;
mod contraction;
mod control;
mod cost_model;
mod dynamic;
mod elementwise;
mod fast_f32;
mod fft;
mod function;
mod gemm;
mod handler;
mod index;
mod indexing;
mod inverse_trig;
mod kernel;
mod linalg;
mod movement;
mod reduction;
mod source;
mod special;
mod subnormal;
mod table;

use std::fmt;
use std::sync::Arc;

pub use cost_model::estimate;
pub use fuseline_fusion::arithmetic::{Arithmetic, SumOrder};
use fuseline_fusion::attr::AttrView;
use fuseline_fusion::limits::MAX_GRAPH_OPS;
use fuseline_fusion::subnormal::access;
use fuseline_fusion::{Body, Bytes, Graph, Literal, OpError, Ref, Signature, TensorType};

use self::buffer_pool::Reuse;

/// Maximum size in bytes of a value of an interpreted program.
pub const MAX_VALUE_BYTES: Bytes = Bytes(1 << 30);

/// Maximum number of steps of one op of an interpreted program: window elements, products or pairs
/// of elements visited. This takes a minute or two. Ops in a body count separately.
pub const MAX_STEPS: u64 = 1 << 33;

/// Why the interpreter gave up. Programs that passed the op table only fail because of their size,
/// for results that are left to the plugin, and for operands that contradict their recorded types.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvalError {
    /// A value would be larger than [`MAX_VALUE_BYTES`].
    TooLarge {
        /// The op that produces it.
        op: &'static str,
        /// Its type.
        ty: TensorType,
    },
    /// An op would take more than [`MAX_STEPS`] steps.
    TooLong {
        /// The op.
        op: &'static str,
        /// The number of steps, or the number after which it gave up.
        steps: u128,
    },
    /// An op does not fit the number of replicas.
    Replicas(OpError),
    /// Replicas that exchange data in a body took different paths through it.
    Diverged {
        /// The op with the body.
        op: &'static str,
    },
    /// The result is left to the plugin, so there is nothing to compare with.
    Unspecified {
        /// The op.
        op: &'static str,
        /// What is left open.
        what: &'static str,
    },
    /// The size operands give another result than the recorded one.
    Sizes {
        /// The op.
        op: &'static str,
        /// The values of the operands, and the resulting type.
        given: String,
        /// The result that was recorded.
        recorded: TensorType,
    },
    /// A handler failed: its name and its message.
    Handler(String),
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvalError::TooLarge { op, ty } => {
                write!(
                    f,
                    "{op}: {ty} has {}, but the reference interpreter supports values of at most {MAX_VALUE_BYTES}",
                    ty.bytes()
                )
            }
            EvalError::TooLong { op, steps } => {
                write!(
                    f,
                    "{op}: it takes at least {steps} steps, but the reference interpreter supports at most {MAX_STEPS}"
                )
            }
            EvalError::Replicas(error) => error.fmt(f),
            EvalError::Diverged { op } => {
                write!(
                    f,
                    "{op}: replicas take different branches, but a collective in a body waits for all of them"
                )
            }
            EvalError::Unspecified { op, what } => write!(f, "{op}: {what} is defined by the plugin only"),
            EvalError::Sizes { op, given, recorded } => {
                write!(f, "{op}: {given}, but the call was recorded with the result {recorded}")
            }
            EvalError::Handler(message) => write!(f, "custom_call of {message}"),
        }
    }
}

impl std::error::Error for EvalError {}

/// A call with its operands' data: the input of an op's implementation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvalCall<'a> {
    /// The arithmetic of the device.
    pub(crate) arithmetic: Arithmetic,
    /// Op, attributes, bodies and types.
    pub(crate) signature: &'a Signature,
    /// The operands' data, of the signature's operand types.
    pub(crate) operands: &'a [Arc<Literal>],
}

impl<'a> EvalCall<'a> {
    /// Typed access to the attributes.
    pub(crate) fn attr(&self) -> AttrView<'a> {
        self.signature.attrs().view()
    }

    /// The data of operand `index`.
    pub(crate) fn operand(&self, index: usize) -> &'a Literal {
        &self.operands[index]
    }

    /// Type of the first result.
    pub(crate) fn result(&self) -> &'a TensorType {
        &self.signature.results()[0]
    }

    /// Body `index`.
    pub(crate) fn body(&self, index: usize) -> &'a Body {
        &self.signature.bodies()[index]
    }
}

/// A call with its operands' data on all replicas: the input of a collective op's implementation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JointCall<'a> {
    /// The arithmetic of the device.
    pub(crate) arithmetic: Arithmetic,
    /// Op, attributes, bodies and types.
    pub(crate) signature: &'a Signature,
    /// The operands' data of each replica, of the signature's operand types.
    pub(crate) operands: &'a [Vec<Arc<Literal>>],
}

/// Checks that visiting the product of all sizes does not take too long.
fn check_steps(call: &EvalCall<'_>, sizes: &[&[u64]]) -> Result<(), EvalError> {
    let sizes = || sizes.iter().flat_map(|sizes| sizes.iter().copied());
    if sizes().any(|size| size == 0) {
        return Ok(());
    }
    let steps = sizes().fold(1u128, |steps, size| steps.saturating_mul(size.into()));
    if steps <= MAX_STEPS.into() {
        return Ok(());
    }
    Err(EvalError::TooLong { op: call.signature.def().name, steps })
}

/// Runs one call.
///
/// # Errors
/// If a result is too large, the op takes too long, its results are left to the plugin, or size
/// operands give another type.
pub fn call(signature: &Signature, operands: &[Arc<Literal>]) -> Result<Vec<Literal>, EvalError> {
    call_by(Arithmetic::REFERENCE, signature, operands)
}

/// As [`call`], with the arithmetic of a device.
///
/// # Errors
/// As [`call`].
pub fn call_by(
    arithmetic: Arithmetic,
    signature: &Signature,
    operands: &[Arc<Literal>],
) -> Result<Vec<Literal>, EvalError> {
    debug_assert!(
        operands.iter().map(|data| data.ty()).eq(signature.operands()),
        "bug: operands do not have the types of {signature:?}",
    );
    check_sizes(signature)?;
    let flushes = access(signature).flushes(arithmetic.flushed);
    let flushed = subnormal::flushed(flushes, operands);
    let operands = flushed.as_deref().unwrap_or(operands);
    let mut results = table::eval(signature.op())(&EvalCall { arithmetic, signature, operands })?;
    subnormal::flush_underflows(signature, flushes, operands, &mut results);
    subnormal::flush_all(flushes, &mut results);
    debug_assert!(
        results.iter().map(Literal::ty).eq(signature.results()),
        "bug: {signature:?} was evaluated to {results:?}",
    );
    Ok(results)
}

fn check_sizes(signature: &Signature) -> Result<(), EvalError> {
    match signature.results().iter().find(|ty| ty.bytes() > MAX_VALUE_BYTES) {
        None => Ok(()),
        Some(ty) => Err(EvalError::TooLarge { op: signature.def().name, ty: ty.clone() }),
    }
}

/// Runs one call on several replicas. `operands` and the results are per replica.
///
/// # Errors
/// As [`call`], and if the call does not fit the number of replicas.
pub fn call_replicated(
    arithmetic: Arithmetic,
    signature: &Signature,
    operands: &[Vec<Arc<Literal>>],
) -> Result<Vec<Vec<Literal>>, EvalError> {
    let joint = table::joint(signature.op()).filter(|_| signature.is_joint());
    let Some(joint) = joint else {
        return operands.iter().map(|operands| call_by(arithmetic, signature, operands)).collect();
    };
    check_sizes(signature)?;
    let flushes = access(signature).flushes(arithmetic.flushed);
    let flushed = |of_one: &Vec<_>| subnormal::flushed(flushes, of_one).unwrap_or_else(|| of_one.clone());
    let operands: &[Vec<Arc<Literal>>] = &operands.iter().map(flushed).collect::<Vec<_>>();
    let mut results = joint(&JointCall { arithmetic, signature, operands })?;
    results.iter_mut().for_each(|of_one| subnormal::flush_all(flushes, of_one));
    debug_assert!(
        results.len() == operands.len()
            && results.iter().all(|each| each.iter().map(Literal::ty).eq(signature.results())),
        "bug: {signature:?} was evaluated to {results:?}",
    );
    Ok(results)
}

/// Runs a graph; returns the data of all results, in order.
///
/// # Errors
/// As [`call`].
///
/// # Panics
/// If the data of the parameters does not have the types of the graph.
pub fn run(graph: &Graph, params: &[Arc<Literal>]) -> Result<Vec<Arc<Literal>>, EvalError> {
    run_all(Arithmetic::REFERENCE, graph, params)
}

fn run_all(
    arithmetic: Arithmetic,
    graph: &Graph,
    params: &[Arc<Literal>],
) -> Result<Vec<Arc<Literal>>, EvalError> {
    assert!(params.iter().map(|data| data.ty()).eq(graph.params()), "parameters of other types");
    let mut results: Vec<Arc<Literal>> = Vec::with_capacity(graph.result_count().min(MAX_GRAPH_OPS));
    for node in graph.nodes() {
        let operands = pick(node.operands(), params, &results);
        results.extend(call_by(arithmetic, node.signature(), &operands)?.into_iter().map(Arc::new));
    }
    Ok(results)
}

/// Runs a graph; returns the data of the results `wanted`, in that order. Other results are freed
/// after their last read, so memory never exceeds that of running the ops one by one.
///
/// # Errors
/// As [`call`].
///
/// # Panics
/// As [`run`], and if `wanted` contains a result that the graph does not have.
pub fn run_for(
    graph: &Graph,
    params: &[Arc<Literal>],
    wanted: &[u32],
    arithmetic: Arithmetic,
) -> Result<Vec<Arc<Literal>>, EvalError> {
    assert!(params.iter().map(|data| data.ty()).eq(graph.params()), "parameters of other types");
    let mut reads = vec![0u32; graph.result_count()];
    let made = |operand: &Ref| match operand {
        Ref::Result(index) => Some(*index as usize),
        Ref::Param(_) => None,
    };
    graph.nodes().iter().flat_map(|node| node.operands()).filter_map(made).for_each(|read| reads[read] += 1);
    wanted.iter().for_each(|&wanted| reads[wanted as usize] += 1);
    let _reuse = Reuse::new();
    let mut results: Vec<Option<Arc<Literal>>> = Vec::with_capacity(reads.len().min(MAX_GRAPH_OPS));
    let kept = |results: &[Option<Arc<Literal>>], index: usize| {
        results[index].clone().expect("bug: a result was freed before its last reader")
    };
    for node in graph.nodes() {
        let operand = |operand: &Ref| match operand {
            Ref::Param(index) => params[*index as usize].clone(),
            Ref::Result(index) => kept(&results, *index as usize),
        };
        let operands: Vec<_> = node.operands().iter().map(operand).collect();
        let new = call_by(arithmetic, node.signature(), &operands)?;
        drop(operands);
        for read in node.operands().iter().filter_map(made) {
            reads[read] -= 1;
            if reads[read] == 0 {
                results[read].take().into_iter().for_each(buffer_pool::free);
            }
        }
        for literal in new {
            let is_read = reads[results.len()] > 0;
            results.push(is_read.then(|| Arc::new(literal)));
        }
    }
    Ok(wanted.iter().map(|&wanted| kept(&results, wanted as usize)).collect())
}

/// The data of references.
fn pick(values: &[Ref], params: &[Arc<Literal>], results: &[Arc<Literal>]) -> Vec<Arc<Literal>> {
    let data = |&value: &Ref| match value {
        Ref::Param(index) => params[index as usize].clone(),
        Ref::Result(index) => results[index as usize].clone(),
    };
    values.iter().map(data).collect()
}

/// Runs a graph on several replicas, one op after the other on all of them. `params` and the
/// results are per replica.
///
/// # Errors
/// As [`call_replicated`].
///
/// # Panics
/// If the parameters of a replica do not have the types of the graph.
pub fn run_replicated(
    arithmetic: Arithmetic,
    graph: &Graph,
    params: &[Vec<Arc<Literal>>],
) -> Result<Vec<Vec<Arc<Literal>>>, EvalError> {
    for params in params {
        assert!(params.iter().map(|data| data.ty()).eq(graph.params()), "parameters of other types");
    }
    let mut results: Vec<Vec<Arc<Literal>>> = vec![Vec::new(); params.len()];
    for node in graph.nodes() {
        let operands: Vec<_> = params
            .iter()
            .zip(&results)
            .map(|(params, results)| pick(node.operands(), params, results))
            .collect();
        let made = call_replicated(arithmetic, node.signature(), &operands)?;
        for (results, made) in results.iter_mut().zip(made) {
            results.extend(made.into_iter().map(Arc::new));
        }
    }
    Ok(results)
}

/// Runs a body.
///
/// # Errors
/// As [`call`].
pub fn run_body(
    arithmetic: Arithmetic,
    body: &Body,
    params: &[Arc<Literal>],
) -> Result<Vec<Arc<Literal>>, EvalError> {
    let results = run_all(arithmetic, body.graph(), params)?;
    Ok(pick(body.returns(), params, &results))
}

/// Runs a body on several replicas, as [`run_replicated`].
///
/// # Errors
/// As [`call_replicated`].
pub fn run_body_replicated(
    arithmetic: Arithmetic,
    body: &Body,
    params: &[Vec<Arc<Literal>>],
) -> Result<Vec<Vec<Arc<Literal>>>, EvalError> {
    let results = run_replicated(arithmetic, body.graph(), params)?;
    Ok(params.iter().zip(&results).map(|(params, results)| pick(body.returns(), params, results)).collect())
}

#[cfg(test)]
mod tests {
    use fuseline_testgen::{Aim, ProgramOptions, sampled_region};

    use super::*;

    #[test]
    fn what_is_freed_on_the_way_changes_no_result() {
        for seed in 0..200 {
            let (region, operands) = sampled_region(ProgramOptions::new(Aim::Portable), seed, 20);
            let all = run(region.graph(), &operands).unwrap();
            for step in 1..=3 {
                let wanted: Vec<u32> = (0..all.len() as u32).rev().step_by(step).collect();
                let expected: Vec<_> = wanted.iter().map(|&wanted| all[wanted as usize].clone()).collect();
                assert_eq!(
                    run_for(region.graph(), &operands, &wanted, Arithmetic::REFERENCE).unwrap(),
                    expected,
                    "seed {seed}"
                );
            }
        }
    }
}
