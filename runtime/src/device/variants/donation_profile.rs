//! Decides when an executable should be given more inputs than it reuses.
//!
//! An executable is compiled for the inputs that die in the execution that requests it: their
//! memory becomes that of its results. A program may keep a value then that it drops in later steps
//! (such as its first state, which somebody else holds too). The executable still serves, but
//! allocates each time what could have been donated. When that has cost as much as another compile,
//! an executable is compiled that may take it.
//!
//! Input: an executable, and which of its inputs die in each execution. Output: additional
//! parameters to compile for.
//!
//! Invariants:
//! - VARIANT-5: only parameters are added that died in all counted executions, so no copies are
//!   made for a host that keeps a value now and then. An executable asks once. Each replacement may
//!   reuse more, so there are at most as many as there are results.
//! - VARIANT-6: the decision follows from the region and from what died, never from a clock.

use std::time::Duration;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::lower::Aliases;
use fuseline_fusion::{Bytes, Ref, TensorType};
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::budget::Budget;
use super::{Observation, Placement, Policy, Proposal, Reason, Subject};

/// Cost of newly allocated memory for a result in each execution, whatever its size. Source of this
/// and the following constants: a chain of three ops on XLA's CPU backend with 2 cores, whose state
/// is also held by somebody else, or not (`cost_of_what_is_not_reused` in
/// `tests/engine/donation.rs`, 2026-11-23): 0.2 µs with 4 B, 1.7 µs with 4 KiB, 8 µs with 64 KiB,
/// 40 µs with 256 KiB, 60 µs with 1 MiB, 0.1 ms with 4 MiB, 0.75 ms with 16 MiB.
const EACH: Duration = Duration::from_nanos(200);

/// Additional cost from the size on at which memory comes from the system.
const MAPPED: Duration = Duration::from_micros(30);
const LARGE: u64 = 128 << 10;

/// Bytes that cost another nanosecond, for results below that size and from it on.
const SMALL_BYTES_PER_NANO: u64 = 8;
const LARGE_BYTES_PER_NANO: u64 = 24;

/// The missed donations of an executable.
pub(super) struct DonationProfile {
    /// The types of its results that alias no input.
    fresh: Vec<TensorType>,
    /// Parameters that are not reused and that such a result could alias, ascending.
    params: Box<[u32]>,
    state: Mutex<DonationState>,
}

struct DonationState {
    /// Which of them have died in all counted executions, ascending.
    dying: SmallVec<[u32; 8]>,
    budget: Budget,
    /// Another executable was requested.
    asked: bool,
}

impl DonationProfile {
    /// For an executable that returns `outputs` and reuses `reused`. `None` if nothing more can be
    /// donated.
    pub(super) fn of(
        region: &CanonRegion,
        outputs: &[u32],
        reused: impl Iterator<Item = u32>,
    ) -> Option<DonationProfile> {
        let graph = region.graph();
        let reused: SmallVec<[u32; 16]> = reused.collect();
        let types = outputs.iter().filter_map(|&output| graph.type_of(Ref::Result(output)));
        let mut fresh: Vec<TensorType> = types.cloned().collect();
        reused.iter().for_each(|&param| drop(take(&mut fresh, &graph.params()[param as usize])));
        // The common case of a steady loop. Each executable that is loaded passes here.
        if fresh.is_empty() {
            return None;
        }
        let is_missed =
            |param: &u32| !reused.contains(param) && fresh.contains(&graph.params()[*param as usize]);
        let params: Box<[u32]> = Aliases::possible(region, outputs).into_iter().filter(is_missed).collect();
        (!params.is_empty()).then(|| DonationProfile {
            fresh,
            params,
            state: Mutex::new(
                Rank::DonationProfile,
                DonationState { dying: SmallVec::new(), budget: Budget::new(), asked: false },
            ),
        })
    }

    /// Notes an execution. `dies` says whether a parameter could have been donated; `compile`
    /// estimates the time of a compile. Returns parameters that are worth a compile, besides those
    /// that are reused now, and the number of executions in which they died.
    fn note(
        &self,
        region: &CanonRegion,
        dies: impl Fn(u32) -> bool,
        compile: impl FnOnce() -> Duration,
    ) -> Option<(Vec<u32>, u64)> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.asked {
            return None;
        }
        let before = match state.budget.executions() {
            0 => {
                state.dying = self.params.iter().copied().collect();
                usize::MAX
            }
            _ => state.dying.len(),
        };
        state.dying.retain(|param| dies(*param));
        if state.dying.is_empty() {
            state.budget.restart();
            return None;
        }
        if state.dying.len() < before {
            state.budget.set_loss(self.waste(region, &state.dying), compile());
        }
        if !state.budget.count() {
            return None;
        }
        state.asked = true;
        Some((std::mem::take(&mut state.dying).into_vec(), state.budget.executions()))
    }

    /// The additional time of an execution that does not reuse these.
    fn waste(&self, region: &CanonRegion, dying: &[u32]) -> Duration {
        let mut fresh = self.fresh.clone();
        let types = dying.iter().map(|&param| &region.graph().params()[param as usize]);
        types.filter_map(|ty| take(&mut fresh, ty)).map(|ty| cost(ty.bytes())).sum()
    }
}

impl Policy for DonationProfile {
    fn observe(&self, subject: Subject<'_>, observation: Observation<'_>) -> Option<Proposal> {
        let Observation::Launch { may_donate, .. } = observation else { return None };
        let Subject { region, executable, compile_time } = subject;
        let (params, executions) = self.note(region, may_donate, compile_time)?;
        let spec = executable.spec_with(params.clone());
        // Two of the requested inputs may compete for the same result.
        if spec.aliases(region).1.pairs().len() <= executable.reusable().len() {
            return None;
        }
        let reason = Reason::MissedDonations { params, executions };
        Some(Proposal { spec, placement: Placement::Replace, reason })
    }
}

/// Removes one type from the list, if it is there.
fn take(types: &mut Vec<TensorType>, ty: &TensorType) -> Option<TensorType> {
    let place = types.iter().position(|other| other == ty)?;
    Some(types.swap_remove(place))
}

/// The additional time of an execution for a result of this size in new memory.
fn cost(bytes: Bytes) -> Duration {
    match bytes.0 {
        ..LARGE => EACH + Duration::from_nanos(bytes.0 / SMALL_BYTES_PER_NANO),
        LARGE.. => EACH + MAPPED + Duration::from_nanos(bytes.0 / LARGE_BYTES_PER_NANO),
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::{Attrs, DType, Graph, OpCode};

    use super::*;

    const COMPILE: Duration = Duration::from_millis(10);

    /// This many states, each an op on the one before, and one number that is no state.
    fn region(states: usize, size: u64) -> CanonRegion {
        let mut graph = Graph::new();
        let ty = TensorType::of(DType::F32, &[size]).unwrap();
        let params: Vec<Ref> = (0..states).map(|_| graph.param(ty.clone())).collect();
        graph.param(TensorType::of(DType::F32, &[]).unwrap());
        for param in params {
            graph.push(OpCode::Negate, Attrs::none(), &[], &[param]).unwrap();
        }
        CanonRegion::new(graph, vec![false; states + 1].into())
    }

    fn donation_profile(region: &CanonRegion, states: u32, reused: &[u32]) -> Option<DonationProfile> {
        let outputs: Vec<u32> = (0..states).collect();
        DonationProfile::of(region, &outputs, reused.iter().copied())
    }

    /// Notes at most `most` executions, until a compile is requested.
    fn run(of: &DonationProfile, region: &CanonRegion, dying: &[u32], most: u32) -> Option<(Vec<u32>, u64)> {
        (0..most).find_map(|_| of.note(region, |param| dying.contains(&param), || COMPILE))
    }

    #[test]
    fn an_executable_that_is_given_all_asks_for_nothing() {
        let region = region(2, 1 << 10);
        assert!(donation_profile(&region, 2, &[0, 1]).is_none());
        // There is one result, and it has its memory.
        assert!(donation_profile(&region, 1, &[1]).is_none());
    }

    /// VARIANT-5: requested once, as soon as it has cost as much as a compile.
    #[test]
    fn what_dies_each_time_is_asked_for_once() {
        let region = region(3, 1 << 20);
        let donation_profile = donation_profile(&region, 3, &[1]).unwrap();
        let each = cost(Bytes(4 << 20));
        let (params, executions) = run(&donation_profile, &region, &[0, 1, 2, 3], 1_000).unwrap();
        assert_eq!(params, [0, 2]);
        assert_eq!(u128::from(executions), COMPILE.as_nanos().div_ceil(2 * each.as_nanos()));
        assert_eq!(run(&donation_profile, &region, &[0, 2], 1_000), None);
    }

    /// VARIANT-5: a value that lives on now and then is not requested, and does not prevent others.
    #[test]
    fn what_lives_on_now_and_then_is_not_asked_for() {
        let region = region(2, 1 << 20);
        let donation_profile = donation_profile(&region, 2, &[]).unwrap();
        for _ in 0..100 {
            assert_eq!(run(&donation_profile, &region, &[0], 2), None);
            assert_eq!(run(&donation_profile, &region, &[1], 2), None);
        }
        assert_eq!(run(&donation_profile, &region, &[0, 1], 1), None);
        assert_eq!(run(&donation_profile, &region, &[1], 1_000).unwrap().0, [1]);
    }

    /// More inputs than results die: only as much is saved as there are results.
    #[test]
    fn what_is_saved_is_counted_by_results() {
        let region = region(4, 1 << 20);
        let count = |states| {
            let donation_profile = donation_profile(&region, states, &[]).unwrap();
            run(&donation_profile, &region, &[0, 1, 2, 3], 10_000).unwrap().1
        };
        assert!(count(1) > 3 * count(4));
    }
}
