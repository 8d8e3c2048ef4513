//! The methods of nodes, graphs and bodies, except those that check a call.

use std::sync::Arc;

use super::{Body, Graph, Node, Ref, Refs, Signature};
use crate::shape::TensorType;

impl Node {
    /// Op, attributes and types.
    #[inline]
    #[must_use]
    pub fn signature(&self) -> &Arc<Signature> {
        &self.signature
    }

    /// The sources of the operands.
    #[inline]
    #[must_use]
    pub fn operands(&self) -> &[Ref] {
        &self.operands
    }

    /// The results, in order.
    #[inline]
    pub fn results(&self) -> impl ExactSizeIterator<Item = Ref> + use<> {
        let first = self.first_result;
        (first..first + self.signature.results().len() as u32).map(Ref::Result)
    }
}

impl Graph {
    /// A graph without parameters and nodes.
    #[must_use]
    pub fn new() -> Graph {
        Graph::default()
    }

    /// An empty graph with capacity for so many parameters and nodes, and for one result per node.
    #[must_use]
    pub fn with_capacity(params: usize, nodes: usize) -> Graph {
        Graph {
            params: Vec::with_capacity(params),
            nodes: Vec::with_capacity(nodes),
            makers: Vec::with_capacity(nodes),
        }
    }

    /// An empty graph with the capacity for as many parameters, nodes and results as `other` has.
    #[must_use]
    pub fn with_capacity_of(other: &Graph) -> Graph {
        Graph {
            params: Vec::with_capacity(other.params.len()),
            nodes: Vec::with_capacity(other.nodes.len()),
            makers: Vec::with_capacity(other.makers.len()),
        }
    }

    /// Adds a parameter.
    pub fn param(&mut self, ty: TensorType) -> Ref {
        self.params.push(ty);
        Ref::Param(self.params.len() as u32 - 1)
    }

    /// Adds an op that was checked before, and returns its results.
    ///
    /// # Panics
    /// In debug builds, if an operand does not exist or does not have the type in the signature
    /// (GRAPH-1, GRAPH-2).
    pub fn push_signature(&mut self, signature: Arc<Signature>, operands: Refs) -> Refs {
        debug_assert!(
            operands.len() == signature.operands().len()
                && operands
                    .iter()
                    .zip(signature.operands())
                    .all(|(&operand, ty)| self.type_of(operand) == Some(ty)),
            "bug: operands {operands:?} do not have the types of {signature:?}",
        );
        let first_result = self.makers.len() as u32;
        let maker = self.nodes.len() as u32;
        self.makers.extend(std::iter::repeat_n(maker, signature.results().len()));
        let node = Node { signature, operands, first_result };
        let results = node.results().collect();
        self.nodes.push(node);
        results
    }

    /// The parameters' types.
    #[inline]
    #[must_use]
    pub fn params(&self) -> &[TensorType] {
        &self.params
    }

    /// The ops, in execution order.
    #[inline]
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether `test` accepts some op of the graph or of its bodies, at any depth.
    #[must_use]
    pub fn any_op(&self, test: &mut dyn FnMut(&Signature) -> bool) -> bool {
        self.nodes.iter().any(|node| {
            test(&node.signature) || node.signature.bodies().iter().any(|body| body.graph.any_op(test))
        })
    }

    /// Number of results of all nodes together.
    #[inline]
    #[must_use]
    pub fn result_count(&self) -> usize {
        self.makers.len()
    }

    /// Index of the node that produces `value`; `None` for a parameter.
    #[must_use]
    pub fn maker(&self, value: Ref) -> Option<usize> {
        match value {
            Ref::Param(_) => None,
            Ref::Result(index) => self.makers.get(index as usize).map(|&node| node as usize),
        }
    }

    /// Type of a parameter or result; `None` if the index is out of range.
    #[inline]
    #[must_use]
    pub fn type_of(&self, value: Ref) -> Option<&TensorType> {
        match value {
            Ref::Param(index) => self.params.get(index as usize),
            Ref::Result(index) => {
                let node = self.nodes.get(*self.makers.get(index as usize)? as usize)?;
                node.signature.results().get((index - node.first_result) as usize)
            }
        }
    }
}

impl Body {
    /// Makes a body of a graph and the values that it returns; `None` if one of them does not
    /// exist.
    #[must_use]
    pub fn new(graph: Graph, returns: &[Ref]) -> Option<Body> {
        returns
            .iter()
            .all(|&value| graph.type_of(value).is_some())
            .then(|| Body { graph, returns: Refs::from_slice(returns) })
    }

    /// The ops.
    #[inline]
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The values returned, in order.
    #[inline]
    #[must_use]
    pub fn returns(&self) -> &[Ref] {
        &self.returns
    }

    /// The types returned, in order.
    pub fn return_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.returns.iter().map(|&value| {
            self.graph.type_of(value).expect("bug: a body returns a value that its graph does not have")
        })
    }

    /// How deep bodies nest inside this one; 0 if none of its ops has a body.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.graph.nodes.iter().map(|node| node.signature.depth()).max().unwrap_or(0)
    }
}
