//! Launching executables with constants for scalars that stay the same: what [`Habit`](crate::device::Habit) decides.

use std::sync::Arc;
use std::time::Instant;

use fuseline_cache::{Artifact as _, OutputSet};
use fuseline_fusion::Bytes;

use super::compile::{guarded, tell_lowered};
use super::job::Job;
use crate::device::{Choice, Executable, Fixed, How};
use crate::event::Event;
use crate::stream::StreamShared;

impl Job {
    /// The executable to launch instead of a general one, or that one.
    pub(super) fn specialised(
        &self,
        general: &Arc<Executable>,
        stream: &Arc<StreamShared>,
    ) -> Arc<Executable> {
        let Some(habit) = general.habit() else { return general.clone() };
        if !stream.engine().config().specialises_scalars() {
            return general.clone();
        }
        let scalar = |param: u32| self.inputs.get(param as usize)?.value.0.as_scalar();
        match habit.choose(scalar) {
            Choice::General => general.clone(),
            Choice::Special(special) => {
                stream.engine().counters().specialised.add(1);
                special
            }
            Choice::Compile(fixed) => {
                self.compile_fixed(general.clone(), fixed, stream);
                general.clone()
            }
        }
    }

    fn compile_fixed(&self, general: Arc<Executable>, fixed: Fixed, stream: &Arc<StreamShared>) {
        let (info, owner) = (self.info.clone(), stream.clone());
        stream.engine().counters().compiles_asked.add(1);
        stream.engine().compile_pool().push_unhurried(
            None,
            Box::new(move || {
                let Some(habit) = general.habit() else { return };
                let engine = owner.engine();
                let region = info.reference;
                let outputs: OutputSet = general.outputs().iter().copied().collect();
                let dying: Vec<u32> = general.reusable().iter().map(|&(_, param)| param).collect();
                tell_lowered(&info, &outputs, &dying, &fixed, engine);
                let start = Instant::now();
                let compile = || {
                    engine.device().compile(
                        &info.canon,
                        &outputs,
                        &dying,
                        How { fixed: fixed.clone(), quick: false },
                    )
                };
                let compiled = guarded(compile);
                let took = start.elapsed();
                match compiled {
                    Ok(special) => {
                        let size = Bytes(special.bytes());
                        habit.compiled(Some(Arc::new(special)));
                        engine.emit(|| Event::Specialised { region, scalars: fixed.to_vec(), took, size });
                        engine.counters().compile_nanos.add(took.as_nanos() as u64);
                        engine.counters().compiles.add(1);
                    }
                    Err(error) => {
                        habit.compiled(None);
                        engine.emit(|| Event::CompileFailed { region, message: error.message });
                        engine.counters().compile_failures.add(1);
                    }
                }
            }),
        );
    }
}
