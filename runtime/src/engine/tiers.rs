//! The tiers of an engine: what they know of its regions.

use crate::device::Device;
use crate::settings::Settings;
use crate::tier::host_eval::HostEval;
use crate::tier::interpreter::InterpreterTier;
use crate::tier::miss_history::MissHistory;
use crate::tier::padded_regions::PaddedRegions;

/// The history of regions, and the tiers that are on.
pub(crate) struct Tiers {
    history: MissHistory,
    interpreter: Option<InterpreterTier>,
    host_eval: Option<HostEval>,
    padded_regions: Option<PaddedRegions>,
}

impl Tiers {
    pub(crate) fn new(config: &Settings, device: &Device) -> Tiers {
        let is_near = device.is_near_host();
        let interpreter = (is_near && config.interprets_cold_regions()).then(InterpreterTier::new);
        let is_apart = device.pjrt().is_some() && config.interprets_cold_regions();
        let host_eval = is_apart.then(HostEval::new);
        let padded_regions = PaddedRegions::new(config.padded_classes(), config.buckets).filter(|_| is_near);
        Tiers { history: MissHistory::new(), interpreter, host_eval, padded_regions }
    }

    /// Whether a tier runs work on the interpreter thread.
    pub(crate) fn use_interpreter(&self) -> bool {
        self.interpreter.is_some() || self.padded_regions.is_some()
    }

    /// The regions that were looked up before.
    pub(crate) fn history(&self) -> &MissHistory {
        &self.history
    }

    /// The interpreter tier, if it is on.
    pub(crate) fn interpreter(&self) -> Option<&InterpreterTier> {
        self.interpreter.as_ref()
    }

    /// Host evaluation of small results. `None` if it is off, and on the reference device.
    pub(crate) fn host_eval(&self) -> Option<&HostEval> {
        self.host_eval.as_ref()
    }

    /// The padded regions, if shape classes are on.
    pub(crate) fn padded_regions(&self) -> Option<&PaddedRegions> {
        self.padded_regions.as_ref()
    }

    /// Takes the padded regions, whose executables must not outlive the engine.
    pub(crate) fn take_padded_regions(&mut self) -> Option<PaddedRegions> {
        self.padded_regions.take()
    }
}
