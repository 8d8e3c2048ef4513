//! The interface for frameworks: the engine by ids, plain data and callbacks.
//!
//! A framework backend (PyTorch's `PrivateUse1`, Burn, or a C interface) does not hold Rust
//! handles: its storage objects hold numbers, and its calls come from any thread. A [`Session`] is
//! an engine with such an interface. Ids refer to the same tensors that the rest of this crate
//! hands out, and ops go through the same recorder, regions and caches.
//!
//! | a framework needs | here |
//! |---|---|
//! | values | [`Session::upload`], [`Session::upload_shared`], [`Session::adopt_buffer`], [`Session::constant`], [`Session::scalar`], [`Session::placeholder`] |
//! | ops, with results and their types at once | [`Session::record`], [`Session::record_each`] |
//! | lifetimes by its own storage objects | [`Session::retain`], [`Session::release`] |
//! | views and in-place writes over values that never change | [`Session::replace`], [`Session::version`] |
//! | flushes, waits, readiness | [`Session::flush`], [`Session::synchronize`], [`Session::on_ready`] |
//! | events: positions in streams, to query and to wait for, also in other streams | [`Session::record_event`], [`Session::wait_event`], [`Session::wait_on_stream`] |
//! | host reads, export of buffers | [`Session::read_into`], [`Session::read_async`], [`Session::lend`] |
//! | modes | [`Session::set_mode`], [`Session::set_stream_mode`], [`swap_mode`], [`crate::with_mode`] |
//! | loops, branches, functions of elements | [`Session::begin_body`], [`Session::record_with`], [`Session::end_body`] |
//! | whole graphs | [`Session::begin_trace`], [`Session::end_trace`], [`Session::call`] |
//! | ops of its own, made of recorded ones | [`Session::register`], [`Session::call`] |
//! | ops of its own, as StableHLO text or a function | [`Session::register_op`], [`Session::call_op`] |
//! | ops of its own, as functions of the host | [`crate::handler::register`], then [`Session::record`] of `custom_call` |
//! | events and faults | [`crate::EngineConfig::event_sink`], [`crate::EngineConfig::inject_faults`] |
//! | why a step is slow | [`crate::Timeline`], [`swap_site`], [`swap_caller`] |
//! | errors as data | [`ErrorReport`], [`take_last_error`], [`Session::take_failures`] |
//!
//! # Ids
//!
//! Ids are numbers with a generation. A released or invented id is an error in every call, never
//! undefined behavior and never another value. An id counts references. The last release ends the
//! life of the value at this point of its stream's program. So the framework must release where its
//! program drops the value, on any thread.
//!
//! # In-place writes
//!
//! Values never change. A framework with storages lets each hold one id. A write records the
//! functional form of the op and rebinds the id to the result ([`Session::replace`]). Ops recorded
//! before use the old value, and ops recorded after use the new one, on every thread. An autograd
//! system can compare the version that [`Session::version`] counts. The op that computes the new
//! value reuses the memory of the old one if nobody else holds it.
//!
//! # Callbacks
//!
//! Callbacks run on the thread on which the event happens, immediately if it has happened already.
//! They may record and release, but calls that wait are errors. A lock that they take must not be
//! held while recording, because recording waits when a stream is far ahead of its device. A panic
//! in a callback is caught and reported as [`crate::Event::Panicked`].
//!
//! # What is not here
//!
//! Shape inference and promotion in the framework's own sense: recording is exact. Strides: a view
//! is an op (`slice`, `transpose`, ...), and a write through a view updates the whole. Executables
//! from elsewhere, dynamic sizes and collectives have no calls yet; ids, [`Call`] and
//! [`Session::register`] are where they would fit in.
//!
//! # Example
//!
//! A storage with an in-place sum, as a backend would build it:
//!
//! ```
//! # fn main() -> fuseline::Result<()> {
//! use fuseline::embed::{Call, Session, StreamHandle, ValueHandle};
//! use fuseline::{DType, EngineConfig, OpCode, Site, TensorType};
//!
//! /// What the framework's tensors point to.
//! struct Storage<'s> {
//!     session: &'s Session,
//!     value: ValueHandle,
//! }
//!
//! impl Drop for Storage<'_> {
//!     fn drop(&mut self) {
//!         self.session.release(self.value).expect("a storage owns its id");
//!     }
//! }
//!
//! /// `a += b`, called from line 7 of the user's script.
//! fn add_(a: &Storage<'_>, b: &Storage<'_>, stream: StreamHandle) -> fuseline::Result<()> {
//!     let operands = [a.value, b.value];
//!     let call = Call::new(OpCode::Add, &operands).at(Site::Host("train.py:7".into()));
//!     let sum = a.session.record(stream, call)?;
//!     a.session.replace(a.value, sum[0].id)?;
//!     a.session.release(sum[0].id)
//! }
//!
//! let session = Session::reference(EngineConfig::new())?;
//! let stream = session.open_stream()?;
//! let ty = TensorType::of(DType::F32, &[2])?;
//! let new = |data: [f32; 2]| -> fuseline::Result<Storage<'_>> {
//!     let value = session.upload(stream, &ty, fuseline::pjrt::bytes_of(&data))?;
//!     Ok(Storage { session: &session, value })
//! };
//! let (a, b) = (new([1.0, 2.0])?, new([10.0, 20.0])?);
//! add_(&a, &b, stream)?;
//! add_(&a, &b, stream)?;
//! assert_eq!(session.read(a.value)?.to_vec::<f32>()?, [21.0, 42.0]);
//! assert_eq!(session.version(a.value)?, 2);
//! # Ok(())
//! # }
//! ```

mod body;
mod custom;
mod event;
mod foreign;
mod host;
mod report;
mod table;
mod trace;
mod value;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_fusion::region::{Boundary, Mode};
use fuseline_fusion::{Site, TensorType};
use fuseline_record::entry::Fence;
use fuseline_record::mode::{self, swap_scoped_mode};
use fuseline_sync::atomic::{AtomicU64, Ordering};
use fuseline_sync::{Mutex, Rank};

pub use event::EventHandle;
pub use host::BorrowedBuffer;
pub use report::{ErrorReport, take_last_error};
pub use trace::FunctionHandle;
pub use value::{Call, CallRef};

use fuseline_runtime::internals::PromiseGuard;
use fuseline_runtime::{Counters, Error, Result};

use crate::config::EngineConfig;
use crate::engine::Engine;

/// A result of a call: its id, of which the caller owns one reference, and its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedResult {
    /// The id.
    pub id: ValueHandle,
    /// Element type and shape.
    pub ty: TensorType,
}

use crate::stream::Stream;
use crate::trace::Open;
use report::told;
use table::{Missing, Table};
use trace::{EmbeddedValue, Function, Trace};

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident, $what:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// Its representation is the number, so a list of numbers is a list of these.
            #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
            #[repr(transparent)]
            pub struct $name(u64);

            impl $name {
                /// Converts a number from [`Self::to_raw`]. Any number is allowed; an invalid one
                /// is an error where it is used.
                #[must_use]
                pub const fn from_raw(raw: u64) -> $name {
                    $name(raw)
                }

                /// The number, for a foreign interface. A valid id is never 0.
                #[must_use]
                pub const fn to_raw(self) -> u64 {
                    self.0
                }

                /// The error for an invalid id.
                #[cold]
                fn missing(self, missing: Missing, what: &str, site: &Site) -> Error {
                    if missing == Missing::Forked {
                        return Error::forked(site.clone());
                    }
                    Error::misuse(format!("{what}: {self} {missing}"), site.clone())
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, concat!($what, " {:#x}"), self.0)
                }
            }

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, "{self}")
                }
            }
        )*
    };
}
use handles;

handles! {
    /// Id of a value of a session.
    ValueHandle, "value";
    /// Id of a stream, of a body or of a trace, of a session.
    StreamHandle, "stream";
}

/// The destination of recorded ops.
#[derive(Clone)]
enum Lane {
    /// A stream, which runs them.
    Stream(Stream),
    /// A body of an op.
    Body(Arc<Open>),
    /// A program.
    Trace(Arc<Trace>),
}

struct Shared {
    engine: Engine,
    streams: Table<Lane>,
    values: Table<EmbeddedValue>,
    functions: Table<Arc<Function>>,
    events: Table<Arc<Fence>>,
    unfilled: Unfilled,
}

/// Placeholders that have no data yet.
struct Unfilled {
    /// Number of placeholders. Every release checks it, and it is usually 0.
    count: AtomicU64,
    promises: Mutex<HashMap<ValueHandle, PromiseGuard>>,
}

impl Unfilled {
    fn new() -> Unfilled {
        Unfilled { count: AtomicU64::new(0), promises: Mutex::new(Rank::Unfilled, HashMap::new()) }
    }

    fn insert(&self, value: ValueHandle, promise: PromiseGuard) {
        // Counted first. The thread that releases a placeholder has its id from the thread that
        // created it, and so sees the count.
        self.count.fetch_add(1, Ordering::Relaxed);
        self.promises.lock().insert(value, promise);
    }

    fn has(&self, value: ValueHandle) -> bool {
        self.promises.lock().contains_key(&value)
    }

    /// Takes the promise of a placeholder, if it was not filled and nobody else has taken it. Drop
    /// the result without holding a lock.
    fn take(&self, value: ValueHandle) -> Option<PromiseGuard> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let taken = self.promises.lock().remove(&value);
        if taken.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }
}

/// An engine with an interface by ids. See the documentation of the module. Cheap to clone; `Send +
/// Sync`.
#[derive(Clone)]
pub struct Session(Arc<Shared>);

impl Session {
    /// Opens a session on a PJRT device.
    ///
    /// # Errors
    /// As [`EngineConfig::build`].
    pub fn new(config: EngineConfig) -> Result<Session> {
        told(config.build()).map(Session::on)
    }

    /// Opens a session on the reference interpreter.
    ///
    /// # Errors
    /// As [`EngineConfig::build_reference`].
    pub fn reference(config: EngineConfig) -> Result<Session> {
        told(config.build_reference()).map(Session::on)
    }

    /// Opens a session on an existing engine. Several sessions may share one.
    #[must_use]
    pub fn on(engine: Engine) -> Session {
        Session(Arc::new(Shared {
            engine,
            streams: Table::new(),
            values: Table::new(),
            functions: Table::new(),
            events: Table::new(),
            unfilled: Unfilled::new(),
        }))
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The counters of the engine.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.engine.counters()
    }

    /// Number of values with an id. Those that remain at the end have leaked.
    #[must_use]
    pub fn live_values(&self) -> usize {
        self.0.values.len()
    }

    /// Takes the failures of values since the previous call, of all sessions of the engine, whether
    /// or not the values were read. Each has op, call site, region and message of the device, and
    /// is reported once however many values it poisoned. Only the latest are kept. Failures are not
    /// sticky: nothing else fails because of them.
    #[must_use]
    pub fn take_failures(&self) -> Vec<ErrorReport> {
        let failures = self.0.engine.shared().take_failures();
        failures.into_iter().map(|failure| ErrorReport::from(&Error::device(failure))).collect()
    }

    // ----- streams -----

    /// Opens a stream.
    ///
    /// # Errors
    /// When there are too many.
    pub fn open_stream(&self) -> Result<StreamHandle> {
        self.open(Lane::Stream(self.0.engine.new_stream()))
    }

    /// Gives an id to an existing stream, such as the engine's own.
    ///
    /// # Errors
    /// When there are too many.
    pub fn keep_stream(&self, stream: &Stream) -> Result<StreamHandle> {
        self.open(Lane::Stream(stream.clone()))
    }

    fn open(&self, lane: Lane) -> Result<StreamHandle> {
        let added = self.0.streams.insert(lane).map(StreamHandle);
        told(
            added.map_err(|missing| {
                Error::misuse(format!("a new stream: the table {missing}"), Site::Unknown)
            }),
        )
    }

    /// Releases the id of a stream. What was recorded on it still runs, and its values stay valid.
    ///
    /// # Errors
    /// When the id is invalid.
    pub fn close_stream(&self, stream: StreamHandle) -> Result<()> {
        let closed = self.0.streams.release(stream.0);
        told(closed.map(drop).map_err(|missing| stream.missing(missing, "close", &Site::Unknown)))
    }

    fn lane(&self, stream: StreamHandle, what: &str, site: &Site) -> Result<Lane> {
        self.0.streams.get(stream.0).map_err(|missing| stream.missing(missing, what, site))
    }

    /// The stream of an id.
    fn stream(&self, stream: StreamHandle, what: &str) -> Result<Stream> {
        match self.lane(stream, what, &Site::Unknown)? {
            Lane::Stream(stream) => Ok(stream),
            Lane::Body(body) => Ok(Stream::of(body.stream().clone())),
            Lane::Trace(_) => Err(Error::misuse(
                format!("{what}: {stream} is a trace, which does not execute"),
                Site::Unknown,
            )),
        }
    }

    /// Ends the region that is being recorded on a stream and launches it; does not wait.
    ///
    /// # Errors
    /// When the id is invalid or of a trace.
    pub fn flush(&self, stream: StreamHandle) -> Result<()> {
        told(self.stream(stream, "flush")).map(|stream| stream.flush())
    }

    /// Waits at most for `timeout` until everything recorded so far on a stream has been computed.
    /// Failures of single values stay with the values.
    ///
    /// # Errors
    /// When the id is invalid or of a trace, when the timeout has passed, or in a callback.
    pub fn synchronize(&self, stream: StreamHandle, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        told(
            self.stream(stream, "synchronize")
                .and_then(|stream| stream.shared().synchronize(deadline, &asking())),
        )
    }

    /// Waits until everything recorded so far on any stream of the engine has been computed.
    ///
    /// # Errors
    /// In a callback.
    pub fn synchronize_all(&self) -> Result<()> {
        told(self.0.engine.synchronize_at(&asking()))
    }

    // ----- modes -----

    /// Sets the mode of ops recorded from now on, unless their stream or thread has a mode.
    pub fn set_mode(&self, mode: Mode) {
        self.0.engine.set_mode(mode);
    }

    /// Sets the mode of ops recorded on a stream from now on. `None` selects the engine's mode.
    ///
    /// # Errors
    /// When the id is invalid or of a trace.
    pub fn set_stream_mode(&self, stream: StreamHandle, mode: Option<Mode>) -> Result<()> {
        told(self.stream(stream, "set_stream_mode")).map(|stream| stream.set_mode(mode))
    }

    /// The mode of an op that the calling thread would record on a stream now.
    ///
    /// # Errors
    /// When the id is invalid or of a trace.
    pub fn mode(&self, stream: StreamHandle) -> Result<Mode> {
        told(self.stream(stream, "mode")).map(|stream| stream.mode())
    }

    /// Starts the computation of values; does not wait. Values of one stream end up in as few
    /// regions as if one of them were requested.
    ///
    /// # Errors
    /// When an id is invalid; then nothing is flushed.
    pub fn flush_values(&self, values: &[ValueHandle]) -> Result<()> {
        told(self.tensors(values, "flush_values")).map(|tensors| {
            // Last first: the region that computes it most likely computes the others too.
            for tensor in tensors.iter().rev() {
                tensor.stream().need(tensor.cell(), Boundary::Flush);
            }
        })
    }
}

/// Sets the mode of ops that the calling thread records from now on, on any stream, and returns the
/// previous setting. For interfaces that enter and leave scopes by calls. `None` selects the
/// stream's mode. Rust code uses [`crate::with_mode`].
pub fn swap_mode(mode: Option<Mode>) -> Option<Mode> {
    swap_scoped_mode(mode)
}

fuseline_sync::thread_local! {
    static ASKING: RefCell<Option<Site>> = const { RefCell::new(None) };
}

/// Sets the framework's call site of reads and waits on the calling thread, for events and
/// timelines ([`crate::Event::HostRead`], [`crate::Timeline`]), and returns the previous one. It
/// has no other effect.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// use fuseline::embed::{Session, swap_site};
/// use fuseline::{DType, EngineConfig, Site, TensorType, Timeline};
///
/// let timeline = Timeline::new();
/// let session = Session::reference(EngineConfig::new().event_sink(timeline.clone()))?;
/// let ty = TensorType::of(DType::F32, &[1])?;
/// let value = session.upload(session.open_stream()?, &ty, &1.0f32.to_le_bytes())?;
/// let before = swap_site(Some(Site::Host("train.py:12".into())));
/// session.read(value)?;
/// swap_site(before);
/// assert_eq!(timeline.summary().reads[0].site.to_string(), "train.py:12");
/// # Ok(())
/// # }
/// ```
pub fn swap_site(site: Option<Site>) -> Option<Site> {
    ASKING.try_with(|asking| asking.replace(site)).ok().flatten()
}

/// Sets the call site of everything that methods of tensors and streams record and read on the
/// calling thread from now on. It replaces the Rust call site in errors, events and timelines.
/// Returns the previous setting. For frameworks whose ops consist of such calls. A [`Call`] with a
/// site keeps its own.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// # let engine = fuseline::Engine::reference();
/// use fuseline::{Mode, Site, embed, with_mode};
///
/// static LINE: Site = Site::Static("train.py:12");
/// let before = embed::swap_caller(Some(&LINE));
/// let x = engine.tensor(&[1.0f32], &[1])?;
/// let wrong = (&x).reshape(&[2]).unwrap_err();
/// embed::swap_caller(before);
/// assert!(wrong.to_string().contains("train.py:12"), "{wrong}");
/// # Ok(())
/// # }
/// ```
pub fn swap_caller(site: Option<&'static Site>) -> Option<&'static Site> {
    mode::swap_caller(site)
}

/// Call site of a read or wait on the calling thread.
fn asking() -> Site {
    let said = ASKING.try_with(|asking| asking.borrow().clone()).ok().flatten();
    said.or_else(|| mode::caller().cloned()).unwrap_or_default()
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?})", self.0.engine)
    }
}
