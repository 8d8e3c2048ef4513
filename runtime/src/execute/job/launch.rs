//! Hands a region to the device.

use std::sync::Arc;
use std::time::Instant;

use fuseline_cache::Hit;
use fuseline_cache::disk::Mark;
use fuseline_fusion::Scalar;
use smallvec::SmallVec;

use super::{Job, Progress, cache_key};
use crate::device::{Buffer, Device, DeviceError, DonatedBuffer, Done, Executable, Executed};
use crate::engine::completion::when_done;
use crate::engine::stream::StreamShared;
use crate::engine::value::{Outcome, Producer};
use crate::error::{Stage, bug};
use crate::event::Event;
use crate::region::Wait;

/// The arguments of an execution.
pub(in crate::execute) struct BoundArguments<'a> {
    /// The tensor arguments, in order.
    pub(in crate::execute) args: SmallVec<[&'a Buffer; 32]>,
    /// The lifted scalars.
    pub(in crate::execute) scalars: SmallVec<[Scalar; 16]>,
    /// Numbers of arguments that could be donated and must not be.
    pub(in crate::execute) kept: SmallVec<[i64; 16]>,
}

impl Job {
    /// Launches the region with its executable, if its inputs have data and the in-flight limits
    /// admit another region.
    pub(super) fn launch(mut self: Box<Self>, hit: Hit<Executable>, stream: &Arc<StreamShared>) -> Progress {
        let engine = stream.engine();
        let region = self.info.reference;
        if self.awaits_input(stream) {
            return self.blocked(hit);
        }
        self = match self.unless_an_input_failed(stream) {
            Ok(job) => job,
            Err(instead) => return instead,
        };
        if !stream.in_flight().admits(self.output_bytes) {
            engine.emit(|| Event::Throttled { region });
            self.begin_wait(Wait::InFlight, stream);
            return self.blocked(hit);
        }
        self.end_wait(stream);
        self = match self.trusts(&hit, stream) {
            Ok(job) => job,
            Err(instead) => return instead,
        };
        let executable = self.observe_launch(&hit, stream);
        let since = engine.is_observed().then(Instant::now);
        let executing = stream.activity().executes(&self.info);
        let executed = self.execute(&executable, engine.device());
        drop(executing);
        match executed {
            Ok((executed, kept)) => {
                if hit.is_unproven {
                    engine.cache().confirm(&cache_key(&self.info), self.info.canon.bytes());
                }
                self.fulfil(&executable, executed, &kept, since, stream)
            }
            Err(error) => {
                let gone = |&(_, param): &(i64, u32)| {
                    let outcome = self.inputs[param as usize].value.cell().outcome().get();
                    matches!(outcome, Some(Outcome::Data { buffer, .. }) if buffer.is_gone())
                };
                // Running op by op needs the inputs. A plugin that has taken one away leaves no
                // fallback.
                let is_gone = executable.reusable().iter().any(gone);
                match (is_gone, error.is_out_of_memory()) {
                    (true, true) => self.out_of_memory_for_good(&error, stream),
                    (true, false) => self.fail(&error, stream),
                    (false, true) => self.out_of_memory(&error, Some(hit), stream),
                    (false, false) => self.give_up(&error, stream),
                }
            }
        }
    }

    /// Whether an input has no outcome yet. The stream is notified when it has. Such an input is
    /// from another stream, because earlier regions of this one have been launched (EXEC-1).
    pub(super) fn awaits_input(&mut self, stream: &Arc<StreamShared>) -> bool {
        let Some(input) = self.inputs.iter().find(|input| input.value.cell().outcome().get().is_none())
        else {
            return false;
        };
        let value = input.value.cell().clone();
        if self.awaits.replace(value.id()) != Some(value.id()) {
            stream.engine().promises().note_awaited(value.id());
            let waiting = stream.clone();
            value.outcome().subscribe(move || StreamShared::notify_from_outside(waiting));
        }
        self.begin_wait(Wait::Input, stream);
        true
    }

    /// Returns the job if all its inputs have data. If one failed, returns how the job proceeds
    /// instead.
    pub(super) fn unless_an_input_failed(
        self: Box<Self>,
        stream: &StreamShared,
    ) -> Result<Box<Job>, Progress> {
        match self.failed_input() {
            None => Ok(self),
            Some(failure) if self.is_single() => Err(self.poison(failure, stream)),
            Some(failure) => Err(self.split(format!("an input failed: {failure}"), stream)),
        }
    }

    fn execute(
        &self,
        executable: &Executable,
        device: &Device,
    ) -> Result<(Executed, SmallVec<[i64; 16]>), DeviceError> {
        let BoundArguments { args, scalars, kept } = self.bind(executable)?;
        let executed = device.execute(executable, &args, scalars.into_iter(), &kept)?;
        Ok((executed, kept))
    }

    /// Collects the arguments for the executable. All inputs have data.
    pub(in crate::execute) fn bind(
        &self,
        executable: &Executable,
    ) -> Result<BoundArguments<'_>, DeviceError> {
        let mut args: SmallVec<[&Buffer; 32]> = SmallVec::new();
        let mut scalars: SmallVec<[Scalar; 16]> = SmallVec::new();
        for input in &self.inputs {
            match input.value.cell().outcome().get() {
                Some(Outcome::Data { buffer, .. }) => args.push(buffer),
                Some(Outcome::Scalar(scalar)) => scalars.push(*scalar),
                other => {
                    let region = self.info.reference;
                    let error = bug!("input {:?} of {region} has the outcome {other:?}", input.value);
                    return Err(DeviceError::new(Stage::Execute, error.to_string()));
                }
            }
        }
        let reusable = executable.reusable().iter();
        let kept = reusable.filter(|&&(_, param)| !self.may_reuse(param)).map(|&(place, _)| place).collect();
        Ok(BoundArguments { args, scalars, kept })
    }

    /// Whether an input may be donated: the region is the last reader of its value. All inputs have
    /// data.
    pub(super) fn may_reuse(&self, param: u32) -> bool {
        let input = &self.inputs[param as usize];
        input.dies && input.value.is_last()
    }

    /// Counts an execution as in flight until it is done, and keeps its crash mark until then.
    /// `since` is when it was handed to the device, if the engine is observed.
    pub(super) fn track_in_flight(
        &self,
        done: Option<Done>,
        mark: Option<Mark>,
        since: Option<Instant>,
        stream: &Arc<StreamShared>,
    ) {
        let region = self.info.reference;
        // Captures no engine: a plugin thread must not drop the last reference to one.
        let told = since.map(|since| (stream.engine().events().clone(), since));
        let tell = move || {
            if let Some((events, since)) = told {
                events.emit(|| Event::Completed { region, took: since.elapsed() });
            }
        };
        let Some(done) = done else { return tell() };
        // Observers get the event at once, and a crash mark does not outlive the execution.
        let may_defer = since.is_none() && mark.is_none();
        let (in_flight, owner, bytes) =
            (stream.in_flight().clone(), Arc::downgrade(stream), self.output_bytes);
        in_flight.acquire(bytes);
        let complete = move || {
            drop(mark);
            tell();
            // This may be a plugin thread, where nothing may be torn down. If this is the last
            // reference to the stream, a thread of ours drops it.
            if in_flight.release(bytes)
                && let Some(stream) = owner.upgrade()
            {
                StreamShared::notify_from_outside(stream);
            }
        };
        when_done(done, may_defer, complete);
    }

    /// Drops the inputs that an execution took. `kept` are the numbers of the arguments that were
    /// not donated.
    fn let_go(&mut self, executable: &Executable, kept: &[i64], stream: &StreamShared) {
        if kept.len() == executable.reusable().len() {
            return;
        }
        let mut remains: SmallVec<[DonatedBuffer; 8]> = SmallVec::new();
        // Both lists are in the same order.
        let mut kept = kept.iter().peekable();
        for (place, param) in executable.reusable() {
            if kept.next_if_eq(&place).is_none()
                && let Some(value) = self.inputs[*param as usize].value.get_mut()
                && let Some(Outcome::Data { buffer, .. }) = value.take_outcome()
            {
                remains.extend(buffer.into_remains());
            }
        }
        stream.donated().keep(remains, stream.in_flight());
    }

    /// Hands out the results of an execution. `kept` are the numbers of the arguments that were not
    /// donated.
    pub(in crate::execute) fn fulfil(
        &mut self,
        executable: &Executable,
        executed: Executed,
        kept: &[i64],
        since: Option<Instant>,
        stream: &Arc<StreamShared>,
    ) -> Progress {
        let engine = stream.engine();
        let region = self.info.reference;
        let reusable = executable.reusable();
        engine.counters().executions.add(1);
        engine.counters().donations.add((reusable.len() - kept.len()) as u64);
        engine.emit(|| {
            let donated = reusable.iter().filter(|(place, _)| !kept.contains(place));
            Event::Launched { region, donated: donated.map(|&(_, param)| param).collect() }
        });
        self.track_in_flight(executed.done, executed.mark, since, stream);
        let launch = stream.checks().begin_launch();
        self.info.set_launched(launch.number);
        // Both lists are in ascending order.
        let mut needed = std::mem::take(&mut self.outputs).into_iter().peekable();
        for (&result, buffer) in executable.outputs().iter().zip(executed.outputs) {
            // The executable may return more than is needed. The rest is dropped here.
            if let Some((_, value)) = needed.next_if(|&(needed, _)| needed == result) {
                let maker = Some(Producer { region: self.info.clone(), result });
                drop(value.resolve(Outcome::Data { buffer, maker }));
            }
        }
        drop(launch);
        self.let_go(executable, kept, stream);
        debug_assert!(
            needed.next().is_none(),
            "bug: the executable of {region} does not return all that is needed",
        );
        Progress::Done
    }
}
