//! A region taken apart again.

use super::eager_memory::{EagerMemory, Liveness};
use super::pending::Window;
use super::{Boundary, Operand, Region, TraceOp, TraceResult, TraceValue as _, Unit};
use crate::graph::Ref;

impl<R: TraceResult> Region<R> {
    /// The ops one by one, each a region of its own, in order. What later ops use stays live until
    /// its last use, so running them in turn gives what the whole gives: how a region runs that
    /// could not be compiled, or one of whose inputs failed so that only a part of it can be
    /// computed.
    #[must_use]
    pub fn split(self) -> Vec<Region<R>> {
        let single = Unit { ops: 1, boundary: Boundary::Fallback, print: 0 };
        let units = vec![single; self.sites.len()];
        self.apart(&units)
    }

    /// The region in two, where the least is held of the places in its middle
    /// ([`EagerMemory::middle`]); the region if it is one op. The first part hands on what the
    /// second uses of it.
    ///
    /// # Errors
    /// The region itself, when it has a single op.
    pub fn halve(self) -> Result<[Region<R>; 2], Box<Region<R>>> {
        let Some(first) = EagerMemory::of(&self.graph, &self).middle() else { return Err(Box::new(self)) };
        let parts = self.cut(&[first], Boundary::Memory);
        Ok(parts.try_into().expect("bug: one place makes two regions"))
    }

    /// The region in parts, which end before the ops at these places, in order.
    ///
    /// # Panics
    /// When a part would have no op.
    #[must_use]
    pub fn cut(self, places: &[usize], boundary: Boundary) -> Vec<Region<R>> {
        let begins = std::iter::once(0).chain(places.iter().copied());
        let ends = places.iter().map(|&place| (place, boundary)).chain([(self.sites.len(), self.boundary)]);
        let unit = |(begin, (end, boundary)): (usize, (usize, Boundary))| {
            assert!(begin < end, "a part from {begin} to {end}");
            Unit { ops: end - begin, boundary, print: 0 }
        };
        let units: Vec<Unit> = begins.zip(ends).map(unit).collect();
        self.apart(&units)
    }

    /// The units that the region was joined from, each a region of its own, in order; the region if
    /// it is one.
    #[must_use]
    pub fn into_units(mut self) -> Vec<Region<R>> {
        match std::mem::take(&mut self.units) {
            units if units.is_empty() => vec![self],
            units => self.apart(&units),
        }
    }

    fn apart(self, units: &[Unit]) -> Vec<Region<R>> {
        let Region { graph, inputs, outputs, sites, mode, effect, .. } = self;
        let values: Vec<R::Value> = outputs.iter().map(|output| output.value.value()).collect();
        let dying = inputs.iter().filter(|input| input.dies).map(|input| input.value.id());
        let dead = outputs.iter().filter(|output| !output.live).map(|output| output.value.id());
        let released: Vec<_> = dying.chain(dead).collect();
        let mut outputs = outputs.into_iter();
        let mut window = Window::new();
        for (node, site) in graph.nodes().iter().zip(sites) {
            let operands = node.operands().iter().map(|&operand| match operand {
                Ref::Result(index) => Operand::Tensor(values[index as usize].clone()),
                Ref::Param(index) => {
                    let input = &inputs[index as usize];
                    let value = input.value.clone();
                    if input.lifted { Operand::Scalar(value) } else { Operand::Tensor(value) }
                }
            });
            let operands = operands.collect();
            let results = outputs.by_ref().take(node.results().len()).map(|output| output.value).collect();
            let signature = node.signature().clone();
            window.push(TraceOp { signature, operands, results, effect, mode, site });
        }
        // What is counted are references: those of inputs and results here would veto a donation of
        // the units.
        drop((inputs, values));
        for value in released {
            let _ = window.release(value);
        }
        units.iter().map(|unit| window.take(unit.ops, unit.boundary, mode, effect)).collect()
    }
}

impl<R: TraceResult> Liveness for Region<R> {
    fn is_lifted(&self, param: u32) -> bool {
        self.inputs[param as usize].lifted
    }

    fn dies(&self, param: u32) -> bool {
        self.inputs[param as usize].dies
    }

    fn is_output(&self, result: u32) -> bool {
        self.outputs[result as usize].live
    }
}
