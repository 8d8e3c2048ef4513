//! Splits a region whose sizes vary in a few of its ops.
//!
//! A step with one sum over a varying number of rows is a new region for each number. If it is
//! long, or works on large matrices, each compile takes some hundred milliseconds. Op by op only
//! the sum would be new. So from the ninth size on, a region that is neither padded nor quick to
//! interpret is split: the ops whose type or attributes have changed since the previous size become
//! regions by themselves, and what is between them is compiled once.
//!
//! Input: two regions of the same sequence of ops. Output: where the second is cut, if that pays.
//!
//! Invariants:
//! - PAD-7: a region that is cut has the same ops and results as uncut. What is compiled for a new
//!   size is at most half of the region, by the estimate of [`compile_time_of`], so a part is not
//!   cut for ever. A size that has come ten times is compiled as a whole.

use fuseline_fusion::Graph;

use super::cost::compile_time_of;

/// Minimum number of consecutive unchanged ops that become a region: a launch takes as long as
/// about ten small ops.
const LEAST: usize = 16;

/// Maximum number of parts of a region.
const MAX_PARTS: usize = 8;

/// The ops before which the region is cut, in order. `None` if that does not pay.
pub(crate) fn places(before: &Graph, now: &Graph) -> Option<Vec<usize>> {
    let (before, nodes) = (before.nodes(), now.nodes());
    let is_same = |at: usize| before.get(at).is_some_and(|node| node.signature() == nodes[at].signature());
    let mut places = Vec::new();
    // What has to be compiled anew: the ops since `varies`, unless they are an unchanged part.
    let (mut varies, mut at) = (0, 0);
    let mut anew = Vec::new();
    while at < nodes.len() {
        let stays = (at..nodes.len()).take_while(|&at| is_same(at)).count();
        if stays >= LEAST {
            if varies < at {
                anew.push(varies..at);
                places.push(at);
            }
            varies = at + stays;
            if varies < nodes.len() {
                places.push(varies);
            }
        }
        at += stays + 1;
    }
    if varies < nodes.len() {
        anew.push(varies..nodes.len());
    }
    if places.is_empty() || places.len() >= MAX_PARTS {
        return None;
    }
    let anew = anew.into_iter().map(|part| compile_time_of(&nodes[part])).sum::<std::time::Duration>();
    (2 * anew <= compile_time_of(nodes)).then_some(places)
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::op::attrs;
    use fuseline_fusion::{Attrs, Body, DType, OpCode, Ref, TensorType};

    use super::*;

    /// Ops on what stays, a sum over `rows`, ops on what stays.
    fn graph(before: usize, rows: u64, after: usize) -> Graph {
        let add = std::sync::Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).unwrap());
        let mut graph = Graph::new();
        let mut value = graph.param(TensorType::of(DType::F32, &[8]).unwrap());
        let table = graph.param(TensorType::of(DType::F32, &[rows, 8]).unwrap());
        let zero = graph.param(TensorType::scalar(DType::F32));
        let chain = |graph: &mut Graph, mut value: Ref, ops: usize| {
            for _ in 0..ops {
                value = graph.push(OpCode::Tanh, Attrs::none(), &[], &[value]).unwrap()[0];
            }
            value
        };
        value = chain(&mut graph, value, before);
        let tall = graph.push(OpCode::Negate, Attrs::none(), &[], &[table]).unwrap()[0];
        let sum = graph.push(OpCode::Reduce, attrs::dimensions(&[0]), &[add], &[tall, zero]).unwrap()[0];
        value = graph.push(OpCode::Add, Attrs::none(), &[], &[value, sum]).unwrap()[0];
        chain(&mut graph, value, after);
        graph
    }

    /// PAD-7.
    #[test]
    fn what_varies_stands_apart_if_that_pays() {
        let of = |before, after| places(&graph(before, 5, after), &graph(before, 6, after));
        assert_eq!(of(200, 200), Some(vec![200, 202]));
        assert_eq!(of(0, 400), Some(vec![2]));
        assert_eq!(of(400, 0), Some(vec![400]), "the sum and what uses it");
        // The sum alone takes more than half of what the whole takes.
        assert_eq!(of(40, 40), None);
        assert_eq!(of(5, 5), None);
        assert_eq!(places(&graph(200, 5, 200), &graph(200, 5, 200)), None, "nothing varies");
        // Another sequence is another region.
        assert_eq!(places(&graph(0, 5, 0), &graph(200, 6, 200)), None);
    }
}
