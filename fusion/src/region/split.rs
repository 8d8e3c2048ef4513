//! Splits a region into smaller regions.

use super::eager_memory::{EagerMemory, Liveness};
use super::pending::Window;
use super::{Boundary, Operand, Region, TraceOp, TraceResult, TraceValue as _, Unit};
use crate::ir::Ref;

impl<R: TraceResult> Region<R> {
    /// Splits the region into its ops, each a region of its own, in order. Values that later ops
    /// use stay live until their last use, so running the parts in turn gives the results of the
    /// whole. This is how a region runs that could not be compiled, or that has a failed input, so
    /// that only a part of it can be computed.
    #[must_use]
    pub fn split(self) -> Vec<Region<R>> {
        let single = Unit { ops: 1, boundary: Boundary::Fallback, fingerprint: 0 };
        let units = vec![single; self.sites.len()];
        self.split_into(&units)
    }

    /// Splits the region in two at the place in its middle where the fewest bytes are held
    /// ([`EagerMemory::middle`]). Results of the first part that the second uses are passed on.
    ///
    /// # Errors
    /// Returns the region if it has a single op.
    pub fn halve(self) -> Result<[Region<R>; 2], Box<Region<R>>> {
        let Some(first) = EagerMemory::of(&self.graph, &self).middle() else { return Err(Box::new(self)) };
        let parts = self.cut(&[first], Boundary::Memory);
        Ok(parts.try_into().expect("bug: one split position must give two regions"))
    }

    /// Splits the region before the ops at `places`, which are ascending.
    ///
    /// # Panics
    /// If a part would be empty.
    #[must_use]
    pub fn cut(self, places: &[usize], boundary: Boundary) -> Vec<Region<R>> {
        let begins = std::iter::once(0).chain(places.iter().copied());
        let ends = places.iter().map(|&place| (place, boundary)).chain([(self.sites.len(), self.boundary)]);
        let unit = |(begin, (end, boundary)): (usize, (usize, Boundary))| {
            assert!(begin < end, "a part from {begin} to {end}");
            Unit { ops: end - begin, boundary, fingerprint: 0 }
        };
        let units: Vec<Unit> = begins.zip(ends).map(unit).collect();
        self.split_into(&units)
    }

    /// Splits the region into the units that it was merged from, in order; a single unit is
    /// returned as it is.
    #[must_use]
    pub fn into_units(mut self) -> Vec<Region<R>> {
        match std::mem::take(&mut self.units) {
            units if units.is_empty() => vec![self],
            units => self.split_into(&units),
        }
    }

    fn split_into(self, units: &[Unit]) -> Vec<Region<R>> {
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
        // Drops references first: those of the inputs and results here would prevent donations by
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
