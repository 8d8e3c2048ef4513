//! An op call with types: checked once, then shared by all records of the call.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::attrs::custom_call_at;
use super::code::OpCode;
use super::def::{Call, Effect, OpDef, Replicas, Results};
use super::encode;
use super::infer::collective::Named;
use crate::attr::{self, AttrDef, AttrValue, Attrs, Presence};
use crate::error::{OpError, OpErrorKind};
use crate::graph::Body;
use crate::handler::{self, Target};
use crate::limits::{MAX_BODY_DEPTH, MAX_OPERANDS, MAX_RESULTS};
use crate::shape::TensorType;

/// Operand types; short lists stay inline.
pub type OperandTypes = SmallVec<[TensorType; 2]>;

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
    results: Results,
    depth: usize,
    effect: Effect,
    joint: bool,
    encoded: Box<[u8]>,
    token: u64,
}

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
        let encoded = encode::encode_call(op, &attrs, bodies);
        let token = encode::token(&encoded, operands);
        Ok(Signature {
            op,
            attrs,
            bodies: SmallVec::from(bodies),
            operands: OperandTypes::from(operands),
            results,
            depth,
            effect,
            joint,
            encoded,
            token,
        })
    }

    /// The op.
    #[inline]
    #[must_use]
    pub fn op(&self) -> OpCode {
        self.op
    }

    /// The op's row in the table.
    #[inline]
    #[must_use]
    pub fn def(&self) -> &'static OpDef {
        self.op.def()
    }

    /// The attributes, in schema order.
    #[inline]
    #[must_use]
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
    }

    /// The attributes that a textual form contains: those that are given and do not follow from the
    /// result types.
    pub fn stated_attrs(&self) -> impl Iterator<Item = (&'static AttrDef, &AttrValue)> {
        let all = self.def().attrs.iter().zip(self.attrs.values());
        all.filter(|(def, value)| def.presence != Presence::FromResult && !matches!(value, AttrValue::Absent))
    }

    /// The handler of a `custom_call`; `None` if the call is to a function of the plugin.
    #[must_use]
    pub fn handler(&self) -> Option<&'static Target> {
        let name = (self.op == OpCode::CustomCall).then(|| self.attrs.view().name(custom_call_at::TARGET))?;
        handler::target(name).filter(|target| !target.is_of_plugin())
    }

    /// The bodies.
    #[inline]
    #[must_use]
    pub fn bodies(&self) -> &[Arc<Body>] {
        &self.bodies
    }

    /// Operand types.
    #[inline]
    #[must_use]
    pub fn operands(&self) -> &[TensorType] {
        &self.operands
    }

    /// Result types.
    #[inline]
    #[must_use]
    pub fn results(&self) -> &[TensorType] {
        &self.results
    }

    /// How deep bodies nest in this op; 0 without bodies.
    #[inline]
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The side effect: that of the op's row, or of an ordered op in a body.
    #[inline]
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Whether the replicas compute it together: the result of one depends on others or on the
    /// replica's number.
    #[inline]
    #[must_use]
    pub fn is_joint(&self) -> bool {
        self.joint
    }

    /// Checks that a program with `replicas` replicas may contain the call.
    ///
    /// # Errors
    /// If the groups of a collective, here or in a body, omit a replica or name one that does not
    /// exist.
    #[inline]
    pub fn check_replicas(&self, replicas: usize) -> Result<(), OpError> {
        if self.joint { self.check_joint(replicas) } else { Ok(()) }
    }

    #[cold]
    fn check_joint(&self, replicas: usize) -> Result<(), OpError> {
        super::infer::collective::fits(&self.call(), replicas)?;
        let inner = self.bodies.iter().flat_map(|body| body.graph().nodes());
        inner.map(|node| node.signature()).try_for_each(|signature| signature.check_replicas(replicas))
    }

    /// The replicas that the call names, if it is a collective.
    #[must_use]
    pub fn named_replicas(&self) -> Option<Named> {
        super::infer::collective::named(&self.call())
    }

    /// Whether replicas exchange data: a collective, or control flow with one in its bodies.
    #[must_use]
    pub fn exchanges(&self) -> bool {
        let mut inner = self.bodies.iter().flat_map(|body| body.graph().nodes());
        self.joint && (self.def().exchanges() || inner.any(|node| node.signature().exchanges()))
    }

    /// Op, attributes and bodies in the canonical encoding (OP-3). Result types follow from the
    /// operands.
    #[inline]
    #[must_use]
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// A stable hash of op, attributes, bodies and operand types: the same in every process and on
    /// every machine. It is not an identity: two calls may share one.
    #[inline]
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Number of multiplications of a contraction; 0 for other ops.
    #[must_use]
    pub fn products(&self) -> u128 {
        super::infer::contraction::products(&self.call(), self.results.first())
    }

    /// The call, as its rule gets it.
    #[inline]
    #[must_use]
    pub fn call(&self) -> Call<'_> {
        Call { def: self.def(), operands: &self.operands, attrs: &self.attrs, bodies: &self.bodies }
    }

    /// Whether this is the signature of the given call, which then need not be inferred again.
    #[inline]
    #[must_use]
    pub fn is_for<'a>(
        &self,
        op: OpCode,
        attrs: &Attrs,
        bodies: &[Arc<Body>],
        operands: impl ExactSizeIterator<Item = &'a TensorType>,
    ) -> bool {
        self.op == op
            && self.operands.len() == operands.len()
            && self.operands.iter().zip(operands).all(|(own, other)| own == other)
            && self.attrs.values().len() == attrs.values().len()
            && self.bodies.len() == bodies.len()
            && ((attrs.values().is_empty() && bodies.is_empty())
                || (self.attrs == *attrs && self.bodies.as_slice() == bodies))
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
            if inner.effect == Effect::Pure && !inner.joint {
                continue;
            }
            if !matches!(def.replicas, Replicas::InStep) {
                return Err(OpError::new(
                    def.name,
                    OpErrorKind::Body,
                    format!("{} has {}", def.bodies.name(index), inner.op),
                    "ops with effects and ops that depend on the replica may only be in bodies of control flow",
                )
                .hint(format!("compute {} outside", inner.op)));
            }
            joint |= inner.joint;
            if inner.effect == Effect::Ordered {
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

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} -> {:?}", self.op, self.operands, self.results)
    }
}
