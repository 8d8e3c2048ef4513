//! Eager tensor code at compiled speed, on any device that has a PJRT plugin.
//!
//! A program calls one tensor operation after another and gets a handle back at once. Fuseline
//! records the operations, groups them into *regions*, compiles each region once with XLA, and runs
//! it asynchronously. The program builds no graph, annotates no function and marks no step.
//!
//! ```
//! # fn main() -> fuseline::Result<()> {
//! # let engine = fuseline::Engine::reference();
//! # /*
//! let engine = fuseline::Engine::new()?;                 // the first PJRT plugin that is found
//! # */
//! let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
//! let w = engine.tensor(&[0.5f32, -1.0, 0.25, 2.0], &[2, 2])?;
//!
//! let mut y = x.matmul(&w)?;                             // recorded; nothing has run yet
//! for _ in 0..3 {
//!     y = (&y * 0.5 + &x)?.tanh()?;                      // all of it one region
//! }
//! // The read ends the region, which is compiled and run.
//! let mean = y.mean(&[0, 1])?.item::<f32>()?;
//! assert!((mean - 0.95).abs() < 0.05);
//! # Ok(())
//! # }
//! ```
//!
//! # What there is
//!
//! | | |
//! |---|---|
//! | [`EngineConfig`], [`Engine`] | one device, its caches and threads |
//! | [`Stream`] | a program-ordered sequence of ops; any thread may record on it |
//! | [`Tensor`] | a handle on a value: shape and type are known at once, data when it is read |
//! | [`Stream::while_loop`], [`Stream::cond`], [`Stream::scan`], [`Tensor::reduce_with`], [`Tensor::sort_with`], ... | loops, branches and functions of elements on the device, written as closures on [`TensorTree`]s of placeholders |
//! | [`Stream::begin_function`], [`Function`] | a function recorded once from tensor calls, called as one op |
//! | [`Stream::promised`], [`Tensor::read_with`] | values that come from outside later, and callbacks that take values there, for collectives between processes |
//! | [`embed`] | the same engine by ids, plain data and callbacks, for framework backends |
//! | [`einsum()`] | sums of products by Einstein's convention |
//! | [`promote`] | promotion of element types and broadcasting of shapes |
//! | [`aot`] | executables shared between processes: manifests, ahead-of-time compilation, the cache folder |
//! | [`fft`] | Fourier transforms |
//! | [`linalg`] | solving, factorising, eigenvalues, on batches of matrices |
//! | [`nn`] | composites (softmax, attention, Adam, ...) that record primitives |
//! | [`qualification`] | certificates: what a plugin computes, op by op |
//! | [`random`] | random numbers from a generator whose state is a value |
//! | [`Event`], [`Counters`] | what the engine does and why, as single events and as totals |
//! | [`Timeline`] | where the time of a step went, as text and as a page |
//! | [`Error`] | what went wrong, at which op and call site |
//! | [`fusion`] | the op table, region forming, keys and lowering, on their own |
//! | [`interp`] | the reference interpreter, on its own |
//! | [`pjrt`] | the safe layer over PJRT, on its own |
//!
//! # Modes
//!
//! | [`Mode`] | a region ends | who waits | for |
//! |---|---|---|---|
//! | [`Fused`](Mode::Fused) | where the program needs a value, or at a budget | nobody | speed |
//! | [`Strict`](Mode::Strict) | after every op | nobody | execution without fusion |
//! | [`Debug`](Mode::Debug) | after every op | every call, for its results | an error at the line that caused it |
//!
//! The mode is set for the process ([`EngineConfig::mode`], [`Engine::set_mode`]), a stream
//! ([`Stream::set_mode`]) or a scope ([`with_mode`]), and captured when an op is recorded.
//!
//! # Guarantees
//!
//! - A loop whose steps record the same ops on the same shapes and read or flush once compiles
//!   nothing after its first steps. Numbers in it may vary: scalars like a learning rate are
//!   parameters of the compiled code.
//! - Where a region ends and what it returns depend on the recorded program alone, never on timing
//!   or threads.
//! - A cached executable runs only for a region that is equal, byte by byte, to the one that it was
//!   compiled for.
//! - Every boundary, miss, compile and fallback is an [`Event`] with its reason.
//! - Problems cost speed before they cost a result: a region that cannot be compiled runs op by op.
//!   An op that fails by itself fails exactly the values that depend on it, with an [`Error`] that
//!   names op and call site and quotes the plugin.
//!
//! # Numbers
//!
//! XLA compiles fused regions and chooses where it rounds between the ops of a region. So results
//! of different modes agree to a few units in the last place, not bit by bit. The specification's
//! corner cases (NaN, infinities, integer overflow, out-of-range shifts and indices) are the same
//! in every mode and on the reference interpreter.
//!
//! # Sizes and dimensions
//!
//! Methods of tensors take and give sizes as `&[usize]`, as ndarray, candle and Burn do. So lengths
//! of collections are sizes, and sizes are indices, without a cast: `&[2, 3]`, `&[data.len(), 3]`,
//! `x.dims()`. Dimensions (`axis`) are `i64`: negative ones count from the back.
//!
//! The record layer ([`Shape`], [`TensorType`], [`Literal`], [`embed`]) has sizes as `u64`, because
//! program files and region keys are the same on every machine. [`Shape::sizes`] returns `usize`,
//! and `Shape::try_from` makes a shape from `usize`. No parameter takes either, because the
//! compiler could not infer the type of a literal like `&[2, 3]` or `&[]`.
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `shared-cache` | no | executables shared by a fleet through an object store |
//! | `ndarray` | no | conversions from and to `ndarray` arrays |
//! | `tracing` | no | events as `tracing` events |

pub mod aot;
mod capture;
mod client;
mod config;
mod creation;
mod custom;
mod einsum;
pub mod embed;
mod engine;
pub mod fft;
#[doc(hidden)]
pub mod files;
mod handle;
pub mod handler;
#[cfg(feature = "ndarray")]
mod interop;
pub mod linalg;
mod mode;
pub mod nn;
mod promised;
pub mod qualification;
pub mod random;
mod run;
#[cfg(all(test, not(any(loom, shuttle))))]
mod runtime_tests;
#[cfg(all(test, not(loom)))]
mod scenarios;
#[cfg(feature = "stages")]
#[doc(hidden)]
pub mod stages;
mod stream;
mod tensor;
mod trace;

pub use config::EngineConfig;
pub use einsum::einsum;
pub use engine::Engine;
pub use fuseline_cache::Budget;
#[cfg(feature = "shared-cache")]
pub use fuseline_cache::{Secret, shared};
pub use fuseline_fusion as fusion;
pub use fuseline_fusion::lower::Numerics;
pub use fuseline_fusion::region::{Boundary, BoundaryRule, Budgets, ContentChunking, HardOnly, Mode};
pub use fuseline_fusion::{
    Attrs, Body, Bytes, CustomOp, DType, Element, Groups, Literal, OpCode, RealElement, Scalar, Shape, Site,
    TensorType,
};
pub use fuseline_interp as interp;
pub use fuseline_pjrt as pjrt;
#[cfg(feature = "tracing")]
#[doc(inline)]
pub use fuseline_runtime::TracingSink;
#[doc(hidden)]
pub use fuseline_runtime::mappings;
#[doc(inline)]
pub use fuseline_runtime::{
    Asked, Buckets, COMPILER_FLAGS, CacheTier, Capabilities, Change, CompilerFlag, Counters, Deadlines,
    DiskCacheConfig, Error, Event, EventSink, Fault, FaultPoint, Features, FlagUsage, LeakSite, MemoryPlan,
    Miss, OpsDiffer, Origin, ReadsAt, RegionRef, RegionTimes, Remedy, Result, SealedRegion, ShapeClasses,
    Spent, Stage, Step, Summary, Timeline, Varies, Varying, Wait, unchecked,
};
pub use handle::{Tensor, Tensors};
pub use mode::with_mode;
/// The host type of elements of `complex<f32>` and `complex<f64>` tensors.
pub use num_complex::Complex;
pub use promised::Promised;
pub use run::PreparedProgram;
pub use stream::Stream;
pub use tensor::{Order, Read, Unique, promote};
pub use trace::{Function, FunctionTrace, TensorTree};

/// The examples of README.md and of the pages in `docs/` run.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../docs/concepts.md")]
    struct Concepts;
    #[doc = include_str!("../docs/cache.md")]
    struct Cache;
    #[doc = include_str!("../docs/command-line.md")]
    struct CommandLine;
    #[doc = include_str!("../docs/troubleshooting.md")]
    struct Troubleshooting;
}
