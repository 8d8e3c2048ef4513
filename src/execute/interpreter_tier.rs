//! The interpreter tier: the first executions of a new region.
//!
//! A compile takes 30 ms to more than a second, and many regions run once: those that set a program
//! up, or that have a new shape in each iteration. The interpreter finishes small ones long before
//! their compile would. So a new region is interpreted until that has taken about as long as a
//! compile, by the estimate of [`interp::estimate`], and at most [`MAX_RUNS`] times. After that it
//! waits for its executable. Whatever the number of executions turns out to be, this costs at most
//! about twice the optimum (the ski rental of competitive analysis: Karlin et al., Competitive
//! snoopy caching, Algorithmica 3, 1988).
//!
//! The compile runs beside the interpreter. It starts at the second execution, or at the first if
//! the region is interpreted fewer than [`FEW_RUNS`] times because that takes long. So a region
//! that runs once, as in a first step that differs from the others by its set-up, is not compiled
//! and does not hold up other compiles. If the compile takes longer than these executions, the
//! interpreter goes on until the executable exists, so that no job waits for it. That costs at most
//! one execution more than waiting, which is a quarter of a compile or less. If an execution takes
//! longer, the job waits.
//!
//! Input: a region about to look up its executable. Output: whether it is interpreted this time,
//! and [`ResultSlot`]s with results.
//!
//! Invariants:
//! - TIER-1: the least number of interpreted executions follows from the region and from the number
//!   of its sizes seen when it was new. The start of its compile follows from these executions. So
//!   what is compiled does not depend on time. With [`EngineConfig::reproducible`] no more
//!   executions are interpreted, so numbers are the same in each run. (If several streams record
//!   the same ops at several sizes, it depends on whose came first.)
//! - TIER-2: a failure of the interpreter costs speed: the region is compiled and executed instead.
//!
//! The tier exists only where data is in the host's memory (XLA's CPU backend), in Fused mode, with
//! one replica and `Numerics::Fast`. Merged regions are not interpreted; their units are.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::ir::Node;
use fuseline_fusion::op::Fusibility;
use fuseline_fusion::{Graph, Literal, Scalar, TensorType};
use fuseline_interp as interp;
use fuseline_sync::schedule::Pool;
use fuseline_sync::{Mutex, Rank};

use super::bounded_map::BoundedFifoMap;
use super::compile::CompilePriority;
use super::job::{Job, Progress};
use super::padded_regions::ShapeCount;
use super::quarantine::QuarantineScope;
use crate::config::EngineConfig;
use crate::device::{Buffer, DeviceError};
use crate::engine::Task;
use crate::error::{RegionRef, Stage};
use crate::event::Event;
use crate::limits::MAX_INTERPRETED_REGIONS;
use crate::stream::StreamShared;
use crate::value::{Outcome, Producer, RegionInfo, ValueCell};

/// Maximum number of interpreted executions of a region. It is small under shuttle, so that a small
/// scenario exceeds it.
pub(super) const MAX_RUNS: u32 = if cfg!(shuttle) { 2 } else { 10 };

/// Below this number of executions the compile starts at the first, in case there is another.
pub(super) const FEW_RUNS: u32 = 4;

/// Maximum for a region that comes at many sizes, however little time an execution takes.
const MAX_PATIENCE: u32 = 1_000;

/// Estimated time of a compile: 30 to 70 ms for chains of 10 to 200 elementwise ops, 80 to 300 ms
/// for 16 to 100 ops with products and sums, 0.4 to 1.2 s for 500 to 800 (33 cases of `fuseline
/// bench`, 2026-11-22).
const COMPILE: Duration = Duration::from_millis(30);
const COMPILE_OP: Duration = Duration::from_micros(200);
const COMPILE_REDUCTION: Duration = Duration::from_millis(2);
const COMPILE_CONTRACTION: Duration = Duration::from_millis(15);

/// Estimates the time to compile a region.
pub(super) fn compile_time(graph: &Graph) -> Duration {
    compile_time_of(graph.nodes())
}

/// Estimates the time to compile a region of these ops.
pub(super) fn compile_time_of(nodes: &[Node]) -> Duration {
    let op = |node: &Node| match node.signature().def().fusibility {
        Fusibility::Reduction => COMPILE_REDUCTION,
        Fusibility::Contraction => COMPILE_CONTRACTION,
        _ => COMPILE_OP,
    };
    COMPILE + nodes.iter().map(op).sum::<Duration>()
}

/// How often a region can be interpreted in the time of its compile. 0 if it cannot be interpreted.
fn break_even(graph: &Graph) -> u32 {
    let Some(once) = interp::estimate(graph) else { return 0 };
    let runs = compile_time(graph).as_nanos() / once.as_nanos().max(1);
    u32::try_from(runs).unwrap_or(u32::MAX)
}

/// Minimum time of a load, and the number of loads that take as long as a compile of the same
/// region (docs/cache.md).
const LOAD: Duration = Duration::from_millis(1);
const LOADS: u32 = 12;

/// Whether interpreting a region takes less time than loading its executable.
pub(super) fn is_done_before_a_load(graph: &Graph) -> bool {
    interp::estimate(graph).is_some_and(|once| once <= LOAD + compile_time(graph) / LOADS)
}

/// How often a new region is interpreted before it is compiled.
fn runs(graph: &Graph, sizes: ShapeCount) -> u32 {
    match sizes {
        ShapeCount::Many => patience(graph),
        ShapeCount::Few => break_even(graph).min(MAX_RUNS),
    }
}

/// How often a region is interpreted that is one of many sizes, each of which is rare.
pub(super) fn patience(graph: &Graph) -> u32 {
    break_even(graph).min(MAX_PATIENCE)
}

/// One interpreted execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterpretedRun {
    /// The number of this execution, from 1.
    pub(super) number: u32,
    /// How many are planned.
    pub(super) of: u32,
}

impl InterpretedRun {
    /// The priority of a compile that is started now.
    pub(super) fn haste(self) -> CompilePriority {
        match self.of {
            ..=MAX_RUNS => CompilePriority::Foreground,
            _ => CompilePriority::Background,
        }
    }

    /// Whether all planned executions are over and the compile is not.
    pub(super) fn is_overdue(self) -> bool {
        self.number > self.of
    }

    /// Whether the interpreter goes on until the compile ends. A region of which one execution
    /// takes more than a quarter of a compile waits instead.
    pub(super) fn goes_on(self, config: &EngineConfig) -> bool {
        self.of >= FEW_RUNS.min(MAX_RUNS) && !config.is_reproducible()
    }

    /// Whether the compile starts with this execution.
    pub(super) fn starts_compile(self) -> bool {
        let at = match self.of {
            of if of < FEW_RUNS.min(MAX_RUNS) => 1,
            ..=MAX_RUNS => 2,
            // Half of the time is enough for most compiles, and most sizes are rarer than that.
            more => more / 2,
        };
        self.number == at
    }
}

/// The regions that are being interpreted, in a bounded map that forgets the oldest.
pub(crate) struct InterpreterTier(Mutex<BoundedFifoMap<RegionKey, InterpretedRun>>);

/// How a region that was interpreted before runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTier {
    Interpret(InterpretedRun),
    /// All planned executions are over.
    Compile(InterpretedRun),
}

impl InterpreterTier {
    pub(crate) fn new() -> InterpreterTier {
        InterpreterTier(Mutex::new(Rank::InterpreterTier, BoundedFifoMap::with_room(MAX_INTERPRETED_REGIONS)))
    }

    /// Counts the next execution of a region. `None` if it was not interpreted recently or has been
    /// [promoted](InterpreterTier::warm).
    pub(super) fn again(&self, key: RegionKey) -> Option<NextTier> {
        let mut runs = self.0.lock();
        let run = runs.get_mut(&key)?;
        run.number = run.number.saturating_add(1);
        Some(if run.is_overdue() { NextTier::Compile(*run) } else { NextTier::Interpret(*run) })
    }

    /// Promotes a region: it is not interpreted any more.
    pub(super) fn warm(&self, key: RegionKey) {
        self.0.lock().remove(&key);
    }

    /// The first execution of a region, if it is to be interpreted.
    pub(super) fn first(&self, key: RegionKey, graph: &Graph, sizes: ShapeCount) -> Option<InterpretedRun> {
        self.first_of(key, runs(graph, sizes))
    }

    /// The first of `of` executions.
    pub(super) fn first_of(&self, key: RegionKey, of: u32) -> Option<InterpretedRun> {
        let run = InterpretedRun { number: 1, of };
        if run.of == 0 {
            return None;
        }
        self.0.lock().insert(key, run);
        Some(run)
    }
}

/// The requested results in order, or the error.
pub(super) type Interpreted = Result<Vec<Buffer>, DeviceError>;

/// Where the interpreter leaves its results for the job.
pub(super) struct ResultSlot(Mutex<Option<Interpreted>>);

/// A parameter of a region.
pub(super) enum Param {
    Value(Arc<ValueCell>),
    Scalar(Scalar),
}

impl Job {
    /// Interprets the region on the pool. Its inputs have data.
    pub(super) fn interpret(
        &self,
        run: InterpretedRun,
        pool: &Pool<Task>,
        stream: &Arc<StreamShared>,
    ) -> Arc<ResultSlot> {
        let engine = stream.engine();
        let region = self.info.reference;
        engine.counters().interpreted.add(1);
        engine.emit(|| Event::Interpreted { region, run: run.number, of: run.of });
        self.interpret_by(interpreted, pool, stream)
    }

    /// Runs the region by `run` on a thread of the pool.
    pub(super) fn interpret_by(
        &self,
        run: impl FnOnce(&RegionInfo, &[Param], &[u32], &StreamShared) -> Interpreted + Send + 'static,
        pool: &Pool<Task>,
        stream: &Arc<StreamShared>,
    ) -> Arc<ResultSlot> {
        let params: Vec<Param> = self.inputs.iter().map(|input| param(input.value.cell())).collect();
        let outputs: Vec<u32> = self.outputs.iter().map(|&(index, _)| index).collect();
        let (info, owner) = (self.info.clone(), stream.clone());
        ResultSlot::filled_by(self.info.reference, pool, stream, move || {
            let results = run(&info, &params, &outputs, &owner);
            // The job may be the last reader of its inputs.
            drop(params);
            results
        })
    }

    /// Hands out the interpreted results. Returns the job if it has to be compiled instead.
    pub(super) fn fulfil_interpreted(
        mut self: Box<Self>,
        interpreted: Interpreted,
        stream: &StreamShared,
    ) -> Result<Progress, Box<Job>> {
        match interpreted {
            Ok(buffers) => {
                let launch = stream.checks().begin_launch();
                self.info.set_launched(launch.number);
                for ((result, value), buffer) in std::mem::take(&mut self.outputs).into_iter().zip(buffers) {
                    let maker = Some(Producer { region: self.info.clone(), result });
                    drop(value.resolve(Outcome::Data { buffer, maker }));
                }
                Ok(Progress::Done)
            }
            Err(error) if !matches!(self.quarantine, QuarantineScope::None) => {
                self.without_shelter(error, stream)
            }
            Err(error) => {
                let region = self.info.reference;
                let engine = stream.engine();
                engine.emit(|| Event::NotInterpreted { region, why: error.message });
                if let Some(cold) = engine.interpreter_tier() {
                    cold.warm(region.key);
                }
                self.leaves_bucket(stream);
                Err(self)
            }
        }
    }
}

impl ResultSlot {
    /// Returns a slot for the results that `work` computes on a thread of the pool.
    pub(super) fn filled_by(
        region: RegionRef,
        pool: &Pool<Task>,
        stream: &Arc<StreamShared>,
        work: impl FnOnce() -> Interpreted + Send + 'static,
    ) -> Arc<ResultSlot> {
        let slot = Arc::new(ResultSlot(Mutex::new(Rank::InterpreterSlot, None)));
        let (owner, result) = (stream.clone(), slot.clone());
        let task: Task = Box::new(move || {
            let since = owner.engine().is_observed().then(Instant::now);
            let outcome = catch_unwind(AssertUnwindSafe(work))
                .unwrap_or_else(|_| Err(failed("the interpreter panicked")));
            if let Some(since) = since {
                owner.engine().emit(|| Event::Completed { region, took: since.elapsed() });
            }
            *result.0.lock() = Some(outcome);
            owner.notify();
        });
        // The pool already has a thread if the interpreter tier is enabled.
        pool.push_elastic(task, 1);
        slot
    }

    /// The results, once they are there.
    pub(super) fn take(&self) -> Option<Interpreted> {
        self.0.lock().take()
    }
}

pub(super) fn failed(message: impl Into<String>) -> DeviceError {
    DeviceError::new(Stage::Execute, message)
}

pub(super) fn param(value: &Arc<ValueCell>) -> Param {
    match value.outcome().get() {
        Some(Outcome::Scalar(scalar)) => Param::Scalar(*scalar),
        _ => Param::Value(value.clone()),
    }
}

/// Computes the results of a region on this thread. It waits for inputs that are still being
/// computed.
fn interpreted(info: &RegionInfo, params: &[Param], outputs: &[u32], stream: &StreamShared) -> Interpreted {
    let device = stream.engine().device();
    let data = |param: &Param| operand(param, |buffer, _| device.download(buffer, 0));
    let operands = params.iter().map(data).collect::<Result<Vec<_>, _>>()?;
    let graph = info.canon.graph();
    let results = device.interpret(graph, &operands, outputs)?;
    results.iter().map(|result| device.upload(result.ty(), result.bytes())).collect()
}

/// Returns the data of an operand. `download` waits for the data of a value and gets its type.
pub(super) fn operand(
    param: &Param,
    download: impl FnOnce(&Buffer, &TensorType) -> Result<Vec<u8>, DeviceError>,
) -> Result<Arc<Literal>, DeviceError> {
    match param {
        Param::Scalar(scalar) => Ok(Arc::new(scalar.to_literal())),
        Param::Value(value) => match value.outcome().get() {
            Some(Outcome::Data { buffer, .. }) => {
                let bytes = download(buffer, value.ty())?;
                let literal = Literal::from_bytes(value.ty().clone(), bytes);
                literal.map(Arc::new).map_err(|error| failed(error.to_string()))
            }
            other => Err(failed(format!("bug: an input has the outcome {other:?}"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::canon::{CanonRegion, EnvFingerprint};
    use fuseline_fusion::{Attrs, DType, OpCode, TensorType};

    use super::*;

    fn region(ops: usize, size: u64) -> (RegionKey, Graph) {
        let mut graph = Graph::new();
        let mut value = graph.param(TensorType::of(DType::F32, &[size]).unwrap());
        for _ in 0..ops {
            value = graph.push(OpCode::Negate, Attrs::none(), &[], &[value]).unwrap()[0];
        }
        let canon = CanonRegion::new(graph.clone(), Box::new([false]));
        (canon.key(&EnvFingerprint::of(b"test")), graph)
    }

    #[test]
    fn what_is_large_is_compiled_at_once() {
        assert_eq!(runs(&region(10, 100).1, ShapeCount::Few), MAX_RUNS);
        let some = runs(&region(10, 1_000_000).1, ShapeCount::Few);
        assert!(1 < some && some < MAX_RUNS, "{some}");
        assert_eq!(runs(&region(10, 100_000_000).1, ShapeCount::Few), 0);
        let cold = InterpreterTier::new();
        let (key, graph) = region(10, 100_000_000);
        assert_eq!((cold.first(key, &graph, ShapeCount::Few), cold.again(key)), (None, None));
    }

    /// TIER-1.
    #[test]
    fn runs_are_counted() {
        let cold = InterpreterTier::new();
        let (key, graph) = region(10, 10_000);
        let of = runs(&graph, ShapeCount::Few);
        assert_eq!(cold.again(key), None);
        assert_eq!(cold.first(key, &graph, ShapeCount::Few), Some(InterpretedRun { number: 1, of }));
        for number in 2..=of {
            assert_eq!(cold.again(key), Some(NextTier::Interpret(InterpretedRun { number, of })));
        }
        for number in [of + 1, of + 2] {
            assert_eq!(cold.again(key), Some(NextTier::Compile(InterpretedRun { number, of })));
        }
        cold.warm(key);
        assert_eq!(cold.again(key), None);
    }
}
