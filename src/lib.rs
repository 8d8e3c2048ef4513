//! Fused-eager op-trace JIT on PJRT.

mod capture;
mod config;
mod counters;
mod device;
pub mod embed;
mod engine;
mod error;
mod event;
mod execute;
mod limits;
pub mod nn;
pub mod pjrt;
mod record;
mod result;
mod run;
#[cfg(all(test, not(loom)))]
mod scenarios;
mod schedule;
mod stream;
mod sync;
mod tensor;
mod value;

pub use config::EngineConfig;
pub use counters::Counters;
pub use device::FaultPoint;
pub use engine::Engine;
pub use error::{Error, Origin, RegionRef, Result, Stage};
#[cfg(feature = "tracing")]
pub use event::TracingSink;
pub use event::{Change, Event, EventSink, Miss};
pub use fuseline_cache::Budget;
pub use fuseline_fusion as fusion;
pub use fuseline_fusion::region::{Boundary, BoundaryRule, Budgets, Mode};
pub use fuseline_fusion::{Attrs, Body, Bytes, DType, Element, Literal, OpCode, Shape, Site, TensorType};
pub use record::with_mode;
pub use run::PreparedProgram;
pub use stream::{Stream, Tensors};
pub use tensor::{Read, Tensor};
