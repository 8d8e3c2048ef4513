//! Which results are put into the memory of which inputs.
//!
//! Input: a region, the results that are returned, and the parameters whose memory nobody needs
//! after it. Output: [`Aliases`].
//!
//! Invariants:
//! - Y2: an alias is between a parameter and a result of one type; each has at most one.
//! - Y3: all that reads the parameter is done when its result is made: each of its readers is the
//!   op that makes the result, or one that this depends on. XLA decides over copies by what depends
//!   on what, before it knows the order of ops. Where a reader could come later it copies the
//!   parameter first and, often, the result too, which takes longer than new memory for the result
//!   and saves none, since the copy needs as much. (Of a training step of nanoGPT with Adam, whose
//!   updates come op by op for all parameters, 179 of 739 kernels were such copies, 9.1 MB a step;
//!   XLA's CPU backend, API 0.81.)

use std::cmp::Reverse;

use crate::canon::CanonRegion;
use crate::graph::{Graph, Ref};

/// Which inputs may be reused for which results. An executable compiled with an alias may still be
/// run without using it, so the choice is no part of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aliases(Vec<(u32, u32)>);

impl Aliases {
    /// No reuse.
    #[must_use]
    pub fn none() -> Aliases {
        Aliases::default()
    }

    /// Each parameter with the position of the result, among those returned, that may have its
    /// memory; ascending.
    #[must_use]
    pub fn pairs(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Pairs the given candidates with returned results of the same type that can be written over
    /// them, each once.
    ///
    /// `outputs` are the returned results; `candidates` the parameters (by index in the region)
    /// that may be reused. Of those whose memory a result could have it gets that of the one that
    /// was read last: a state goes where the state before it was.
    #[must_use]
    pub fn pair(region: &CanonRegion, outputs: &[u32], candidates: &[u32]) -> Aliases {
        let mut left: Vec<u32> =
            candidates.iter().copied().filter(|&param| !region.lifted()[param as usize]).collect();
        let mut readers = Readers::of(region.graph());
        let mut pairs = Vec::new();
        for (position, &output) in (0u32..).zip(outputs) {
            // Of those read last by the same op, the first.
            let fitting = readers.fitting(output, &left);
            if let Some((param, _)) = fitting.max_by_key(|&(param, last)| (last, Reverse(param))) {
                pairs.push((param, position));
                left.retain(|&other| other != param);
            }
        }
        pairs.sort_unstable();
        Aliases(pairs)
    }

    /// The parameters, ascending, that some of these results could be written over.
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

/// The ops that read each parameter, and those that an op depends on.
struct Readers<'a> {
    graph: &'a Graph,
    /// By parameter, ascending.
    of: Vec<Vec<usize>>,
    /// By op: the round in which it was last found.
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

    /// Those of the parameters that a result can be written over, each with the op that reads it
    /// last. What nobody reads was read first.
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

    /// Finds an op and all that it depends on.
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
    use crate::op::OpCode;
    use crate::shape::TensorType;

    /// So many vectors, ops on two of what there is, numbered on from those; and which are
    /// returned.
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

    /// Momentum: the speed is made before the value, and each lies where it lay, whichever
    /// parameter comes first.
    #[test]
    fn a_state_lies_where_it_lay() {
        // Value, target, speed, other; gradient, faster, moved, and something else.
        let region = region(4, &[(Add, 0, 1), (Add, 2, 4), (Add, 0, 5), (Add, 6, 3)]);
        let pairs = |candidates: &[u32]| Aliases::pair(&region, &[1, 2], candidates).0;
        // Parameters by number, outputs by place.
        assert_eq!(pairs(&[0, 2]), [(0, 1), (2, 0)]);
        // Y3: it is read after either was made.
        assert_eq!(pairs(&[3]), []);
        assert_eq!(pairs(&[0, 3]), [(0, 1)]);
        // The target is read before both.
        assert_eq!(pairs(&[1, 2]), [(1, 1), (2, 0)]);
        assert_eq!(pairs(&[]), []);
        assert_eq!(Aliases::possible(&region, &[1, 2]), [0, 1, 2]);
        assert_eq!(Aliases::possible(&region, &[0]), [1]);
    }

    /// Updates that come op by op for all states, as optimizers make them: each state keeps its
    /// place.
    #[test]
    fn states_that_are_updated_side_by_side_keep_their_places() {
        let (states, gradients) = (0..3, 3..6);
        let mut ops: Vec<_> = states.clone().map(|state| (Multiply, state, state)).collect();
        ops.extend(states.clone().zip(gradients).map(|(state, gradient)| (Add, 6 + state, gradient)));
        let region = region(6, &ops);
        assert_eq!(Aliases::pair(&region, &[3, 4, 5], &[0, 1, 2]).0, [(0, 0), (1, 1), (2, 2)]);
    }

    /// Y3: what is read by an op that the result does not wait for, after it in the record or
    /// before.
    #[test]
    fn what_may_be_read_later_is_not_written_over() {
        let both = region(2, &[(Multiply, 0, 1), (Add, 0, 1)]);
        assert_eq!(Aliases::pair(&both, &[1], &[0, 1]), Aliases::none());
        assert!(Aliases::possible(&both, &[0, 1]).is_empty());
        // What nobody reads is there for any.
        let one = region(2, &[(Multiply, 0, 0), (Add, 0, 0)]);
        assert_eq!(Aliases::pair(&one, &[0, 1], &[0, 1]).0, [(1, 0)]);
    }
}
