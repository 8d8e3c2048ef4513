//! The pending ops of one stream.

use std::mem;

use rustc_hash::FxHashSet;

use super::boundary::{Boundary, BoundaryRule, Budgets, PendingStats};
use super::plan::{Next, Passed, Plans};
use super::window::{Released, Window};
use super::{Mode, Region, TraceOp, TraceResult, Unit};
use crate::id::ValueId;
use crate::op::Effect;

/// Collects ops and cuts them into regions. One per stream; not shared.
#[derive(Debug)]
pub struct RegionBuilder<R: TraceResult = ValueId> {
    rule: Box<dyn BoundaryRule>,
    budgets: Budgets,
    window: Window<R>,
    plans: Plans,
    /// The units that are held back, and the bytes of their results.
    held: Vec<Unit>,
    held_bytes: u64,
    /// Mode of the pending ops, which all have the same.
    mode: Mode,
    /// Living results of the regions that ended for a reason of ours since the program last asked for a boundary.
    recent: FxHashSet<ValueId>,
}

impl<R: TraceResult> RegionBuilder<R> {
    /// A builder without pending ops.
    #[must_use]
    pub fn new(rule: Box<dyn BoundaryRule>, budgets: Budgets) -> RegionBuilder<R> {
        RegionBuilder {
            rule,
            budgets,
            window: Window::new(),
            plans: Plans::new(budgets.joined_ops),
            held: Vec::new(),
            held_bytes: 0,
            mode: Mode::Fused,
            recent: FxHashSet::default(),
        }
    }

    /// Size of the pending ops, those that are held back left out.
    #[must_use]
    pub fn stats(&self) -> PendingStats {
        self.window.stats()
    }

    /// Whether asking for `value` is a boundary: a pending op makes it, or one that would be pending but for a budget or the
    /// rule. The latter is what lets a loop that reads once per step start each step at a boundary, however many
    /// regions a step takes: otherwise a cut of ours before the read would shift every later one.
    #[must_use]
    pub fn is_recent(&self, value: ValueId) -> bool {
        self.window.makes(value) || self.recent.contains(&value)
    }

    /// Adds an op; regions that end because of it are appended to `sealed`.
    pub fn push(&mut self, op: TraceOp<R>, sealed: &mut Vec<Region<R>>) {
        if let Some(reason) = self.ends_before(&op) {
            self.seal(reason, sealed);
        }
        while self.has_no_room_for(&op) {
            let best = self.rule.best();
            self.cut(best, Boundary::InputBudget, sealed);
        }
        let (effect, mode) = (op.effect, op.mode);
        self.mode = mode;
        let mentions = self.window.push(op);
        let stands_alone = match mode {
            _ if effect == Effect::Ordered => Some(Boundary::Effect),
            Mode::Strict => Some(Boundary::Strict),
            Mode::Debug => Some(Boundary::Debug),
            Mode::Fused => None,
        };
        if let Some(reason) = stands_alone {
            let region = self.window.take(1, reason, mode, effect);
            self.deliver(region, sealed);
            return;
        }
        let stats = self.stats();
        let Some(op) = self.window.last() else { return };
        if let Some(cut) = self.rule.after(op, &mentions, stats) {
            self.cut(Some(cut.len), cut.reason, sealed);
        } else if stats.ops >= self.budgets.ops {
            let best = self.rule.best();
            self.cut(best, Boundary::OpBudget, sealed);
        } else if stats.bytes >= self.budgets.bytes {
            let best = self.rule.best();
            self.cut(best, Boundary::ByteBudget, sealed);
        }
    }

    /// The last handle on `value` was dropped.
    pub fn release(&mut self, value: ValueId) -> Released {
        self.recent.remove(&value);
        self.window.release(value)
    }

    /// Seals all pending ops, if there are any.
    pub fn seal(&mut self, reason: Boundary, sealed: &mut Vec<Region<R>>) {
        let ops = self.stats().ops;
        let (since, before) = (self.plans.since() + ops, sealed.len());
        // One unit alone is no plan, so that its hash is not needed.
        let print = || if self.plans.is_fresh() { 0 } else { self.window.print(ops) };
        let unit = (ops > 0).then(|| Passed { print: print(), ops });
        if unit.is_some() || !self.held.is_empty() {
            let next = self.plans.boundary(unit);
            self.end(unit, reason, next, sealed);
            self.rule.reset();
            // What ends where a unit does anyway may not have waited for that.
            if reason.is_asked_for()
                && unit.is_some()
                && let [region] = &mut sealed[before..]
            {
                region.is_whole = region.graph.nodes().len() == since;
            }
        } else {
            let _ = self.plans.boundary(None);
        }
        if reason.is_asked_for() {
            self.recent.clear();
        }
    }

    /// Takes note that the ops of a region that was whole were recorded again and sealed for a reason that the program gave, without having
    /// seen them. `units` are what the region was joined from. False, and nothing has changed, if other ops are pending, or if these
    /// would be cut otherwise now.
    pub fn replay(&mut self, ops: usize, units: &[Unit], reason: Boundary) -> bool {
        let is_fresh = self.window.is_empty() && self.plans.is_fresh() && reason.is_asked_for();
        if !is_fresh || !self.plans.would_join(units) {
            return false;
        }
        let (last, before, wanted) = match units.split_last() {
            Some((last, before)) => (last.passed(), before, Next::Join),
            None => (Passed { print: 0, ops }, units, Next::Alone),
        };
        for unit in before {
            let next = self.plans.unit(unit.passed());
            debug_assert_eq!(next, Next::Hold, "bug: the plans have said so");
        }
        let next = self.plans.boundary(Some(last));
        debug_assert_eq!(next, wanted, "bug: the plans have said so");
        self.recent.clear();
        true
    }

    /// Ends the unit within the pending ops; `None` is after all of them.
    fn cut(&mut self, len: Option<usize>, reason: Boundary, sealed: &mut Vec<Region<R>>) {
        let stats = self.stats();
        let ops = len.unwrap_or(stats.ops).clamp(1, stats.ops.max(1));
        let unit = Passed { print: self.window.print(ops), ops };
        let mut next = self.plans.unit(unit);
        let would_hold = self.held_bytes.saturating_add(stats.bytes.0);
        if matches!(next, Next::Hold | Next::HoldAnew) && would_hold >= self.budgets.bytes.0 {
            self.plans.let_go();
            next = Next::Alone;
        }
        self.end(Some(unit), reason, next, sealed);
        self.rule.cut(ops);
    }

    /// Does what the plans say with the unit that ends, if there is one, and with those that are held back.
    fn end(&mut self, unit: Option<Passed>, reason: Boundary, next: Next, sealed: &mut Vec<Region<R>>) {
        let unit = unit.map(|Passed { print, ops }| Unit { ops, boundary: reason, print });
        if next != Next::Join && next != Next::Hold {
            self.let_go(sealed);
        }
        match (next, unit) {
            (Next::Hold | Next::HoldAnew, Some(unit)) => {
                let before = self.stats().bytes.0;
                self.window.pass(unit.ops);
                self.held_bytes = self.held_bytes.saturating_add(before.saturating_sub(self.stats().bytes.0));
                self.held.push(unit);
            }
            (Next::Join, unit) => {
                self.held.extend(unit);
                self.held_bytes = 0;
                let units = mem::take(&mut self.held);
                let ops = units.iter().map(|unit| unit.ops).sum();
                let boundary = units.last().map_or(reason, |unit| unit.boundary);
                let region = Region { units, ..self.window.take(ops, boundary, self.mode, Effect::Pure) };
                if region.inputs.iter().filter(|input| !input.lifted).count() <= self.budgets.joined_inputs {
                    self.deliver(region, sealed);
                } else {
                    self.plans.refuse(&region.units);
                    region.into_units().into_iter().for_each(|unit| self.deliver(unit, sealed));
                }
            }
            (_, Some(unit)) => {
                let region = self.window.take(unit.ops, unit.boundary, self.mode, Effect::Pure);
                self.deliver(region, sealed);
            }
            (_, None) => {}
        }
    }

    /// Makes regions of the units that are held back.
    fn let_go(&mut self, sealed: &mut Vec<Region<R>>) {
        self.held_bytes = 0;
        for unit in mem::take(&mut self.held) {
            let region = self.window.take(unit.ops, unit.boundary, self.mode, Effect::Pure);
            self.deliver(region, sealed);
        }
    }

    /// Hands out a region. What is left of it is kept in mind, or forgotten where the program wanted its end.
    fn deliver(&mut self, region: Region<R>, sealed: &mut Vec<Region<R>>) {
        if region.boundary.is_asked_for() {
            self.recent.clear();
        } else {
            let living = region.outputs.iter().filter(|output| output.live);
            self.recent.extend(living.map(|output| output.value.id()));
        }
        sealed.push(region);
    }

    /// The hard boundary that `op` asks for in front of itself.
    fn ends_before(&self, op: &TraceOp<R>) -> Option<Boundary> {
        if self.stats().ops == 0 && self.held.is_empty() {
            return None;
        }
        if op.effect == Effect::Ordered {
            return Some(Boundary::Effect);
        }
        (op.mode != self.mode).then_some(Boundary::ModeChange)
    }

    /// Whether the unit would have more inputs with the op than the budget allows.
    fn has_no_room_for(&self, op: &TraceOp<R>) -> bool {
        let stats = self.stats();
        // Only an op that could go over the budget is worth counting for.
        stats.ops > 0
            && stats.inputs + op.operands.len() > self.budgets.inputs
            && stats.inputs + self.window.fresh(&op.operands) > self.budgets.inputs
    }
}
