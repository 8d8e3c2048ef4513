//! The recorder: it turns a call of an op into an entry of a stream's log.
//!
//! Input: an op, its attributes and its operands, from any thread. Output: typed handles on the
//! results, returned at once, and an entry in the [`log`], which the driver of the stream reads. No
//! thread waits for another here, except that a full log parks the recording thread.
//!
//! The crate knows values, not tensors, and no device. The outcome of a value ([`value::Outcome`]),
//! the stream ([`stream::Stream`]) and the front end's handle ([`handle::Handle`]) are type
//! parameters. Recording captures the call, the mode in force and the call site. Later stages read
//! only what was captured, so later changes of the mode have no effect on it.
//!
//! | module | contents |
//! |---|---|
//! | [`mode`], [`call`] | what is captured of a call |
//! | [`memo`], [`type_token`] | memo of inferred result types, per thread |
//! | [`value`], [`handle_count`] | values and their handle counts |
//! | [`trace_cache`], [`template`], [`replay_trace`] | recognizes calls that repeat a recorded region |
//! | [`entry`], [`log`] | what the driver reads |
//!
//! The crate is published for `fuseline` only, and its API follows the needs of that crate.

pub mod call;
pub mod entry;
pub mod handle;
pub mod handle_count;
mod id;
pub mod limits;
pub mod log;
pub mod memo;
pub mod mode;
pub mod replay_trace;
pub mod stream;
pub mod template;
#[cfg(test)]
mod testing;
pub mod trace_cache;
pub mod type_token;
pub mod value;
