//! Host functions that programs call, for what ops cannot express.
//!
//! A [`Handler`] is registered under a name for the whole process. It is called by
//! [`crate::Stream::call_handler`], by the op `custom_call`, or by a `stablehlo.custom_call` in a
//! module that is read. Unregistered functions cannot be called.

use fuseline_fusion::TensorType;
pub use fuseline_fusion::handler::{
    Config, ConfigFloat, ConfigValue, Handler, HandlerCall, OperandView, ResultView, Target, TargetError,
    allow, is_key, target, target_names,
};

use fuseline_runtime::internals::without_waiting;

/// Wraps a handler so that calls that wait for a stream are errors in it: the stream may be waiting
/// for the handler.
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

/// Registers a handler under a name, for all engines of the process, permanently. While it runs,
/// calls that would wait for a stream are errors.
///
/// # Errors
/// When the name is invalid ([`fuseline_fusion::attr::is_name`]), or is taken.
pub fn register(name: &str, handler: impl Handler + 'static) -> Result<&'static Target, TargetError> {
    fuseline_fusion::handler::register(name, NonBlockingHandler(handler))
}
