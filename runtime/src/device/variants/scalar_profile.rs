//! Compiles in scalars that stay the same.
//!
//! A lifted scalar is an argument, so a new value compiles nothing. But some ops are up to 1.7
//! times as fast when their scalar is a constant ([`Specializable`] has the figures), and
//! most numbers of a program never change. So an executable whose region has such a scalar keeps
//! count of its values. After [`STEADY`] consecutive executions with the same value, another
//! executable is compiled in which it is a constant.
//!
//! Input: the scalars of an execution that is about to be launched. Output: constants that are
//! worth a compile, and the executable with constants that serves the launch.
//!
//! Invariants:
//! - VARIANT-1: an executable with constants runs only where the scalars have the same bits.
//! - VARIANT-2: nobody waits for such an executable, no region and no key depends on it, and a
//!   region causes at most [`MAX_TRIES`] of these compiles. After a value has changed, the next try
//!   takes [`PATIENCE`] times as long (hysteresis), so a schedule with long steps settles on
//!   arguments.
//!
//! Constants exist only with `Numerics::Fast`, because compilers compute with constants by other
//! code than at run time, and only without comparison of regions, because each of these executables
//! would need one too. Such an executable lives as long as the general one that it replaces; the
//! budget of the cache counts the general one only.

use std::sync::Arc;

use fuseline_fusion::Scalar;
use fuseline_fusion::lower::Specializable;
use fuseline_sync::atomic::{AtomicBool, Ordering};
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::{
    CompileSpec, Executable, Observation, Placement, Policy, Proposal, Reason, SpecializedScalars, Subject,
};

/// Number of executions after which a value counts as steady. A compile takes as long as some
/// thousand executions of the size at which it pays, and saves a fifth to a half of each.
const STEADY: u32 = 1_000;

/// Factor by which the number of executions grows for each further try.
const PATIENCE: u32 = 8;

/// Maximum number of compiles of one region with constants.
const MAX_TRIES: u32 = 3;

/// The scalars of an executable's executions.
pub(super) struct ScalarProfile {
    /// The scalars for which a constant may pay.
    specializable: Vec<Specializable>,
    state: Mutex<ProfileState>,
    /// Whether there may be a variant.
    has_special: AtomicBool,
}

struct ProfileState {
    /// The latest value of each of [`ScalarProfile::specializable`], and the number of consecutive
    /// executions with it.
    latest: SmallVec<[(Scalar, u32); 4]>,
    /// Number of executions with the same value that the next try needs.
    needed: u32,
    tries: u32,
    special: Special,
}

enum Special {
    None,
    /// It is being compiled.
    Pending,
    Ready(Arc<Executable>),
}

impl ScalarProfile {
    pub(super) fn new(specializable: Vec<Specializable>) -> ScalarProfile {
        let state =
            ProfileState { latest: SmallVec::new(), needed: STEADY, tries: 0, special: Special::None };
        ScalarProfile {
            specializable,
            state: Mutex::new(Rank::ScalarProfile, state),
            has_special: AtomicBool::new(false),
        }
    }

    /// Notes an execution. `scalar` returns the value of a parameter. Returns constants that are
    /// worth a compile.
    fn note(&self, scalar: impl Fn(u32) -> Option<Scalar>) -> Option<SpecializedScalars> {
        let mut state = self.state.lock();
        let state = &mut *state;
        for (index, specializable) in self.specializable.iter().enumerate() {
            let value = scalar(specializable.param)?;
            match state.latest.get_mut(index) {
                None => state.latest.push((value, 1)),
                Some((latest, times)) if *latest == value => *times = times.saturating_add(1),
                Some(latest) => *latest = (value, 1),
            }
        }
        if !matches!(state.special, Special::None) || state.tries == MAX_TRIES {
            return None;
        }
        let known = self.specializable.iter().zip(&state.latest);
        let steady = known.filter(|(scalar, (value, times))| *times >= state.needed && scalar.pays(*value));
        let constants: SpecializedScalars =
            steady.map(|(scalar, &(value, _))| (scalar.param, value)).collect();
        if constants.is_empty() {
            return None;
        }
        state.tries += 1;
        state.needed = state.needed.saturating_mul(PATIENCE);
        state.special = Special::Pending;
        Some(constants)
    }

    /// The variant that serves a launch with these scalars. One that does not is dropped.
    #[inline]
    pub(super) fn specialized(&self, scalar: impl Fn(u32) -> Option<Scalar>) -> Option<Arc<Executable>> {
        // Relaxed: a hint; the lock orders the rest.
        if !self.has_special.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.state.lock();
        let Special::Ready(special) = &state.special else { return None };
        let is = |&(param, value): &(u32, Scalar)| scalar(param) == Some(value);
        if special.constants().iter().all(is) {
            return Some(special.clone());
        }
        let gone = std::mem::replace(&mut state.special, Special::None);
        self.has_special.store(false, Ordering::Relaxed);
        drop(state);
        // The plugin takes time to destroy an executable.
        drop(gone);
        None
    }

    /// Takes the result of a compile.
    pub(super) fn compiled(&self, special: Option<Arc<Executable>>) {
        let (is_ready, special) = (special.is_some(), special.map_or(Special::None, Special::Ready));
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.special, special);
        self.has_special.store(is_ready, Ordering::Relaxed);
        drop(state);
        drop(before);
    }
}

impl Policy for ScalarProfile {
    fn observe(&self, subject: Subject<'_>, observation: Observation<'_>) -> Option<Proposal> {
        let Observation::Launch { scalar, .. } = observation else { return None };
        let constants = self.note(scalar)?;
        let spec = CompileSpec { constants, ..subject.executable.spec_with(Vec::new()) };
        Some(Proposal { spec, placement: Placement::Guarded, reason: Reason::SteadyScalars })
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::canon::CanonRegion;
    use fuseline_fusion::{Attrs, DType, Graph, OpCode, TensorType, lower};

    use super::*;

    /// The profile of a power with a lifted exponent.
    fn scalar_profile() -> ScalarProfile {
        let scalar = TensorType::scalar(DType::F32);
        let mut graph = Graph::new();
        let (x, exponent) = (graph.param(scalar.clone()), graph.param(scalar));
        graph.push(OpCode::Power, Attrs::none(), &[], &[x, exponent]).unwrap();
        ScalarProfile::new(lower::fixable(&CanonRegion::new(graph, Box::new([false, true]))))
    }

    fn asks(scalar_profile: &ScalarProfile, value: f32) -> Option<SpecializedScalars> {
        scalar_profile.note(|param| (param == 1).then(|| Scalar::new(value)))
    }

    #[test]
    fn what_stays_is_compiled_in_and_what_changes_again_takes_longer() {
        let scalar_profile = scalar_profile();
        let mut needed = STEADY;
        for _ in 0..MAX_TRIES {
            // An earlier value counts for nothing.
            assert!(asks(&scalar_profile, 3.0).is_none());
            for _ in 1..needed {
                assert!(asks(&scalar_profile, 2.0).is_none());
            }
            assert_eq!(asks(&scalar_profile, 2.0).unwrap().as_slice(), [(1, Scalar::new(2.0f32))]);
            // While it is being compiled, nothing is requested.
            assert!(asks(&scalar_profile, 2.0).is_none());
            scalar_profile.compiled(None);
            needed *= PATIENCE;
        }
        for _ in 0..2 * needed {
            assert!(asks(&scalar_profile, 2.0).is_none());
        }
    }

    #[test]
    fn what_varies_or_does_not_pay_is_left() {
        let scalar_profile = scalar_profile();
        for step in 0..3 * STEADY {
            assert!(asks(&scalar_profile, (step % 2) as f32).is_none());
        }
        for _ in 0..3 * STEADY {
            assert!(asks(&scalar_profile, 2.1).is_none());
        }
    }
}
