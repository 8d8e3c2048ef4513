//! Call sites of reads. The log does not hold them, because its entries are kept small.

use fuseline_fusion::{Site, ValueId};
use fuseline_sync::{Mutex, Rank};
use rustc_hash::FxHashMap;

/// Call sites of reads, until the driver handles the read.
pub(crate) struct ReadSites(Mutex<FxHashMap<ValueId, Site>>);

impl ReadSites {
    pub(crate) fn new() -> ReadSites {
        ReadSites(Mutex::new(Rank::ReadSites, FxHashMap::default()))
    }

    /// The host reads a value at this call site. The log entry follows.
    pub(crate) fn put(&self, value: ValueId, site: Site) {
        self.0.lock().insert(value, site);
    }

    /// Returns the call site of the first of these values that was read, and forgets them all.
    pub(crate) fn take(&self, values: impl IntoIterator<Item = ValueId>) -> Option<Site> {
        let mut read_sites = self.0.lock();
        if read_sites.is_empty() {
            return None;
        }
        let mut asked = values.into_iter().filter_map(|value| read_sites.remove(&value));
        let first = asked.next();
        asked.for_each(drop);
        first
    }
}
