//! The runtime: from the entries of a stream's log to values with data.
//!
//! Input: a device, settings and the calls of ops. Output: handles on the results at once, and their
//! data later. The crate knows ops and values, but no methods of tensors. The crate `fuseline` has
//! those.
//!
//! | module | contents |
//! |---|---|
//! | `settings`, `limits`, `deadlines` | what an engine is configured with |
//! | `region`, `error` | descriptions of regions; errors and failures |
//! | `certificate` | what a plugin computes, op by op |
//! | `device` | compiles and runs regions on a PJRT device or the reference interpreter |
//! | `event`, `counters`, `timeline` | what the engine reports |
//! | `store` | executables of other processes |
//! | `tier` | how a region runs |
//! | `engine` | what engines and streams consist of |
//! | `execute` | the driver: from log entries to launched regions |
//!
//! The crate is published for `fuseline` only, which exports its public types. The hidden module
//! `internals` lists what else `fuseline` uses.

#[doc(hidden)]
pub mod certificate;
mod counters;
mod deadlines;
mod device;
mod engine;
mod error;
mod event;
mod execute;
mod limits;
#[doc(hidden)]
pub mod mappings;
mod processor;
mod region;
mod settings;
mod store;
mod tier;
mod timeline;
mod user_code;

pub use counters::Counters;
pub use deadlines::Deadlines;
pub use device::{
    COMPILER_FLAGS, Capabilities, CompilerFlag, Fault, FaultPoint, Features, FlagUsage, MemoryPlan,
};
pub use engine::stream::checks::unchecked;
pub use engine::stream::read::Read;
pub use error::{Error, Origin, Result, Stage};
#[cfg(feature = "tracing")]
pub use event::TracingSink;
pub use event::{
    Asked, CacheTier, Change, Event, EventSink, LeakSite, Miss, OpsDiffer, QualificationStatus, Remedy,
    SealedRegion, Varies, Varying,
};
pub use region::{RegionRef, Wait};
pub use settings::{Buckets, QualificationPolicy, ShapeClasses};
pub use store::{DiskCacheConfig, Manifest, ManifestRegion};
pub use timeline::{ReadsAt, RegionTimes, Spent, Step, Summary, Timeline};

/// What `fuseline` uses beside the public types.
#[doc(hidden)]
pub mod internals {
    #[cfg(any(test, feature = "testing"))]
    pub use crate::device::Later;
    pub use crate::device::{
        Buffer, Cause, Compiler, Device, DeviceError, Machine, NoteStore, PerReplica, PjrtDevice, Tier,
        check_module_size, fingerprint,
    };
    pub use crate::engine::promises::PromiseGuard;
    pub use crate::engine::queue_item::QueueItem;
    pub use crate::engine::stream::checks::{COPY_INTERVAL, Expected, MAX_PENDING, Rule, is_unchecked};
    pub use crate::engine::stream::trace::{CaptureMode, Trace, TraceState, home};
    pub use crate::engine::stream::{StreamShared, TensorHandle, TensorHandles, checks, may_wait};
    pub use crate::engine::threads::compile_pool;
    pub use crate::engine::value::{Outcome, ValueCell};
    pub use crate::engine::{BodyPosition, EngineSetup, EngineShared, MIN_WEAK_SET, RecordCall, here};
    pub use crate::error::{Failure, bug};
    pub use crate::event::Events;
    #[cfg(feature = "stages")]
    pub use crate::execute::stages;
    pub use crate::execute::{Ahead, compile_ahead, guarded, new_stream};
    pub use crate::settings::{DiskCacheSetting, Settings};
    pub use crate::store::{Environment as StoreEnvironment, QuarantineKey, Recipe, Store};
    pub use crate::user_code::{Guest, is_driving, without_waiting};
}
