//! What is known of an executable's numbers.

use std::sync::Arc;

use crate::sync::Mutex;

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

/// The comparison of an executable with its ops, made once.
#[derive(Debug)]
pub(crate) struct Trial(Mutex<Verdict>);

impl Trial {
    pub(crate) fn new() -> Trial {
        Trial(Mutex::new(Verdict::Open))
    }

    /// What is known. Who is told that it is open has to look, and to say how that ended: it is pending from then on.
    pub(crate) fn begin(&self) -> Verdict {
        let mut verdict = self.0.lock();
        match &*verdict {
            Verdict::Open => std::mem::replace(&mut *verdict, Verdict::Pending),
            known => known.clone(),
        }
    }

    /// How looking ended; open if it could not be told.
    pub(crate) fn end(&self, verdict: Verdict) {
        *self.0.lock() = verdict;
    }
}
