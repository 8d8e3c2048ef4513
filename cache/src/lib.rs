//! The compile cache of Fuseline: verified keys, single flight, budgets, output variants.
//!
//! This crate knows keys, bytes and artifacts; it does not know what an artifact is. It is safe
//! code. It is published for the `fuseline` crate; its API follows that crate's needs.
//!
//! # What a hit means
//!
//! An [`Entry`](MemoryCache) is found by its 32-byte [`Key`], and its canonical bytes are compared
//! with the caller's before anything of it is returned. Two different regions under one key would
//! cost a compile ([`Lookup::Collision`]) and could never cost a wrong result.
//!
//! # Variants
//!
//! One region is compiled for one or more sets of outputs ([`OutputSet`]). A variant that returns
//! more than is asked for serves: the surplus is dropped by the caller. The number of variants of
//! an entry is capped, and when it is reached the next compile is for the union of all of them, so
//! that a caller whose set of live values flaps converges. A caller that finds the surplus to cost
//! more than a compile makes a variant without it ([`MemoryCache::claim_narrower`]),
//! [`MAX_NARROWED`] times at most. When there is no room, a variant goes that another one includes,
//! so that nobody waits for it again.
//!
//! # Single flight
//!
//! Of all threads that miss one key, one gets a [`Claim`] and compiles; the others get a [`Flight`]
//! and are woken when it ends. A claim that is dropped wakes them too, and the next one to look
//! gets the claim.
//!
//! # Budgets
//!
//! Entries are evicted by the clock rule (second chance) when their number or their bytes exceed
//! the [`Budget`]. An entry that is being compiled is not evicted. An artifact that is in use when
//! its entry is evicted lives until its last user drops it.
//!
//! Deliberately not here: compilers, the hash function of regions, the environment part of the key;
//! and, but for the tier in an object store (`shared`, with the feature of that name), threads and
//! I/O.
#![forbid(unsafe_code)]

pub mod disk;
mod entry;
mod key;
mod memory;
mod name;
mod outputs;
mod sealed;
#[cfg(feature = "shared")]
pub mod shared;
mod sync;
mod table;

pub use entry::MAX_NARROWED;
pub use key::Key;
pub use memory::{Artifact, Budget, Claim, Evicted, Flight, Hit, Lookup, MemoryCache, Stats};
pub use name::{Fingerprint, Name, Request};
pub use outputs::OutputSet;
pub use sealed::{Damage, FORMAT, HEADER, Kind, MAX_ENTRY, Record, Sealer, Secret, announced};
