//! The packed scalar arguments of an executable, on the device.
//!
//! Uploading them costs 1.1 of the 5 µs that a small region takes (one `multiply` of 16 elements
//! and its read, XLA's CPU backend, 2026-11-23), and most scalars are the same in every step. So
//! the latest upload is kept and reused while its words are the same. Compiling such a scalar in
//! would save no more, and would need another executable and a guard.
//!
//! Invariant: the kept data is never written. No parameter of packed scalars is in a module's
//! aliases.

use std::ops::Range;
use std::sync::Arc;

use fuseline_pjrt as sys;
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::{PerReplica, Result};

/// The words of one or several scalars, on each replica.
pub(super) type ScalarBuffer = Arc<PerReplica<sys::Buffer>>;

/// The upload for the latest execution, and its words.
#[derive(Default)]
struct Latest {
    words: SmallVec<[u32; 16]>,
    arguments: Arguments,
}

/// The arguments of one execution.
pub(super) type Arguments = SmallVec<[ScalarBuffer; 1]>;

/// The arguments of the latest execution.
pub(super) struct ScalarArgs(Mutex<Latest>);

impl ScalarArgs {
    pub(super) fn new() -> ScalarArgs {
        ScalarArgs(Mutex::new(Rank::ScalarArgs, Latest::default()))
    }

    /// The arguments for these words, one for each range. Calls `upload` for those that are not on
    /// the device.
    pub(super) fn arguments(
        &self,
        words: SmallVec<[u32; 16]>,
        ranges: impl Iterator<Item = Range<usize>>,
        upload: impl Fn(&[u32]) -> Result<PerReplica<sys::Buffer>>,
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
