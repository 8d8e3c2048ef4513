//! Ever more values.
//!
//! What a program keeps for good it has after its first steps; what it keeps for a while comes and
//! goes. So the least number of values that are alive in a window of many boundaries is steady,
//! however high the peaks between. Where that least number rises from window to window, the program
//! keeps something of each step: losses in a list, graphs of old steps behind them.
//!
//! The number of values is looked at, not their bytes: a state that grows (the keys and values of a
//! decoder) is as many values in each step, and has a length that the program wants.
//!
//! A program that asks for nothing has its regions for boundaries, from some on after the last that
//! it asked for.
//!
//! Only results of regions count; what was uploaded the program has itself. Values are looked at by
//! weak references: so nothing is kept alive, and the donation of memory, which asks whether a
//! region is the last to have a value, sees no difference. The driver may be behind the program, so
//! that values are gone a little early; what stays is seen in any case.

use std::sync::{Arc, Weak};

use fuseline_fusion::{Bytes, Site};
use rustc_hash::FxHashMap;

use crate::event::LeakSite;
use crate::value::ValueCell;

/// Boundaries of which the least number of values is taken: more than the steps of what is gathered
/// over some, such as gradients.
const WINDOW: u32 = 64;

/// Rises of the least number, one after the other, that are told.
const RISES: usize = 8;

/// Regions after which a program is taken to ask for nothing.
const UNASKED: u32 = 64;

/// Boundaries that these take.
pub(super) const BOUNDARIES: u32 = WINDOW * RISES as u32;

/// Fewer values more than that are not told: what is kept is then of one step in ten or less.
const MANY: usize = 48;

/// Call sites that are told.
const TOLD: usize = 3;

/// Values whose reference counts may be looked at per boundary. Looking at all takes its turn
/// accordingly seldom.
const LOOKS: usize = 64;

#[derive(Debug)]
struct Made {
    value: Weak<ValueCell>,
    site: Site,
    bytes: u64,
    /// The window in which it was made.
    window: u64,
}

/// The results of one stream's regions that are alive.
#[derive(Debug, Default)]
pub(super) struct LiveValueLeak {
    alive: Vec<Made>,
    /// How many there were when they were last looked at.
    after: usize,
    /// Boundaries since then.
    unseen: usize,
    /// The window that is under way, its boundaries so far, and the least number.
    window: u64,
    boundaries: u32,
    least: Option<usize>,
    /// The least numbers of the latest windows, each larger than the one before.
    rising: Vec<usize>,
    told: bool,
    /// Regions since the program asked for a boundary.
    unasked: u32,
}

impl LiveValueLeak {
    /// A value was made that lives on.
    pub(super) fn made(&mut self, value: &Arc<ValueCell>, site: Site, replicas: u64) {
        if self.told {
            return;
        }
        // Where boundaries are rare.
        if self.alive.len() >= 2 * self.after + 16 * LOOKS {
            self.look();
        }
        let bytes = value.ty().bytes().0.saturating_mul(replicas);
        self.alive.push(Made { value: Arc::downgrade(value), site, bytes, window: self.window });
    }

    /// The program asked for a boundary. How many values there are more than [`BOUNDARIES`] ago,
    /// and where they come from, if that is to be told.
    pub(super) fn asked(&mut self) -> Option<(usize, Vec<LeakSite>)> {
        self.unasked = 0;
        self.boundary()
    }

    /// A region was sealed, asked for or not. As [`LiveValueLeak::asked`], where the program asks
    /// for nothing.
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

    /// Leaves out what is gone.
    fn look(&mut self) {
        self.alive.retain(|made| made.value.strong_count() > 0);
        (self.after, self.unseen) = (self.alive.len(), 0);
    }

    /// What was made since the first rise and is alive, by call sites.
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
        // By name where there are as many, so that the same program is told the same.
        kept.sort_by_cached_key(|kept| (std::cmp::Reverse(kept.values), kept.site.to_string()));
        kept.truncate(TOLD);
        kept
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::{DType, TensorType};

    use super::*;

    /// Runs so many boundaries; `keeps` says how many of the ten values made before each are kept,
    /// and when all that are kept are dropped.
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
        // The least number is as many looks off as there are boundaries between two.
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
        // What is made once, however slowly.
        assert!(run(2_000, |boundary| (usize::from(boundary < 400), false)).is_empty());
    }
}
