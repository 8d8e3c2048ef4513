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
//! A program that repeats a step and reads something behind every hundredth asks for a boundary at one place of the round, mostly not
//! where the rule had it begin. What comes behind it is the round *turned* to begin there ([`Round::turned`]), which is expected from the first
//! op on if the program has asked at the same place before: so a read costs one cut, not some steps in which the rule finds the round again.
//!
//! Invariants:
//! - P4: where rounds end follows from the ops alone; which results live on, from the frees before the place where a round is sealed.
//! - P5: `matched` ops of the window, from its first on, are those of rounds; no unit is held back, and the rule has seen none.
//! - P6: two complete rounds at most are pending.
//! - P7: a turned round has the tokens that it would have if it had been found where it begins: which operands were mentioned in the round before
//!   is known once a round has been sealed behind another ([`Round::see_cycle`]), and none is taken unseen before that.

use std::sync::{Arc, OnceLock};

use super::token::Token;
use super::window::{Mentioned, Window};
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
    /// Each op, where the round follows itself.
    cycle: OnceLock<Vec<Mentioned>>,
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
        Some(Arc::new(Round::new(units, tokens)))
    }

    fn new(units: Vec<Unit>, tokens: Vec<u64>) -> Round {
        let mut print = Token::new(tokens.len() as u64);
        tokens.iter().for_each(|&token| print.add(token));
        Round { print: RoundPrint(print.get()), units, tokens, cycle: OnceLock::new() }
    }

    /// Notes how ops mention values of the round before: the window begins with two rounds.
    fn see_cycle<R: TraceResult>(&self, window: &Window<R>) {
        let ops = self.ops();
        self.cycle.get_or_init(|| (ops..2 * ops).map(|at| window.mentioned(at)).collect());
    }

    /// Whether it has been seen to follow itself.
    fn is_cycle(&self) -> bool {
        self.cycle.get().is_some()
    }

    /// The round that begins at another place of this one. `None` if this was not seen to follow itself.
    pub(super) fn turned(&self, start: usize) -> Option<Arc<Round>> {
        let mut cycle = self.cycle.get()?.clone();
        cycle.rotate_left(start);
        let tokens = cycle.iter().enumerate().map(|(since, op)| op.token(since)).collect();
        let round = Round::new(turned_units(&self.units, start), tokens);
        Some(Arc::new(Round { cycle: cycle.into(), ..round }))
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

/// The units of a round from the op `start` on. What is left and right of it within a unit are two.
fn turned_units(units: &[Unit], start: usize) -> Vec<Unit> {
    let (mut before, mut behind, mut first) = (Vec::new(), Vec::new(), 0);
    for &unit in units {
        let end = first + unit.ops;
        if first >= start {
            behind.push(unit);
        } else if end <= start {
            before.push(unit);
        } else {
            let part = |ops: usize, side: u64| {
                let mut print = Token::new(unit.print);
                [ops as u64, side].into_iter().for_each(|word| print.add(word));
                Unit { ops, print: print.get(), ..unit }
            };
            before.push(part(start - first, 0));
            behind.push(part(end - start, 1));
        }
        first = end;
    }
    behind.extend(before);
    behind
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
                self.round.see_cycle(window);
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

    /// How many ops of a round have come that is not complete; all that is pending was compared.
    pub(super) fn place(&self) -> usize {
        self.matched % self.round.ops()
    }

    /// Whether all that is pending are complete rounds of one that was seen to follow itself; all of it was compared.
    pub(super) fn is_between(&self) -> bool {
        self.place() == 0 && self.round.is_cycle()
    }

    /// Whether two rounds are complete.
    pub(super) fn is_twice(&self) -> bool {
        self.matched == 2 * self.round.ops()
    }
}
