//! Ends a compile exactly once, however late the compiler is.
//!
//! Input: the function that publishes an executable or receives the error. Output: one call of it,
//! by the compiling thread, or by the thread that abandons it if it does not return in time. A
//! result that the compiler delivers after that is dropped.

use std::sync::Arc;

use fuseline_sync::schedule::Refused;
use fuseline_sync::{Mutex, Rank};

use super::CompileResult;
use crate::device::{Cause, DeviceError};
use crate::engine::EngineShared;
use crate::engine::stream::StreamShared;
use crate::error::{Stage, Took};
use crate::event::Event;
use crate::region::RegionInfo;

/// Called when a compile ends.
pub(in crate::execute) type OnCompiled = Box<dyn for<'a> FnOnce(CompileResult<'a>, &'a EngineShared) + Send>;

/// The callback of a compile, until somebody takes it.
pub(in crate::execute) struct Completion(Mutex<Option<OnCompiled>>);

impl Completion {
    pub(in crate::execute) fn new(
        on_compiled: impl for<'a> FnOnce(CompileResult<'a>, &'a EngineShared) + Send + 'static,
    ) -> Arc<Completion> {
        Arc::new(Completion(Mutex::new(Rank::Completion, Some(Box::new(on_compiled)))))
    }

    /// Takes the callback. The caller has to call it and to count the compile as ended. `None` if
    /// the compile has ended.
    pub(in crate::execute) fn take(&self) -> Option<OnCompiled> {
        self.0.lock().take()
    }

    /// Returns the function that ends the compile of a region if its thread does not.
    pub(in crate::execute) fn refusal(
        self: &Arc<Self>,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
    ) -> impl FnOnce(Refused) + Send + use<> {
        let (completion, info, stream) = (self.clone(), info.clone(), Arc::downgrade(stream));
        move |refused| {
            // Without the stream the task is gone, and its callback with it.
            let Some((stream, on_compiled)) =
                stream.upgrade().and_then(|stream| Some((stream, completion.take()?)))
            else {
                return;
            };
            let (engine, region) = (stream.engine(), info.reference);
            let error = error(refused);
            engine.counters().compile_failures.add(1);
            engine.emit(|| Event::CompileFailed { region, message: error.message.clone() });
            on_compiled(Err(Arc::new(error)), engine);
        }
    }
}

fn error(refused: Refused) -> DeviceError {
    let (cause, message) = match refused {
        Refused::Late(took) => (
            Cause::Stuck,
            format!(
                "the plugin has not answered for {}, and is not asked again (Deadlines::compile)",
                Took(took)
            ),
        ),
        Refused::Closed(stuck) => (
            Cause::Closed,
            format!(
                "no compile is started while {stuck} threads are stuck in the plugin \
                 (Deadlines::most_stuck_threads)"
            ),
        ),
    };
    DeviceError { cause, ..DeviceError::new(Stage::Compile, message) }
}
