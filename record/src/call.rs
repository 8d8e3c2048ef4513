//! The call of an op, as the front end passes it to the recorder.

use std::sync::Arc;

use fuseline_fusion::op::Effect;
use fuseline_fusion::{Attrs, Body, OpCode, Site};

use crate::handle::Handle;
use crate::memo::{self, InferredCall};
use crate::mode::caller;

/// A call to be recorded.
#[derive(Debug)]
pub struct RecordCall<'a, H> {
    /// The op.
    pub op: OpCode,
    /// Its attributes.
    pub attrs: &'a Attrs,
    /// Its bodies.
    pub bodies: &'a [Arc<Body>],
    /// Its operands.
    pub operands: &'a [&'a H],
    /// Its side effect.
    pub effect: Effect,
    /// Where it was called.
    pub site: &'a Site,
}

impl<H> Clone for RecordCall<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for RecordCall<'_, H> {}

impl<'a, H> RecordCall<'a, H> {
    /// A pure op without bodies.
    #[inline(always)]
    pub fn new(op: OpCode, attrs: &'a Attrs, operands: &'a [&'a H], site: &'a Site) -> RecordCall<'a, H> {
        let site = caller().unwrap_or(site);
        RecordCall { op, attrs, bodies: &[], operands, effect: Effect::Pure, site }
    }

    /// The memoized signature, if the type tokens of the operands identify it.
    #[inline(always)]
    #[must_use]
    pub fn inferred<S>(&self) -> Option<InferredCall>
    where
        H: Handle<S>,
    {
        memo::by_tokens(self.op, self.attrs, self.bodies, self.operands)
    }
}
