//! Recompile storms: the same ops come again and again, and something about them is new each time.
//!
//! Input: how each missed region differs from the previous one of the same ops. Output: what
//! varies, reported once after [`MISSES`] misses.

use fuseline_fusion::canon::Difference;
use rustc_hash::FxHashMap;

use crate::event::Varies;

/// Number of misses of the same ops that make a storm. (`torch.compile` gives up on a frame after
/// as many by default: `recompile_limit`.)
pub(crate) const MISSES: u32 = 8;

/// Maximum number of reported causes, and of values per cause.
const TOLD: usize = 4;

/// What varies, each with its recent values, the latest last.
type Often = Vec<(Varies, Vec<String>)>;

#[derive(Debug, Default)]
struct Seen {
    times: u32,
    latest: Vec<String>,
}

/// The misses of one sequence of ops.
#[derive(Debug, Default)]
pub(crate) struct Storm {
    misses: u32,
    seen: FxHashMap<Varies, Seen>,
}

impl Storm {
    /// Adds a miss with these differences. Returns what varies, if this makes it a storm.
    pub(crate) fn missed(&mut self, differences: &[Difference]) -> Option<Often> {
        if self.misses >= MISSES {
            return None;
        }
        self.misses += 1;
        for (what, value) in differences.iter().flat_map(varied) {
            let seen = self.seen.entry(what).or_default();
            seen.times += 1;
            if seen.latest.len() == TOLD {
                seen.latest.remove(0);
            }
            seen.latest.push(value);
        }
        if self.misses < MISSES {
            return None;
        }
        // What has changed only now and then is not a cause.
        let often = std::mem::take(&mut self.seen).into_iter().filter(|(_, seen)| seen.times > MISSES / 2);
        let mut often: Often = often.map(|(what, seen)| (what, seen.latest)).collect();
        often.sort_by_key(|(what, _)| *what);
        often.truncate(TOLD);
        Some(often)
    }
}

/// What a difference says to vary, with its present value.
fn varied(difference: &Difference) -> Vec<(Varies, String)> {
    match difference {
        &Difference::Param { index: input, ref was, ref is }
            if was.dtype() == is.dtype() && was.rank() == is.rank() =>
        {
            let dims = was.dims().iter().zip(is.dims()).enumerate();
            let changed = dims.filter(|(_, (was, is))| was != is);
            changed.map(|(axis, (_, is))| (Varies::Dimension { input, axis }, is.to_string())).collect()
        }
        Difference::Param { index, is, .. } => vec![(Varies::Type { input: *index }, is.to_string())],
        &Difference::Attribute { node, op, name, ref is, .. } => {
            let def = op.def().attrs.iter().find(|def| def.name == name);
            let value = def.map(|def| def.kind.text(is).to_string()).unwrap_or_default();
            vec![(Varies::Attribute { node, op, name }, value)]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::{DType, TensorType};

    use super::*;

    fn resized(index: usize, was: u64, is: u64) -> Difference {
        let ty = |size| TensorType::of(DType::F32, &[size, 4]).unwrap();
        Difference::Param { index, was: ty(was), is: ty(is) }
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
        let varying = storm.missed(&[resized(3, 8, 9)]).unwrap();
        let latest = ["6", "7", "8", "9"].map(str::to_owned).to_vec();
        assert_eq!(varying, [(Varies::Dimension { input: 3, axis: 0 }, latest)]);
        assert!(storm.missed(&[resized(3, 9, 10)]).is_none());
    }
}
