//! The pending ops of one stream.
//!
//! State: the ops recorded since the last boundary, each operand resolved to a [`Ref`] of the graph that would be
//! sealed now. Three maps over [`ValueId`]s say which input or result a value is. Cost per op: one hash lookup per
//! operand, one insertion per result.

use std::mem;

use rustc_hash::FxHashMap;

use super::boundary::{Boundary, BoundaryRule, Budgets, PendingStats};
use super::{Input, Mode, Operand, Output, Region, TraceOp};
use crate::graph::{Graph, Ref, Refs};
use crate::id::ValueId;
use crate::op::Effect;
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

/// Collects ops and cuts them into regions. One per stream; not shared.
#[derive(Debug)]
pub struct RegionBuilder {
    rule: Box<dyn BoundaryRule>,
    budgets: Budgets,
    ops: Vec<TraceOp>,
    graph: Graph,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    known: FxHashMap<ValueId, Ref>,
    tensor_inputs: usize,
    bytes: Bytes,
}

impl RegionBuilder {
    /// A builder without pending ops.
    #[must_use]
    pub fn new(rule: Box<dyn BoundaryRule>, budgets: Budgets) -> RegionBuilder {
        RegionBuilder {
            rule,
            budgets,
            ops: Vec::new(),
            graph: Graph::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            known: FxHashMap::default(),
            tensor_inputs: 0,
            bytes: Bytes(0),
        }
    }

    /// Size of the pending ops.
    #[must_use]
    pub fn stats(&self) -> PendingStats {
        PendingStats { ops: self.ops.len(), inputs: self.tensor_inputs, bytes: self.bytes }
    }

    /// Whether a pending op makes `value`: reading it on the host needs a boundary.
    #[must_use]
    pub fn makes(&self, value: ValueId) -> bool {
        matches!(self.known.get(&value), Some(Ref::Result(_)))
    }

    /// Adds an op; regions that end because of it are appended to `sealed`.
    pub fn push(&mut self, op: TraceOp, sealed: &mut Vec<Region>) {
        if let Some(reason) = self.ends_before(&op) {
            self.seal(reason, sealed);
        }
        let effect = op.effect;
        let mode = op.mode;
        self.append(op);
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
            self.seal(reason, sealed);
        } else if let Some(cut) = self.rule.after(&self.ops[stats.ops - 1], stats) {
            self.cut(cut.len.clamp(1, stats.ops), cut.reason, sealed);
        }
    }

    /// The last handle on `value` was dropped.
    pub fn release(&mut self, value: ValueId) -> Released {
        match self.known.get(&value) {
            None => return Released::Now,
            Some(&Ref::Param(index)) => self.inputs[index as usize].dies = true,
            Some(&Ref::Result(index)) => self.outputs[index as usize].live = false,
        }
        Released::WithRegion
    }

    /// Seals all pending ops, if there are any.
    pub fn seal(&mut self, reason: Boundary, sealed: &mut Vec<Region>) {
        if !self.ops.is_empty() {
            let all = self.ops.len();
            self.cut(all, reason, sealed);
            self.rule.reset();
        }
    }

    /// The hard boundary that `op` asks for in front of itself.
    fn ends_before(&self, op: &TraceOp) -> Option<Boundary> {
        let last = self.ops.last()?;
        if op.effect == Effect::Ordered {
            return Some(Boundary::Effect);
        }
        if op.mode != last.mode {
            return Some(Boundary::ModeChange);
        }
        let mut fresh = 0;
        for (i, operand) in op.operands.iter().enumerate() {
            if let Operand::Tensor(value) = operand
                && !self.known.contains_key(value)
                && !op.operands[..i].contains(operand)
            {
                fresh += 1;
            }
        }
        (self.tensor_inputs + fresh > self.budgets.inputs).then_some(Boundary::InputBudget)
    }

    fn append(&mut self, op: TraceOp) {
        let mut refs = Refs::new();
        for (operand, ty) in op.operands.iter().zip(op.signature.operands()) {
            let value = operand.value();
            refs.push(*self.known.entry(value).or_insert_with(|| {
                let lifted = matches!(operand, Operand::Scalar(_));
                self.tensor_inputs += usize::from(!lifted);
                self.inputs.push(Input { value, lifted, dies: false });
                self.graph.param(ty.clone())
            }));
        }
        let results = self.graph.push_signature(op.signature.clone(), refs);
        debug_assert_eq!(results.len(), op.results.len(), "one value per result");
        for (&value, result) in op.results.iter().zip(results) {
            self.known.insert(value, result);
            self.outputs.push(Output { value, live: true });
        }
        for ty in op.signature.results() {
            self.bytes = self.bytes.saturating_add(ty.bytes());
        }
        self.ops.push(op);
    }

    /// Seals the first `len` pending ops; the rest stays pending.
    fn cut(&mut self, len: usize, reason: Boundary, sealed: &mut Vec<Region>) {
        let mut ops = mem::take(&mut self.ops);
        let tail = ops.split_off(len);
        if tail.is_empty() {
            let graph = mem::take(&mut self.graph);
            let inputs = mem::take(&mut self.inputs);
            let outputs = mem::take(&mut self.outputs);
            self.clear();
            sealed.push(region(graph, inputs, outputs, &ops, reason));
            return;
        }
        // Liveness is what is known now, after the tail was recorded: rebuild both parts from their ops and carry the
        // flags over. A value that the tail uses is an output of the head, and dies in the tail if it was released.
        let released: Vec<ValueId> = self
            .inputs
            .iter()
            .filter(|input| input.dies)
            .map(|input| input.value)
            .chain(self.outputs.iter().filter(|output| !output.live).map(|output| output.value))
            .collect();
        self.clear();
        self.graph = Graph::new();
        self.inputs.clear();
        self.outputs.clear();
        for op in ops {
            self.append(op);
        }
        let head_ops = mem::take(&mut self.ops);
        let head_graph = mem::take(&mut self.graph);
        let mut head_inputs = mem::take(&mut self.inputs);
        let mut head_outputs = mem::take(&mut self.outputs);
        self.clear();
        for op in tail {
            self.append(op);
        }
        for value in released {
            if self.release(value) == Released::Now {
                head_inputs.iter_mut().filter(|i| i.value == value).for_each(|i| i.dies = true);
                head_outputs.iter_mut().filter(|o| o.value == value).for_each(|o| o.live = false);
            }
        }
        sealed.push(region(head_graph, head_inputs, head_outputs, &head_ops, reason));
    }

    fn clear(&mut self) {
        self.known.clear();
        self.tensor_inputs = 0;
        self.bytes = Bytes(0);
    }
}

fn region(
    graph: Graph,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    ops: &[TraceOp],
    boundary: Boundary,
) -> Region {
    Region {
        graph,
        inputs,
        outputs,
        sites: ops.iter().map(|op| op.site.clone()).collect(),
        boundary,
        mode: ops.first().map_or(Mode::Fused, |op| op.mode),
        effect: ops.first().map_or(Effect::Pure, |op| op.effect),
    }
}
