//! The first executions of a region, which the interpreter makes.
//!
//! A compile takes 30 ms to more than a second, and many regions are run once: what sets a program
//! up, what has a new shape in each round. Small ones the interpreter has done long before. So a
//! new region is interpreted until that has taken, by [`interp::estimate`], about as long as a
//! compile would, and at most [`MAX_RUNS`] times; only then it waits for its executable. Whatever
//! the number of executions turns out to be, it costs at most about twice of what would have been
//! best (the ski rental of competitive analysis: Karlin et al., Competitive snoopy caching,
//! Algorithmica 3, 1988). The compile runs beside the interpreter: it is started at the second
//! execution, or, of a region that is interpreted fewer than [`FEW_RUNS`] times, because that takes
//! long, at the first. What is run once, like a first step that differs from the others by what
//! sets them up, then has no compile, which would hold up that of the others. If the compile takes
//! longer than these executions, the interpreter goes on until the executable is there, so that
//! nobody waits for it: that costs the time of one execution more than to wait, at most, which is a
//! quarter of a compile or less. Where even that is long, it is waited for.
//!
//! Input: a region about to look for its executable. Output: whether it is interpreted this time,
//! and [`Slot`]s with results.
//!
//! Invariants:
//! - J1: how many executions are interpreted at least follows from the region and from how many
//!   sizes of it had come when it was new, and from these executions when a compile is started:
//!   what is compiled does not depend on time. With [`EngineConfig::reproducible`] no more are
//!   interpreted, so that numbers are the same in each run. (Where several streams record the same
//!   ops at several sizes, whose came first.)
//! - J2: what goes wrong in the interpreter costs speed: the region is compiled and executed
//!   instead.
//!
//! Only where the data is in the host's memory (XLA's CPU backend), in Fused mode, with one replica
//! and `Numerics::Fast`. Regions that were joined from units are not interpreted: their units are.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::graph::Node;
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
use crate::limits::MAX_COLD_REGIONS;
use crate::stream::StreamShared;
use crate::value::{Outcome, Producer, RegionInfo, ValueCell};

/// Most executions of a region that are interpreted. Few under shuttle, so that a small scenario
/// gets beyond them.
pub(super) const MAX_RUNS: u32 = if cfg!(shuttle) { 2 } else { 10 };

/// With so few the compile is started at the first, in case there is another.
pub(super) const FEW_RUNS: u32 = 4;

/// Most of one of many sizes, however little each takes.
const MAX_PATIENCE: u32 = 1_000;

/// What a compile takes: 30 to 70 ms for chains of 10 to 200 elementwise ops, 80 to 300 ms for 16
/// to 100 ops with products and sums, 0.4 to 1.2 s for 500 to 800 (33 cases of `fuseline bench`,
/// 2026-11-22).
const COMPILE: Duration = Duration::from_millis(30);
const COMPILE_OP: Duration = Duration::from_micros(200);
const COMPILE_REDUCTION: Duration = Duration::from_millis(2);
const COMPILE_CONTRACTION: Duration = Duration::from_millis(15);

/// What a compile takes, roughly.
pub(super) fn compile_time(graph: &Graph) -> Duration {
    compile_time_of(graph.nodes())
}

/// The same of a region of these ops.
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

/// What a load takes at least, and how many take as long as a compile of the same region
/// (docs/cache.md).
const LOAD: Duration = Duration::from_millis(1);
const LOADS: u32 = 12;

/// Whether the interpreter is done with a region before it could be loaded.
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

/// The same of one that is one of many, of which each comes seldom.
pub(super) fn patience(graph: &Graph) -> u32 {
    break_even(graph).min(MAX_PATIENCE)
}

/// One interpreted execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterpretedRun {
    /// Which one, from 1.
    pub(super) number: u32,
    /// How many there are.
    pub(super) of: u32,
}

impl InterpretedRun {
    /// Whether somebody is about to wait for the compile that is started now.
    pub(super) fn haste(self) -> CompilePriority {
        match self.of {
            ..=MAX_RUNS => CompilePriority::Foreground,
            _ => CompilePriority::Background,
        }
    }

    /// Whether all executions that are counted are over, and the compile is not.
    pub(super) fn is_overdue(self) -> bool {
        self.number > self.of
    }

    /// Whether it is interpreted for as long as its compile takes: what takes longer than a quarter
    /// of that waits.
    pub(super) fn goes_on(self, config: &EngineConfig) -> bool {
        self.of >= FEW_RUNS.min(MAX_RUNS) && !config.is_reproducible()
    }

    /// Whether the compile is started now.
    pub(super) fn starts_compile(self) -> bool {
        let at = match self.of {
            of if of < FEW_RUNS.min(MAX_RUNS) => 1,
            ..=MAX_RUNS => 2,
            // Half of the time is enough for most compiles, and most sizes do not come so often.
            more => more / 2,
        };
        self.number == at
    }
}

/// The regions that are being interpreted: a bounded number, the oldest are forgotten.
pub(crate) struct InterpreterTier(Mutex<BoundedFifoMap<RegionKey, InterpretedRun>>);

/// What becomes of a region that was interpreted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTier {
    Interpret(InterpretedRun),
    /// It has been interpreted often enough.
    Compile(InterpretedRun),
}

impl InterpreterTier {
    pub(crate) fn new() -> InterpreterTier {
        InterpreterTier(Mutex::new(Rank::InterpreterTier, BoundedFifoMap::with_room(MAX_COLD_REGIONS)))
    }

    /// The next execution of a region. `None` if it was not interpreted before, or not lately, or
    /// is [warm](ColdRegions::warm).
    pub(super) fn again(&self, key: RegionKey) -> Option<NextTier> {
        let mut runs = self.0.lock();
        let run = runs.get_mut(&key)?;
        run.number = run.number.saturating_add(1);
        Some(if run.is_overdue() { NextTier::Compile(*run) } else { NextTier::Interpret(*run) })
    }

    /// A region is not interpreted any more.
    pub(super) fn warm(&self, key: RegionKey) {
        self.0.lock().remove(&key);
    }

    /// The first execution of a region, if it is to be interpreted.
    pub(super) fn first(&self, key: RegionKey, graph: &Graph, sizes: ShapeCount) -> Option<InterpretedRun> {
        self.first_of(key, runs(graph, sizes))
    }

    /// The first of so many.
    pub(super) fn first_of(&self, key: RegionKey, of: u32) -> Option<InterpretedRun> {
        let run = InterpretedRun { number: 1, of };
        if run.of == 0 {
            return None;
        }
        self.0.lock().insert(key, run);
        Some(run)
    }
}

/// The results asked for, in order, or why there are none.
pub(super) type Interpreted = Result<Vec<Buffer>, DeviceError>;

/// Where the interpreter leaves its results for the job.
pub(super) struct Slot(Mutex<Option<Interpreted>>);

/// A parameter of a region.
pub(super) enum Param {
    Value(Arc<ValueCell>),
    Scalar(Scalar),
}

impl Job {
    /// Has the region interpreted; its inputs are there.
    pub(super) fn interpret(
        &self,
        run: InterpretedRun,
        pool: &Pool<Task>,
        stream: &Arc<StreamShared>,
    ) -> Arc<Slot> {
        let engine = stream.engine();
        let region = self.info.reference;
        engine.counters().interpreted.add(1);
        engine.emit(|| Event::Interpreted { region, run: run.number, of: run.of });
        self.interpret_by(interpreted, pool, stream)
    }

    /// Has a function run the region on a thread of the pool.
    pub(super) fn interpret_by(
        &self,
        run: impl FnOnce(&RegionInfo, &[Param], &[u32], &StreamShared) -> Interpreted + Send + 'static,
        pool: &Pool<Task>,
        stream: &Arc<StreamShared>,
    ) -> Arc<Slot> {
        let params: Vec<Param> = self.inputs.iter().map(|input| param(input.value.cell())).collect();
        let outputs: Vec<u32> = self.outputs.iter().map(|&(index, _)| index).collect();
        let (info, owner) = (self.info.clone(), stream.clone());
        Slot::filled_by(self.info.reference, pool, stream, move || {
            let results = run(&info, &params, &outputs, &owner);
            // The job may be its inputs' last reader.
            drop(params);
            results
        })
    }

    /// Hands out what the interpreter has made; or the job, which is to be compiled.
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
                if let Some(cold) = engine.cold() {
                    cold.warm(region.key);
                }
                self.leaves_bucket(stream);
                Err(self)
            }
        }
    }
}

impl Slot {
    /// A slot for the results of a region that `work` makes on a thread of the pool.
    pub(super) fn filled_by(
        region: RegionRef,
        pool: &Pool<Task>,
        stream: &Arc<StreamShared>,
        work: impl FnOnce() -> Interpreted + Send + 'static,
    ) -> Arc<Slot> {
        let slot = Arc::new(Slot(Mutex::new(Rank::InterpreterSlot, None)));
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
        // Its thread is there if regions are interpreted as a rule.
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

/// The results of a region, computed on this thread from data that may be on its way.
fn interpreted(info: &RegionInfo, params: &[Param], outputs: &[u32], stream: &StreamShared) -> Interpreted {
    let device = stream.engine().device();
    let data = |param: &Param| operand(param, |buffer, _| device.download(buffer, 0));
    let operands = params.iter().map(data).collect::<Result<Vec<_>, _>>()?;
    let graph = info.canon.graph();
    let results = device.interpret(graph, &operands, outputs)?;
    results.iter().map(|result| device.upload(result.ty(), result.bytes())).collect()
}

/// The data of an operand, which may be on their way: of a value by `download`, which is told their
/// type.
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

    /// J1.
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
