//! Handing a region to the device.

use std::sync::Arc;

use fuseline_cache::Hit;
use fuseline_fusion::Scalar;
use smallvec::SmallVec;

use super::job::{Job, Step};
use crate::device::{Buffer, Executable};
use crate::error::bug;
use crate::event::Event;
use crate::stream::StreamShared;
use crate::value::{Maker, Outcome};

impl Job {
    /// Launches the region with its executable, if its inputs are there and the device may have more.
    pub(super) fn launch(mut self: Box<Self>, hit: Hit<Executable>, stream: &Arc<StreamShared>) -> Step {
        let engine = stream.engine();
        let region = self.info.reference;
        // An input from another stream may not have been launched yet; those of this stream have (E1).
        if let Some(input) = self.inputs.iter().find(|input| input.value.0.outcome().get().is_none()) {
            let value = input.value.0.clone();
            if self.awaits.replace(value.id()) != Some(value.id()) {
                let waiting = stream.clone();
                value.outcome().subscribe(move || StreamShared::notify_from_outside(waiting));
            }
            return self.blocked(hit);
        }
        if let Some(failure) = self.failed_input() {
            return if self.is_single() {
                self.poison(failure, stream)
            } else {
                self.split(format!("an input failed: {failure}"), stream)
            };
        }
        if !stream.flow().admits(self.output_bytes) {
            engine.emit(|| Event::Throttled { region });
            return self.blocked(hit);
        }
        let executable = &hit.artifact;
        let mut args: SmallVec<[&Buffer; 32]> = SmallVec::new();
        let mut scalars: SmallVec<[Scalar; 16]> = SmallVec::new();
        for input in &self.inputs {
            match input.value.0.outcome().get() {
                Some(Outcome::Data { buffer, .. }) => args.push(buffer),
                Some(Outcome::Scalar(scalar)) => scalars.push(*scalar),
                other => {
                    let error = bug!("input {:?} of {region} has the outcome {other:?}", input.value);
                    let message = error.to_string();
                    drop(args);
                    return self.fail(
                        &crate::device::DeviceError {
                            stage: crate::error::Stage::Execute,
                            message,
                            resource_exhausted: false,
                        },
                        stream,
                    );
                }
            }
        }
        // Memory is reused where the region is the value's last reader: its handles are gone, and so is every other
        // reference (V2 of `value`).
        let reusable = executable.reusable();
        let may_reuse = |param: u32| {
            let input = &self.inputs[param as usize];
            let reuse = input.dies && Arc::strong_count(&input.value.0) == 1;
            debug_assert!(!reuse || !input.value.0.has_handles(), "bug: {:?} is in use", input.value);
            reuse
        };
        let veto: SmallVec<[i64; 16]> =
            reusable.iter().filter(|&&(_, param)| !may_reuse(param)).map(|&(place, _)| place).collect();
        let executed = engine.device().execute(executable, &args, scalars.into_iter(), &veto);
        drop(args);
        let executed = match executed {
            Ok(executed) => executed,
            Err(error) => {
                let gone =
                    |&(_, param): &(i64, u32)| match self.inputs[param as usize].value.0.outcome().get() {
                        Some(Outcome::Data { buffer, .. }) => buffer.is_gone(),
                        _ => false,
                    };
                // Op by op needs the inputs. A plugin that has taken one away leaves nothing to be tried.
                return if reusable.iter().any(gone) {
                    self.fail(&error, stream)
                } else {
                    self.give_up(&error, stream)
                };
            }
        };
        engine.counters().executions.add(1);
        engine.counters().donations.add((reusable.len() - veto.len()) as u64);
        engine.emit(|| {
            let kept = reusable.iter().filter(|(place, _)| !veto.contains(place));
            Event::Launched { region, donated: kept.map(|&(_, param)| param).collect() }
        });
        if let Some(done) = executed.done {
            let (flow, owner, bytes) = (stream.flow().clone(), Arc::downgrade(stream), self.output_bytes);
            flow.take_off(bytes);
            done.on_ready(move || flow.land(bytes, &owner));
        }
        let mut outputs: Vec<_> = std::mem::take(&mut self.outputs).into_iter().map(Some).collect();
        for (&result, buffer) in executable.outputs().iter().zip(executed.outputs) {
            // The executable may return more than is needed; that is dropped here.
            if let Some(output) = outputs[result as usize].take().filter(|output| output.live) {
                let maker = Some(Maker { region: self.info.clone(), result });
                drop(output.value.resolve(Outcome::Data { buffer, maker }));
            }
        }
        debug_assert!(
            outputs.iter().flatten().all(|output| !output.live),
            "bug: the executable of {region} does not return all that is needed",
        );
        Step::Done
    }
}
