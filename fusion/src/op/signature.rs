//! The methods of signatures that need the op table.

use super::attrs::custom_call_at;
use super::def::{Call, Lowered, OpDef};
use super::infer::collective::{self, Named};
use super::infer::contraction;
use super::workaround::{Workaround, WorkaroundSet};
use crate::attr::{AttrDef, AttrValue, Presence};
use crate::error::OpError;
use crate::handler::{self, Target};
use crate::ir::{OpCode, Signature};

impl Signature {
    /// The op's row in the table.
    #[inline]
    #[must_use]
    pub fn def(&self) -> &'static OpDef {
        self.op().def()
    }

    /// The attributes that a textual form contains: those that are given and do not follow from the
    /// result types.
    pub fn stated_attrs(&self) -> impl Iterator<Item = (&'static AttrDef, &AttrValue)> {
        let all = self.def().attrs.iter().zip(self.attrs().values());
        all.filter(|(def, value)| def.presence != Presence::FromResult && !matches!(value, AttrValue::Absent))
    }

    /// The handler of a `custom_call`; `None` if the call is to a function of the plugin.
    #[must_use]
    pub fn handler(&self) -> Option<&'static Target> {
        let name =
            (self.op() == OpCode::CustomCall).then(|| self.attrs().view().name(custom_call_at::TARGET))?;
        handler::target(name).filter(|target| !target.is_of_plugin())
    }

    /// Checks that a program with `replicas` replicas may contain the call.
    ///
    /// # Errors
    /// If the groups of a collective, here or in a body, omit a replica or name one that does not
    /// exist.
    #[inline]
    pub fn check_replicas(&self, replicas: usize) -> Result<(), OpError> {
        if self.is_joint() { self.check_joint(replicas) } else { Ok(()) }
    }

    #[cold]
    fn check_joint(&self, replicas: usize) -> Result<(), OpError> {
        collective::fits(&self.call(), replicas)?;
        let inner = self.bodies().iter().flat_map(|body| body.graph().nodes());
        inner.map(|node| node.signature()).try_for_each(|signature| signature.check_replicas(replicas))
    }

    /// The replicas that the call names, if it is a collective.
    #[must_use]
    pub fn named_replicas(&self) -> Option<Named> {
        collective::named(&self.call())
    }

    /// Whether replicas exchange data: a collective, or control flow with one in its bodies.
    #[must_use]
    pub fn exchanges(&self) -> bool {
        let mut inner = self.bodies().iter().flat_map(|body| body.graph().nodes());
        self.is_joint() && (self.def().exchanges() || inner.any(|node| node.signature().exchanges()))
    }

    /// Number of multiplications of a contraction; 0 for other ops.
    #[must_use]
    pub fn products(&self) -> u128 {
        contraction::products(&self.call(), self.results().first())
    }

    /// The call, as its rule gets it.
    #[inline]
    #[must_use]
    pub fn call(&self) -> Call<'_> {
        Call { def: self.def(), operands: self.operands(), attrs: self.attrs(), bodies: self.bodies() }
    }

    /// What the call is lowered to, for a plugin that does not need some workarounds.
    pub(crate) fn lowered(&self, left_out: WorkaroundSet) -> Lowered {
        let call = self.call();
        let lowered = (self.def().lower)(&call);
        let is_left_out = || Workaround::of(&call).is_some_and(|workaround| left_out.contains(workaround));
        match lowered {
            Lowered::As(_) | Lowered::Body(_) if left_out != WorkaroundSet::NONE && is_left_out() => {
                Lowered::Itself
            }
            lowered => lowered,
        }
    }
}
