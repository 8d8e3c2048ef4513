//! What a stream is at, for those who have waited in vain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_sync::{Mutex, Rank};

use crate::error::{Doing, Stand};
use crate::event::Wait;
use crate::value::RegionInfo;

type At = Option<(Doing, Arc<RegionInfo>, Instant)>;

/// What the first region of a stream that is not launched waits for, or that it is with the device, and since when. Kept by the driver.
pub(crate) struct Standing(Mutex<At>);

/// The region is with the device until this is dropped.
pub(super) struct Executing<'a>(&'a Standing);

impl Standing {
    pub(crate) fn new() -> Standing {
        Standing(Mutex::new(Rank::Standing, None))
    }

    pub(super) fn waits(&self, wait: Wait, info: &Arc<RegionInfo>, since: Instant) {
        *self.0.lock() = Some((Doing::Waits(wait), info.clone(), since));
    }

    pub(super) fn executes(&self, info: &Arc<RegionInfo>) -> Executing<'_> {
        *self.0.lock() = Some((Doing::Executed, info.clone(), Instant::now()));
        Executing(self)
    }

    pub(super) fn goes_on(&self) {
        let before = self.0.lock().take();
        drop(before);
    }

    /// What it is at, if that takes time.
    pub(crate) fn look(&self) -> Option<Stand> {
        let (doing, info, since) = self.0.lock().clone()?;
        let (op, site) = info.address(info.reference.ops.saturating_sub(1));
        Some(Stand { doing, region: info.reference, op, site, since: since.elapsed() })
    }

    /// A value of this region is on its way to the host.
    pub(crate) fn copied(
        info: &RegionInfo,
        node: (Option<fuseline_fusion::OpCode>, fuseline_fusion::Site),
        since: Duration,
    ) -> Stand {
        let (op, site) = node;
        Stand { doing: Doing::Copied, region: info.reference, op, site, since }
    }
}

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        self.0.goes_on();
    }
}
