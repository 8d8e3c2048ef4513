//! Makes the canonical form of a region: writes it as bytes, and hashes them.
//!
//! ```text
//! region  = FORMAT, #params, (type, lifted)*, nodes
//! ```
//!
//! Nodes have the same encoding as in signatures ([`crate::ir::encode`]).

use super::{CanonRegion, EnvFingerprint, FORMAT, RegionKey, can_lift};
use crate::encode::Writer;
use crate::ir::Graph;
use crate::ir::encode::{write_nodes, write_type};

impl CanonRegion {
    /// Brings a region into canonical form. `lifted[i]` tells whether parameter `i` is a lifted
    /// scalar.
    ///
    /// # Panics
    /// If the length of `lifted` is not the number of parameters, or it marks a parameter that is
    /// not a real scalar.
    #[must_use]
    pub fn new(graph: Graph, lifted: Box<[bool]>) -> CanonRegion {
        assert_eq!(lifted.len(), graph.params().len(), "one flag per parameter");
        assert!(
            graph.params().iter().zip(&lifted).all(|(ty, &lifted)| !lifted || can_lift(ty)),
            "only real scalars are lifted",
        );
        let bytes = encode_region(&graph, &lifted).into_boxed_slice();
        CanonRegion { graph, lifted, bytes }
    }

    /// The key in an environment (CANON-3).
    #[must_use]
    pub fn key(&self, environment: &EnvFingerprint) -> RegionKey {
        RegionKey(*blake3::keyed_hash(&environment.0, &self.bytes).as_bytes())
    }
}

/// Encodes a whole region.
fn encode_region(graph: &Graph, lifted: &[bool]) -> Vec<u8> {
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
