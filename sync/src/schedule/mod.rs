//! Who runs what, and when.
//!
//! A stream is an actor: a piece of state that one thread at a time works on. [`actor::Actor`] says
//! which state that is in, [`Pool`] has the threads that work on streams nobody waits for,
//! [`CompilePool`] those that compile. A thread that waits for a value works on its stream itself
//! when no other does, which saves the hand-over.
//!
//! Threads: `fuseline-drive-N` run streams, `fuseline-compile-N` compile, `fuseline-later-N` do so
//! at low priority, `fuseline-aside-N` make the calls of the plugin that somebody waits for with a
//! deadline, `fuseline-watch` gives up those that do not come back from the plugin ([`Watchdog`]).
//! All of them sleep when there is nothing to do. They end with the engine.

pub mod actor;
mod compile_pool;
mod pool;
mod watchdog;

pub use compile_pool::{CompilePool, Work};
pub use pool::{Item, Pool, Priority, Refusal, Refused, Stuck};
pub use watchdog::Watchdog;
