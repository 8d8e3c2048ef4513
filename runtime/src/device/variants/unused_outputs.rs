//! Counts results that an executable returns and nobody needs.
//!
//! A lookup accepts an executable that returns more than is needed, so a program whose live values
//! vary waits for no compile. But each unneeded result is memory that is allocated and written, and
//! may prevent fusion. So such an executable keeps count, until it has wasted as much time as a
//! compile takes.
//!
//! Input: the results that an execution needs. Output: the results for which an executable is worth
//! compiling.
//!
//! Invariants:
//! - VARIANT-3: only results that no counted execution needed are left out. If the needs of a
//!   program vary (a garbage collector drops values late), they add up to all results, the count
//!   starts again, and nothing is compiled. Each further executable takes [`PATIENCE`] times as
//!   much waste, and a region gets at most [`fuseline_cache::MAX_NARROWED`].
//! - VARIANT-4: the decision follows from the region and from what its executions needed, never
//!   from a clock.

use std::time::Duration;

use fuseline_cache::OutputSet;
use fuseline_fusion::Bytes;
use fuseline_fusion::canon::CanonRegion;
use fuseline_sync::{Mutex, Rank};

use super::budget::Budget;
use super::{CompileSpec, Observation, Placement, Policy, Proposal, Reason, Subject};

/// Cost of an unneeded result in each execution, whatever its size. Source of this and the
/// following constants: a chain of 8 ops whose other 7 results are returned in vain, on XLA's CPU
/// backend with 2 cores (`cost_of_a_surplus` in `tests/engine/variants.rs`, 2026-11-23). Each
/// result costs 0.6 µs with 4 B, 1.0 µs with 4 KiB, 2.1 µs with 64 KiB; 88 µs with 256 KiB, 0.45 ms
/// with 1 MiB, 1.7 ms with 4 MiB, 9.8 ms with 16 MiB.
const EACH: Duration = Duration::from_nanos(500);

/// The size from which memory comes from the system each time, with a fault for each page.
const LARGE: u64 = 128 << 10;

/// Bytes that cost another nanosecond, for results below that size and from it on.
const SMALL_BYTES_PER_NANO: u64 = 32;
const LARGE_BYTES_PER_NANO: u64 = 3;

/// How many times as much waste each further executable takes.
const PATIENCE: u32 = 8;

/// The unneeded results of an executable.
pub(super) struct UnusedOutputs(Mutex<PruningState>);

struct PruningState {
    /// The results that the counted executions have needed.
    needed: OutputSet,
    budget: Budget,
}

impl UnusedOutputs {
    pub(super) fn new() -> UnusedOutputs {
        let state = PruningState { needed: OutputSet::new(), budget: Budget::new() };
        UnusedOutputs(Mutex::new(Rank::UnusedOutputs, state))
    }

    /// Notes an execution that needs only `needed` of the results that an executable returns.
    /// `compile` estimates the time of a compile. Returns the results that are worth a compile, and
    /// the number of executions that needed no more.
    fn note(
        &self,
        region: &CanonRegion,
        outputs: &[u32],
        needed: &OutputSet,
        compile: impl FnOnce() -> Duration,
    ) -> Option<(OutputSet, u64)> {
        let mut state = self.0.lock();
        let state = &mut *state;
        if state.budget.executions() == 0 || !state.needed.includes(needed) {
            state.needed.extend(needed);
            let waste = waste(region, outputs, &state.needed);
            if waste.is_zero() {
                state.needed = OutputSet::new();
                state.budget.restart();
                return None;
            }
            state.budget.set_loss(waste, compile());
        }
        if !state.budget.count() {
            return None;
        }
        let executions = state.budget.executions();
        state.budget.spend(PATIENCE);
        Some((std::mem::take(&mut state.needed), executions))
    }
}

impl Policy for UnusedOutputs {
    fn observe(&self, subject: Subject<'_>, observation: Observation<'_>) -> Option<Proposal> {
        let Observation::Lookup { needed, donated } = observation else { return None };
        let Subject { region, executable, compile_time } = subject;
        let (outputs, executions) = self.note(region, executable.outputs(), needed, compile_time)?;
        let spec = CompileSpec { outputs, donated: donated(), ..CompileSpec::default() };
        Some(Proposal { spec, placement: Placement::Narrower, reason: Reason::UnusedOutputs { executions } })
    }
}

/// The additional time of an execution for the results beyond those needed.
fn waste(region: &CanonRegion, outputs: &[u32], needed: &OutputSet) -> Duration {
    let types = region.graph().nodes().iter().flat_map(|node| node.signature().results());
    let mut outputs = outputs.iter().peekable();
    let unneeded = (0u32..).zip(types).filter(|(result, _)| {
        outputs.next_if(|&output| output == result).is_some() && !needed.contains(*result)
    });
    unneeded.map(|(_, ty)| cost(ty.bytes())).sum()
}

/// The additional time of an execution for a result of this size.
fn cost(bytes: Bytes) -> Duration {
    let per_nano = if bytes.0 < LARGE { SMALL_BYTES_PER_NANO } else { LARGE_BYTES_PER_NANO };
    EACH + Duration::from_nanos(bytes.0 / per_nano)
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::{Attrs, DType, Graph, OpCode, TensorType};

    use super::*;

    /// A chain of ops on this many numbers.
    fn region(size: u64) -> CanonRegion {
        let mut graph = Graph::new();
        let mut value = graph.param(TensorType::of(DType::F32, &[size]).unwrap());
        for _ in 0..4 {
            value = graph.push(OpCode::Negate, Attrs::none(), &[], &[value]).unwrap()[0];
        }
        CanonRegion::new(graph, Box::new([false]))
    }

    fn set(outputs: &[u32]) -> OutputSet {
        outputs.iter().copied().collect()
    }

    const ALL: [u32; 4] = [0, 1, 2, 3];

    /// Repeats executions with these needs until another executable is requested.
    fn until_asked(
        unused_outputs: &UnusedOutputs,
        region: &CanonRegion,
        needs: &[&[u32]],
    ) -> Option<(OutputSet, u64)> {
        let compile = || Duration::from_micros(100);
        let mut needs = needs.iter().cycle().take(100_000);
        needs.find_map(|needed| unused_outputs.note(region, &ALL, &set(needed), compile))
    }

    /// VARIANT-3.
    #[test]
    fn what_is_never_needed_is_left_out() {
        let (region, unused_outputs) = (region(16), UnusedOutputs::new());
        let waste = cost(Bytes(64)).as_nanos() as u64;
        let asked = until_asked(&unused_outputs, &region, &[&[3], &[1, 3]]).unwrap();
        let executions = 100_000u64.div_ceil(2 * waste);
        assert_eq!(asked, (set(&[1, 3]), executions));
        // The requested executable serves those now; this executable has others.
        let asked = until_asked(&unused_outputs, &region, &[&[0]]).unwrap();
        let executions = (100_000 * u64::from(PATIENCE)).div_ceil(3 * waste);
        assert_eq!(asked, (set(&[0]), executions));
    }

    /// VARIANT-3.
    #[test]
    fn needs_that_vary_over_all_of_it_ask_for_nothing() {
        for needs in
            [[[0u32, 1].as_slice(), &[2, 3]].as_slice(), &[&[0], &[1], &[2], &[3]], &[&[0, 1, 2], &[3], &[3]]]
        {
            assert_eq!(until_asked(&UnusedOutputs::new(), &region(16), needs), None, "{needs:?}");
        }
    }

    #[test]
    fn large_results_ask_sooner() {
        let executions = |size| until_asked(&UnusedOutputs::new(), &region(size), &[&[3]]).unwrap().1;
        assert!(executions(1 << 20) < executions(1 << 10) && executions(1 << 10) < executions(1));
        assert_eq!(executions(1 << 24), 1);
    }
}
