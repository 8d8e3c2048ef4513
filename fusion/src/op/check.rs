//! Checks op calls against the op table: the only way to a signature, and so to a node of a graph.

use std::sync::Arc;

use super::attrs::custom_call_at;
use super::def::{Call, OpDef, Replicas};
use crate::attr::{self, Attrs};
use crate::error::{OpError, OpErrorKind};
use crate::ir::{Body, Effect, Graph, Inferred, OpCode, OperandTypes, Ref, Refs, Signature};
use crate::limits::{MAX_BODY_DEPTH, MAX_GRAPH_OPS, MAX_OPERANDS, MAX_RESULTS};
use crate::shape::TensorType;

impl Signature {
    /// Checks a call and infers its result types.
    ///
    /// # Errors
    /// If the call does not fit the op's row (wrong arity, attributes, element types, shapes or
    /// bodies), or exceeds a limit of [`crate::limits`].
    pub fn infer(
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[TensorType],
    ) -> Result<Signature, OpError> {
        Signature::infer_within(MAX_BODY_DEPTH, op, attrs, bodies, operands)
    }

    /// As [`Signature::infer`], for bodies that nest at most `most` deep.
    pub(crate) fn infer_within(
        most: usize,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[TensorType],
    ) -> Result<Signature, OpError> {
        let def = op.def();
        check_arity(def, operands.len(), bodies)?;
        attr::check(def.name, def.attrs, &attrs)?;
        let results = (def.infer)(&Call { def, operands, attrs: &attrs, bodies })?;
        if results.len() > MAX_RESULTS {
            return Err(OpError::new(
                def.name,
                OpErrorKind::Limit,
                format!("the call has {} results", results.len()),
                format!("an op has at most {MAX_RESULTS} results"),
            ));
        }
        let depth = bodies.iter().map(|body| body.depth() + 1).max().unwrap_or(0);
        if depth > most {
            return Err(OpError::new(
                def.name,
                OpErrorKind::Limit,
                format!("bodies nest {depth} deep"),
                format!("the limit is {most}"),
            ));
        }
        let (effect, joint) = parallel(def, &attrs, bodies)?;
        let inferred = Inferred { results, depth, effect, joint };
        Ok(Signature::of_checked(op, attrs, bodies, operands, inferred))
    }
}

impl Graph {
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
        if self.nodes().len() < MAX_GRAPH_OPS {
            return Ok(());
        }
        Err(OpError::new(
            op.name(),
            OpErrorKind::Limit,
            format!("the graph already has {} ops", self.nodes().len()),
            format!("a graph has at most {MAX_GRAPH_OPS} ops"),
        ))
    }
}

impl Body {
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
        Ok(Body::new(graph, &returns).expect("bug: an op has no results in its graph"))
    }
}

/// The effect of a call, and whether replicas compute it together: its own (for a handler, its
/// target's) or, for control flow, that of its bodies. Other bodies are applied to a few elements
/// at a time, where neither is defined.
fn parallel(def: &'static OpDef, attrs: &Attrs, bodies: &[Arc<Body>]) -> Result<(Effect, bool), OpError> {
    let (mut effect, mut joint) = (def.effect, matches!(def.replicas, Replicas::Together));
    if def.code == OpCode::CustomCall && attrs.view().bool(custom_call_at::EFFECT) {
        effect = Effect::Ordered;
    }
    for (index, body) in bodies.iter().enumerate() {
        for inner in body.graph().nodes().iter().map(|node| node.signature()) {
            if inner.effect() == Effect::Pure && !inner.is_joint() {
                continue;
            }
            if !matches!(def.replicas, Replicas::InStep) {
                return Err(OpError::new(
                    def.name,
                    OpErrorKind::Body,
                    format!("{} has {}", def.bodies.name(index), inner.op()),
                    "ops with effects and ops that depend on the replica may only be in bodies of control flow",
                )
                .hint(format!("compute {} outside", inner.op())));
            }
            joint |= inner.is_joint();
            if inner.effect() == Effect::Ordered {
                effect = Effect::Ordered;
            }
        }
    }
    Ok((effect, joint))
}

/// A count with its noun, in words.
fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what} was given"),
        count => format!("{count} {what}s were given"),
    }
}

fn check_arity(def: &OpDef, operands: usize, bodies: &[Arc<Body>]) -> Result<(), OpError> {
    if operands > MAX_OPERANDS {
        return Err(OpError::new(
            def.name,
            OpErrorKind::Limit,
            counted(operands, "operand"),
            format!("an op has at most {MAX_OPERANDS}"),
        ));
    }
    if !def.takes(operands) {
        return Err(OpError::new(
            def.name,
            OpErrorKind::Arity,
            counted(operands, "operand"),
            format!("it takes {}", def.operand_words()),
        ));
    }
    if !def.bodies.takes(bodies.len()) {
        return Err(OpError::new(
            def.name,
            OpErrorKind::Arity,
            format!("{} bodies were given", bodies.len()),
            format!("it takes {}", def.bodies.words()),
        ));
    }
    Ok(())
}
