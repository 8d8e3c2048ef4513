//! When an executable is to be given more memory than it is.
//!
//! An executable is compiled for the inputs that die in the execution that asks for it: their memory becomes that of its results. A program may
//! hold on to something then that it lets go of later (its first state, which somebody else has too). The executable serves, and allocates
//! each time what it could have been given. When that has cost as much as another compile, one is compiled that may take it (the ski
//! rental of [`super::surplus`]).
//!
//! Input: an executable, and which of its inputs die in each execution. Output: the parameters to compile it for besides.
//!
//! Invariants:
//! - I5: only parameters are added that died in all of the executions that were counted, so a host that keeps its values now and then is not copied
//!   for. An executable asks once; each that follows may reuse more, so there are at most as many as there are results.
//! - I6: it follows from the region and from what died; no clock is looked at.

use std::time::Duration;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::lower::Aliases;
use fuseline_fusion::{Bytes, Ref, TensorType};
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

/// What a result that gets new memory costs in each execution, whatever its size. This and what
/// follows: a chain of three ops on XLA's CPU backend with 2 cores, whose state is somebody else's
/// too, or not (`cost_of_what_is_not_reused` in `tests/engine/donation.rs`, 2026-11-23): 0.2 µs
/// with 4 B, 1.7 µs with 4 KiB, 8 µs with 64 KiB, 40 µs with 256 KiB, 60 µs with 1 MiB, 0.1 ms with
/// 4 MiB, 0.75 ms with 16 MiB.
const EACH: Duration = Duration::from_nanos(200);

/// What it costs more from the size on from which memory comes from the system.
const MAPPED: Duration = Duration::from_micros(30);
const LARGE: u64 = 128 << 10;

/// Bytes that cost a nanosecond more, of a result below and from that size on.
const SMALL_BYTES_PER_NANO: u64 = 8;
const LARGE_BYTES_PER_NANO: u64 = 24;

/// What is known of the memory that an executable is not given.
pub(crate) struct Undonated {
    /// The types of its results that have no memory of an input.
    fresh: Vec<TensorType>,
    /// Parameters whose memory is not reused and that such a result could be written over, ascending.
    params: Box<[u32]>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Which of them have died in each of the executions counted, ascending.
    dying: SmallVec<[u32; 8]>,
    executions: u64,
    /// So many that cost as much as a compile.
    enough: u64,
    /// Another executable was asked for.
    asked: bool,
}

/// An executable that is worth compiling.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wider {
    /// Parameters whose memory it may have, besides those that are reused now.
    pub(crate) params: Vec<u32>,
    /// After so many executions in which they died.
    pub(crate) executions: u64,
}

impl Undonated {
    /// For an executable that returns `outputs` and reuses the memory of `reused`. `None` if it can be given no more.
    pub(crate) fn of(
        region: &CanonRegion,
        outputs: &[u32],
        reused: impl Iterator<Item = u32>,
    ) -> Option<Undonated> {
        let graph = region.graph();
        let reused: SmallVec<[u32; 16]> = reused.collect();
        let types = outputs.iter().filter_map(|&output| graph.type_of(Ref::Result(output)));
        let mut fresh: Vec<TensorType> = types.cloned().collect();
        reused.iter().for_each(|&param| drop(take(&mut fresh, &graph.params()[param as usize])));
        // The usual case of a steady loop, and each executable that is loaded comes by here.
        if fresh.is_empty() {
            return None;
        }
        let is_missed =
            |param: &u32| !reused.contains(param) && fresh.contains(&graph.params()[*param as usize]);
        let params: Box<[u32]> = Aliases::possible(region, outputs).into_iter().filter(is_missed).collect();
        (!params.is_empty()).then(|| Undonated {
            fresh,
            params,
            state: Mutex::new(Rank::Undonated, State::default()),
        })
    }

    /// Notes an execution. `dies` says whether the memory of a parameter could have been reused; `compile` is what a compile takes.
    pub(crate) fn note(
        &self,
        region: &CanonRegion,
        dies: impl Fn(u32) -> bool,
        compile: impl FnOnce() -> Duration,
    ) -> Option<Wider> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.asked {
            return None;
        }
        let before = match state.executions {
            0 => {
                state.dying = self.params.iter().copied().collect();
                usize::MAX
            }
            _ => state.dying.len(),
        };
        state.dying.retain(|param| dies(*param));
        if state.dying.is_empty() {
            state.executions = 0;
            return None;
        }
        if state.dying.len() < before {
            let waste = self.waste(region, &state.dying).as_nanos().max(1);
            state.enough = u64::try_from(compile().as_nanos().div_ceil(waste)).unwrap_or(u64::MAX);
        }
        state.executions += 1;
        if state.executions < state.enough {
            return None;
        }
        state.asked = true;
        Some(Wider { params: std::mem::take(&mut state.dying).into_vec(), executions: state.executions })
    }

    /// What an execution takes longer because it is not given these.
    fn waste(&self, region: &CanonRegion, dying: &[u32]) -> Duration {
        let mut fresh = self.fresh.clone();
        let types = dying.iter().map(|&param| &region.graph().params()[param as usize]);
        types.filter_map(|ty| take(&mut fresh, ty)).map(|ty| cost(ty.bytes())).sum()
    }
}

/// Takes one of a type, if there is one.
fn take(types: &mut Vec<TensorType>, ty: &TensorType) -> Option<TensorType> {
    let place = types.iter().position(|other| other == ty)?;
    Some(types.swap_remove(place))
}

/// What an execution takes longer for a result of that size that gets new memory.
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

    /// So many states, each an op on the one before; and one number that is no state.
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

    fn undonated(region: &CanonRegion, states: u32, reused: &[u32]) -> Option<Undonated> {
        let outputs: Vec<u32> = (0..states).collect();
        Undonated::of(region, &outputs, reused.iter().copied())
    }

    /// Notes executions until a compile is asked for, at most so many.
    fn run(of: &Undonated, region: &CanonRegion, dying: &[u32], most: u32) -> Option<Wider> {
        (0..most).find_map(|_| of.note(region, |param| dying.contains(&param), || COMPILE))
    }

    #[test]
    fn an_executable_that_is_given_all_asks_for_nothing() {
        let region = region(2, 1 << 10);
        assert!(undonated(&region, 2, &[0, 1]).is_none());
        // There is one result, and it has its memory.
        assert!(undonated(&region, 1, &[1]).is_none());
    }

    /// I5: as soon as it has cost as much as a compile, once.
    #[test]
    fn what_dies_each_time_is_asked_for_once() {
        let region = region(3, 1 << 20);
        let undonated = undonated(&region, 3, &[1]).unwrap();
        let each = cost(Bytes(4 << 20));
        let Wider { params, executions } = run(&undonated, &region, &[0, 1, 2, 3], 1_000).unwrap();
        assert_eq!(params, [0, 2]);
        assert_eq!(u128::from(executions), COMPILE.as_nanos().div_ceil(2 * each.as_nanos()));
        assert_eq!(run(&undonated, &region, &[0, 2], 1_000), None);
    }

    /// I5: what lives on now and then is not asked for, and does not keep the others from it.
    #[test]
    fn what_lives_on_now_and_then_is_not_asked_for() {
        let region = region(2, 1 << 20);
        let undonated = undonated(&region, 2, &[]).unwrap();
        for _ in 0..100 {
            assert_eq!(run(&undonated, &region, &[0], 2), None);
            assert_eq!(run(&undonated, &region, &[1], 2), None);
        }
        assert_eq!(run(&undonated, &region, &[0, 1], 1), None);
        assert_eq!(run(&undonated, &region, &[1], 1_000).unwrap().params, [1]);
    }

    /// More inputs than results die: only so much is saved as there are results.
    #[test]
    fn what_is_saved_is_counted_by_results() {
        let region = region(4, 1 << 20);
        let count = |states| {
            let undonated = undonated(&region, states, &[]).unwrap();
            run(&undonated, &region, &[0, 1, 2, 3], 10_000).unwrap().executions
        };
        assert!(count(1) > 3 * count(4));
    }
}
