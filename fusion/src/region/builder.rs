//! Splits the op stream of one stream into regions.

use std::mem;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::boundary::{Boundary, BoundaryRule, Budgets, PendingStats};
use super::loop_body::{Expected, LoopBody, LoopFingerprint, LoopMatch};
use super::merge_trie::{MergeAction, MergeTrie, UnitFingerprint};
use super::pending::{Released, Window};
use super::{Mode, Region, TraceOp, TraceResult, Unit};
use crate::id::ValueId;
use crate::ir::Effect;

/// Collects ops and cuts them into regions. One per stream; not shared.
#[derive(Debug)]
pub struct RegionBuilder<R: TraceResult = ValueId> {
    rule: Box<dyn BoundaryRule>,
    budgets: Budgets,
    window: Window<R>,
    merge_trie: MergeTrie,
    /// Units that are held back for merging, and the bytes of their results.
    held: Vec<Unit>,
    held_bytes: u64,
    /// The loop body that the pending ops are compared with.
    expected: Option<Expected>,
    /// The last expected loop body. Boxed, because most streams have none.
    latest: Option<Box<Latest>>,
    /// Number of ops between the last boundary and the place where the latest loop body is
    /// expected. `None` if no such place is ahead.
    prologue: Option<usize>,
    /// Whether a loop has started since the last boundary.
    has_loop: bool,
    /// The common mode of all pending ops.
    mode: Mode,
    /// Live results of the regions since the last user boundary.
    recent: FxHashSet<ValueId>,
}

/// The last expected loop body.
#[derive(Debug)]
struct Latest {
    body: Arc<LoopBody>,
    /// The position in a loop body of the last user boundary.
    requested_at: Option<(LoopFingerprint, usize)>,
    /// Where the rule last detected a loop after a boundary.
    start: Option<LoopStart>,
}

/// The start of a loop after a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoopStart {
    fingerprint: LoopFingerprint,
    /// Number of ops between the boundary and the first iteration.
    prologue: usize,
    /// Number of times in a row that the rule detected this start.
    occurrences: u32,
}

/// Number of times in a row that the rule detects the same start before the builder expects it.
/// Before that the builder rotates the loop body, which is better if the loop goes on after the
/// boundary.
const MIN_STARTS: u32 = 3;

impl<R: TraceResult> RegionBuilder<R> {
    /// A builder without pending ops.
    #[must_use]
    pub fn new(rule: Box<dyn BoundaryRule>, budgets: Budgets) -> RegionBuilder<R> {
        RegionBuilder {
            rule,
            budgets,
            window: Window::new(),
            merge_trie: MergeTrie::new(budgets.joined_ops),
            held: Vec::new(),
            held_bytes: 0,
            expected: None,
            latest: None,
            prologue: None,
            has_loop: false,
            mode: Mode::Fused,
            recent: FxHashSet::default(),
        }
    }

    /// Size of the pending ops, without units that are held back.
    #[must_use]
    pub fn stats(&self) -> PendingStats {
        self.window.stats()
    }

    /// Whether reading `value` is a boundary: a pending op produces it, or an op that a budget or
    /// the rule has sealed since the last user boundary. Because of the second case, a loop that
    /// reads once per step starts each step at a boundary, however many regions a step takes.
    /// Otherwise a soft cut before the read would shift all later ones.
    #[must_use]
    pub fn is_recent(&self, value: ValueId) -> bool {
        self.window.produces(value) || self.recent.contains(&value)
    }

    /// Adds an op. Regions that end because of it are appended to `sealed`.
    pub fn push(&mut self, op: TraceOp<R>, sealed: &mut Vec<Region<R>>) {
        if let Some(reason) = self.ends_before(&op) {
            self.seal(reason, sealed);
        }
        let (effect, mode) = (op.effect, op.mode);
        self.mode = mode;
        self.window.push(op);
        let single_op_boundary = match mode {
            _ if effect == Effect::Ordered => Some(Boundary::Effect),
            Mode::Strict => Some(Boundary::Strict),
            Mode::Debug => Some(Boundary::Debug),
            Mode::Fused => None,
        };
        if let Some(reason) = single_op_boundary {
            (self.expected, self.prologue) = (None, None);
            let region = self.window.take(1, reason, mode, effect);
            self.deliver(region, sealed);
            return;
        }
        self.examine(sealed);
    }

    /// Examines new ops: compares them with the expected loop body or, if there is none, asks the
    /// rule where a unit ends.
    fn examine(&mut self, sealed: &mut Vec<Region<R>>) {
        loop {
            match self.expected.as_mut().map(|expected| expected.compare(&self.window)) {
                Some(LoopMatch::AsExpected) => return,
                Some(LoopMatch::LoopBody) => self.seal_iteration(sealed),
                Some(LoopMatch::Other) => self.abandon_loop(sealed),
                None => {
                    if !self.resume_loop(sealed) && !self.apply_rule(sealed) {
                        return;
                    }
                }
            }
        }
    }

    /// Ends the prologue and expects the latest loop body. Returns false before the end of the
    /// prologue, and if there is none.
    fn resume_loop(&mut self, sealed: &mut Vec<Region<R>>) -> bool {
        let Some(prologue) = self.prologue else { return false };
        let ops = self.stats().ops;
        let since = self.merge_trie.since() + ops;
        if since < prologue {
            return false;
        }
        self.prologue = None;
        let body = self.latest_body().filter(|_| since == prologue).cloned();
        let Some(body) = body else { return false };
        if ops > 0 {
            self.cut(None, body.boundary(), sealed);
        }
        if self.expected.is_none() {
            self.merge_trie.release_held();
            self.release_held(sealed);
            self.expect(body);
        }
        true
    }

    /// Passes the next unseen op to the rule. False if there is none.
    fn apply_rule(&mut self, sealed: &mut Vec<Region<R>>) -> bool {
        let Some(fresh) = self.window.fresh() else { return false };
        let stats = self.stats();
        if stats.ops > 0 && stats.inputs + fresh > self.budgets.inputs {
            let best = self.rule.best();
            self.cut(best, Boundary::InputBudget, sealed);
            return true;
        }
        let Some(mentions) = self.window.see() else { return false };
        let stats = self.stats();
        let Some(op) = self.window.last_examined() else { return false };
        if let Some(cut) = self.rule.after(op, &mentions, stats) {
            self.cut(Some(cut.len), cut.reason, sealed);
        } else if stats.ops >= self.budgets.ops {
            let best = self.rule.best();
            self.cut(best, Boundary::OpBudget, sealed);
        } else if stats.bytes >= self.budgets.bytes {
            let best = self.rule.best();
            self.cut(best, Boundary::ByteBudget, sealed);
        }
        true
    }

    /// Starts to expect a loop body at the first pending op. The rule's current unit is dropped.
    fn expect(&mut self, body: Arc<LoopBody>) {
        self.rule.reset();
        self.window.unsee();
        match &mut self.latest {
            Some(latest) => latest.body = body.clone(),
            None => {
                let latest = Latest { body: body.clone(), requested_at: None, start: None };
                self.latest = Some(Box::new(latest));
            }
        }
        self.expected = Some(Expected::new(body));
    }

    fn latest_body(&self) -> Option<&Arc<LoopBody>> {
        self.latest.as_ref().map(|latest| &latest.body)
    }

    /// Seals the first complete iteration as a region.
    fn seal_iteration(&mut self, sealed: &mut Vec<Region<R>>) {
        let Some(expected) = &mut self.expected else { return };
        expected.sealed();
        let body = expected.body.clone();
        self.note_iteration(&body);
        let region = self.window.take(body.ops(), body.boundary(), self.mode, Effect::Pure);
        // Tokens do not identify inputs from before the loop body, so this iteration may have more
        // distinct inputs than earlier ones.
        if region.inputs.iter().filter(|input| !input.lifted).count() <= self.budgets.joined_inputs {
            self.deliver(Region { units: body.joined(), round: Some(body.fingerprint), ..region }, sealed);
        } else {
            (self.expected, self.latest) = (None, None);
            let region = Region { units: body.joined(), ..region };
            region.into_units().into_iter().for_each(|unit| self.deliver(unit, sealed));
        }
    }

    fn note_iteration(&mut self, body: &LoopBody) {
        self.has_loop = true;
        let units: Vec<UnitFingerprint> = body.units.iter().map(Unit::merge_fingerprint).collect();
        self.merge_trie.iteration(&units);
    }

    /// An op differs from the expected loop body: seals the complete iterations, and leaves the
    /// other ops to the rule.
    fn abandon_loop(&mut self, sealed: &mut Vec<Region<R>>) {
        while self.expected.as_ref().is_some_and(Expected::is_complete) {
            self.seal_iteration(sealed);
        }
        self.expected = None;
    }

    /// The last handle on `value` was dropped.
    pub fn release(&mut self, value: ValueId) -> Released {
        self.recent.remove(&value);
        self.window.release(value)
    }

    /// Seals all pending ops, if there are any.
    pub fn seal(&mut self, reason: Boundary, sealed: &mut Vec<Region<R>>) {
        let within = self.expected.as_ref().map(|expected| (expected.body.clone(), expected.position()));
        while self.expected.is_some() {
            self.abandon_loop(sealed);
            self.examine(sealed);
        }
        let ops = self.stats().ops;
        let (since, before) = (self.merge_trie.since() + ops, sealed.len());
        // A single unit is never merged (MERGE-3), so its hash is not needed.
        let fingerprint = || if self.merge_trie.is_fresh() { 0 } else { self.window.fingerprint(ops) };
        let unit = (ops > 0).then(|| UnitFingerprint { fingerprint: fingerprint(), ops });
        if unit.is_some() || !self.held.is_empty() {
            let next = self.merge_trie.boundary(unit);
            let _ = self.end(unit, reason, next, sealed);
            self.rule.reset();
            // Only the region that ends at this boundary may have waited for it; soft cuts end
            // anyway.
            if reason.is_asked_for()
                && unit.is_some()
                && let [region] = &mut sealed[before..]
            {
                region.spans_user_boundaries = region.graph.nodes().len() == since;
            }
        } else {
            let _ = self.merge_trie.boundary(None);
        }
        if reason.is_asked_for() {
            self.recent.clear();
        }
        (self.prologue, self.has_loop) = (None, false);
        // If more ops lie between user boundaries than fit in a region, the loop that ran before
        // the boundary is expected to continue after it.
        if since > self.budgets.joined_ops {
            self.prologue = self.steady_prologue().filter(|_| reason.is_asked_for());
            if self.prologue.is_some() {
                return;
            }
            if let Some((body, position)) =
                within.filter(|&(_, position)| position > 0 && reason.is_asked_for())
            {
                self.rotate(&body, position);
            }
            if let Some(body) = self.latest_body().cloned() {
                self.expect(body);
            }
        }
    }

    /// Number of ops between a boundary and the latest loop body, if the rule has detected that
    /// often enough.
    fn steady_prologue(&self) -> Option<usize> {
        let latest = self.latest.as_ref()?;
        let is_steady = |start: &LoopStart| start.occurrences >= MIN_STARTS && start.prologue > 0;
        let start = latest.start.filter(is_steady)?;
        (latest.body.is_cycle() && latest.body.fingerprint == start.fingerprint).then_some(start.prologue)
    }

    /// Handles a user boundary within a loop body. If the previous one was at the same position,
    /// the loop body is rotated to begin there.
    fn rotate(&mut self, body: &LoopBody, position: usize) {
        let Some(latest) = &mut self.latest else { return };
        if latest.requested_at.replace((body.fingerprint, position)) == Some((body.fingerprint, position))
            && let Some(rotated) = body.rotated(position)
        {
            latest.body = rotated;
        }
    }

    /// Notes that the ops of a region that spans user boundaries were recorded again and sealed at
    /// a user boundary, without passing them through the builder. `units` are the units that the
    /// region was merged from. Returns false and changes nothing if other ops are pending, or if
    /// the builder would now cut these ops differently.
    pub fn replay(&mut self, ops: usize, units: &[Unit], reason: Boundary) -> bool {
        // An expected loop body would cut these ops differently.
        let is_fresh = self.window.is_empty()
            && self.merge_trie.is_fresh()
            && self.expected.is_none()
            && reason.is_asked_for();
        if !is_fresh || !self.merge_trie.would_merge(units) {
            return false;
        }
        let (last, before, wanted) = match units.split_last() {
            Some((last, before)) => (last.merge_fingerprint(), before, MergeAction::Merge),
            None => (UnitFingerprint { fingerprint: 0, ops }, units, MergeAction::Alone),
        };
        for unit in before {
            let next = self.merge_trie.unit(unit.merge_fingerprint());
            debug_assert_eq!(next, MergeAction::Hold, "bug: the merge trie gives another action than before");
        }
        let next = self.merge_trie.boundary(Some(last));
        debug_assert_eq!(next, wanted, "bug: the merge trie gives another action than before");
        self.recent.clear();
        true
    }

    /// Number of ops that are not in a region yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.window.len()
    }

    /// Whether this loop body is expected, and the pending ops began with it.
    #[must_use]
    pub fn expects(&self, fingerprint: LoopFingerprint) -> bool {
        self.expected.as_ref().is_some_and(|expected| expected.body.fingerprint == fingerprint)
    }

    /// The loop body that is expected, and the number of ops before it, if nothing is pending.
    #[must_use]
    pub fn expects_next(&self) -> Option<(LoopFingerprint, usize)> {
        if let Some(prologue) = self.prologue.filter(|_| self.window.is_empty() && self.merge_trie.is_fresh())
        {
            return Some((self.latest_body()?.fingerprint, prologue));
        }
        let expected =
            self.expected.as_ref().filter(|expected| self.window.is_empty() && expected.is_between())?;
        Some((expected.body.fingerprint, 0))
    }

    /// Whether this loop body is expected, and the pending ops are complete iterations of it.
    #[must_use]
    pub fn is_at_round(&self, fingerprint: LoopFingerprint) -> bool {
        self.expected
            .as_ref()
            .is_some_and(|expected| expected.body.fingerprint == fingerprint && expected.is_between())
    }

    /// Notes that an iteration was recorded without passing its ops through the builder, and that
    /// the next one follows. [`RegionBuilder::is_at_round`] must hold. Seals what is pending, as
    /// recording the ops would have done. `released` are values from before the iteration that were
    /// released while it was recorded, `dying` are those of its inputs that were released since,
    /// and `living` are its results that were not.
    pub fn replay_round(
        &mut self,
        released: impl IntoIterator<Item = ValueId>,
        dying: impl IntoIterator<Item = ValueId>,
        living: impl IntoIterator<Item = ValueId>,
        sealed: &mut Vec<Region<R>>,
    ) {
        if self.expected.as_ref().is_some_and(Expected::is_twice) {
            self.seal_iteration(sealed);
        }
        for value in released {
            // Either no op needs it any more, or the region that is sealed now holds its own
            // reference.
            let _ = self.release(value);
        }
        if !self.window.is_empty() {
            self.seal_iteration(sealed);
        }
        if let Some(body) = self.latest_body().cloned() {
            self.note_iteration(&body);
        }
        for value in dying {
            self.recent.remove(&value);
        }
        self.recent.extend(living);
    }

    /// Ends the unit after `len` pending ops; `None` means after all of them.
    fn cut(&mut self, len: Option<usize>, reason: Boundary, sealed: &mut Vec<Region<R>>) {
        let stats = self.stats();
        let ops = len.unwrap_or(stats.ops).clamp(1, stats.ops.max(1));
        let unit = UnitFingerprint { fingerprint: self.window.fingerprint(ops), ops };
        let mut next = self.merge_trie.unit(unit);
        let would_hold = self.held_bytes.saturating_add(stats.bytes.0);
        if matches!(next, MergeAction::Hold | MergeAction::ReleaseAndHold)
            && would_hold >= self.budgets.bytes.0
        {
            self.merge_trie.release_held();
            next = MergeAction::Alone;
        }
        let body =
            (next == MergeAction::LoopBody).then(|| self.loop_body_ending_with(unit, reason)).flatten();
        let is_loop = self.end(Some(unit), reason, next, sealed);
        self.rule.cut(ops);
        if let Some(body) = body.filter(|_| is_loop) {
            let prologue = self.merge_trie.since() - body.ops();
            self.expect(body);
            self.note_start(prologue);
        }
    }

    /// Notes that the rule detected a loop, `prologue` ops after the last boundary.
    fn note_start(&mut self, prologue: usize) {
        let Some(latest) = self.latest.as_mut().filter(|_| !self.has_loop) else { return };
        self.has_loop = true;
        let fingerprint = latest.body.fingerprint;
        let is_same = |start: &LoopStart| (start.fingerprint, start.prologue) == (fingerprint, prologue);
        let occurrences = latest.start.filter(is_same).map_or(0, |start| start.occurrences) + 1;
        latest.start = Some(LoopStart { fingerprint, prologue, occurrences });
    }

    /// The loop body that ends with this unit.
    fn loop_body_ending_with(&self, last: UnitFingerprint, reason: Boundary) -> Option<Arc<LoopBody>> {
        let last = Unit { ops: last.ops, boundary: reason, fingerprint: last.fingerprint };
        let units = self.held.iter().copied().chain([last]).collect();
        let body = LoopBody::of(&self.window, units, self.budgets.bytes)?;
        // Reuses the known loop body with its learned cycle.
        let known = self.latest_body().filter(|known| known.fingerprint == body.fingerprint);
        Some(known.cloned().unwrap_or(body))
    }

    /// Carries out a merge action for the unit that ends, if there is one, and for those that are
    /// held back. False if the merged region would have too many inputs.
    fn end(
        &mut self,
        unit: Option<UnitFingerprint>,
        reason: Boundary,
        next: MergeAction,
        sealed: &mut Vec<Region<R>>,
    ) -> bool {
        let unit =
            unit.map(|UnitFingerprint { fingerprint, ops }| Unit { ops, boundary: reason, fingerprint });
        // A single unit is not merged (MERGE-3).
        let next =
            if next == MergeAction::LoopBody && self.held.is_empty() { MergeAction::Alone } else { next };
        if matches!(next, MergeAction::Alone | MergeAction::ReleaseAndHold) {
            self.release_held(sealed);
        }
        match (next, unit) {
            (MergeAction::Hold | MergeAction::ReleaseAndHold, Some(unit)) => {
                let before = self.stats().bytes.0;
                self.window.pass(unit.ops);
                self.held_bytes = self.held_bytes.saturating_add(before.saturating_sub(self.stats().bytes.0));
                self.held.push(unit);
            }
            (MergeAction::Merge | MergeAction::LoopBody, unit) => {
                self.held.extend(unit);
                self.held_bytes = 0;
                let units = mem::take(&mut self.held);
                let ops = units.iter().map(|unit| unit.ops).sum();
                let boundary = units.last().map_or(reason, |unit| unit.boundary);
                let region = Region { units, ..self.window.take(ops, boundary, self.mode, Effect::Pure) };
                if region.inputs.iter().filter(|input| !input.lifted).count() <= self.budgets.joined_inputs {
                    self.deliver(region, sealed);
                } else {
                    self.merge_trie.refuse(&region.units);
                    region.into_units().into_iter().for_each(|unit| self.deliver(unit, sealed));
                    return false;
                }
            }
            (_, Some(unit)) => {
                let region = self.window.take(unit.ops, unit.boundary, self.mode, Effect::Pure);
                self.deliver(region, sealed);
            }
            (_, None) => {}
        }
        true
    }

    /// Seals each unit that is held back as a region.
    fn release_held(&mut self, sealed: &mut Vec<Region<R>>) {
        self.held_bytes = 0;
        for unit in mem::take(&mut self.held) {
            let region = self.window.take(unit.ops, unit.boundary, self.mode, Effect::Pure);
            self.deliver(region, sealed);
        }
    }

    /// Hands out a region. Its live results are remembered until the next user boundary.
    fn deliver(&mut self, region: Region<R>, sealed: &mut Vec<Region<R>>) {
        if region.boundary.is_asked_for() {
            self.recent.clear();
        } else {
            let living = region.outputs.iter().filter(|output| output.live);
            self.recent.extend(living.map(|output| output.value.id()));
        }
        sealed.push(region);
    }

    /// The hard boundary that `op` requires before itself.
    fn ends_before(&self, op: &TraceOp<R>) -> Option<Boundary> {
        if self.window.is_empty() {
            return None;
        }
        if op.effect == Effect::Ordered {
            return Some(Boundary::Effect);
        }
        (op.mode != self.mode).then_some(Boundary::ModeChange)
    }
}
