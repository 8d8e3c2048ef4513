//! Loop bodies: op sequences that a program repeats without a user boundary.
//!
//! When a sequence of units has just been repeated without a user boundary ([`super::merge_trie`]),
//! the following ops are compared one by one with those of the sequence, the *loop body*. While
//! they match, the rule is not asked, because its answer is known. A complete iteration is a
//! region. It is sealed once the next iteration is complete too and more ops follow: until then
//! releases are awaited, because a program often releases in one iteration what it computed in the
//! one before. Where one iteration ends, the next begins, and ops before it do not affect it.
//!
//! If an op differs, the complete iterations are regions, and the rule sees the ops after them as
//! if they followed a boundary.
//!
//! A program that repeats a step and reads a result after every hundredth has its user boundaries
//! at one position of the loop body, mostly not where the rule had it begin. After such a boundary
//! the loop body is *rotated* to begin there ([`LoopBody::rotated`]). It is expected from the first
//! op on if the previous user boundary was at the same position. A read then costs one cut, instead
//! of the steps in which the rule would detect the loop again.
//!
//! Other ops may lie between the boundary and the loop: they set a sum to zero, or prepare a batch.
//! They are the *prologue* of the loop. When the rule has detected the same loop body three times
//! in a row after prologues of one length, the loop is expected at that place after the next
//! boundary.
//!
//! Invariants:
//! - LOOP-4: where iterations end follows from the ops alone; which results are live follows from
//!   the releases before the point where an iteration is sealed.
//! - LOOP-5: the first `matched` pending ops belong to iterations. No unit is held back, and the
//!   rule has seen none of these ops.
//! - LOOP-6: at most two complete iterations are pending.
//! - LOOP-7: a rotated loop body has the tokens that it would have if it had been detected at its
//!   new start. Which operands were mentioned in the iteration before is known once an iteration
//!   was sealed after another ([`LoopBody::record_cycle`]), and no iteration is replayed before
//!   that.

use std::sync::{Arc, OnceLock};

use super::pending::{Mentioned, Window};
use super::token::Token;
use super::{Boundary, TraceResult, Unit};
use crate::shape::Bytes;

/// Identity of a loop body: equal for equal ops in any position, and almost never for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoopFingerprint(u64);

/// A loop body.
#[derive(Debug)]
pub(super) struct LoopBody {
    pub(super) fingerprint: LoopFingerprint,
    /// Its units, at least one.
    pub(super) units: Vec<Unit>,
    /// A hash of each op.
    tokens: Vec<u64>,
    /// Each op as it appears when the loop body follows itself.
    cycle: OnceLock<Vec<Mentioned>>,
}

impl LoopBody {
    /// The first pending ops, up to the end of the last of `units`. `None` if two iterations would
    /// hold more than `most` bytes.
    pub(super) fn of<R: TraceResult>(
        window: &Window<R>,
        units: Vec<Unit>,
        most: Bytes,
    ) -> Option<Arc<LoopBody>> {
        let ops = units.iter().map(|unit| unit.ops).sum();
        if window.bytes_of(ops).0 > most.0 / 2 {
            return None;
        }
        let tokens: Vec<u64> = (0..ops).map(|at| window.token(at, 0)).collect();
        Some(Arc::new(LoopBody::new(units, tokens)))
    }

    fn new(units: Vec<Unit>, tokens: Vec<u64>) -> LoopBody {
        let mut fingerprint = Token::new(tokens.len() as u64);
        tokens.iter().for_each(|&token| fingerprint.add(token));
        LoopBody { fingerprint: LoopFingerprint(fingerprint.get()), units, tokens, cycle: OnceLock::new() }
    }

    /// Records how ops mention values of the iteration before. The pending ops begin with two
    /// iterations.
    fn record_cycle<R: TraceResult>(&self, window: &Window<R>) {
        let ops = self.ops();
        self.cycle.get_or_init(|| (ops..2 * ops).map(|at| window.mentioned(at)).collect());
    }

    /// Whether it was seen to follow itself.
    pub(super) fn is_cycle(&self) -> bool {
        self.cycle.get().is_some()
    }

    /// The loop body rotated to begin at op `start`. `None` if it was not seen to follow itself.
    pub(super) fn rotated(&self, start: usize) -> Option<Arc<LoopBody>> {
        let mut cycle = self.cycle.get()?.clone();
        cycle.rotate_left(start);
        let tokens = cycle.iter().enumerate().map(|(since, op)| op.token(since)).collect();
        let body = LoopBody::new(rotated_units(&self.units, start), tokens);
        Some(Arc::new(LoopBody { cycle: cycle.into(), ..body }))
    }

    pub(super) fn ops(&self) -> usize {
        self.tokens.len()
    }

    /// The boundary at its end.
    pub(super) fn boundary(&self) -> Boundary {
        self.units.last().expect("bug: an iteration without units").boundary
    }

    /// The units, if there is more than one.
    pub(super) fn joined(&self) -> Vec<Unit> {
        if self.units.len() > 1 { self.units.clone() } else { Vec::new() }
    }
}

/// The units of a loop body rotated to begin at op `start`. A unit that the start divides becomes
/// two.
fn rotated_units(units: &[Unit], start: usize) -> Vec<Unit> {
    let (mut before, mut after, mut first) = (Vec::new(), Vec::new(), 0);
    for &unit in units {
        let end = first + unit.ops;
        if first >= start {
            after.push(unit);
        } else if end <= start {
            before.push(unit);
        } else {
            let part = |ops: usize, side: u64| {
                let mut fingerprint = Token::new(unit.fingerprint);
                [ops as u64, side].into_iter().for_each(|word| fingerprint.add(word));
                Unit { ops, fingerprint: fingerprint.get(), ..unit }
            };
            before.push(part(start - first, 0));
            after.push(part(end - start, 1));
        }
        first = end;
    }
    after.extend(before);
    after
}

/// The expected loop body.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) body: Arc<LoopBody>,
    /// Number of pending ops that were compared and match.
    matched: usize,
}

/// The outcome of comparing pending ops with the expected loop body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopMatch {
    /// All pending ops match.
    AsExpected,
    /// Two iterations are complete and more ops are pending: seal the first.
    LoopBody,
    /// The next op differs.
    Other,
}

impl Expected {
    pub(super) fn new(body: Arc<LoopBody>) -> Expected {
        Expected { body, matched: 0 }
    }

    /// Compares the pending ops that were not compared before.
    pub(super) fn compare<R: TraceResult>(&mut self, window: &Window<R>) -> LoopMatch {
        let ops = self.body.ops();
        while self.matched < window.len() {
            if self.matched == 2 * ops {
                self.body.record_cycle(window);
                return LoopMatch::LoopBody;
            }
            let from = if self.matched < ops { 0 } else { ops };
            if window.token(self.matched, from) != self.body.tokens[self.matched - from] {
                return LoopMatch::Other;
            }
            self.matched += 1;
        }
        LoopMatch::AsExpected
    }

    /// Whether an iteration is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.matched >= self.body.ops()
    }

    /// Notes that the first iteration was sealed.
    pub(super) fn sealed(&mut self) {
        self.matched -= self.body.ops();
    }

    /// Number of ops in the incomplete iteration. All pending ops must have been compared.
    pub(super) fn position(&self) -> usize {
        self.matched % self.body.ops()
    }

    /// Whether the pending ops are complete iterations of a loop body that was seen to follow
    /// itself. All pending ops must have been compared.
    pub(super) fn is_between(&self) -> bool {
        self.position() == 0 && self.body.is_cycle()
    }

    /// Whether two iterations are complete.
    pub(super) fn is_twice(&self) -> bool {
        self.matched == 2 * self.body.ops()
    }
}
