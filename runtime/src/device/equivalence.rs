//! The state of an executable's differential check.

use std::sync::Arc;

use fuseline_sync::{Mutex, Rank};

/// How an executable of several ops compares with the ops one by one.
#[derive(Clone, Debug, Default)]
pub(crate) enum Verdict {
    /// Not compared yet.
    #[default]
    Open,
    /// A comparison is running.
    Pending,
    /// The results are the same.
    Same,
    /// The results differ, with a description.
    Different(Arc<str>),
}

/// The comparison of an executable with its ops. Each result is compared once, by an execution that
/// needs it, because the ops compute no others.
#[derive(Debug)]
pub(crate) struct Equivalence(Mutex<EquivalenceState>);

#[derive(Debug, Default)]
struct EquivalenceState {
    /// Verdict on the results that were compared last.
    verdict: Verdict,
    /// Results that were found to be the same, ascending.
    same: Vec<u32>,
}

impl Equivalence {
    pub(crate) fn new() -> Equivalence {
        Equivalence(Mutex::new(Rank::Equivalence, EquivalenceState::default()))
    }

    /// The verdict for an execution that needs these results. Whoever gets [`Verdict::Open`] has to
    /// compare them and call [`Equivalence::end`]. Until then the verdict is pending, except for
    /// executions that need only compared results.
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

    /// Ends the comparison of these results; with [`Verdict::Open`] if it has no result.
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
