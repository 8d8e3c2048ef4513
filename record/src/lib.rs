//! The recording side of Fuseline: from a call to an entry in a stream's log.
//!
//! Input: an op, its attributes and the values it reads, from any thread. Output: handles on its
//! results, at once, with types; the entry goes to the [`log`], where the stream's driver finds it.
//! No thread waits for another here, except that a full log parks the recording thread.
//!
//! The crate knows values, not tensors, and no device: what becomes of a value is a type parameter
//! ([`value::Outcome`]), and so are the stream ([`stream::Stream`]) and the front end's handle
//! ([`handle::Handle`]). It captures the call itself, the mode in force and the call site when an
//! op is recorded, so nothing is looked up later that could have changed.
//!
//! | module | contents |
//! |---|---|
//! | [`mode`], [`call`] | what is captured of a call |
//! | [`memo`], [`type_token`] | types of results, inferred once for each thread |
//! | [`value`], [`handle_count`] | values, and how many handles they have |
//! | [`trace_cache`], [`template`], [`replay_trace`] | calls that repeat a region that was recorded before |
//! | [`entry`], [`log`] | what the driver reads |
//!
//! It is published for the `fuseline` crate, and its API follows that crate's needs.

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
