//! Ops that a user defines: registered by name, called like any other.
//!
//! A [`CustomOp`] is a function with a name, from the text of a StableHLO module or from recorded ops. A call of it is one op of
//! the program, checked against the function's types; what it consists of is written out where the region it lands in is
//! lowered, so it fuses with its neighbours. The registry is for those who know ops by name.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use fuseline_fusion::op::Effect;
use fuseline_fusion::{CustomOp, OpCode, Site};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::stream::{RecordCall, Stream, Tensors};
use crate::sync::Mutex;
use crate::tensor::Tensor;

/// The ops of an engine that users defined, by name.
pub(crate) struct CustomOps(Mutex<HashMap<String, Arc<CustomOp>>>);

impl CustomOps {
    pub(crate) fn new() -> CustomOps {
        CustomOps(Mutex::new(HashMap::new()))
    }

    fn add(&self, op: CustomOp) -> Result<Arc<CustomOp>> {
        let mut ops = self.0.lock();
        match ops.get(op.name()) {
            Some(known) if known.fingerprint() == op.fingerprint() => Ok(known.clone()),
            Some(known) => {
                let message = format!(
                    "register_op: {} is another function already: {known:?}, not {op:?}; give this one another name",
                    op.name()
                );
                Err(Error::misuse(message, Site::Unknown))
            }
            None => {
                let op = Arc::new(op);
                ops.insert(op.name().to_owned(), op.clone());
                Ok(op)
            }
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<CustomOp>> {
        self.0.lock().get(name).cloned()
    }
}

impl Engine {
    /// Makes an op known by its name, for all streams and sessions of the engine. An op that is known already, with the same
    /// function, is returned as it is.
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

    /// The op that was registered under a name.
    #[must_use]
    pub fn custom_op(&self, name: &str) -> Option<Arc<CustomOp>> {
        self.shared().custom_ops().get(name)
    }
}

impl Stream {
    /// Records a call of an op that a user defined. It need not be registered.
    ///
    /// # Errors
    /// When the operands do not have the types of the function; in Debug mode, when the op fails.
    #[track_caller]
    pub fn call(&self, op: &CustomOp, operands: &[&Tensor]) -> Result<Tensors> {
        let site = Site::Rust(std::panic::Location::caller());
        let bodies = std::slice::from_ref(op.body());
        let attrs = op.attrs().clone();
        self.shared().record(RecordCall {
            op: OpCode::Composite,
            attrs,
            bodies,
            operands,
            effect: Effect::Pure,
            site,
        })
    }
}

impl fmt::Debug for CustomOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().values()).finish()
    }
}
