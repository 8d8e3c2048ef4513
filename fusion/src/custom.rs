//! User-defined ops: functions with a name.
//!
//! A [`CustomOp`] is recorded as a call of `composite` with the function as its body. It therefore
//! has what every op of the table has: checked types, a place in keys, a reference implementation,
//! fusion with its neighbours, several devices.

use std::fmt;
use std::sync::Arc;

use crate::attr::Attrs;
use crate::error::OpError;
use crate::ir::encode::encode_body;
use crate::ir::{Body, OpCode, Signature};
use crate::op::attrs;
use crate::shape::TensorType;
use crate::text::{TextError, TextModule};

/// A named function that can be called like an op. Its types are fixed.
#[derive(Clone)]
pub struct CustomOp {
    signature: Arc<Signature>,
    fingerprint: [u8; 32],
}

impl CustomOp {
    /// Gives a function a name.
    ///
    /// # Errors
    /// If the name is not valid ([`crate::attr::is_name`]), or the function exceeds the limits.
    pub fn new(name: &str, body: Arc<Body>) -> Result<CustomOp, OpError> {
        let fingerprint = *blake3::hash(&encode_body(&body)).as_bytes();
        let params = body.graph().params().to_vec();
        let signature = Signature::infer(OpCode::Composite, attrs::composite(name), &[body], &params)?;
        Ok(CustomOp { signature: Arc::new(signature), fingerprint })
    }

    /// Names the function of a StableHLO module, as `jax.export` and other front ends write it. See
    /// [`TextModule`] for the accepted subset. Every function that XLA can compile can thus become
    /// an op.
    ///
    /// # Errors
    /// If the text is not such a module, or the name is not valid.
    ///
    /// ```
    /// use fuseline_fusion::CustomOp;
    ///
    /// let text = "
    ///     func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    ///       %half = stablehlo.constant dense<5.000000e-01> : tensor<4xf32>
    ///       %0 = stablehlo.multiply %x, %half : tensor<4xf32>
    ///       return %0 : tensor<4xf32>
    ///     }";
    /// let op = CustomOp::from_stablehlo("my.half", text)?;
    /// assert_eq!(op.operands(), op.results());
    ///
    /// let wrong = CustomOp::from_stablehlo("my.half", &text.replace("%x, %half", "%x, %y")).unwrap_err();
    /// assert_eq!((wrong.line(), wrong.column()), (4, 35));
    /// # Ok::<(), fuseline_fusion::text::TextError>(())
    /// ```
    pub fn from_stablehlo(name: &str, text: &str) -> Result<CustomOp, TextError> {
        let module = TextModule::parse(text)?;
        CustomOp::new(name, module.main().clone()).map_err(TextError::of_op)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.signature.attrs().view().name(0)
    }

    /// The function.
    #[must_use]
    pub fn body(&self) -> &Arc<Body> {
        &self.signature.bodies()[0]
    }

    /// The attributes of a call of it.
    #[must_use]
    pub fn attrs(&self) -> &Attrs {
        self.signature.attrs()
    }

    /// Operand types.
    #[must_use]
    pub fn operands(&self) -> &[TensorType] {
        self.signature.operands()
    }

    /// Result types.
    #[must_use]
    pub fn results(&self) -> &[TensorType] {
        self.signature.results()
    }

    /// BLAKE3 of the function's canonical encoding. Two functions have the same fingerprint exactly
    /// if they consist of the same ops.
    #[must_use]
    pub fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }
}

impl PartialEq for CustomOp {
    fn eq(&self, other: &Self) -> bool {
        self.signature == other.signature
    }
}

impl Eq for CustomOp {}

impl fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops = self.body().graph().nodes().len();
        write!(f, "CustomOp({}, {ops} ops, {:?} -> {:?})", self.name(), self.operands(), self.results())
    }
}
