//! Qualification of PJRT plugins: what a plugin computes correctly, found by trying.
//!
//! Input: a plugin. Output: a [`Certificate`] with a finding for each op of the op table on each
//! element type: right, rounds differently, refused, wrong, or crashes. Right is what the reference
//! interpreter computes, up to the documented rounding of the op.
//!
//! A plugin may end its process, so everything runs in worker processes ([`serve`]). The parent
//! ([`qualify`]) sends batches of items to them, and finds the item that ended one.
//!
//! | module | contents |
//! |---|---|
//! | [`calls`], [`special`] | the calls that represent an op on an element type, with special values |
//! | [`judge`], [`compare`], [`exceptions`] | which differences from the interpreter count |
//! | [`plan`], [`item`] | what is tried at which level, and what shares a region |
//! | [`conformance`] | the accepted differences in conformance cases |
//! | `checks` | random programs, updates in place, quotients, subnormal numbers, collectives |
//! | `worker`, `process`, `parent` | the processes |
//!
//! The tests of the op table (`tests/ops/pairs`) use the first two rows too.
//!
//! Invariants:
//! - QUALIFY-1. A crash or a hang of the plugin is a finding, and ends no other item.
//! - QUALIFY-2. The calls of an item are a function of the item and the level, so that a finding
//!   can be reproduced. [`samples`] is their digest.
//! - QUALIFY-3. The device runs what the product would run: the compile options are those of an
//!   [`Engine`](fuseline::Engine), and no tier interprets.
#![forbid(unsafe_code)]

pub mod calls;
mod checks;
pub mod compare;
pub mod conformance;
pub mod exceptions;
pub mod item;
pub mod judge;
mod parent;
pub mod plan;
mod process;
pub mod special;
mod worker;

pub use fuseline::qualification::Certificate;
pub use parent::{Options, Progress, QualifyError, qualify};
pub use worker::{MARK, Setup, serve};

use fuseline::qualification::{Level, OperandKind, digest};

/// The digest of the calls of the quick level: signatures, attributes and operands. The calls of
/// the full level are made by the same code.
#[must_use]
pub fn samples() -> String {
    let all = calls::pairs();
    let mut text = String::new();
    for item in plan::batches(Level::Quick).into_iter().flatten() {
        text += &format!("{item}\n");
        let item::Item::Calls(unit) = item else { continue };
        if unit.operand_kind == OperandKind::Constant {
            continue;
        }
        for call in plan::unit_calls(unit, &all, Level::Quick) {
            let data: Vec<&[u8]> = call.operands.iter().map(|data| data.bytes()).collect();
            text += &format!("{call} {}\n", digest(&data.concat()));
        }
    }
    digest(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use fuseline::qualification::SAMPLES;

    use super::*;

    /// A certificate does not hold for other samples.
    #[test]
    fn the_sample_set_has_the_digest_in_the_key() {
        let found = samples();
        assert_eq!(found, SAMPLES, "write {found} to SAMPLES in runtime/src/certificate.rs");
    }
}
