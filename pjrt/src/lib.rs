//! PJRT, the C API of XLA's devices, made safe: plugins, clients, buffers, executables, events.
//!
//! Input: a plugin (a shared library, found by [`discover`]), StableHLO, host data. Output: data computed on a device.
//! This is the only crate of Fuseline that calls plugins. It adds nothing to PJRT and decides nothing: no caching,
//! no retries, no logging, no threads (but one to shut a client down when its last handle is dropped where it must not
//! be).
//!
//! ```text
//! discover ─► Plugin ─┬─► Client ─┬─► Device, Memory
//!                     │           ├─► Buffer ─► HostCopy
//!                     │           └─► Executable ─► Execution { Buffer, Event }
//!                     └─► Topology ─► an executable's bytes
//! ```
//!
//! # Invariants
//!
//! - I1. Argument structs are padded and tables are read with bounds, so plugins older and newer than our header work as
//!   far as they go (`abi`, `api`).
//! - I2. Whatever order handles are dropped in, on whatever threads, each plugin object is destroyed once, after what
//!   depends on it. Every handle holds the client; the plugin stays for ever.
//! - I3. `Drop` does not panic and does not wait for a computation. Shutting down a client waits for what it still runs.
//! - I4. No panic crosses into the plugin (`callback`).
//! - I5. A call that cannot be right is an [`Error`] of this layer and does not reach the plugin: buffers of another
//!   client, arguments of the wrong number or type, data of the wrong length.
//! - I6. What goes wrong where nobody can be told is counted ([`counters`]).
//!
//! # Thread safety
//!
//! The PJRT C API is the C face of `xla::PjRtClient`, whose contract is that a client and everything made with it can
//! be used from any thread, by several threads at a time, without outside locking; frameworks use it so. Objects
//! have no thread of their own: they may be destroyed on another thread than the one that made them. An object must not
//! be destroyed while a call uses it. All of that holds here by construction: calls borrow the handle (`&self`), and
//! only the last owner destroys. Where XLA's side of the C API does not keep the contract, calls on a buffer are made one at a time
//! (`Buffer::alone`). On this the `Send` and `Sync` of [`Client`], [`Device`], [`Memory`], [`Buffer`],
//! [`Executable`] and [`Event`] rest.
//!
//! A process that forks must not use PJRT in the child: the plugin's threads are not there.
//!
//! # Deliberately absent
//!
//! The asynchronous transfer manager, send and receive
//! callbacks, DMA mapping, extensions other than the FFI, custom device layouts. Element types beyond
//! [`fuseline_fusion::DType`] are refused where they would enter.

mod abi;
mod api;
mod buffer;
mod callback;
mod client;
mod compile;
mod crash;
mod device;
pub mod discover;
mod ending;
mod entry;
mod error;
mod event;
mod executable;
mod execute;
mod exit;
mod ffi;
mod host;
mod identity;
mod kv;
#[doc(hidden)]
pub mod named_files;
mod open_error;
mod options;
mod origin;
mod plugin;
mod read;
mod topology;
mod types;
mod value;
mod version;

pub use buffer::{Buffer, ExternalReference};
#[doc(hidden)]
pub use callback::inside as inside_callback;
pub use client::{Client, ClientOptions};
#[doc(hidden)]
pub use crash::CrashNote;
pub use device::{Device, Memory, MemoryStats};
#[doc(hidden)]
pub use ending::Patience;
pub use error::{Code, Counters, Error, counters};
pub use event::Event;
#[doc(hidden)]
pub use executable::Parameters;
pub use executable::{CompiledMemoryStats, Executable, OptimizedProgram};
pub use execute::{ExecuteOptions, Execution};
#[doc(hidden)]
pub use exit::Inside;
pub use host::{AlignedBytes, HostData, HostSemantics, Placement, ZERO_COPY_ALIGN, bytes_of};
pub use kv::KeyValueStore;
pub use open_error::{OpenError, OpenFault};
pub use options::{CompileOptions, Flag};
pub use plugin::{Extension, OpenOptions, Plugin};
pub use read::HostCopy;
pub use topology::{TargetDevice, Topology};
pub use value::Value;
pub use version::{ApiVersion, OUR_VERSION};
