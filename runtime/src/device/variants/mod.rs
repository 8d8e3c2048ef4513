//! Decides when another executable of a region should be compiled.
//!
//! An executable serves every execution of its region, but may not be the best for it: it was
//! compiled quickly, it returns results that nobody needs, it does not reuse inputs that die, or it
//! takes constant values as arguments. Each of these is a [`Policy`], which observes the
//! executions and proposes another executable, a *variant*. All policies of an executable are its
//! [`VariantSet`].
//!
//! | policy | observes | proposes |
//! |---|---|---|
//! | [`Baseline`] | a lookup | an optimized executable instead of a baseline one |
//! | [`UnusedOutputs`] | a lookup | an executable that returns less, beside this one |
//! | [`DonationProfile`] | a launch | an executable that reuses more, instead of this one |
//! | [`ScalarProfile`] | a launch | an executable with constants, for launches with the same values |
//!
//! A variant is compiled in the background, and no job waits for it. A compile pays once the
//! executable has lost as much time as it takes: the ski rental of competitive analysis, which
//! costs at most about twice the optimum (Karlin et al., Competitive snoopy caching, Algorithmica
//! 3, 1988). [`Reason`] names the loss, and the budget rule is `Budget` in `budget.rs`.
//!
//! Input: an [`Observation`] of an execution. Output: a [`Proposal`], which
//! `runtime/src/execute/job/variants.rs` compiles.

mod budget;
mod donation_profile;
mod scalar_profile;
mod unused_outputs;

use std::sync::Arc;
use std::time::Duration;

use fuseline_cache::OutputSet;
use fuseline_fusion::Scalar;
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::lower::Specializable;
use fuseline_sync::atomic::{AtomicBool, Ordering};

use self::donation_profile::DonationProfile;
use self::scalar_profile::ScalarProfile;
use self::unused_outputs::UnusedOutputs;
use super::compile_spec::CompileSpec;
use super::{Executable, SpecializedScalars};

/// The executable that a policy observes, and its region.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) region: &'a CanonRegion,
    pub(crate) executable: &'a Executable,
    /// Estimates the time of a compile of the region.
    pub(crate) compile_time: &'a dyn Fn() -> Duration,
}

/// What a policy sees of an execution.
#[derive(Clone, Copy)]
pub(crate) enum Observation<'a> {
    /// A job has found the executable, which returns more than the job needs or is a baseline one.
    Lookup {
        /// The results that the job needs.
        needed: &'a OutputSet,
        /// Parameters that may be donated to a compile.
        donated: &'a dyn Fn() -> Vec<u32>,
    },
    /// The executable is about to be launched. All inputs have data.
    Launch {
        /// Whether a parameter could be donated.
        may_donate: &'a dyn Fn(u32) -> bool,
        /// The value of a lifted scalar.
        scalar: &'a dyn Fn(u32) -> Option<Scalar>,
        /// Whether scalars may be compiled in.
        specializes: bool,
    },
}

/// Where a variant serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In place of the executable.
    Replace,
    /// Beside it in the cache, for jobs that need no more than it returns.
    Narrower,
    /// In launches of the executable whose scalars have the values of its constants.
    Guarded,
}

/// Why a variant is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A baseline executable is used again.
    BaselineReuse,
    /// No counted execution needed some of the results.
    UnusedOutputs { executions: u64 },
    /// These parameters died in all counted executions.
    MissedDonations { params: Vec<u32>, executions: u64 },
    /// Scalars had the same values in many executions.
    SteadyScalars,
}

/// A variant that is worth compiling.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) spec: CompileSpec,
    pub(crate) placement: Placement,
    pub(crate) reason: Reason,
}

/// Observes the executions of an executable and proposes variants.
///
/// A policy proposes nothing while an earlier proposal is pending. The caller compiles each
/// proposal.
trait Policy {
    fn observe(&self, subject: Subject<'_>, observation: Observation<'_>) -> Option<Proposal>;
}

/// Proposes once to replace a baseline executable, when it is used again.
struct Baseline {
    is_proposed: AtomicBool,
}

impl Policy for Baseline {
    fn observe(&self, subject: Subject<'_>, observation: Observation<'_>) -> Option<Proposal> {
        let Observation::Lookup { donated, .. } = observation else { return None };
        if self.is_proposed.swap(true, Ordering::Relaxed) {
            return None;
        }
        // An input that this execution keeps may die in others: it died in the execution that the
        // baseline executable was compiled for.
        let spec = subject.executable.spec_with(donated());
        Some(Proposal { spec, placement: Placement::Replace, reason: Reason::BaselineReuse })
    }
}

/// The policies of an executable.
#[derive(Default)]
pub(crate) struct VariantSet {
    /// For a baseline executable.
    baseline: Option<Baseline>,
    /// Unless another executable will replace it.
    unused_outputs: Option<UnusedOutputs>,
    /// If more can be donated, and unless another executable will replace it.
    donations: Option<DonationProfile>,
    /// If any constants may pay.
    scalars: Option<Box<ScalarProfile>>,
}

impl VariantSet {
    /// The policies of a baseline executable.
    pub(super) fn baseline() -> VariantSet {
        VariantSet {
            baseline: Some(Baseline { is_proposed: AtomicBool::new(false) }),
            ..VariantSet::default()
        }
    }

    /// The policies of an executable that returns `outputs` and reuses `reused`. `specializable`
    /// are the scalars for which constants may pay. `donates`: whether inputs can be donated.
    pub(super) fn optimized(
        region: &CanonRegion,
        outputs: &[u32],
        reused: impl Iterator<Item = u32>,
        donates: bool,
        specializable: Vec<Specializable>,
    ) -> VariantSet {
        VariantSet {
            baseline: None,
            unused_outputs: Some(UnusedOutputs::new()),
            donations: donates.then(|| DonationProfile::of(region, outputs, reused)).flatten(),
            scalars: (!specializable.is_empty()).then(|| Box::new(ScalarProfile::new(specializable))),
        }
    }

    /// Whether the executable is a baseline one.
    #[inline]
    pub(crate) fn is_baseline(&self) -> bool {
        self.baseline.is_some()
    }

    /// Passes an observation to the policies. `compile` starts the compile of a proposal.
    #[inline]
    pub(crate) fn observe(
        &self,
        subject: Subject<'_>,
        observation: Observation<'_>,
        compile: &mut dyn FnMut(Proposal),
    ) {
        fn ask<P: Policy>(of: Option<&P>, subject: Subject<'_>, seen: Observation<'_>) -> Option<Proposal> {
            of?.observe(subject, seen)
        }
        let proposals = match observation {
            Observation::Lookup { .. } => [
                ask(self.baseline.as_ref(), subject, observation),
                ask(self.unused_outputs.as_ref(), subject, observation),
            ],
            Observation::Launch { specializes, .. } => [
                ask(self.donations.as_ref(), subject, observation),
                ask(self.scalars.as_deref().filter(|_| specializes), subject, observation),
            ],
        };
        proposals.into_iter().flatten().for_each(compile);
    }

    /// The variant with constants that serves a launch with these scalars.
    #[inline]
    pub(crate) fn specialized(&self, scalar: impl Fn(u32) -> Option<Scalar>) -> Option<Arc<Executable>> {
        self.scalars.as_ref()?.specialized(scalar)
    }

    /// Takes the variant with constants that was proposed; `None` if it could not be compiled.
    pub(crate) fn set_specialized(&self, variant: Option<Arc<Executable>>) {
        if let Some(scalars) = &self.scalars {
            scalars.compiled(variant);
        }
    }
}
