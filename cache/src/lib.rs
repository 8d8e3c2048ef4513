//! The compile cache of Fuseline: verified keys, single flight, budgets, output variants.
//!
//! This crate handles keys, bytes and artifacts, but does not know what an artifact is. It contains
//! no unsafe code. It is published for the `fuseline` crate; its API follows that crate's needs.
//!
//! # Verified hits
//!
//! An [`Entry`](MemoryCache) is found by its 32-byte [`Key`], and its canonical bytes are compared
//! with the caller's before it is used. Two different regions with one key cost a compile
//! ([`Lookup::Collision`]), never a wrong result.
//!
//! # Variants
//!
//! One region is compiled for one or more sets of outputs ([`OutputSet`]). A variant that returns
//! more than requested also serves; the caller drops the additional results. The number of variants
//! of an entry is limited. At the limit, the next compile is for the union of all of them, so a
//! caller with a changing set of live values converges. If the additional results cost a caller
//! more than a compile, it claims a variant without them ([`MemoryCache::claim_narrower`]), at most
//! [`MAX_NARROWED`] times. A new variant at the limit replaces one that another variant covers, so
//! that nobody waits for it again.
//!
//! # Single flight
//!
//! Of all threads that miss one key, one gets a [`Claim`] and compiles. The others get a [`Flight`]
//! and are woken when it ends. Dropping a claim wakes them too, and the next lookup gets the claim.
//!
//! # Budgets
//!
//! Entries are evicted by the clock algorithm (second chance) if their number or their bytes exceed
//! the [`Budget`]. An entry that is being compiled is not evicted. An evicted artifact that is in
//! use lives until its last user drops it.
//!
//! Deliberately not here: compilers, the hash function of regions, the environment part of the key;
//! and, except in the tier for object stores (`shared`, with the feature of that name), threads and
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
pub use sealed::{Damage, FORMAT, HEADER, MAX_ENTRY, Record, SealedKind, Sealer, Secret, announced};
