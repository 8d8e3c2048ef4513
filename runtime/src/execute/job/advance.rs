//! Advances a job through its states.
//!
//! ```text
//! New ─┬─► Waiting ─► Ready ─► done
//!      ├─► Ready
//!      ├─► Refused ─► parts, or failed results
//!      └─► Split ───► parts
//! ```
//!
//! [`Job::advance`] makes transitions until one has to wait. A transition returns the job to go on
//! with, or the [`Progress`] to return to the driver.

use std::sync::Arc;
use std::time::Instant;

use fuseline_cache::Hit;
use fuseline_sync::oneshot::RecvError;

use super::{Job, JobState, Pending, Progress, QuarantineScope, Refusal, Runner};
use crate::device::{Cause, DeviceError, Executable};
use crate::engine::stream::StreamShared;
use crate::error::Stage;
use crate::event::Event;
use crate::region::Wait;

/// The job to go on with, or what the driver has to know.
type Transition = Result<Box<Job>, Progress>;

impl Job {
    /// Advances the job as far as possible.
    pub(in crate::execute) fn advance(mut self: Box<Self>, stream: &Arc<StreamShared>) -> Progress {
        loop {
            let next = match std::mem::replace(&mut self.state, JobState::New) {
                JobState::New => {
                    self.prepare(stream);
                    Ok(self)
                }
                JobState::Waiting(pending) => self.poll(pending, stream),
                JobState::Ready(runner) => self.run(runner, stream),
                JobState::Refused(refusal) => self.fall_back(refusal, stream),
                JobState::Split(partition) => return self.run_partition(&partition, stream),
            };
            self = match next {
                Ok(job) => job,
                Err(progress) => return progress,
            };
        }
    }

    /// Polls what the job waits for.
    fn poll(mut self: Box<Self>, pending: Pending, stream: &Arc<StreamShared>) -> Transition {
        self.state = match pending {
            Pending::Compile(receiver) => match receiver.try_recv() {
                Err(RecvError::Empty) => {
                    return self.keep_waiting(Pending::Compile(receiver), Wait::Compile, stream);
                }
                Ok(Ok(hit)) => JobState::Ready(Runner::Executable(hit)),
                Ok(Err(error)) => JobState::Refused(Refusal { error, is_cached: false }),
                Err(RecvError::Closed) => {
                    let error = DeviceError::new(Stage::Compile, "the compile was given up");
                    JobState::Refused(Refusal { error: Arc::new(error), is_cached: false })
                }
            },
            Pending::OtherCompile(receiver) => match receiver.try_recv() {
                Err(RecvError::Empty) => {
                    return self.keep_waiting(Pending::OtherCompile(receiver), Wait::Compile, stream);
                }
                _ => JobState::New,
            },
            Pending::Memory(receiver, hit) => match receiver.try_recv() {
                Err(RecvError::Empty) => {
                    return self.keep_waiting(Pending::Memory(receiver, hit), Wait::InFlight, stream);
                }
                _ => {
                    self.end_wait(stream);
                    hit.map_or(JobState::New, |hit| JobState::Ready(Runner::Executable(hit)))
                }
            },
            Pending::Results(receiver) => match receiver.try_recv() {
                Err(RecvError::Empty) => {
                    return self.keep_waiting(Pending::Results(receiver), Wait::Interpreter, stream);
                }
                results => {
                    self.is_past_interpreter = true;
                    self.end_wait(stream);
                    return self.fulfil_interpreted(
                        results.unwrap_or_else(|_| Err(super::interpret::lost())),
                        stream,
                    );
                }
            },
        };
        Ok(self)
    }

    fn keep_waiting(mut self: Box<Self>, pending: Pending, wait: Wait, stream: &StreamShared) -> Transition {
        self.state = JobState::Waiting(pending);
        self.begin_wait(wait, stream);
        Err(Progress::Blocked(self))
    }

    /// Runs the region, if its inputs have data.
    fn run(mut self: Box<Self>, runner: Runner, stream: &Arc<StreamShared>) -> Transition {
        let runner = match runner {
            Runner::Executable(hit) => return Err(self.launch(hit, stream)),
            runner => runner,
        };
        if let Runner::Interpreter(_, Some(compile)) = &runner
            && compile.try_recv() != Err(RecvError::Empty)
        {
            // The executable is there before this execution of the interpreter.
            return Ok(self);
        }
        if self.awaits_input(stream) {
            self.state = JobState::Ready(runner);
            return Err(Progress::Blocked(self));
        }
        self = self.unless_an_input_failed(stream)?;
        let engine = stream.engine();
        let results = match (runner, engine.threads().interpret()) {
            (Runner::Quarantined, _) => self.interpret_quarantined(stream),
            (Runner::Interpreter(run, _), Some(pool)) => self.interpret(run, pool, stream),
            (Runner::Padded(padded, hit), Some(pool)) => self.run_padded(padded, hit, pool, stream),
            // Without the pool the region is compiled.
            (_, None) | (Runner::Executable(_), _) => return Ok(self),
        };
        self.state = JobState::Waiting(Pending::Results(results));
        Ok(self)
    }

    /// Runs the region without an executable of its own, as the cause of the refusal demands.
    fn fall_back(mut self: Box<Self>, refusal: Refusal, stream: &Arc<StreamShared>) -> Transition {
        let Refusal { error, is_cached } = refusal;
        self.end_wait(stream);
        let has_parts = self.ops() > 1;
        Err(match error.cause {
            Cause::Quarantined => {
                self = self.enter_quarantine(error, stream)?;
                self.state = JobState::Ready(Runner::Quarantined);
                return Ok(self);
            }
            Cause::Defective if has_parts => {
                let ops = self.defective_ops(stream);
                // Without one, the executable was refused for other constants than this job's.
                if ops.is_empty() {
                    self.give_up(&error, stream)
                } else {
                    self.isolate(ops, error.message.clone(), stream)
                }
            }
            Cause::Defective => {
                self.quarantine = QuarantineScope::Itself(error);
                self.state = JobState::Ready(Runner::Quarantined);
                return Ok(self);
            }
            // Memory is freed once for a compile of this job, not for a failure that is cached.
            Cause::Memory | Cause::ExceedsHost if !is_cached => self.out_of_memory(&error, None, stream),
            Cause::Memory | Cause::ExceedsHost | Cause::Oversized(_) | Cause::TooManyOps if has_parts => {
                self.in_parts(&error, stream)
            }
            _ => self.give_up(&error, stream),
        })
    }

    /// The job is the first of its stream that is not launched, and it waits.
    pub(super) fn begin_wait(&mut self, wait: Wait, stream: &StreamShared) {
        if self.waits.is_some_and(|(before, _)| before == wait) {
            return;
        }
        self.end_wait(stream);
        let since = Instant::now();
        self.waits = Some((wait, since));
        stream.activity().waits(wait, &self.info, since);
    }

    /// The wait is over.
    pub(super) fn end_wait(&mut self, stream: &StreamShared) {
        if let Some((wait, since)) = self.waits.take() {
            stream.activity().goes_on();
            let (region, took) = (self.info.reference, since.elapsed());
            stream.engine().emit(|| Event::Waited { region, wait, took });
        }
    }

    /// Keeps the job with its executable for a later attempt.
    pub(super) fn blocked(mut self: Box<Self>, hit: Hit<Executable>) -> Progress {
        self.state = JobState::Ready(Runner::Executable(hit));
        Progress::Blocked(self)
    }
}
