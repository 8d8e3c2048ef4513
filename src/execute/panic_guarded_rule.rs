//! A boundary rule of the user's, of which a panic goes no further.
//!
//! Where regions end follows from the record all the same: from the first panic on the rule is not asked any more, and regions end where the
//! program asks and at budgets.

use std::fmt;

use fuseline_fusion::Signature;
use fuseline_fusion::region::{BoundaryRule, Cut, Mention, PendingStats};

use crate::engine::Reports;
use crate::event::Guest;

/// See the module's documentation.
pub(crate) struct Guarded {
    /// Until it panics.
    rule: Option<Guest<Box<dyn BoundaryRule>>>,
    reports: Reports,
}

impl Guarded {
    pub(crate) fn new(rule: Box<dyn BoundaryRule>, reports: Reports) -> Guarded {
        Guarded { rule: Some(Guest::new(rule)), reports }
    }

    fn ask<R>(&mut self, ask: impl FnOnce(&mut dyn BoundaryRule) -> R) -> Option<R> {
        let mut rule = self.rule.take()?;
        let mut answer = None;
        self.reports.call_back("boundary rule", || {
            // Not put back if it panics; it is dropped then.
            answer = Some((ask(&mut **rule.get_mut()), rule));
        });
        let (answer, rule) = answer?;
        self.rule = Some(rule);
        Some(answer)
    }
}

impl BoundaryRule for Guarded {
    fn after(&mut self, op: &Signature, operands: &[Mention], pending: PendingStats) -> Option<Cut> {
        self.ask(|rule| rule.after(op, operands, pending)).flatten()
    }

    fn best(&mut self) -> Option<usize> {
        self.ask(|rule| rule.best()).flatten()
    }

    fn cut(&mut self, len: usize) {
        let _ = self.ask(|rule| rule.cut(len));
    }

    fn reset(&mut self) {
        let _ = self.ask(|rule| rule.reset());
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule.as_ref().map(Guest::get) {
            Some(rule) => rule.fmt(f),
            None => f.write_str("a rule that panicked"),
        }
    }
}
