//! The methods of signatures, except those that need the op table.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::encode;
use super::{Body, Effect, Inferred, OpCode, OperandTypes, Signature};
use crate::attr::Attrs;
use crate::shape::TensorType;

impl Signature {
    /// The signature of a call that was checked, with what the check inferred. Only the check of
    /// `op` may call it (OP-1).
    pub(crate) fn of_checked(
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[TensorType],
        inferred: Inferred,
    ) -> Signature {
        let encoded = encode::encode_call(op, &attrs, bodies);
        let token = encode::token(&encoded, operands);
        Signature {
            op,
            attrs,
            bodies: SmallVec::from(bodies),
            operands: OperandTypes::from(operands),
            inferred,
            encoded,
            token,
        }
    }

    /// The op.
    #[inline]
    #[must_use]
    pub fn op(&self) -> OpCode {
        self.op
    }

    /// The attributes, in schema order.
    #[inline]
    #[must_use]
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
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
        &self.inferred.results
    }

    /// How deep bodies nest in this op; 0 without bodies.
    #[inline]
    #[must_use]
    pub fn depth(&self) -> usize {
        self.inferred.depth
    }

    /// The side effect: that of the op's row, or of an ordered op in a body.
    #[inline]
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.inferred.effect
    }

    /// Whether the replicas compute it together: the result of one depends on others or on the
    /// replica's number.
    #[inline]
    #[must_use]
    pub fn is_joint(&self) -> bool {
        self.inferred.joint
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

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} -> {:?}", self.op, self.operands, self.inferred.results)
    }
}
