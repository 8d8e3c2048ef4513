//! Checks for reads that do not wait.

use std::sync::Arc;

use fuseline_sync::atomic::AtomicU32;
use fuseline_sync::{Mutex, Rank};

use super::{Checks, Entry, OpErrorKind, Reading, UpTo};
use crate::engine::EngineShared;
use crate::engine::value::Producer;
use crate::error::Error;

/// Called with an error if a check has failed.
type Then = Box<dyn FnOnce(Option<Error>) + Send>;

struct VerdictState {
    /// Number of flags that have not arrived.
    left: usize,
    /// The first failed check, with its position.
    first: Option<(usize, OpErrorKind)>,
    then: Option<Then>,
}

/// The outcome of the checks of a value, once their flags have arrived.
pub(crate) struct Verdict {
    state: Mutex<VerdictState>,
    round: Arc<AtomicU32>,
}

impl Checks {
    /// As [`Checks::before_data`], without waiting. `None` if nothing has to be checked, and for
    /// several replicas: without waiting only the data of the first arrives, so the next read
    /// reports the failure.
    pub(crate) fn verdict(
        &self,
        maker: Option<&Producer>,
        engine: &Arc<EngineShared>,
    ) -> Option<Arc<Verdict>> {
        let maker = maker.filter(|_| self.is_used() && engine.device().replicas() == 1)?;
        let (found, mut due) = self.due(UpTo::Launch(maker.region.launched()));
        let mut found: Vec<OpErrorKind> = found.into_iter().collect();
        for (other, mark) in self.others() {
            let (more, pending) = other.due(UpTo::Number(mark));
            found.extend(more);
            due.extend(pending);
        }
        if found.is_empty() && due.is_empty() {
            return None;
        }
        let first = found.into_iter().next().map(|fault| (0, fault));
        let state = VerdictState { left: due.len(), first, then: None };
        let verdict = Verdict { state: Mutex::new(Rank::Verdict, state), round: self.round.clone() };
        let verdict = Arc::new(verdict);
        for (at, entry) in due.into_iter().enumerate() {
            let arrived = verdict.clone();
            let arrived = move |entry: &Entry| arrived.arrived(at + 1, entry);
            let is_there = matches!(*entry.reading.lock(), Reading::There(_) | Reading::Told);
            if is_there { arrived(&entry) } else { entry.start(engine, arrived) }
        }
        Some(verdict)
    }
}

impl Verdict {
    /// The flags of an entry have arrived.
    fn arrived(&self, at: usize, entry: &Entry) {
        // Only a thread that may record removes it from the list.
        let reading = std::mem::replace(&mut *entry.reading.lock(), Reading::Told);
        let fault = match reading {
            Reading::There(flags) => entry.fault_of(&flags),
            _ => None,
        };
        let mut state = self.state.lock();
        state.left -= 1;
        if let Some(fault) = fault
            && state.first.as_ref().is_none_or(|&(first, _)| at < first)
        {
            state.first = Some((at, fault));
        }
        self.tell(state);
    }

    /// Calls `then` on any thread, possibly before this returns.
    pub(crate) fn then(&self, then: impl FnOnce(Option<Error>) + Send + 'static) {
        let mut state = self.state.lock();
        state.then = Some(Box::new(then));
        self.tell(state);
    }

    fn tell(&self, mut state: fuseline_sync::MutexGuard<'_, VerdictState>) {
        if state.left > 0 {
            return;
        }
        let Some(then) = state.then.take() else { return };
        let first = state.first.take();
        drop(state);
        then(first.map(|(_, fault)| fault.into_error(true, &self.round)));
    }
}
