//! Custom ops: functions that a user registers by name, made of ops, or handlers on the host.
//!
//! A [`CustomOp`] is a named function, from the text of a StableHLO module or from recorded ops. A
//! call is one op of the program and is checked against the function's types. Its ops are inlined
//! when its region is lowered, so they fuse with their neighbors. The registry serves front ends
//! that know ops by name.
//!
//! A [`crate::handler`] does what ops cannot express. It is a host function that XLA calls in the
//! middle of a region.

use std::sync::Arc;

use fuseline_fusion::op::{Effect, attrs};
use fuseline_fusion::{CustomOp, OpCode};
use fuseline_runtime::Result;
use fuseline_runtime::internals::{RecordCall, here};

use crate::engine::Engine;
use crate::handle::{Tensor, Tensors, handles, record};
use crate::handler::{Config, Target};
use crate::stream::Stream;

impl Engine {
    /// Registers an op under its name, for all streams and sessions of the engine. If the same
    /// function is already registered, returns that.
    ///
    /// # Errors
    /// When another function has the name.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::CustomOp;
    ///
    /// let text = "func.func @main(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {
    ///   %0 = stablehlo.multiply %x, %y : tensor<2xf32>
    ///   %1 = stablehlo.tanh %0 : tensor<2xf32>
    ///   return %1 : tensor<2xf32>
    /// }";
    /// let op = engine.register_op(CustomOp::from_stablehlo("my.gate", text)?)?;
    /// let x = engine.tensor(&[0.0f32, 2.0], &[2])?;
    /// let y = engine.stream().call(&op, &[&x, &x])?;
    /// assert_eq!(y[0].to_vec::<f32>()?, [0.0, 4.0f32.tanh()]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_op(&self, op: CustomOp) -> Result<Arc<CustomOp>> {
        self.shared().custom_ops().add(op)
    }

    /// The op that is registered under a name.
    #[must_use]
    pub fn custom_op(&self, name: &str) -> Option<Arc<CustomOp>> {
        self.shared().custom_ops().get(name)
    }
}

impl Stream {
    /// Records a call of a custom op. It need not be registered.
    ///
    /// # Errors
    /// When the operands do not have the types of the function; in Debug mode, when the op fails.
    #[track_caller]
    pub fn call(&self, op: &CustomOp, operands: &[&Tensor]) -> Result<Tensors> {
        let site = here();
        let bodies = std::slice::from_ref(op.body());
        let operands = handles(operands);
        let (attrs, effect) = (op.attrs(), Effect::Pure);
        record(
            self.shared(),
            RecordCall { op: OpCode::Composite, attrs, bodies, operands, effect, site: &site },
        )
    }
}

impl Stream {
    /// Records a call of a [`crate::handler`] on some operands. `config` is part of the call.
    ///
    /// On the CPU it runs in the middle of its region, on a thread of XLA. On the reference device
    /// it runs like any op. On other platforms the region does not compile.
    ///
    /// # Errors
    /// When the handler rejects the operands; in Debug mode, when it fails. In other modes reads of
    /// values that depend on its results fail.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::TensorType;
    /// use fuseline::handler::{self, Config, Handler, HandlerCall};
    ///
    /// /// Multiplies by a number.
    /// struct Scale;
    ///
    /// impl Handler for Scale {
    ///     fn results(&self, operands: &[TensorType], config: &Config) -> Result<Vec<TensorType>, String> {
    ///         config.float("by").ok_or("it is told `by`, a number")?;
    ///         Ok(operands.to_vec())
    ///     }
    ///
    ///     fn run(&self, call: HandlerCall<'_>) -> Result<(), String> {
    ///         let by = call.config.float("by").unwrap_or(1.0) as f32;
    ///         let data: Vec<f32> = call.operands[0].to_vec::<f32>()?.iter().map(|x| x * by).collect();
    ///         Ok(call.results[0].write(&data)?)
    ///     }
    /// }
    ///
    /// let scale = handler::register("example.scale", Scale)?;
    /// let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
    /// let y = engine.stream().call_handler(scale, &[&x], Config::of([("by", 0.5.into())]))?;
    /// assert_eq!(y[0].to_vec::<f32>()?, [0.5, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn call_handler(&self, target: &Target, operands: &[&Tensor], config: Config) -> Result<Tensors> {
        let site = here();
        let attrs = attrs::custom_call(target.name(), config, target.has_side_effect());
        let op = OpCode::CustomCall;
        let effect = Effect::Pure;
        let operands = handles(operands);
        record(self.shared(), RecordCall { op, attrs: &attrs, bodies: &[], operands, effect, site: &site })
    }
}
