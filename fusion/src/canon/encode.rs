//! Writing regions as bytes.
//!
//! ```text
//! region  = FORMAT, #params, (type, lifted)*, nodes
//! ```
//!
//! Nodes have the same encoding as in signatures ([`crate::ir::encode`]).

use super::FORMAT;
use crate::encode::Writer;
use crate::ir::Graph;
use crate::ir::encode::{write_nodes, write_type};

/// Encodes a whole region.
pub(super) fn encode_region(graph: &Graph, lifted: &[bool]) -> Vec<u8> {
    // A node's operands take two bytes each in all but the largest regions.
    let nodes = graph.nodes().iter();
    let size: usize =
        nodes.map(|node| node.signature().encoded().len() + 2 * node.operands().len() + 2).sum();
    let mut out = Writer::with_capacity(size + 32 * graph.params().len() + 16);
    out.byte(FORMAT);
    out.len(graph.params().len());
    for (ty, &lifted) in graph.params().iter().zip(lifted) {
        write_type(&mut out, ty);
        out.byte(lifted.into());
    }
    write_nodes(&mut out, graph);
    out.into_vec()
}
