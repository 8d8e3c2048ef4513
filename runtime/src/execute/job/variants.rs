//! Compiles the variants that the policies of an executable propose
//! ([`VariantSet`](crate::device::VariantSet)), and chooses the one to launch.

use std::sync::Arc;

use fuseline_cache::Hit;

use super::{Job, cache_key};
use crate::device::{Executable, Observation, Placement, Proposal, Reason, Subject};
use crate::engine::stream::StreamShared;
use crate::event::Event;
use crate::execute::compile::{Compile, FailureCaching, MemoryFallback};
use crate::tier::CompilePriority;
use crate::tier::cost::compile_time;

impl Job {
    /// Reports a lookup to the policies of the executable that it found.
    pub(super) fn observe_lookup(&self, hit: &Hit<Executable>, stream: &Arc<StreamShared>) {
        // The usual executable has nothing to observe.
        if hit.outputs != self.needed || hit.artifact.variants().is_baseline() {
            let donated = || self.dying();
            self.observe(hit, Observation::Lookup { needed: &self.needed, donated: &donated }, stream);
        }
    }

    /// Reports a launch to the policies of its executable. Returns the executable to launch, which
    /// has the scalars of this launch as constants or is the one that was found.
    pub(super) fn observe_launch(
        &self,
        hit: &Hit<Executable>,
        stream: &Arc<StreamShared>,
    ) -> Arc<Executable> {
        let specializes = stream.engine().config().specialises_scalars();
        let scalar = |param: u32| self.inputs.get(param as usize)?.value.cell().as_scalar();
        let may_donate = |param| self.may_reuse(param);
        let launch = Observation::Launch { may_donate: &may_donate, scalar: &scalar, specializes };
        self.observe(hit, launch, stream);
        match hit.artifact.variants().specialized(scalar).filter(|_| specializes) {
            Some(variant) => {
                stream.engine().counters().specialised.add(1);
                variant
            }
            None => hit.artifact.clone(),
        }
    }

    fn observe(&self, hit: &Hit<Executable>, observation: Observation<'_>, stream: &Arc<StreamShared>) {
        if !stream.engine().config().is_free_to_compile() {
            return;
        }
        let region = &*self.info.canon;
        let compile_time = || compile_time(region.graph());
        let subject = Subject { region, executable: &hit.artifact, compile_time: &compile_time };
        hit.artifact.variants().observe(subject, observation, &mut |proposal| {
            self.compile_variant(hit, proposal, stream);
        });
    }

    /// Compiles a variant in the background. It goes to where the next execution finds it.
    fn compile_variant(&self, hit: &Hit<Executable>, proposal: Proposal, stream: &Arc<StreamShared>) {
        let (engine, region, old) = (stream.engine(), self.info.reference, hit.artifact.clone());
        let Proposal { mut spec, placement, reason } = proposal;
        let key = cache_key(&self.info);
        let claim = match placement {
            Placement::Narrower => {
                let claim = engine.cache().claim_narrower(&key, self.info.canon.bytes(), spec.outputs);
                // None, if the region has as many executables as it may have.
                let Some(claim) = claim else { return };
                spec.outputs = claim.outputs().clone();
                Some(claim)
            }
            Placement::Replace | Placement::Guarded => None,
        };
        match reason {
            Reason::UnusedOutputs { executions } => engine.emit(|| {
                let surplus = hit.outputs.len() - spec.outputs.len();
                Event::OutputsPruned { region, surplus, executions }
            }),
            Reason::MissedDonations { params: inputs, executions } => {
                engine.emit(|| Event::DonationExtended { region, inputs, executions });
            }
            // Reported when it is compiled.
            Reason::BaselineReuse | Reason::SteadyScalars => {}
        }
        let compile = Compile { spec, otherwise: MemoryFallback::Executable(old.memory()) };
        match placement {
            Placement::Narrower => {
                let (priority, caching) = (CompilePriority::Background, FailureCaching::Nothing);
                drop(compile.start(claim, priority, caching, &self.info, stream));
            }
            Placement::Replace => compile.start_beside(&self.info, stream, move |compiled, engine| {
                let Ok((executable, counted)) = compiled else { return };
                let evicted = engine.cache().replace(&key, &old, executable);
                drop(counted);
                engine.report_evicted(&evicted.unwrap_or_default());
            }),
            Placement::Guarded => compile.start_beside(&self.info, stream, move |compiled, _| {
                let (variant, _counted) = compiled.ok().unzip();
                old.variants().set_specialized(variant.map(Arc::new));
            }),
        }
    }
}
