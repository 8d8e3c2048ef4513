//! When a program has become steady.

/// The middle of some times, of which there is at least one; of an even number the lower of the
/// two.
pub(crate) fn median(times: &[u64]) -> u64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) / 2]
}

/// The first step of those that are steady, given the time of each and how many compiles were done
/// by its end (none, where that is not known; what is run by other means until it is compiled
/// counts too); `None` while there are too few steps to tell.
///
/// The second half of the steps is taken for steady if it compiles nothing. What comes before is
/// steady from the first step after the last compile whose next five, it included, have a median
/// within half of that half's, and none that takes four times as long.
pub(crate) fn steady_from(times: &[u64], compiles: &[u64]) -> Option<usize> {
    const NEXT: usize = 5;
    let half = times.len() / 2;
    if half < NEXT {
        return None;
    }
    let last = compiles.last().copied().unwrap_or(0);
    let compiled =
        compiles.iter().position(|&done| done == last).map_or(0, |step| step + usize::from(last > 0));
    if compiled > half {
        return None;
    }
    let typical = median(&times[half..]);
    let is_steady = |start: &usize| {
        let next = &times[*start..start + NEXT];
        median(next) <= typical + typical / 2 && next.iter().all(|&time| time <= 4 * typical)
    };
    Some((compiled..half).find(is_steady).unwrap_or(half))
}
