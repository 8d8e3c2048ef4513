//! Scalars that stay the same are compiled in.
//!
//! A lifted scalar is an argument, so another value compiles nothing. But some ops are up to 1.7 times as fast when their number is known
//! ([`lower::Fixable`] has the figures), and most numbers of a program never change. So an executable whose region has such a scalar keeps
//! count of its values, and when it has had the same one [`STEADY`] times in a row, another executable is compiled in which it is a constant.
//!
//! Input: the scalars of an execution that is about to be launched. Output: a [`Choice`], which `src/execute/specialise.rs` makes happen.
//!
//! Invariants:
//! - I1: an executable with constants runs only where the scalars have the same bits.
//! - I2: nobody waits for one, nothing of a region or key depends on it, and a region causes at most [`MOST_TRIES`] such compiles. A value
//!   that changes again makes the next try [`PATIENCE`] times as long in coming (hysteresis), so a schedule with long steps
//!   settles on arguments.
//!
//! Only with `Numerics::Fast`, since a compiler computes with constants by other code than at run time, and without a comparison of regions,
//! which would have to be made for each of these too. It lives and dies with the executable that it stands in for; the budget of the cache
//! counts that one only.

use std::sync::Arc;

use fuseline_fusion::Scalar;
use fuseline_fusion::lower::Fixable;
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::Executable;

/// Lifted scalars that are compiled in, by parameter, ascending.
pub(crate) type Fixed = SmallVec<[(u32, Scalar); 2]>;

/// Executions with the same value after which it counts as one that stays. A compile takes as long as some thousand executions of the
/// size at which it pays, and gains a fifth to a half of each.
const STEADY: u32 = 1_000;

/// How much longer each further try is in coming.
const PATIENCE: u32 = 8;

/// Most compiles of one region with constants.
const MOST_TRIES: u32 = 3;

/// What is known of the scalars of an executable's executions.
pub(crate) struct Habit {
    /// The scalars that may be worth compiling in.
    fixable: Vec<Fixable>,
    state: Mutex<State>,
}

struct State {
    /// The latest value of each of [`Habit::fixable`], and in how many executions in a row it had it.
    latest: SmallVec<[(Scalar, u32); 4]>,
    /// Executions with the same value that the next try needs.
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

/// Which executable to launch.
#[derive(Debug)]
pub(crate) enum Choice {
    General,
    Special(Arc<Executable>),
    /// The general one; and one with these constants is worth compiling.
    Compile(Fixed),
}

impl Habit {
    pub(crate) fn new(fixable: Vec<Fixable>) -> Habit {
        let state = State { latest: SmallVec::new(), needed: STEADY, tries: 0, special: Special::None };
        Habit { fixable, state: Mutex::new(Rank::Habit, state) }
    }

    /// Notes an execution; `scalar` is the value of a parameter.
    pub(crate) fn choose(&self, scalar: impl Fn(u32) -> Option<Scalar>) -> Choice {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for (index, fixable) in self.fixable.iter().enumerate() {
            let Some(value) = scalar(fixable.param) else { return Choice::General };
            match state.latest.get_mut(index) {
                None => state.latest.push((value, 1)),
                Some((latest, times)) if *latest == value => *times = times.saturating_add(1),
                Some(latest) => *latest = (value, 1),
            }
        }
        match &state.special {
            Special::Pending => return Choice::General,
            Special::Ready(special) => {
                let is = |&(param, value): &(u32, Scalar)| scalar(param) == Some(value);
                if special.fixed().iter().all(is) {
                    return Choice::Special(special.clone());
                }
                let gone = std::mem::replace(&mut state.special, Special::None);
                drop(guard);
                // The plugin takes its time for an executable that goes.
                drop(gone);
                return Choice::General;
            }
            Special::None => {}
        }
        if state.tries == MOST_TRIES {
            return Choice::General;
        }
        let known = self.fixable.iter().zip(&state.latest);
        let steady = known.filter(|(fixable, (value, times))| *times >= state.needed && fixable.pays(*value));
        let fixed: Fixed = steady.map(|(fixable, &(value, _))| (fixable.param, value)).collect();
        if fixed.is_empty() {
            return Choice::General;
        }
        state.tries += 1;
        state.needed = state.needed.saturating_mul(PATIENCE);
        state.special = Special::Pending;
        Choice::Compile(fixed)
    }

    /// How a compile ended.
    pub(crate) fn compiled(&self, special: Option<Arc<Executable>>) {
        let special = special.map_or(Special::None, Special::Ready);
        let before = std::mem::replace(&mut self.state.lock().special, special);
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::canon::CanonRegion;
    use fuseline_fusion::{Attrs, DType, Graph, OpCode, TensorType, lower};

    use super::*;

    /// The habit of a power with a lifted exponent.
    fn habit() -> Habit {
        let scalar = TensorType::scalar(DType::F32);
        let mut graph = Graph::new();
        let (x, exponent) = (graph.param(scalar.clone()), graph.param(scalar));
        graph.push(OpCode::Power, Attrs::none(), &[], &[x, exponent]).unwrap();
        Habit::new(lower::fixable(&CanonRegion::new(graph, Box::new([false, true]))))
    }

    fn asks(habit: &Habit, value: f32) -> Option<Fixed> {
        match habit.choose(|param| (param == 1).then(|| Scalar::new(value))) {
            Choice::Compile(fixed) => Some(fixed),
            _ => None,
        }
    }

    #[test]
    fn what_stays_is_compiled_in_and_what_changes_again_takes_longer() {
        let habit = habit();
        let mut needed = STEADY;
        for _ in 0..MOST_TRIES {
            // A value before counts for nothing.
            assert!(asks(&habit, 3.0).is_none());
            for _ in 1..needed {
                assert!(asks(&habit, 2.0).is_none());
            }
            assert_eq!(asks(&habit, 2.0).unwrap().as_slice(), [(1, Scalar::new(2.0f32))]);
            // While it is being compiled nobody asks again.
            assert!(asks(&habit, 2.0).is_none());
            habit.compiled(None);
            needed *= PATIENCE;
        }
        for _ in 0..2 * needed {
            assert!(asks(&habit, 2.0).is_none());
        }
    }

    #[test]
    fn what_varies_or_does_not_pay_is_left() {
        let habit = habit();
        for step in 0..3 * STEADY {
            assert!(asks(&habit, (step % 2) as f32).is_none());
        }
        for _ in 0..3 * STEADY {
            assert!(asks(&habit, 2.1).is_none());
        }
    }
}
