//! The pending ops of one stream.
//!
//! Cost per op: one hash lookup per operand, one insertion per result. A cut in the past rebuilds both parts.

use std::mem;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::boundary::{Boundary, BoundaryRule, Budgets, PendingStats};
use super::{Input, Mode, Operand, Output, Region, TraceOp, TraceResult, TraceValue as _};
use crate::graph::{Graph, Ref, Refs};
use crate::id::{Site, ValueId};
use crate::op::{Effect, Signature};
use crate::shape::Bytes;

/// What became of a release handed to [`RegionBuilder::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// No pending op knows the value: it can be freed at once.
    Now,
    /// A pending op reads or makes it: a region will return it as a dying input or a dead result (R3).
    WithRegion,
}

/// A run of ops under construction: a graph, what its parameters and results are, and where they are known.
#[derive(Debug)]
pub(super) struct Part<R: TraceResult> {
    graph: Graph,
    inputs: Vec<Input<R::Value>>,
    outputs: Vec<Output<R>>,
    sites: Vec<Site>,
    known: FxHashMap<ValueId, Ref>,
    tensor_inputs: usize,
    bytes: Bytes,
}

impl<R: TraceResult> Part<R> {
    pub(super) fn new() -> Part<R> {
        Part {
            graph: Graph::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            sites: Vec::new(),
            known: FxHashMap::default(),
            tensor_inputs: 0,
            bytes: Bytes(0),
        }
    }

    /// An empty run that has room for another like this one: a steady loop makes the same regions again and again.
    fn successor(&mut self) -> Part<R> {
        let mut known = mem::take(&mut self.known);
        known.clear();
        Part {
            graph: Graph::with_capacity_of(&self.graph),
            inputs: Vec::with_capacity(self.inputs.len()),
            outputs: Vec::with_capacity(self.outputs.len()),
            sites: Vec::with_capacity(self.sites.len()),
            known,
            tensor_inputs: 0,
            bytes: Bytes(0),
        }
    }

    pub(super) fn append(
        &mut self,
        signature: Arc<Signature>,
        operands: impl IntoIterator<Item = Operand<R::Value>>,
        results: impl IntoIterator<Item = R>,
        site: Site,
    ) {
        let mut refs = Refs::new();
        for (operand, ty) in operands.into_iter().zip(signature.operands()) {
            let (value, lifted) = match operand {
                Operand::Tensor(value) => (value, false),
                Operand::Scalar(value) => (value, true),
            };
            refs.push(*self.known.entry(value.id()).or_insert_with(|| {
                self.tensor_inputs += usize::from(!lifted);
                self.inputs.push(Input { value, lifted, dies: false });
                self.graph.param(ty.clone())
            }));
        }
        for ty in signature.results() {
            self.bytes = self.bytes.saturating_add(ty.bytes());
        }
        let places = self.graph.push_signature(signature, refs);
        for (value, place) in results.into_iter().zip(places) {
            self.known.insert(value.id(), place);
            self.outputs.push(Output { value, live: true });
        }
        debug_assert_eq!(self.outputs.len(), self.graph.result_count(), "one value per result");
        self.sites.push(site);
    }

    pub(super) fn release(&mut self, value: ValueId) -> Released {
        match self.known.get(&value) {
            None => return Released::Now,
            Some(&Ref::Param(index)) => self.inputs[index as usize].dies = true,
            Some(&Ref::Result(index)) => self.outputs[index as usize].live = false,
        }
        Released::WithRegion
    }

    fn released(&self) -> Vec<ValueId> {
        let inputs = self.inputs.iter().filter(|input| input.dies).map(|input| input.value.id());
        let outputs = self.outputs.iter().filter(|output| !output.live).map(|output| output.value.id());
        inputs.chain(outputs).collect()
    }

    /// Cuts the run in two after `len` ops. What the second part uses of the first stays live there and becomes an input;
    /// a release goes to the last part that knows the value (R2, R3).
    pub(super) fn cut(self, len: usize) -> (Part<R>, Part<R>) {
        let released = self.released();
        let mut head = Part::new();
        let mut tail = Part::new();
        let values: Vec<R::Value> = self.outputs.iter().map(|output| output.value.value()).collect();
        let mut outputs = self.outputs.into_iter();
        for (index, (node, site)) in self.graph.nodes().iter().zip(self.sites).enumerate() {
            let operands = node.operands().iter().map(|&operand| match operand {
                Ref::Result(index) => Operand::Tensor(values[index as usize].clone()),
                Ref::Param(index) => {
                    let input = &self.inputs[index as usize];
                    let value = input.value.clone();
                    if input.lifted { Operand::Scalar(value) } else { Operand::Tensor(value) }
                }
            });
            let results = outputs.by_ref().take(node.results().len()).map(|output| output.value);
            let part = if index < len { &mut head } else { &mut tail };
            part.append(node.signature().clone(), operands, results, site);
        }
        for value in released {
            if tail.release(value) == Released::Now {
                let _ = head.release(value);
            }
        }
        (head, tail)
    }

    pub(super) fn len(&self) -> usize {
        self.sites.len()
    }

    pub(super) fn of(region: Region<R>) -> Part<R> {
        // `cut` needs no `known`: it builds both parts anew.
        Part {
            graph: region.graph,
            inputs: region.inputs,
            outputs: region.outputs,
            sites: region.sites,
            known: FxHashMap::default(),
            tensor_inputs: 0,
            bytes: Bytes(0),
        }
    }

    pub(super) fn finish(self, boundary: Boundary, mode: Mode, effect: Effect) -> Region<R> {
        Region {
            graph: self.graph,
            inputs: self.inputs,
            outputs: self.outputs,
            sites: self.sites,
            boundary,
            mode,
            effect,
        }
    }
}

/// Collects ops and cuts them into regions. One per stream; not shared.
#[derive(Debug)]
pub struct RegionBuilder<R: TraceResult = ValueId> {
    rule: Box<dyn BoundaryRule>,
    budgets: Budgets,
    pending: Part<R>,
    /// Mode of the pending ops, which all have the same.
    mode: Mode,
    /// Living results of the regions that ended for a reason of ours since the program last asked for a boundary.
    recent: FxHashSet<ValueId>,
}

impl<R: TraceResult> RegionBuilder<R> {
    /// A builder without pending ops.
    #[must_use]
    pub fn new(rule: Box<dyn BoundaryRule>, budgets: Budgets) -> RegionBuilder<R> {
        RegionBuilder { rule, budgets, pending: Part::new(), mode: Mode::Fused, recent: FxHashSet::default() }
    }

    /// Size of the pending ops.
    #[must_use]
    pub fn stats(&self) -> PendingStats {
        let pending = &self.pending;
        PendingStats { ops: pending.len(), inputs: pending.tensor_inputs, bytes: pending.bytes }
    }

    /// Whether asking for `value` is a boundary: a pending op makes it, or one that would be pending but for a budget or the
    /// rule. The latter is what lets a loop that reads once per step start each step at a boundary, however many
    /// regions a step takes: otherwise a cut of ours before the read would shift every later one.
    #[must_use]
    pub fn is_recent(&self, value: ValueId) -> bool {
        matches!(self.pending.known.get(&value), Some(Ref::Result(_))) || self.recent.contains(&value)
    }

    /// Adds an op; regions that end because of it are appended to `sealed`.
    pub fn push(&mut self, op: TraceOp<R>, sealed: &mut Vec<Region<R>>) {
        if let Some(reason) = self.ends_before(&op) {
            self.seal(reason, sealed);
        }
        let TraceOp { signature, operands, results, effect, mode, site } = op;
        self.mode = mode;
        self.pending.append(signature, operands, results, site);
        let stats = self.stats();
        let hard = match mode {
            _ if effect == Effect::Ordered => Some(Boundary::Effect),
            Mode::Strict => Some(Boundary::Strict),
            Mode::Debug => Some(Boundary::Debug),
            Mode::Fused if stats.ops >= self.budgets.ops => Some(Boundary::OpBudget),
            Mode::Fused if stats.bytes >= self.budgets.bytes => Some(Boundary::ByteBudget),
            Mode::Fused => None,
        };
        if let Some(reason) = hard {
            self.seal_as(reason, effect, sealed);
            return;
        }
        let Some(last) = self.pending.graph.nodes().last() else { return };
        if let Some(cut) = self.rule.after(last.signature(), last.operands(), stats) {
            let len = cut.len.clamp(1, stats.ops);
            let (head, tail) = mem::replace(&mut self.pending, Part::new()).cut(len);
            self.pending = tail;
            let head = head.finish(cut.reason, mode, Effect::Pure);
            self.remember(&head);
            sealed.push(head);
        }
    }

    /// The last handle on `value` was dropped.
    pub fn release(&mut self, value: ValueId) -> Released {
        self.recent.remove(&value);
        self.pending.release(value)
    }

    /// Seals all pending ops, if there are any.
    pub fn seal(&mut self, reason: Boundary, sealed: &mut Vec<Region<R>>) {
        self.seal_as(reason, Effect::Pure, sealed);
    }

    fn seal_as(&mut self, reason: Boundary, effect: Effect, sealed: &mut Vec<Region<R>>) {
        if self.pending.len() > 0 {
            let next = self.pending.successor();
            let all = mem::replace(&mut self.pending, next);
            let all = all.finish(reason, self.mode, effect);
            self.remember(&all);
            sealed.push(all);
            self.rule.reset();
        } else if reason.is_asked_for() {
            self.recent.clear();
        }
    }

    /// Keeps in mind what is left of a region, or forgets about it where the program wanted its end.
    fn remember(&mut self, sealed: &Region<R>) {
        if sealed.boundary.is_asked_for() {
            self.recent.clear();
        } else {
            let living = sealed.outputs.iter().filter(|output| output.live);
            self.recent.extend(living.map(|output| output.value.id()));
        }
    }

    /// The hard boundary that `op` asks for in front of itself.
    fn ends_before(&self, op: &TraceOp<R>) -> Option<Boundary> {
        if self.pending.len() == 0 {
            return None;
        }
        if op.effect == Effect::Ordered {
            return Some(Boundary::Effect);
        }
        if op.mode != self.mode {
            return Some(Boundary::ModeChange);
        }
        let fresh = |(place, operand): &(usize, &Operand<R::Value>)| {
            let id = operand.value().id();
            matches!(operand, Operand::Tensor(_))
                && !self.pending.known.contains_key(&id)
                && op.operands[..*place].iter().all(|earlier| earlier.value().id() != id)
        };
        // Only an op that could go over the budget is worth counting for.
        if self.pending.tensor_inputs + op.operands.len() <= self.budgets.inputs {
            return None;
        }
        let count = op.operands.iter().enumerate().filter(fresh).count();
        (self.pending.tensor_inputs + count > self.budgets.inputs).then_some(Boundary::InputBudget)
    }
}
