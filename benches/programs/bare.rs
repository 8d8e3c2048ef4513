//! Calls of executables through PJRT alone, without the engine.

use std::collections::HashMap;

use fuseline::fusion::canon::RegionKey;
use fuseline::pjrt::{Buffer, Device, Error, Executable, ExecuteOptions, Execution};
use fuseline::{Event, Literal, TensorType};

/// The executables and launches that an engine has reported.
#[derive(Default)]
pub(crate) struct LaunchLog {
    executables: HashMap<RegionKey, Executable>,
    launched: Vec<RegionKey>,
}

impl LaunchLog {
    /// Notes an event.
    pub(crate) fn note(&mut self, event: Event) {
        match event {
            // The last variant of a region has all outputs that have been needed so far.
            Event::CompileFinished { region, executable: Some(executable), .. } => {
                self.executables.insert(region.key, executable);
            }
            Event::Launched { region, .. } => self.launched.push(region.key),
            _ => {}
        }
    }

    /// The regions that were launched since the last call, in order, each with its executable if
    /// that was reported.
    pub(crate) fn take_launched(&mut self) -> Vec<Option<Executable>> {
        let launched = std::mem::take(&mut self.launched);
        launched.iter().map(|key| self.executables.get(key).cloned()).collect()
    }
}

/// An executable, and arguments that it must not take by donation.
pub(crate) struct BareCall {
    executable: Executable,
    args: Vec<Buffer>,
    non_donatable: Vec<i64>,
}

impl BareCall {
    /// Uploads arguments: 0.5 for floats and 0 for integers.
    ///
    /// # Errors
    /// Those of the uploads.
    pub(crate) fn new(executable: Executable, device: &Device) -> Result<BareCall, Error> {
        let argument = |ty: &TensorType| {
            let element = if ty.dtype().is_float() { 0.5 } else { 0.0 };
            let bytes = Literal::of_f64(ty.dtype(), element).bytes().repeat(ty.elems().get());
            device.client().buffer_from_host(ty, &bytes, device)
        };
        let types = executable.parameters().unwrap_or_default();
        let args: Vec<Buffer> = types.iter().map(argument).collect::<Result<_, Error>>()?;
        let non_donatable = (0..args.len() as i64).collect();
        Ok(BareCall { executable, args, non_donatable })
    }

    /// Starts an execution.
    ///
    /// # Errors
    /// Those of the plugin.
    pub(crate) fn execute(&self) -> Result<Execution, Error> {
        let args: Vec<&Buffer> = self.args.iter().collect();
        let options = ExecuteOptions { non_donatable: &self.non_donatable, ..ExecuteOptions::default() };
        self.executable.execute(&args, &options)
    }
}
