//! A safe layer over PJRT, the C API of XLA's devices: plugins, clients, buffers, executables,
//! events.
//!
//! Input: a plugin (a shared library, found by [`discover`]), StableHLO, host data. Output: data
//! computed on a device. This is the only crate of Fuseline that calls plugins. It adds nothing to
//! PJRT and decides nothing: no caching, no retries, no logging, no threads (except one that shuts
//! a client down if its last handle is dropped where that is not possible).
//!
//! ```text
//! discover ─► Plugin ─┬─► Client ─┬─► Device, Memory
//!                     │           ├─► Buffer ─► HostCopy
//!                     │           └─► Executable ─► Execution { Buffer, Event }
//!                     └─► Topology ─► a serialized executable
//! ```
//!
//! # Invariants
//!
//! - PJRT-1. Argument structs are padded and tables are read with bounds, so plugins older and
//!   newer than our header work as far as possible (`abi`, `api`).
//! - PJRT-2. In whatever order and on whatever threads handles are dropped, each plugin object is
//!   destroyed once, after everything that depends on it. Every handle holds the client; the plugin
//!   is never unloaded.
//! - PJRT-3. `Drop` does not panic and does not wait for a computation. Shutting down a client
//!   waits for its running work.
//! - PJRT-4. No panic crosses into the plugin (`callback`).
//! - PJRT-5. A call that cannot be right is an [`Error`] of this layer and does not reach the
//!   plugin: buffers of another client, arguments of the wrong number or type, data of the wrong
//!   length.
//! - PJRT-6. Failures that no caller can receive are counted ([`counters`]).
//!
//! # Thread safety
//!
//! The PJRT C API wraps `xla::PjRtClient`. By its contract a client and everything made with it can
//! be used from any thread, by several threads at a time, without external locking, and frameworks
//! rely on that. Objects are not bound to a thread: they may be destroyed on another thread than
//! the one that made them. An object must not be destroyed while a call uses it. All of that holds
//! here by construction: calls borrow the handle (`&self`), and only the last owner destroys. Where
//! XLA's implementation of the C API breaks the contract, calls on a buffer are serialized
//! (`Buffer::alone`). The `Send` and `Sync` of [`Client`], [`Device`], [`Memory`], [`Buffer`],
//! [`Executable`] and [`Event`] rest on this.
//!
//! A process that forks must not use PJRT in the child, which has none of the plugin's threads.
//!
//! # Deliberately absent
//!
//! The asynchronous transfer manager, send and receive callbacks, DMA mapping, extensions other
//! than the FFI, custom device layouts. Element types beyond [`fuseline_fusion::DType`] are
//! rejected on entry.

mod abi;
mod api;
mod buffer;
mod callback;
mod client;
mod compile;
mod crash;
mod device;
pub mod discover;
mod entry;
mod error;
mod event;
mod executable;
mod execute;
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
mod plugin_scope;
mod read;
mod shutdown;
mod spin;
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
pub use error::{Code, Counters, Error, counters};
pub use event::Event;
#[doc(hidden)]
pub use executable::Parameters;
pub use executable::{CompiledMemoryStats, Executable, OptimizedProgram};
pub use execute::{ExecuteOptions, Execution};
pub use host::{AlignedBytes, HostData, HostSemantics, Placement, ZERO_COPY_ALIGN, bytes_of};
pub use kv::KeyValueStore;
pub use open_error::{OpenError, OpenFault};
pub use options::{CompileOptions, Flag};
pub use plugin::{Extension, OpenOptions, Plugin};
#[doc(hidden)]
pub use plugin_scope::PluginScope;
pub use read::HostCopy;
#[doc(hidden)]
pub use shutdown::ShutdownTimeout;
pub use topology::{TargetDevice, Topology};
pub use value::Value;
pub use version::{ApiVersion, OUR_VERSION};
