//! Recompile storms: the same ops come again and again, and each time something about them is new.
//!
//! Input: how each missed region differs from the one of the same ops before it. Output: once, when that has happened
//! [`MISSES`] times, what it is that varies.

use fuseline_fusion::canon::Difference;
use fuseline_fusion::{OpCode, Site};
use rustc_hash::FxHashMap;

use crate::event::Varying;

/// Misses of the same ops that are a storm. (`torch.compile` gives up on a frame after as many by default: `recompile_limit`.)
const MISSES: u32 = 8;

/// Sizes and values that are told.
const TOLD: usize = 4;

/// Something that can vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Dimension { input: usize, axis: usize },
    Type { input: usize },
    Attribute { node: usize, op: OpCode, name: &'static str },
}

#[derive(Debug, Default)]
struct Seen {
    times: u32,
    latest: Vec<String>,
    site: Site,
}

/// The misses of one sequence of ops.
#[derive(Debug, Default)]
pub(super) struct Storm {
    misses: u32,
    seen: FxHashMap<What, Seen>,
}

impl Storm {
    /// Another miss, by these differences, each with where it was recorded. What varies, if this makes it a storm.
    pub(super) fn missed(&mut self, differences: &[(Difference, Site)]) -> Option<(u32, Vec<Varying>)> {
        if self.misses >= MISSES {
            return None;
        }
        self.misses += 1;
        for (difference, site) in differences {
            for (what, value) in varied(difference) {
                let seen = self.seen.entry(what).or_default();
                seen.times += 1;
                seen.site = site.clone();
                if seen.latest.len() == TOLD {
                    seen.latest.remove(0);
                }
                seen.latest.push(value);
            }
        }
        if self.misses < MISSES {
            return None;
        }
        // What has changed only now and then is not what the storm is made of.
        let mut often: Vec<(What, Seen)> =
            std::mem::take(&mut self.seen).into_iter().filter(|(_, seen)| seen.times > MISSES / 2).collect();
        often.sort_by_key(|(what, _)| *what);
        often.truncate(TOLD);
        Some((MISSES, often.into_iter().map(|(what, seen)| varying(what, seen)).collect()))
    }
}

/// What a difference says to vary, and what it is now.
fn varied(difference: &Difference) -> Vec<(What, String)> {
    match difference {
        &Difference::Param { index: input, ref was, ref is }
            if was.dtype() == is.dtype() && was.rank() == is.rank() =>
        {
            let dims = was.dims().iter().zip(is.dims()).enumerate();
            let changed = dims.filter(|(_, (was, is))| was != is);
            changed.map(|(axis, (_, is))| (What::Dimension { input, axis }, is.to_string())).collect()
        }
        Difference::Param { index, is, .. } => vec![(What::Type { input: *index }, is.to_string())],
        Difference::Attribute { node, op, name, is, .. } => {
            vec![(What::Attribute { node: *node, op: *op, name }, format!("{is:?}"))]
        }
        _ => Vec::new(),
    }
}

fn varying(what: What, Seen { latest, site, .. }: Seen) -> Varying {
    match what {
        What::Dimension { input, axis } => Varying::Dimension { input, axis, latest, site },
        What::Type { input } => Varying::Type { input, latest, site },
        What::Attribute { op, name, .. } => Varying::Attribute { op, name, latest, site },
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::{DType, TensorType};

    use super::*;

    fn resized(index: usize, was: u64, is: u64) -> (Difference, Site) {
        let ty = |size| TensorType::of(DType::F32, &[size, 4]).unwrap();
        (Difference::Param { index, was: ty(was), is: ty(is) }, Site::Unknown)
    }

    #[test]
    fn a_storm_is_told_once_with_what_varies() {
        let mut storm = Storm::default();
        for size in 1..u64::from(MISSES) {
            let mut differences = vec![resized(3, size, size + 1)];
            if size == 2 {
                differences.push(resized(5, 1, 2));
            }
            assert!(storm.missed(&differences).is_none());
        }
        let (misses, varying) = storm.missed(&[resized(3, 8, 9)]).unwrap();
        assert_eq!(misses, MISSES);
        let [Varying::Dimension { input: 3, axis: 0, latest, .. }] = varying.as_slice() else {
            panic!("{varying:?}");
        };
        assert_eq!(latest, &["6", "7", "8", "9"]);
        assert!(storm.missed(&[resized(3, 9, 10)]).is_none());
    }
}
