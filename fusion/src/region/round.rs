//! What a program repeats without asking for a boundary, expected op by op.
//!
//! Where a sequence of units has just been repeated without a boundary that the program asked for ([`super::plan`]), the ops behind it are
//! compared with those of the sequence, its *round*, one by one. While they are equal the rule is not asked: what it would say is known.
//! A round whose ops are complete is a region, which is sealed when the round after it is complete too and goes on: until then frees are
//! waited for, since what a program computes in one round it often lets go in the next. So where one round ends another begins, and
//! nothing that was recorded before it has a part in what comes.
//!
//! If something else comes, the rounds that are complete are regions, and the rule sees the ops behind them, as if a boundary stood there.
//!
//! Invariants:
//! - P4: where rounds end follows from the ops alone; which results live on, from the frees before the place where a round is sealed.
//! - P5: `matched` ops of the window, from its first on, are those of rounds; no unit is held back, and the rule has seen none.
//! - P6: two complete rounds at most are pending.

use std::sync::Arc;

use super::token::Token;
use super::window::Window;
use super::{Boundary, TraceResult, Unit};
use crate::shape::Bytes;

/// Which round it is: equal for equal ops wherever they stand, and hardly ever for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoundPrint(u64);

/// A round.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) print: RoundPrint,
    /// What it consists of: one at least.
    pub(super) units: Vec<Unit>,
    /// A hash of each op.
    tokens: Vec<u64>,
}

impl Round {
    /// The first ops of the window, which end with the last of `units`. `None` if two of them would hold more than `most` bytes.
    pub(super) fn of<R: TraceResult>(
        window: &Window<R>,
        units: Vec<Unit>,
        most: Bytes,
    ) -> Option<Arc<Round>> {
        let ops = units.iter().map(|unit| unit.ops).sum();
        if window.bytes_of(ops).0 > most.0 / 2 {
            return None;
        }
        let tokens: Vec<u64> = (0..ops).map(|at| window.token(at, 0)).collect();
        let mut print = Token::new(ops as u64);
        tokens.iter().for_each(|&token| print.add(token));
        Some(Arc::new(Round { print: RoundPrint(print.get()), units, tokens }))
    }

    pub(super) fn ops(&self) -> usize {
        self.tokens.len()
    }

    /// Why it ends where it does.
    pub(super) fn boundary(&self) -> Boundary {
        self.units.last().expect("bug: a round without units").boundary
    }

    /// The units, if there is more than one.
    pub(super) fn joined(&self) -> Vec<Unit> {
        if self.units.len() > 1 { self.units.clone() } else { Vec::new() }
    }
}

/// What is expected.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) round: Arc<Round>,
    /// Ops of the window that have been compared and are equal.
    matched: usize,
}

/// What has come of what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// All that is pending is equal.
    AsExpected,
    /// Two rounds are complete, and more is pending: the first one is to be sealed.
    Round,
    /// The next op is another one.
    Other,
}

impl Expected {
    pub(super) fn new(round: Arc<Round>) -> Expected {
        Expected { round, matched: 0 }
    }

    /// Compares ops that have not been compared.
    pub(super) fn compare<R: TraceResult>(&mut self, window: &Window<R>) -> Came {
        let ops = self.round.ops();
        while self.matched < window.len() {
            if self.matched == 2 * ops {
                return Came::Round;
            }
            let from = if self.matched < ops { 0 } else { ops };
            if window.token(self.matched, from) != self.round.tokens[self.matched - from] {
                return Came::Other;
            }
            self.matched += 1;
        }
        Came::AsExpected
    }

    /// Whether a round is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.matched >= self.round.ops()
    }

    /// The first round was sealed.
    pub(super) fn sealed(&mut self) {
        self.matched -= self.round.ops();
    }

    /// Whether all that is pending are complete rounds; all of it was compared.
    pub(super) fn is_between(&self) -> bool {
        self.matched.is_multiple_of(self.round.ops())
    }

    /// Whether two rounds are complete.
    pub(super) fn is_twice(&self) -> bool {
        self.matched == 2 * self.round.ops()
    }
}
