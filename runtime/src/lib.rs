//! The runtime: from the entries of a stream's log to values with data.
//!
//! Input: a [`Device`](device::Device), [`Settings`](settings::Settings) and the calls of ops.
//! Output: handles on the results at once, and their data later. The crate knows ops and values,
//! and no tensor methods. The crate `fuseline` has those, and re-exports the public types of this
//! one.
//!
//! | module | contents |
//! |---|---|
//! | [`settings`], `limits`, [`deadlines`] | what an engine is configured with |
//! | [`region`], [`error`] | descriptions of regions; errors and failures |
//! | [`device`] | compiles and runs regions on a PJRT device or the reference interpreter |
//! | [`event`], [`counters`], [`timeline`] | what the engine reports |
//! | [`store`] | executables of other processes |
//! | `tier` | how a region runs |
//! | [`engine`] | what engines and streams consist of |
//! | [`execute`] | the driver: from log entries to launched regions |
//!
//! The crate is published for `fuseline` only, and its API follows the needs of that crate.

pub mod counters;
pub mod deadlines;
pub mod device;
pub mod engine;
pub mod error;
pub mod event;
pub mod execute;
mod limits;
pub mod mappings;
pub mod region;
pub mod settings;
pub mod store;
mod tier;
pub mod timeline;
pub mod user_code;
