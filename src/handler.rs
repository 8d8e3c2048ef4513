//! Functions of the host that programs call: what a backend or a program adds where ops cannot say
//! what it wants.
//!
//! A [`Handler`] is registered under a name, for the whole process, and called by
//! [`crate::Stream::call_handler`], by the op `custom_call` of the table, or by
//! `stablehlo.custom_call` of a module that is read. What is not registered cannot be called.

use fuseline_fusion::TensorType;
pub use fuseline_fusion::handler::{
    Config, ConfigFloat, ConfigValue, Handler, HandlerCall, OperandView, ResultView, Target, TargetError,
    allow, is_key, target, target_names,
};

use crate::execute::without_waiting;

/// A handler that is refused what would wait for a stream, which may be the one that waits for the
/// handler.
struct NonBlockingHandler<H>(H);

impl<H: Handler> Handler for NonBlockingHandler<H> {
    fn results(&self, operands: &[TensorType], config: &Config) -> Result<Vec<TensorType>, String> {
        self.0.results(operands, config)
    }

    fn run(&self, call: HandlerCall<'_>) -> Result<(), String> {
        without_waiting(|| self.0.run(call))
    }

    fn has_side_effect(&self) -> bool {
        self.0.has_side_effect()
    }
}

/// Makes a handler known under a name, for all engines of the process, for good. Calls that would
/// wait for a stream are refused while it runs.
///
/// # Errors
/// When the name is none ([`fuseline_fusion::attr::is_name`]), or is taken.
pub fn register(name: &str, handler: impl Handler + 'static) -> Result<&'static Target, TargetError> {
    fuseline_fusion::handler::register(name, NonBlockingHandler(handler))
}
