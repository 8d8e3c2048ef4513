//! The intermediate representation: dataflow graphs of checked ops, for regions and for bodies.
//!
//! A [`Graph`] has parameters and nodes in execution order. Each [`Node`] has a [`Signature`], an
//! op call with types. An operand is a [`Ref`] to a parameter or to a result of an earlier node. A
//! [`Body`] is a graph with returns, and the function inside an op such as `reduce`, so a signature
//! has bodies in turn. These types refer to each other, so they are all in this file.
//!
//! An op is only a number here. The module `op` knows which calls are valid, so it defines the
//! functions that check a call: [`Signature::infer`], [`Graph::push`] and [`Body::binary`].
//!
//! Invariants:
//! - GRAPH-1: every operand of node `i` is a parameter or a result of a node before `i`, so a graph
//!   has no cycle.
//! - GRAPH-2: the types of the operands are the operand types of the node's [`Signature`].
//! - OP-1: a [`Signature`] can only come from [`Signature::infer`], so later stages need not check
//!   the call again.
//! - OP-2: the code of an op never changes, because it is part of keys and saved programs.
//! - OP-3: given equal operand types, two signatures are equal exactly if their encodings are
//!   equal.
//!
//! The first two hold by construction: nodes are only added through [`Graph::push`] and
//! [`Graph::push_signature`].

pub(crate) mod encode;
mod graph;
mod opcode;
mod signature;

use std::sync::Arc;

use smallvec::SmallVec;

pub use opcode::OpCode;

use crate::attr::Attrs;
use crate::shape::TensorType;

/// The side effect of an op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Effect {
    /// None: the op may be moved, and removed if nobody uses its results.
    #[default]
    Pure,
    /// An effect outside of the program: the op runs even if nobody uses its results, in program
    /// order with the other ordered ops of its stream, and a region never extends across it.
    Ordered,
}

/// Operand types; short lists stay inline.
pub type OperandTypes = SmallVec<[TensorType; 2]>;

/// Result types of an op.
pub type Results = SmallVec<[TensorType; 1]>;

/// An op with its attributes, bodies, operand types and result types, checked against the op table
/// (OP-1).
///
/// Signatures are interned: the types of a loop are inferred once, and all later records of the
/// same call share the signature.
#[derive(PartialEq, Eq)]
pub struct Signature {
    op: OpCode,
    attrs: Attrs,
    bodies: SmallVec<[Arc<Body>; 1]>,
    operands: OperandTypes,
    inferred: Inferred,
    encoded: Box<[u8]>,
    token: u64,
}

/// What the check of a call infers from op, attributes, bodies and operand types.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inferred {
    pub(crate) results: Results,
    /// How deep bodies nest.
    pub(crate) depth: usize,
    pub(crate) effect: Effect,
    /// Whether the replicas compute it together.
    pub(crate) joint: bool,
}

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

/// Parameters, and ops on them in execution order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    params: Vec<TensorType>,
    nodes: Vec<Node>,
    /// For each result, the node that produces it.
    makers: Vec<u32>,
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
