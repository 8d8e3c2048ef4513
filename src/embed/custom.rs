//! Ops by name: functions registered with the engine.

use fuseline_fusion::{CustomOp, OpCode, Site};
use fuseline_runtime::{Error, Result};
use smallvec::SmallVec;

use super::report::told;
use super::value::Call;
use super::{RecordedResult, Session, StreamHandle, ValueHandle};

impl Session {
    /// Registers an op under its name, for all sessions of the engine; see
    /// [`crate::Engine::register_op`].
    ///
    /// # Errors
    /// When another function has the name.
    pub fn register_op(&self, op: CustomOp) -> Result<()> {
        told(self.engine().register_op(op)).map(drop)
    }

    /// Records a call of the op that is registered under a name, on a stream or into a trace. It is
    /// one op of the program, unlike [`Session::call`], which records each op of a function.
    ///
    /// # Errors
    /// When no op has that name, an id is invalid, or the operands do not have the types of the
    /// function.
    pub fn call_op(
        &self,
        stream: StreamHandle,
        name: &str,
        operands: &[ValueHandle],
        site: Site,
    ) -> Result<SmallVec<[RecordedResult; 1]>> {
        let Some(op) = self.engine().custom_op(name) else {
            let message = format!("call_op: no op is registered as {name:?}");
            return told(Err(Error::misuse(message, site)));
        };
        let bodies = std::slice::from_ref(op.body());
        let call =
            Call { bodies, ..Call::new(OpCode::Composite, operands).with(op.attrs().clone()).at(site) };
        self.record(stream, call)
    }
}
