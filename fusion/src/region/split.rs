//! A region taken apart again.

use super::builder::Part;
use super::{Boundary, Region, TraceResult};

impl<R: TraceResult> Region<R> {
    /// The ops one by one, each a region of its own, in order. What later ops use stays live until its last use, so running
    /// them in turn gives what the whole gives: how a region runs that could not be compiled, or one of whose inputs failed
    /// so that only a part of it can be computed.
    #[must_use]
    pub fn split(self) -> Vec<Region<R>> {
        let (mode, effect) = (self.mode, self.effect);
        let mut parts = Vec::with_capacity(self.sites.len());
        halve(Part::of(self), &mut parts);
        parts.into_iter().map(|part| part.finish(Boundary::Fallback, mode, effect)).collect()
    }
}

/// Cuts in the middle until single ops are left: n log n work, where taking one op off at a time would be quadratic.
fn halve<R: TraceResult>(part: Part<R>, parts: &mut Vec<Part<R>>) {
    match part.len() {
        0 => {}
        1 => parts.push(part),
        len => {
            let (head, tail) = part.cut(len / 2);
            halve(head, parts);
            halve(tail, parts);
        }
    }
}
