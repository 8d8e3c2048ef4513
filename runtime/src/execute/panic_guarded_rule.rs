//! Contains the panics of a user's boundary rule.
//!
//! Region ends still follow from the recorded program. After its first panic the rule is not asked
//! any more, and regions end where the program asks and at budgets.

use std::fmt;

use fuseline_fusion::Signature;
use fuseline_fusion::region::{BoundaryRule, ContentChunking, Cut, OperandDistance, PendingStats};

use crate::event::Telemetry;
use crate::settings::Settings;
use crate::user_code::Guest;

/// Wraps a boundary rule so that a panic disables it.
struct PanicGuardedRule {
    /// `None` once it has panicked.
    rule: Option<Guest<Box<dyn BoundaryRule>>>,
    telemetry: Telemetry,
}

/// The boundary rule of a new stream.
pub(crate) fn boundary_rule(config: &Settings, telemetry: &Telemetry) -> Box<dyn BoundaryRule> {
    match config.boundary_rule.as_ref().map(|rule| rule()) {
        None => Box::new(ContentChunking::default()),
        Some(rule) => Box::new(PanicGuardedRule::new(rule, telemetry.clone())),
    }
}

impl PanicGuardedRule {
    fn new(rule: Box<dyn BoundaryRule>, telemetry: Telemetry) -> PanicGuardedRule {
        PanicGuardedRule { rule: Some(Guest::new(rule)), telemetry }
    }

    fn ask<R>(&mut self, ask: impl FnOnce(&mut dyn BoundaryRule) -> R) -> Option<R> {
        let mut rule = self.rule.take()?;
        let mut answer = None;
        self.telemetry.call_back("boundary rule", || {
            // A rule that panics is not put back, and is dropped.
            answer = Some((ask(&mut **rule.get_mut()), rule));
        });
        let (answer, rule) = answer?;
        self.rule = Some(rule);
        Some(answer)
    }
}

impl BoundaryRule for PanicGuardedRule {
    fn after(&mut self, op: &Signature, operands: &[OperandDistance], pending: PendingStats) -> Option<Cut> {
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

impl fmt::Debug for PanicGuardedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule.as_ref().map(Guest::get) {
            Some(rule) => rule.fmt(f),
            None => f.write_str("a rule that panicked"),
        }
    }
}
