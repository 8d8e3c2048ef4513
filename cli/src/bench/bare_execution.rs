//! Bare execution: calls the executables of a steady step in a loop, without the engine.
//!
//! A program runs in Fused mode until it is steady. The executables that the engine launches in the
//! next step are kept, in order. A bare step executes them through PJRT on the same thread, waits
//! for all of them, and drops their outputs. Float arguments are 0.5 and integers 0: nobody reads
//! the results, and the same instructions run. Nothing is donated, so a region that updates in
//! place allocates here.
//!
//! The difference to a step of the engine is the engine's own cost.

use super::Warming;
use super::bare::{BareCall, LaunchLog};
use super::programs::Case;
use super::steady::steady_from;
use crate::device::Watched;
use crate::failure::Failure;

/// The largest number of steps until the program is steady.
const MAX_WARM: usize = 400;

/// A program whose steps are bare calls.
pub(super) struct Floor {
    calls: Vec<BareCall>,
}

impl Floor {
    /// Runs a program until it is steady and keeps the calls of the next step.
    pub(super) fn of(watched: &Watched, case: &Case) -> Result<Floor, Failure> {
        let engine = &watched.engine;
        let Some(device) = engine.pjrt_device() else {
            return Err(Failure::Run("the reference interpreter has no executables".to_owned()));
        };
        let mut program = case.make(engine).map_err(Failure::run)?;
        let mut log = LaunchLog::default();
        let (mut times, mut compiles) = (Vec::new(), Vec::new());
        let mut warming = Warming::default();
        while steady_from(&times, &compiles).is_none() {
            if times.len() == MAX_WARM {
                return Err(Failure::Run(format!("it still compiles after {MAX_WARM} steps")));
            }
            let start = std::time::Instant::now();
            program.step().map_err(Failure::run)?;
            times.push(start.elapsed().as_nanos() as u64);
            compiles.push(warming.after_step(engine));
        }
        let mut step = || -> Result<Vec<_>, Failure> {
            watched.events().into_iter().for_each(|event| log.note(event));
            let launched = log.take_launched();
            program.step().map_err(Failure::run)?;
            engine.synchronize().map_err(Failure::run)?;
            Ok(launched)
        };
        // The events of a step have arrived when the next one begins.
        step()?;
        let call = |executable: Option<_>| {
            let executable = executable
                .ok_or_else(|| Failure::Run("an executable was compiled before the run".to_owned()))?;
            BareCall::new(executable, device).map_err(Failure::run)
        };
        let calls = step()?.into_iter().map(call).collect::<Result<Vec<_>, Failure>>()?;
        match calls.is_empty() {
            true => Err(Failure::Run("a steady step launches nothing".to_owned())),
            false => Ok(Floor { calls }),
        }
    }

    /// One step.
    pub(super) fn step(&self) -> Result<(), Failure> {
        let executions = self.calls.iter().map(BareCall::execute).collect::<Result<Vec<_>, _>>();
        let executions = executions.map_err(Failure::run)?;
        // The outputs of an execution become ready together.
        for output in executions.iter().filter_map(|execution| execution.outputs.first()) {
            output.ready_event().and_then(|event| event.wait()).map_err(Failure::run)?;
        }
        Ok(())
    }
}
