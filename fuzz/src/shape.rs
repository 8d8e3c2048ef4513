//! Calls with hostile attributes, sizes, operands and bodies are refused with a message, or are
//! calls like any other.
//!
//! Accepted calls run if they are small, and are lowered and read back: about 0.5 ms an execution.

use fuseline_fusion::op::OPS;
use fuseline_testgen::{Aim, Entropy as _};

use super::answer::is_answered;
use super::bytes::Bytes;
use super::hostile::{Attempt, place, sampled};

pub(super) fn run(data: &[u8]) {
    let (mut program, mut changes) = Bytes::halves(data);
    let def = &OPS[place(&mut program, OPS.len())];
    let Some(call) = sampled(def, &mut program, Aim::Everything) else { return };
    let mut attempt = Attempt::of(&call.signature);
    for _ in 0..1 + changes.draw(4) {
        attempt.change(&mut changes);
    }
    let seed = changes.draw(u32::MAX).into();
    if let Err(error) = is_answered(def, &attempt, seed) {
        panic!("{attempt:?}: {error}");
    }
}
