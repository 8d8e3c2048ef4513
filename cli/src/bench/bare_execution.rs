//! Bare execution: calls the executables of a steady step in a loop, without the engine.
//!
//! A program runs in Fused mode until it is steady. The executables that the engine launches in the
//! next step are kept, in order. A bare step executes them through PJRT on the same thread, waits
//! for all of them, and drops their outputs. Float arguments are 0.5 and integers 0: nobody reads
//! the results, and the same instructions run. Nothing is donated, so a region that updates in
//! place allocates here.
//!
//! The difference to a step of the engine is the engine's own cost.

use std::collections::HashMap;

use fuseline::fusion::canon::RegionKey;
use fuseline::pjrt::{Buffer, Executable, ExecuteOptions};
use fuseline::{Event, Literal, TensorType};

use super::Warming;
use super::programs::Case;
use super::steady::steady_from;
use crate::device::Watched;
use crate::failure::Failure;

/// The largest number of steps until the program is steady.
const MAX_WARM: usize = 400;

/// One launch: an executable and its arguments, none of which may be donated.
struct Launch {
    executable: Executable,
    args: Vec<Buffer>,
    kept: Vec<i64>,
}

/// A program whose steps are bare launches.
pub(super) struct Floor {
    launches: Vec<Launch>,
}

impl Floor {
    /// Runs a program until it is steady and keeps the launches of the next step.
    pub(super) fn of(watched: &Watched, case: &Case) -> Result<Floor, Failure> {
        let engine = &watched.engine;
        let Some(device) = engine.pjrt_device() else {
            return Err(Failure::Run("the reference interpreter has no executables".to_owned()));
        };
        let mut program = case.make(engine).map_err(Failure::run)?;
        let mut executables: HashMap<RegionKey, Executable> = HashMap::new();
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
        let mut step = || -> Result<Vec<RegionKey>, Failure> {
            let mut launched = Vec::new();
            for event in watched.events() {
                match event {
                    // The last variant of a region has all outputs that have been needed so far.
                    Event::CompileFinished { region, executable: Some(executable), .. } => {
                        executables.insert(region.key, executable);
                    }
                    Event::Launched { region, .. } => launched.push(region.key),
                    _ => {}
                }
            }
            program.step().map_err(Failure::run)?;
            engine.synchronize().map_err(Failure::run)?;
            Ok(launched)
        };
        // The events of a step have arrived when the next one begins.
        step()?;
        let launched = step()?;
        let client = device.client();
        let argument = |ty: &TensorType| {
            let data = Literal::of_f64(ty.dtype(), if ty.dtype().is_float() { 0.5 } else { 0.0 });
            let bytes = data.bytes().repeat(ty.elems().get());
            client.buffer_from_host(ty, &bytes, device).map_err(Failure::run)
        };
        let launch = |key: &RegionKey| {
            let executable = executables.get(key).cloned();
            let executable = executable
                .ok_or_else(|| Failure::Run("an executable was compiled before the run".to_owned()))?;
            let types = executable.parameters().unwrap_or_default();
            let args: Vec<Buffer> = types.iter().map(argument).collect::<Result<_, Failure>>()?;
            let kept = (0..args.len() as i64).collect();
            Ok(Launch { executable, args, kept })
        };
        let launches = launched.iter().map(launch).collect::<Result<Vec<Launch>, Failure>>()?;
        match launches.is_empty() {
            true => Err(Failure::Run("a steady step launches nothing".to_owned())),
            false => Ok(Floor { launches }),
        }
    }

    /// One step.
    pub(super) fn step(&self) -> Result<(), Failure> {
        let mut executions = Vec::with_capacity(self.launches.len());
        for launch in &self.launches {
            let args: Vec<&Buffer> = launch.args.iter().collect();
            let options = ExecuteOptions { non_donatable: &launch.kept, ..ExecuteOptions::default() };
            executions.push(launch.executable.execute(&args, &options).map_err(Failure::run)?);
        }
        // The outputs of an execution become ready together.
        for output in executions.iter().filter_map(|execution| execution.outputs.first()) {
            output.ready_event().and_then(|event| event.wait()).map_err(Failure::run)?;
        }
        Ok(())
    }
}
