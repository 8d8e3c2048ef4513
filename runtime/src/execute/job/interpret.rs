//! Runs a region in the interpreter.
//!
//! Input: a job whose inputs have data. Output: its results, computed on a thread of their own and
//! received by the job.
//!
//! Invariant:
//! - TIER-2: a failure of the interpreter costs speed: the region is compiled and executed instead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use fuseline_fusion::{Literal, Scalar, TensorType};
use fuseline_sync::oneshot::{self, Receiver};
use fuseline_sync::schedule::Pool;

use super::{Job, Progress, QuarantineScope};
use crate::device::{Buffer, DeviceError};
use crate::engine::Task;
use crate::engine::queue_item::QueueItem;
use crate::engine::stream::StreamShared;
use crate::engine::value::{Outcome, Producer, ValueCell};
use crate::error::Stage;
use crate::event::Event;
use crate::region::{RegionInfo, RegionRef};
use crate::tier::InterpretedRun;

/// The requested results in order, or the error.
pub(in crate::execute) type InterpreterResult = Result<Vec<Buffer>, DeviceError>;

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
        pool: &Pool<QueueItem<Task>>,
        stream: &Arc<StreamShared>,
    ) -> Receiver<InterpreterResult> {
        let engine = stream.engine();
        let region = self.info.reference;
        engine.counters().interpreted.add(1);
        engine.emit(|| Event::Interpreted { region, run: run.number, of: run.of });
        self.interpret_by(interpreted, pool, stream)
    }

    /// Runs the region by `run` on a thread of the pool.
    pub(super) fn interpret_by(
        &self,
        run: impl FnOnce(&RegionInfo, &[Param], &[u32], &StreamShared) -> InterpreterResult + Send + 'static,
        pool: &Pool<QueueItem<Task>>,
        stream: &Arc<StreamShared>,
    ) -> Receiver<InterpreterResult> {
        let params: Vec<Param> = self.inputs.iter().map(|input| param(input.value.cell())).collect();
        let outputs: Vec<u32> = self.outputs.iter().map(|&(index, _)| index).collect();
        let (info, owner) = (self.info.clone(), stream.clone());
        spawn(self.info.reference, pool, stream, move || {
            let results = run(&info, &params, &outputs, &owner);
            // The job may be the last reader of its inputs.
            drop(params);
            results
        })
    }

    /// Hands out the interpreted results. Returns the job if it has to be compiled instead.
    pub(super) fn fulfil_interpreted(
        mut self: Box<Self>,
        interpreted: InterpreterResult,
        stream: &StreamShared,
    ) -> Result<Box<Job>, Progress> {
        match interpreted {
            Ok(buffers) => {
                let launch = stream.checks().begin_launch();
                self.info.set_launched(launch.number);
                for ((result, value), buffer) in std::mem::take(&mut self.outputs).into_iter().zip(buffers) {
                    let maker = Some(Producer { region: self.info.clone(), result });
                    drop(value.resolve(Outcome::Data { buffer, maker }));
                }
                Err(Progress::Done)
            }
            Err(error) if !matches!(self.quarantine, QuarantineScope::None) => {
                self.leave_quarantine(error, stream)
            }
            Err(error) => {
                let region = self.info.reference;
                let engine = stream.engine();
                engine.emit(|| Event::NotInterpreted { region, why: error.message });
                if let Some(tier) = engine.tiers().interpreter() {
                    tier.promote(region.key);
                }
                self.leave_bucket(stream);
                Ok(self)
            }
        }
    }
}

/// Runs `work`, which computes the results of a region, on a thread of the pool.
pub(super) fn spawn(
    region: RegionRef,
    pool: &Pool<QueueItem<Task>>,
    stream: &Arc<StreamShared>,
    work: impl FnOnce() -> InterpreterResult + Send + 'static,
) -> Receiver<InterpreterResult> {
    let (sender, results) = oneshot::channel();
    let owner = stream.clone();
    let task: Task = Box::new(move || {
        let since = owner.engine().is_observed().then(Instant::now);
        let outcome =
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(failed("the interpreter panicked")));
        if let Some(since) = since {
            owner.engine().emit(|| Event::Completed { region, took: since.elapsed() });
        }
        sender.send(outcome);
        owner.notify();
    });
    // The pool already has a thread if the interpreter tier is enabled.
    pool.push_elastic(QueueItem::new(task), 1);
    results
}

pub(super) fn failed(message: impl Into<String>) -> DeviceError {
    DeviceError::new(Stage::Execute, message)
}

/// The error of results that will not come.
pub(super) fn lost() -> DeviceError {
    failed("the thread that ran the interpreter has ended")
}

pub(super) fn param(value: &Arc<ValueCell>) -> Param {
    match value.outcome().get() {
        Some(Outcome::Scalar(scalar)) => Param::Scalar(*scalar),
        _ => Param::Value(value.clone()),
    }
}

/// Computes the results of a region on this thread. It waits for inputs that are still being
/// computed.
fn interpreted(
    info: &RegionInfo,
    params: &[Param],
    outputs: &[u32],
    stream: &StreamShared,
) -> InterpreterResult {
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
