//! Who runs what, and when.
//!
//! A stream is an actor: a piece of state that one thread at a time works on. [`actor::Actor`] says which state that is in,
//! [`Pool`] has the threads that work on streams nobody waits for, [`Workers`] those that compile. A thread that waits for a value works on
//! its stream itself when no other does, which saves the hand-over.
//!
//! Threads: `fuseline-drive-N` run streams, `fuseline-compile-N` compile, `fuseline-later-N` do so at low priority. All of them sleep when
//! there is nothing to do. They end with the engine.

pub(crate) mod actor;
mod pool;
mod workers;

pub(crate) use pool::{Pool, Priority};
pub(crate) use workers::Workers;
