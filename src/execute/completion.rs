//! The end of a compile, which comes once, however late the compiler is.
//!
//! Input: the function that puts an executable where it is found, or hears why there is none. Output: one call of it: by the thread that
//! compiles, or, if that does not come back in time, by the one that gives it up. What the compiler brings after that is dropped.

use std::sync::Arc;

use fuseline_sync::schedule::Refused;
use fuseline_sync::{Mutex, Rank};

use super::compile::Made;
use crate::device::{Cause, DeviceError};
use crate::engine::EngineShared;
use crate::error::Stage;
use crate::event::{Event, Took};
use crate::stream::StreamShared;
use crate::value::RegionInfo;

/// What hears of the end.
pub(super) type Land = Box<dyn for<'a> FnOnce(Made<'a>, &'a EngineShared) + Send>;

/// See the module's documentation.
pub(super) struct Landing(Mutex<Option<Land>>);

impl Landing {
    pub(super) fn new(
        land: impl for<'a> FnOnce(Made<'a>, &'a EngineShared) + Send + 'static,
    ) -> Arc<Landing> {
        Arc::new(Landing(Mutex::new(Rank::Landing, Some(Box::new(land)))))
    }

    /// Whoever gets it has to call it, and to count the compile as ended. `None` if it has ended.
    pub(super) fn take(&self) -> Option<Land> {
        self.0.lock().take()
    }

    /// What ends the compile of a region if its thread does not.
    pub(super) fn refusal(
        self: &Arc<Self>,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
    ) -> impl FnOnce(Refused) + Send + use<> {
        let (landing, info, stream) = (self.clone(), info.clone(), Arc::downgrade(stream));
        move |refused| {
            // Without the stream the task is gone, and the end with it.
            let Some((stream, land)) = stream.upgrade().and_then(|stream| Some((stream, landing.take()?)))
            else {
                return;
            };
            let (engine, region) = (stream.engine(), info.reference);
            let error = error(refused);
            engine.counters().compile_failures.add(1);
            engine.emit(|| Event::CompileFailed { region, message: error.message.clone() });
            land(Err(Arc::new(error)), engine);
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
