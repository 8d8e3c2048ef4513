//! Which results reuse the memory of which inputs.
//!
//! Input: a region, the results that are returned, and the parameters whose memory nobody needs
//! afterwards. Output: [`Aliases`].
//!
//! Invariants:
//! - ALIAS-2: an alias pairs a parameter and a result of the same type. Each has at most one.
//! - ALIAS-3: when the result is produced, all readers of the parameter are done: each reader is
//!   the op that produces the result, or an op that this one depends on. XLA decides from
//!   dependences where it needs copies, before it orders the ops. If a reader could run later, XLA
//!   copies the parameter first and often the result too. That takes longer than new memory for the
//!   result and saves none, since the copy needs as much. (In a training step of nanoGPT with Adam,
//!   whose updates come op by op for all parameters, 179 of 739 kernels were such copies, 9.1 MB a
//!   step; XLA's CPU backend, API 0.81.)

use std::cmp::Reverse;

use crate::canon::CanonRegion;
use crate::ir::{Graph, Ref};

/// Which inputs may be reused for which results. An executable compiled with an alias may still run
/// without it, so aliases are not part of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aliases(Vec<(u32, u32)>);

impl Aliases {
    /// No aliases.
    #[must_use]
    pub fn none() -> Aliases {
        Aliases::default()
    }

    /// Pairs of a parameter and the position, among the returned results, of the result that may
    /// reuse its memory; ascending.
    #[must_use]
    pub fn pairs(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Pairs each candidate with at most one returned result that has the same type and may
    /// overwrite it.
    ///
    /// `outputs` are the returned results; `candidates` are the parameters (by index in the region)
    /// that may be reused. A result gets the parameter that was read last among those that fit, so
    /// the new value of a state overwrites the old one.
    #[must_use]
    pub fn pair(region: &CanonRegion, outputs: &[u32], candidates: &[u32]) -> Aliases {
        let mut left: Vec<u32> =
            candidates.iter().copied().filter(|&param| !region.lifted()[param as usize]).collect();
        let mut readers = Readers::of(region.graph());
        let mut pairs = Vec::new();
        for (position, &output) in (0u32..).zip(outputs) {
            // Ties go to the first parameter.
            let fitting = readers.fitting(output, &left);
            if let Some((param, _)) = fitting.max_by_key(|&(param, last)| (last, Reverse(param))) {
                pairs.push((param, position));
                left.retain(|&other| other != param);
            }
        }
        pairs.sort_unstable();
        Aliases(pairs)
    }

    /// The parameters that at least one of these results could overwrite; ascending.
    #[must_use]
    pub fn possible(region: &CanonRegion, outputs: &[u32]) -> Vec<u32> {
        let mut left: Vec<u32> =
            (0u32..).zip(region.lifted()).filter(|(_, lifted)| !**lifted).map(|(param, _)| param).collect();
        let mut readers = Readers::of(region.graph());
        let mut possible = Vec::new();
        for &output in outputs {
            let before = possible.len();
            possible.extend(readers.fitting(output, &left).map(|(param, _)| param));
            left.retain(|param| !possible[before..].contains(param));
        }
        possible.sort_unstable();
        possible
    }

    /// Parameters that have an alias, ascending.
    pub fn params(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|&(param, _)| param)
    }

    pub(super) fn of(&self, param: u32) -> Option<u32> {
        self.0.iter().find(|&&(p, _)| p == param).map(|&(_, output)| output)
    }
}

/// The readers of each parameter, and a search for the ops that an op depends on.
struct Readers<'a> {
    graph: &'a Graph,
    /// Readers by parameter, ascending.
    of: Vec<Vec<usize>>,
    /// By op: the last search that reached it.
    found: Vec<u32>,
    round: u32,
}

impl<'a> Readers<'a> {
    fn of(graph: &'a Graph) -> Readers<'a> {
        let mut of = vec![Vec::new(); graph.params().len()];
        for (index, node) in graph.nodes().iter().enumerate() {
            for operand in node.operands() {
                if let Ref::Param(param) = *operand {
                    of[param as usize].push(index);
                }
            }
        }
        Readers { graph, of, found: vec![0; graph.nodes().len()], round: 0 }
    }

    /// The parameters that a result may overwrite, each with its last reader. A parameter without
    /// readers sorts first.
    fn fitting(&mut self, output: u32, params: &[u32]) -> impl Iterator<Item = (u32, Option<usize>)> {
        let result = Ref::Result(output);
        let ty = self.graph.type_of(result);
        let mut fitting: Vec<u32> = params.to_vec();
        fitting.retain(|&param| ty == Some(&self.graph.params()[param as usize]));
        if let (Some(maker), false) = (self.graph.maker(result), fitting.is_empty()) {
            self.find(maker);
            fitting.retain(|&param| {
                self.of[param as usize].iter().all(|&reader| self.found[reader] == self.round)
            });
        }
        fitting.into_iter().map(|param| (param, self.of[param as usize].last().copied()))
    }

    /// Marks an op and all ops that it depends on.
    fn find(&mut self, op: usize) {
        self.round += 1;
        self.found[op] = self.round;
        let mut left = vec![op];
        while let Some(op) = left.pop() {
            for &operand in self.graph.nodes()[op].operands() {
                if let Some(maker) = self.graph.maker(operand)
                    && self.found[maker] != self.round
                {
                    self.found[maker] = self.round;
                    left.push(maker);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Attrs;
    use crate::dtype::DType;
    use crate::ir::OpCode;
    use crate::shape::TensorType;

    /// A region of `params` vectors and binary ops. Operands are numbered on from the parameters.
    fn region(params: usize, ops: &[(OpCode, usize, usize)]) -> CanonRegion {
        let mut graph = Graph::new();
        let ty = TensorType::of(DType::F32, &[4]).unwrap();
        let mut values: Vec<Ref> = (0..params).map(|_| graph.param(ty.clone())).collect();
        for &(op, a, b) in ops {
            let made = graph.push(op, Attrs::none(), &[], &[values[a], values[b]]).unwrap();
            values.extend(made);
        }
        CanonRegion::new(graph, vec![false; params].into())
    }

    use OpCode::{Add, Multiply};

    /// Momentum: the velocity is computed before the value. Each reuses its own memory, whichever
    /// parameter comes first.
    #[test]
    fn a_state_lies_where_it_lay() {
        // Value, target, velocity, other; then gradient, new velocity, new value, and an unrelated
        // result.
        let region = region(4, &[(Add, 0, 1), (Add, 2, 4), (Add, 0, 5), (Add, 6, 3)]);
        let pairs = |candidates: &[u32]| Aliases::pair(&region, &[1, 2], candidates).0;
        // Parameters by number, outputs by position.
        assert_eq!(pairs(&[0, 2]), [(0, 1), (2, 0)]);
        // ALIAS-3: this parameter is read after both results were produced.
        assert_eq!(pairs(&[3]), []);
        assert_eq!(pairs(&[0, 3]), [(0, 1)]);
        // The target is read before either.
        assert_eq!(pairs(&[1, 2]), [(1, 1), (2, 0)]);
        assert_eq!(pairs(&[]), []);
        assert_eq!(Aliases::possible(&region, &[1, 2]), [0, 1, 2]);
        assert_eq!(Aliases::possible(&region, &[0]), [1]);
    }

    /// Optimizers update all states op by op; each state keeps its memory.
    #[test]
    fn states_that_are_updated_side_by_side_keep_their_places() {
        let (states, gradients) = (0..3, 3..6);
        let mut ops: Vec<_> = states.clone().map(|state| (Multiply, state, state)).collect();
        ops.extend(states.clone().zip(gradients).map(|(state, gradient)| (Add, 6 + state, gradient)));
        let region = region(6, &ops);
        assert_eq!(Aliases::pair(&region, &[3, 4, 5], &[0, 1, 2]).0, [(0, 0), (1, 1), (2, 2)]);
    }

    /// ALIAS-3: a parameter with a reader that the result does not depend on, recorded after or
    /// before it.
    #[test]
    fn what_may_be_read_later_is_not_written_over() {
        let both = region(2, &[(Multiply, 0, 1), (Add, 0, 1)]);
        assert_eq!(Aliases::pair(&both, &[1], &[0, 1]), Aliases::none());
        assert!(Aliases::possible(&both, &[0, 1]).is_empty());
        // A parameter without readers may be overwritten by any result.
        let one = region(2, &[(Multiply, 0, 0), (Add, 0, 0)]);
        assert_eq!(Aliases::pair(&one, &[0, 1], &[0, 1]).0, [(1, 0)]);
    }
}
