//! The memory that a region would hold if its ops ran one by one, in recorded order.
//!
//! Input: a graph, its live results and its dying parameters. Output: the bytes held between any
//! two ops, and the peak. The memory of a compiled region is compared with it, and it selects the
//! place where a region is halved.
//!
//! The count contains the tensors that a program has, or would have, handles on: operands and
//! results of an op coexist while it runs, no result reuses the memory of an operand, and a value
//! is freed after its last use. It does not contain temporary memory of an op, and lifted scalars,
//! which take no device memory.
//!
//! Invariants:
//! - EAGER-1: the bytes are a function of types, wiring, outputs and dying parameters; nothing is
//!   measured.
//! - EAGER-2: after the last op exactly the surviving parameters and the live results are held.

use crate::ir::{Graph, Ref};
use crate::shape::Bytes;

/// Which values of a region outlive it.
pub trait Liveness {
    /// Whether the parameter is a lifted scalar.
    fn is_lifted(&self, param: u32) -> bool;
    /// Whether the region is the parameter's last reader.
    fn dies(&self, param: u32) -> bool;
    /// Whether the result is live after the region.
    fn is_output(&self, result: u32) -> bool;
}

/// The memory held by running a graph op by op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EagerMemory {
    /// Bytes before the first op and after each.
    places: Vec<u64>,
    peak: u64,
}

impl EagerMemory {
    /// Analyses a graph, in time linear in its ops.
    #[must_use]
    pub fn of(graph: &Graph, ends: &impl Liveness) -> EagerMemory {
        /// The last node that uses each value. A value without users counts as used by the node
        /// that produces it.
        const NEVER: usize = usize::MAX;
        let bytes = |value| graph.type_of(value).map_or(0, |ty| ty.bytes().0);
        let mut params = vec![NEVER; graph.params().len()];
        let mut results = vec![NEVER; graph.result_count()];
        for (index, node) in graph.nodes().iter().enumerate() {
            node.results().for_each(|result| {
                if let Ref::Result(result) = result {
                    results[result as usize] = index;
                }
            });
            for &operand in node.operands() {
                match operand {
                    Ref::Param(param) => params[param as usize] = index,
                    Ref::Result(result) => results[result as usize] = index,
                }
            }
        }
        // Bytes freed after each node.
        let mut goes = vec![0u64; graph.nodes().len()];
        let mut now = 0u64;
        for (param, &last) in (0u32..).zip(&params) {
            if ends.is_lifted(param) {
                continue;
            }
            now = now.saturating_add(bytes(Ref::Param(param)));
            if ends.dies(param)
                && let Some(goes) = goes.get_mut(last)
            {
                *goes = goes.saturating_add(bytes(Ref::Param(param)));
            }
        }
        for (result, &last) in (0u32..).zip(&results) {
            if !ends.is_output(result)
                && let Some(goes) = goes.get_mut(last)
            {
                *goes = goes.saturating_add(bytes(Ref::Result(result)));
            }
        }
        let mut held = EagerMemory { places: vec![now], peak: now };
        for (node, goes) in graph.nodes().iter().zip(goes) {
            now = node.results().fold(now, |now, result| now.saturating_add(bytes(result)));
            held.peak = held.peak.max(now);
            now = now.saturating_sub(goes);
            held.places.push(now);
        }
        held
    }

    /// The peak.
    #[must_use]
    pub fn peak(&self) -> Bytes {
        Bytes(self.peak)
    }

    /// The bytes held after `ops` ops; `None` if there are fewer ops.
    #[must_use]
    pub fn behind(&self, ops: usize) -> Option<Bytes> {
        self.places.get(ops).copied().map(Bytes)
    }

    /// Where to halve the region, as the number of ops before the cut. Candidates are the places in
    /// the middle half, so that both parts have at least a quarter of the ops. The one with the
    /// fewest bytes wins; ties go to the one closest to the middle, then to the first. `None` for
    /// fewer than two ops.
    #[must_use]
    pub fn middle(&self) -> Option<usize> {
        let ops = self.places.len() - 1;
        let least = (ops / 4).max(1);
        let places = least..=ops.checked_sub(least)?;
        places.min_by_key(|&place| (self.places[place], (2 * place).abs_diff(ops)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Attrs;
    use crate::dtype::DType;
    use crate::ir::OpCode;
    use crate::op::attrs;
    use crate::shape::{Shape, TensorType};

    /// The dying parameters and the live results.
    struct Named<'a>(&'a [u32], &'a [u32]);

    impl Liveness for Named<'_> {
        fn is_lifted(&self, _param: u32) -> bool {
            false
        }

        fn dies(&self, param: u32) -> bool {
            self.0.contains(&param)
        }

        fn is_output(&self, result: u32) -> bool {
            self.1.contains(&result)
        }
    }

    /// A chain of negations of four numbers: 16 bytes each.
    fn chain(ops: usize) -> Graph {
        let mut graph = Graph::new();
        let mut value = graph.param(TensorType::of(DType::F32, &[4]).unwrap());
        for _ in 0..ops {
            value = graph.push(OpCode::Negate, Attrs::none(), &[], &[value]).unwrap()[0];
        }
        graph
    }

    fn places(held: &EagerMemory) -> Vec<u64> {
        (0..).map_while(|ops| held.behind(ops)).map(|bytes| bytes.0).collect()
    }

    #[test]
    fn a_value_goes_behind_its_last_use() {
        let graph = chain(3);
        let held = EagerMemory::of(&graph, &Named(&[], &[2]));
        assert_eq!((places(&held), held.peak()), (vec![16, 32, 32, 32], Bytes(48)));
        let held = EagerMemory::of(&graph, &Named(&[0], &[2]));
        assert_eq!((places(&held), held.peak()), (vec![16, 16, 16, 16], Bytes(32)));
        // A live result stays, and an unused one exists while its op runs.
        let held = EagerMemory::of(&graph, &Named(&[0], &[0]));
        assert_eq!((places(&held), held.peak()), (vec![16, 16, 32, 16], Bytes(48)));
    }

    #[test]
    fn a_region_is_cut_where_least_is_held() {
        assert_eq!(EagerMemory::of(&chain(0), &Named(&[], &[])).middle(), None);
        assert_eq!(EagerMemory::of(&chain(1), &Named(&[], &[0])).middle(), None);
        assert_eq!(EagerMemory::of(&chain(2), &Named(&[], &[1])).middle(), Some(1));
        assert_eq!(EagerMemory::of(&chain(9), &Named(&[0], &[8])).middle(), Some(4));
        // Large, large, small, large: the cut is after the sum, which is not the middle.
        let mut graph = Graph::new();
        let start = graph.param(TensorType::of(DType::F32, &[4]).unwrap());
        let wide = |graph: &mut Graph, value| {
            let attrs = attrs::broadcast_in_dim(Shape::new(&[64, 4]).unwrap(), &[1]);
            graph.push(OpCode::BroadcastInDim, attrs, &[], &[value]).unwrap()[0]
        };
        let mut value = wide(&mut graph, start);
        let first = [0, 0];
        let narrow = |graph: &mut Graph, value| {
            let attrs = attrs::slice(&first, &[1, 4], &[1, 1]);
            graph.push(OpCode::Slice, attrs, &[], &[value]).unwrap()[0]
        };
        for _ in 0..4 {
            value = graph.push(OpCode::Negate, Attrs::none(), &[], &[value]).unwrap()[0];
        }
        value = narrow(&mut graph, value);
        let attrs = attrs::reshape(Shape::new(&[4]).unwrap());
        value = graph.push(OpCode::Reshape, attrs, &[], &[value]).unwrap()[0];
        value = wide(&mut graph, value);
        graph.push(OpCode::Negate, Attrs::none(), &[], &[value]).unwrap();
        let held = EagerMemory::of(&graph, &Named(&[], &[8]));
        assert_eq!(held.middle(), Some(6), "{held:?}");
    }
}
