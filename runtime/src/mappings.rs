//! Counts and limits the memory mappings of the process.
//!
//! The code of each executable of a CPU plugin has its own mappings: 6 to 9 for a few ops, about 70
//! for
//! 700. Linux gives a process 65,530 (`vm.max_map_count`). A process that has used them all can
//!    neither compile nor allocate, nor load a library. So executables leave the memory cache long
//!    before (`Mappings::note`).
//!
//! The number per executable is an estimate. The mappings of the process are counted in
//! `/proc/self/maps`, which takes a few microseconds per hundred. This is done when estimates say
//! that there may be too many, and now and then, because others map memory too.
//!
//! LLVM ends the process if it gets no memory for the sections of compiled code. So nothing is
//! compiled or loaded while too few mappings are left (`Mappings::has_room`). That counts as
//! running out of memory, before the plugin is called.

use std::io::Read as _;

use fuseline_sync::StatCounter;
use fuseline_sync::atomic::Ordering;

/// The usual limit, where the system does not report one.
const USUAL_MOST: u64 = 65_530;

/// Maximum number of executables between two counts.
const PER_COUNT: u64 = 256;

/// Mappings reserved for everything else: threads, allocations, what LLVM maps meanwhile.
const LEFT: u64 = 512;

/// Below this number, mappings are counted before each compile. A count then takes a fraction of a
/// millisecond.
const QUICK_COUNT: u64 = 8_192;

/// Above it, they are counted before one of this many compiles.
const PER_LONG_COUNT: u64 = 16;

/// Inverse of the part of the limit that the executables of one engine always keep. If they have
/// less, others use the mappings.
const MIN_SHARE: u64 = 8;

/// Maximum number of mappings that the system gives this process.
#[must_use]
pub fn most() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(USUAL_MOST)
}

/// The number of mappings of the process. `None` where the system does not report it.
#[must_use]
pub fn count() -> Option<u64> {
    let mut file = std::fs::File::open("/proc/self/maps").ok()?;
    let (mut block, mut lines) = (vec![0; 1 << 16], 0);
    loop {
        match file.read(&mut block).ok()? {
            0 => return Some(lines),
            read => lines += block[..read].iter().filter(|&&byte| byte == b'\n').count() as u64,
        }
    }
}

/// Estimated number of mappings of an executable with this many ops.
pub(crate) fn estimate(ops: usize) -> u64 {
    8 + ops as u64 / 10
}

/// The mappings of the process, as seen by one engine.
pub(crate) struct Mappings {
    /// The number from which executables are evicted.
    limit: u64,
    /// The number at the latest count.
    counted: StatCounter,
    /// Estimates of the executables created since.
    since: StatCounter,
    /// Number of executables created.
    made: StatCounter,
    /// Number of calls of [`Mappings::has_room`].
    asked: StatCounter,
}

impl Mappings {
    pub(crate) fn new(limit: Option<u64>) -> Mappings {
        let limit = limit.unwrap_or_else(|| most() / 2);
        Mappings {
            limit,
            counted: StatCounter::new(0),
            since: StatCounter::new(0),
            made: StatCounter::new(0),
            asked: StatCounter::new(0),
        }
    }

    /// Checks that there is room for an executable with this many mappings.
    ///
    /// # Errors
    /// The number of mappings of the process, if there is not.
    pub(crate) fn has_room(&self, mappings: u64) -> Result<(), u64> {
        let expected = |counted: u64| counted.saturating_add(mappings).saturating_add(LEFT);
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let (counted, since) = (self.counted(), self.since.load(Ordering::Relaxed));
        // Near the limit, each executable may be one too many.
        let is_near = counted.saturating_add(8 * LEFT) > most();
        let is_due = counted < QUICK_COUNT || is_near || asked.is_multiple_of(PER_LONG_COUNT);
        if !is_due && expected(counted + 2 * since) <= most() {
            return Ok(());
        }
        let Some(now) = count() else { return Ok(()) };
        self.counted.store(now, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
        if expected(now) <= most() { Ok(()) } else { Err(now) }
    }

    /// The number at the latest count.
    pub(crate) fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    /// Counts a new executable with its estimated mappings. Returns how many mappings of
    /// executables have to go, of `cached` in the cache.
    pub(crate) fn note(&self, mappings: u64, cached: impl FnOnce() -> u64) -> Option<u64> {
        let since = self.since.fetch_add(mappings, Ordering::Relaxed) + mappings;
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        let expected = self.counted().saturating_add(2 * since);
        if expected <= self.limit && !made.is_multiple_of(PER_COUNT) {
            return None;
        }
        let now = count()?;
        self.counted.store(now, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
        self.surplus(now, cached())
    }

    /// How many of `cached` mappings have to go if the process has `now`: the excess and a
    /// sixteenth of the limit, to avoid evictions one at a time.
    fn surplus(&self, now: u64, cached: u64) -> Option<u64> {
        let most = cached.saturating_sub(self.limit / MIN_SHARE);
        (now > self.limit && most > 0).then(|| most.min(now - self.limit + self.limit / 16))
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[allow(clippy::print_stdout, reason = "the stages of tests read it")]
    fn count_or_skip() -> Option<u64> {
        let count = count();
        if count.is_none() {
            println!("skipped: no /proc/self/maps: mappings are counted there");
        }
        count
    }

    #[test]
    fn mappings_are_counted_and_limited() {
        let Some(count) = count_or_skip() else { return };
        // The program, its libraries and stacks.
        assert!(count > 10 && count < most(), "{count} of {}", most());
        assert!((6..=9).contains(&estimate(3)) && (60..=80).contains(&estimate(686)));
    }

    #[test]
    fn as_many_go_as_are_too_many() {
        let mappings = Mappings::new(Some(1_600));
        assert_eq!(mappings.surplus(1_600, 1_000), None);
        assert_eq!(mappings.surplus(1_601, 1_000), Some(101));
        // Others have most of them; the cache keeps its share.
        assert_eq!(mappings.surplus(9_000, 250), Some(50));
        assert_eq!(mappings.surplus(9_000, 200), None);
    }

    #[test]
    fn what_is_left_to_others_is_not_taken() {
        let Some(now) = count_or_skip() else { return };
        let mappings = Mappings::new(None);
        assert_eq!(mappings.has_room(8), Ok(()));
        assert!(mappings.counted() >= now / 2);
        let told = mappings.has_room(most());
        assert!(told.is_err_and(|told| told >= now / 2), "{told:?} of {now}");
    }

    #[test]
    fn they_are_counted_when_it_matters() {
        if count_or_skip().is_none() {
            return;
        }
        // At the first, and then only when estimates say that it may matter.
        let far = Mappings::new(Some(1 << 40));
        assert_eq!((far.note(8, || 0), far.counted() > 0), (None, true));
        far.counted.store(7, Ordering::Relaxed);
        assert_eq!((far.note(8, || 0), far.counted()), (None, 7));
        let near = Mappings::new(Some(1));
        near.made.store(1, Ordering::Relaxed);
        // A process has more mappings than that.
        assert_eq!(near.note(8, || 5), Some(5));
    }
}
