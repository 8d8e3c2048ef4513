//! Canonical form and key of a region.
//!
//! Input: the [`Graph`] of a region and which of its parameters are lifted scalars. Output: a
//! [`CanonRegion`], its canonical bytes and, under an environment, its [`RegionKey`]. Pure; no I/O,
//! no clock, no global state.
//!
//! A graph has no names: values are numbered by position, parameters by first use. This module
//! encodes it so that two regions have equal bytes exactly if they are equal.
//!
//! Invariants:
//! - CANON-1: the encoding is injective: [`decode`] restores the region from its bytes.
//! - CANON-2: only parameters (types, lifted or not), ops, attributes, bodies and wiring enter the
//!   bytes. Value ids, pointers, call sites, the mode, the values of scalars, the set of live
//!   results, the order of releases and time do not.
//! - CANON-3: the key is BLAKE3-256 of the bytes, keyed with the environment fingerprint. Each
//!   look-up also compares the bytes, so a collision costs a compile and never a wrong result.
//!
//! Cost: one pass. Each call was encoded when its signature was inferred, so a node costs a copy of
//! that encoding and its operand numbers.

mod decode;
mod diff;
mod encode;

use std::fmt;

pub use decode::decode;
pub use diff::{Difference, diff};

use crate::ir::Graph;
use crate::shape::TensorType;

/// Version of the canonical encoding, the first byte of every encoding. It changes whenever the
/// bytes of some region or their meaning change.
pub const FORMAT: u8 = 1;

/// A region in canonical form: its graph, its lifted parameters and its bytes (CANON-1).
#[derive(Clone)]
pub struct CanonRegion {
    graph: Graph,
    lifted: Box<[bool]>,
    bytes: Box<[u8]>,
}

/// Everything outside a region that its executables depend on: plugin, device, compile options,
/// lowering. Two fingerprints are equal exactly if all of that is equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EnvFingerprint([u8; 32]);

/// Identity of a region in an environment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionKey([u8; 32]);

impl EnvFingerprint {
    /// Fingerprint of an environment, from an injective description of it.
    #[must_use]
    pub fn of(description: &[u8]) -> EnvFingerprint {
        EnvFingerprint(blake3::derive_key("fuseline 2026-11 environment fingerprint", description))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl RegionKey {
    /// A key from the bytes of one.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> RegionKey {
        RegionKey(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first eight hexadecimal digits, which are enough to tell regions apart in a log.
    #[must_use]
    pub fn short(&self) -> String {
        self.0[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl fmt::Debug for EnvFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Whether a parameter of this type can be a lifted scalar, that is, whether it fits in a
/// [`crate::Scalar`].
#[must_use]
pub fn can_lift(ty: &TensorType) -> bool {
    ty.rank() == 0 && !ty.dtype().is_complex()
}

impl CanonRegion {
    /// The ops.
    #[inline]
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Which parameters are lifted scalars.
    #[inline]
    #[must_use]
    pub fn lifted(&self) -> &[bool] {
        &self.lifted
    }

    /// The canonical bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A hash of the op sequence without shapes, attributes and wiring. Regions that differ only in
    /// those share it, so a cache miss can find the region to compare with.
    #[must_use]
    pub fn skeleton(&self) -> u64 {
        use std::hash::Hasher as _;
        let mut hasher = rustc_hash::FxHasher::default();
        for node in self.graph.nodes() {
            hasher.write_u16(node.signature().op().number());
        }
        hasher.finish()
    }
}

impl PartialEq for CanonRegion {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for CanonRegion {}

impl fmt::Debug for CanonRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CanonRegion({} params, {} ops, {} bytes)",
            self.graph.params().len(),
            self.graph.nodes().len(),
            self.bytes.len()
        )
    }
}
