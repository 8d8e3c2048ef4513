//! What a stream is doing, for the report of a stalled wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_sync::{Mutex, Rank};

use crate::error::{Activity, StallReport};
use crate::region::{RegionInfo, Wait};

type At = Option<(Activity, Arc<RegionInfo>, Instant)>;

/// What the first unlaunched region of a stream waits for, or that the device has it, and since
/// when. The driver updates it.
pub(crate) struct CurrentActivity(Mutex<At>);

/// The device has the region until this is dropped.
pub(crate) struct Executing<'a>(&'a CurrentActivity);

impl CurrentActivity {
    pub(crate) fn new() -> CurrentActivity {
        CurrentActivity(Mutex::new(Rank::Activity, None))
    }

    pub(crate) fn waits(&self, wait: Wait, info: &Arc<RegionInfo>, since: Instant) {
        *self.0.lock() = Some((Activity::Waits(wait), info.clone(), since));
    }

    pub(crate) fn executes(&self, info: &Arc<RegionInfo>) -> Executing<'_> {
        *self.0.lock() = Some((Activity::Executed, info.clone(), Instant::now()));
        Executing(self)
    }

    pub(crate) fn goes_on(&self) {
        let before = self.0.lock().take();
        drop(before);
    }

    /// What the stream is doing, if it is waiting or executing.
    pub(crate) fn look(&self) -> Option<StallReport> {
        let (doing, info, since) = self.0.lock().clone()?;
        let (op, site) = info.address(info.reference.ops.saturating_sub(1));
        Some(StallReport { doing, region: info.reference, op, site, since: since.elapsed() })
    }

    /// The report for a value of this region that is being copied to the host.
    pub(crate) fn copied(
        info: &RegionInfo,
        node: (Option<fuseline_fusion::OpCode>, fuseline_fusion::Site),
        since: Duration,
    ) -> StallReport {
        let (op, site) = node;
        StallReport { doing: Activity::Copied, region: info.reference, op, site, since }
    }
}

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        self.0.goes_on();
    }
}
