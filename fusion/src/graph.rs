//! Dataflow graphs of checked ops: the one representation of regions and of bodies.
//!
//! A [`Graph`] has parameters and nodes in execution order. An operand is a [`Ref`] to a parameter
//! or to a result of an earlier node. A [`Body`] is a graph with returns.
//!
//! Invariants:
//! - GRAPH-1: every operand of node `i` is a parameter or a result of a node before `i`, so a graph
//!   has no cycle.
//! - GRAPH-2: the types of the operands are the operand types of the node's [`Signature`].
//!
//! Both hold by construction: nodes are only added through [`Graph::push`] and
//! [`Graph::push_signature`].

use std::sync::Arc;

use smallvec::SmallVec;

use crate::attr::Attrs;
use crate::error::{OpError, OpErrorKind};
use crate::limits::{MAX_BODY_DEPTH, MAX_GRAPH_OPS};
use crate::op::{OpCode, OperandTypes, Signature};
use crate::shape::TensorType;

/// The source of an operand, within one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ref {
    /// The parameter with this index.
    Param(u32),
    /// The result with this index, counting the results of all nodes in order.
    Result(u32),
}

/// Operands of one node; short lists stay inline.
pub type Refs = SmallVec<[Ref; 4]>;

/// One op of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    signature: Arc<Signature>,
    operands: Refs,
    first_result: u32,
}

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

/// Parameters, and ops on them in execution order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    params: Vec<TensorType>,
    nodes: Vec<Node>,
    /// For each result, the node that produces it.
    makers: Vec<u32>,
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

    /// Checks an op against the types of its operands, adds it, and returns its results.
    ///
    /// # Errors
    /// If the op table rejects the call, an operand does not exist, or the graph is full.
    pub fn push(
        &mut self,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[Ref],
    ) -> Result<Refs, OpError> {
        self.check_room(op)?;
        self.push_within(MAX_BODY_DEPTH, op, attrs, bodies, operands)
    }

    /// As [`Graph::push`], for ops that lowering produces. Bodies may nest one level deeper than in
    /// recorded ops, because a loop whose lowering calls a body in a branch does. The number of ops
    /// is not limited here: [`crate::lower::fits_module`] checks the region first.
    pub(crate) fn push_lowered(
        &mut self,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[Ref],
    ) -> Result<Refs, OpError> {
        self.push_within(MAX_BODY_DEPTH + 1, op, attrs, bodies, operands)
    }

    /// As [`Graph::push`], with a limit on the nesting of bodies.
    fn push_within(
        &mut self,
        most: usize,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[Ref],
    ) -> Result<Refs, OpError> {
        let mut types = OperandTypes::new();
        for &operand in operands {
            let ty = self.type_of(operand).ok_or_else(|| {
                OpError::new(
                    op.name(),
                    OpErrorKind::Arity,
                    format!("operand {operand:?} is not defined before its use"),
                    "operands must be parameters or results of earlier ops",
                )
            })?;
            types.push(ty.clone());
        }
        let signature = Arc::new(Signature::infer_within(most, op, attrs, bodies, &types)?);
        Ok(self.push_signature(signature, Refs::from_slice(operands)))
    }

    /// Checks that the graph can take one more op.
    ///
    /// # Errors
    /// If the graph has [`MAX_GRAPH_OPS`] ops.
    pub fn check_room(&self, op: OpCode) -> Result<(), OpError> {
        if self.nodes.len() < MAX_GRAPH_OPS {
            return Ok(());
        }
        Err(OpError::new(
            op.name(),
            OpErrorKind::Limit,
            format!("the graph already has {} ops", self.nodes.len()),
            format!("a graph has at most {MAX_GRAPH_OPS} ops"),
        ))
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

/// The function inside an op, such as the one that a `reduce` applies to two elements.
///
/// Its type consists of the types of its parameters and of what it returns. A body can use only its
/// parameters; values that StableHLO lets a body capture are constants here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    graph: Graph,
    returns: Refs,
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

    /// The body that applies one elementwise binary op to two scalars of the type, such as the
    /// `add` of a sum or the `maximum` of a maximum.
    ///
    /// # Errors
    /// If the op does not accept the element type.
    pub fn binary(op: OpCode, ty: TensorType) -> Result<Body, OpError> {
        let mut graph = Graph::new();
        let lhs = graph.param(ty.clone());
        let rhs = graph.param(ty);
        let returns = graph.push(op, Attrs::none(), &[], &[lhs, rhs])?;
        Ok(Body { graph, returns })
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
