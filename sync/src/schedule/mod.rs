//! Actors and thread pools.
//!
//! A stream is an actor: state that one thread at a time works on. [`actor::Actor`] tracks whether
//! a thread does. [`Pool`] has the threads that work on streams for which nobody waits, and
//! [`CompilePool`] those that compile. A thread that waits for a value works on its stream itself
//! if no other thread does, which saves a hand-over.
//!
//! Threads: `fuseline-drive-N` run streams, `fuseline-compile-N` compile, `fuseline-later-N`
//! compile at low priority, `fuseline-aside-N` make plugin calls with a deadline, `fuseline-watch`
//! abandons threads that do not return from the plugin ([`Watchdog`]). All of them sleep when there
//! is nothing to do. They end with the engine.

pub mod actor;
mod compile_pool;
mod pool;
mod watchdog;

pub use compile_pool::{CompilePool, Work};
pub use pool::{Item, Pool, Priority, Refusal, Refused, Stuck};
pub use watchdog::Watchdog;
