//! What is known of an executable's numbers.

use std::sync::Arc;

use fuseline_sync::{Mutex, Rank};

/// How an executable of several ops compares with the ops one by one.
#[derive(Clone, Debug, Default)]
pub(crate) enum Verdict {
    /// Nobody has looked.
    #[default]
    Open,
    /// Somebody is looking.
    Pending,
    /// It gives the same.
    Same,
    /// It does not, and what differs.
    Different(Arc<str>),
}

/// The comparison of an executable with its ops, made once for each result: an execution needs some, and of the others the ops leave
/// nothing to compare with.
#[derive(Debug)]
pub(crate) struct Trial(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// On what was asked last.
    verdict: Verdict,
    /// Results that were found to be the same, in order.
    same: Vec<u32>,
}

impl Trial {
    pub(crate) fn new() -> Trial {
        Trial(Mutex::new(Rank::Trial, State::default()))
    }

    /// What is known of the executable where an execution needs these results. Who is told that it is open has to look, and to say how that
    /// ended: it is pending from then on, but for executions that need what is known already.
    pub(crate) fn begin(&self, mut needed: impl Iterator<Item = u32>) -> Verdict {
        let mut state = self.0.lock();
        match &state.verdict {
            Verdict::Different(why) => Verdict::Different(why.clone()),
            _ if !state.same.is_empty() && needed.all(|result| state.same.binary_search(&result).is_ok()) => {
                Verdict::Same
            }
            Verdict::Pending => Verdict::Pending,
            Verdict::Open | Verdict::Same => {
                state.verdict = Verdict::Pending;
                Verdict::Open
            }
        }
    }

    /// How looking at these results ended; open if it could not be told.
    pub(crate) fn end(&self, verdict: Verdict, results: &[u32]) {
        let mut state = self.0.lock();
        if matches!(verdict, Verdict::Same) {
            state.same.extend(results);
            state.same.sort_unstable();
            state.same.dedup();
        }
        state.verdict = verdict;
    }
}
