//! Detects when a program has become steady.

/// The median of a non-empty list of times; for an even number the lower of the two.
pub(crate) fn median(times: &[u64]) -> u64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) / 2]
}

/// The first steady step, given the time of each step and the number of compiles by its end (empty
/// if unknown; regions that run by other means until they are compiled count too). `None` if there
/// are too few steps.
///
/// The second half of the steps counts as steady if it compiles nothing. Earlier steps are steady
/// from the first step after the last compile whose next five, including itself, have a median
/// within half of that half's, and of which none takes four times as long.
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
