//! The packed scalars of an executable's executions, on the device.
//!
//! Uploading them costs 1.1 of the 5 µs that a small region takes (one `multiply` of 16 elements and its read, XLA's CPU backend,
//! 2026-11-23), and most scalars are the same in every step. So what was last uploaded is kept, and used again while its words are the same.
//! Compiling such a scalar in would save no more, and would need another executable and a guard.
//!
//! Invariant: the kept data are never written: no parameter of the packed scalars is in a module's aliases.

use std::ops::Range;
use std::sync::Arc;

use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::{Each, Result};
use crate::pjrt as sys;

/// The words of some scalars, or of one, on each replica.
pub(super) type Words = Arc<Each<sys::Buffer>>;

/// What was uploaded for the latest execution, and the words of it.
#[derive(Default)]
struct Latest {
    words: SmallVec<[u32; 16]>,
    arguments: Arguments,
}

/// The arguments of one execution.
pub(super) type Arguments = SmallVec<[Words; 1]>;

/// The arguments of the latest execution.
pub(super) struct Packed(Mutex<Latest>);

impl Packed {
    pub(super) fn new() -> Packed {
        Packed(Mutex::new(Rank::Packed, Latest::default()))
    }

    /// These words on the device, as one argument for each range of them; those that are not there by `upload`.
    pub(super) fn arguments(
        &self,
        words: SmallVec<[u32; 16]>,
        ranges: impl Iterator<Item = Range<usize>>,
        upload: impl Fn(&[u32]) -> Result<Each<sys::Buffer>>,
    ) -> Result<Arguments> {
        if words.is_empty() {
            return Ok(Arguments::new());
        }
        let (known, uploaded) = {
            let latest = self.0.lock();
            if latest.words == words {
                return Ok(latest.arguments.clone());
            }
            (latest.words.clone(), latest.arguments.clone())
        };
        let argument = |(place, range): (usize, Range<usize>)| match uploaded.get(place) {
            Some(uploaded) if known.get(range.clone()) == words.get(range.clone()) => Ok(uploaded.clone()),
            _ => upload(&words[range]).map(Arc::new),
        };
        let arguments = ranges.enumerate().map(argument).collect::<Result<Arguments>>()?;
        let new = Latest { words, arguments: arguments.clone() };
        let old = std::mem::replace(&mut *self.0.lock(), new);
        drop(old);
        Ok(arguments)
    }
}
