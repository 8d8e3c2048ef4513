//! Detects a number of values that grows for ever.
//!
//! A program has the values that it keeps for good after its first steps; values that it keeps for
//! a while come and go. So the minimum number of live values in a window of many boundaries is
//! steady, however high the peaks between. If that minimum rises from window to window, the program
//! keeps something of each step, such as losses in a list with the graphs of old steps behind them.
//!
//! The rule counts values, not bytes. A growing state (the keys and values of a decoder) has the
//! same number of values in each step, and a size that the program wants.
//!
//! If a program requests no boundaries, its regions count as boundaries, from a number of regions
//! after the last request.
//!
//! Only results of regions count; the program has uploaded data anyway. Values are observed by weak
//! references. So nothing is kept alive, and donation, which asks whether a region is the last
//! reader of a value, is not affected. The driver may be behind the program, so values may seem to
//! be gone a little early. Values that stay are seen in any case.

use std::sync::{Arc, Weak};

use fuseline_fusion::{Bytes, Site};
use rustc_hash::FxHashMap;

use crate::engine::value::ValueCell;
use crate::event::LeakSite;

/// Boundaries per window, of which the minimum is taken: more than the steps over which programs
/// gather something, such as gradients.
const WINDOW: u32 = 64;

/// Number of consecutive rises of the minimum that are reported.
const RISES: usize = 8;

/// Number of regions without a request after which regions count as boundaries.
const UNASKED: u32 = 64;

/// Boundaries in these windows.
pub(super) const BOUNDARIES: u32 = WINDOW * RISES as u32;

/// Minimum number of additional values that is reported. Fewer means that at most one step in ten
/// keeps a value.
const MANY: usize = 48;

/// Maximum number of reported call sites.
const TOLD: usize = 3;

/// Reference counts that may be examined per boundary. All values are examined as rarely as that
/// requires.
const LOOKS: usize = 64;

#[derive(Debug)]
struct Made {
    value: Weak<ValueCell>,
    site: Site,
    bytes: u64,
    /// The window in which it was made.
    window: u64,
}

/// The live results of one stream's regions.
#[derive(Debug, Default)]
pub(super) struct LiveValueLeak {
    alive: Vec<Made>,
    /// How many values were alive after the latest examination.
    after: usize,
    /// Boundaries since then.
    unseen: usize,
    /// The number of the current window, its boundaries so far, and its minimum.
    window: u64,
    boundaries: u32,
    least: Option<usize>,
    /// The minima of the latest windows, each larger than the previous.
    rising: Vec<usize>,
    told: bool,
    /// Regions since the program last requested a boundary.
    unasked: u32,
}

impl LiveValueLeak {
    /// A value was made that is needed.
    pub(super) fn made(&mut self, value: &Arc<ValueCell>, site: Site, replicas: u64) {
        if self.told {
            return;
        }
        // For programs with few boundaries.
        if self.alive.len() >= 2 * self.after + 16 * LOOKS {
            self.look();
        }
        let bytes = value.ty().bytes().0.saturating_mul(replicas);
        self.alive.push(Made { value: Arc::downgrade(value), site, bytes, window: self.window });
    }

    /// The program requested a boundary. Returns how many values there are more than [`BOUNDARIES`]
    /// ago, and their call sites, if that is to be reported.
    pub(super) fn asked(&mut self) -> Option<(usize, Vec<LeakSite>)> {
        self.unasked = 0;
        self.boundary()
    }

    /// A region was sealed, requested or not. It counts as a boundary if the program requests none;
    /// see [`LiveValueLeak::asked`].
    pub(super) fn region(&mut self) -> Option<(usize, Vec<LeakSite>)> {
        self.unasked = self.unasked.saturating_add(1);
        if self.unasked > UNASKED { self.boundary() } else { None }
    }

    fn boundary(&mut self) -> Option<(usize, Vec<LeakSite>)> {
        if self.told {
            return None;
        }
        self.unseen += 1;
        self.boundaries += 1;
        let is_end = self.boundaries == WINDOW;
        if is_end || self.unseen * LOOKS >= self.alive.len() {
            self.look();
            self.least = Some(self.least.map_or(self.after, |least| least.min(self.after)));
        }
        if !is_end {
            return None;
        }
        self.boundaries = 0;
        self.window += 1;
        let least = self.least.take()?;
        if self.rising.last().is_some_and(|&before| least <= before) {
            self.rising.clear();
        }
        self.rising.push(least);
        if self.rising.len() > RISES + 1 {
            self.rising.remove(0);
        }
        let more = least - self.rising[0];
        if self.rising.len() <= RISES || more < MANY {
            return None;
        }
        self.told = true;
        let kept = self.kept();
        self.alive = Vec::new();
        Some((more, kept))
    }

    /// Removes values that are gone.
    fn look(&mut self) {
        self.alive.retain(|made| made.value.strong_count() > 0);
        (self.after, self.unseen) = (self.alive.len(), 0);
    }

    /// The live values that were made since the first rise, by call site.
    fn kept(&self) -> Vec<LeakSite> {
        let first = self.window.saturating_sub(RISES as u64);
        let mut sites: FxHashMap<&Site, (usize, u64)> = FxHashMap::default();
        for made in self.alive.iter().filter(|made| made.window >= first) {
            let (values, bytes) = sites.entry(&made.site).or_default();
            (*values, *bytes) = (*values + 1, bytes.saturating_add(made.bytes));
        }
        let mut kept: Vec<LeakSite> = sites
            .into_iter()
            .map(|(site, (values, bytes))| LeakSite { site: site.clone(), values, bytes: Bytes(bytes) })
            .collect();
        // By name among equals, so that a program always gets the same report.
        kept.sort_by_cached_key(|kept| (std::cmp::Reverse(kept.values), kept.site.to_string()));
        kept.truncate(TOLD);
        kept
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::{DType, TensorType};

    use super::*;

    /// Runs this many boundaries. `keeps` says how many of the ten values made before each are
    /// kept, and when all kept values are dropped.
    fn run(boundaries: u32, keeps: impl Fn(u32) -> (usize, bool)) -> Vec<(u32, usize, Vec<LeakSite>)> {
        let ty = TensorType::of(DType::F32, &[4]).unwrap();
        let (mut growth, mut kept, mut told) = (LiveValueLeak::default(), Vec::new(), Vec::new());
        for boundary in 0..boundaries {
            let (keep, drops) = keeps(boundary);
            for value in 0..10 {
                let (cell, _promise) = ValueCell::promised(ty.clone());
                growth.made(&cell, Site::Host(if value < keep { "kept" } else { "used" }.into()), 2);
                if value < keep {
                    kept.push(cell);
                }
            }
            if let Some((more, sites)) = growth.boundary() {
                told.push((boundary, more, sites));
            }
            if drops {
                kept.clear();
            }
        }
        told
    }

    #[test]
    fn what_is_kept_of_each_step_is_told_once() {
        let told = run(2_000, |_| (1, false));
        let [(at, more, kept)] = told.as_slice() else { panic!("{told:?}") };
        // The minimum may be late by the number of boundaries between two examinations.
        let expected = BOUNDARIES as usize;
        assert_eq!(*at, BOUNDARIES + WINDOW - 1);
        assert!((expected..expected + 20).contains(more), "{more}");
        let [LeakSite { site: Site::Host(site), values, bytes }] = kept.as_slice() else {
            panic!("{kept:?}")
        };
        assert_eq!((&**site, *values as u64 * 32), ("kept", bytes.0));
        // Now and then is enough.
        assert_eq!(run(2_000, |boundary| (usize::from(boundary % 8 == 0), false)).len(), 1);
    }

    #[test]
    fn what_comes_and_goes_is_not_told() {
        assert!(run(2_000, |_| (0, false)).is_empty());
        for period in [2, 63, 64, 65, 100, 500] {
            let told = run(5_000, |boundary| (3, boundary % period == period - 1));
            assert!(told.is_empty(), "{period}: {told:?}");
        }
        // Values that are made once, however slowly.
        assert!(run(2_000, |boundary| (usize::from(boundary < 400), false)).is_empty());
    }
}
