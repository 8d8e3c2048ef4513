//! Statistics of samples.

use crate::results::{CaseResult, Quartiles, Ratio, Report, Run};

/// The relative uncertainty of a median above which it is flagged: something else was running.
const MAX_DOUBT: f64 = 0.1;

/// The quartiles of a non-empty sample, by linear interpolation between its elements.
pub(crate) fn quartiles(sample: &[f64]) -> Quartiles {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = part * (sorted.len() - 1) as f64;
        let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        low + (high - low) * place.fract()
    };
    Quartiles { low: at(0.25), median: at(0.5), high: at(0.75) }
}

/// The mean of the steps of a block. It is not the median: the last step of a block includes the
/// wait for pending work, and a step that reads a loss has often begun the next update by then.
pub(crate) fn mean(steps: &[u64]) -> f64 {
    steps.iter().sum::<u64>() as f64 / steps.len().max(1) as f64
}

/// The steady step: quartiles of the blocks' means.
pub(crate) fn step(blocks: &[Vec<u64>]) -> Quartiles {
    quartiles(&blocks.iter().map(|block| mean(block)).collect::<Vec<_>>())
}

/// The ratio of two contenders from their pairs, over several consecutive sittings.
///
/// The uncertainty of the median is half the length of the notch in a box plot: 1.57 times the
/// interquartile range over the root of the number of pairs (McGill, Tukey and Larsen, Variations
/// of box plots, 1978). The ratio is also uncertain if the sittings disagree.
pub(crate) fn ratio(to: &str, pairs: Vec<f64>, sittings: usize) -> Ratio {
    let all = quartiles(&pairs);
    let doubt = 1.57 * (all.high - all.low) / (pairs.len() as f64).sqrt();
    let each =
        pairs.chunks(pairs.len().div_ceil(sittings.max(1)).max(1)).map(|pairs| quartiles(pairs).median);
    let (low, high) = each.fold((all.median, all.median), |(low, high), one| (low.min(one), high.max(one)));
    let noisy = doubt.max(high - low) > MAX_DOUBT * all.median;
    Ratio { to: to.to_owned(), pairs, quartiles: all, noisy }
}

/// A case as one line, for the terminal.
pub(crate) fn line(case: &CaseResult) -> String {
    let mut line = format!("{:24}", case.name);
    if let Some(Run::Measured(times)) = case.runs.get(crate::contender::FUSED) {
        line += &format!(" {:>10.3} ms", times.step.median / 1e6);
    }
    for ratio in &case.ratios {
        let mark = if ratio.noisy { "?" } else { "" };
        line += &format!("  {} {:.2}{mark}", ratio.to, ratio.quartiles.median);
    }
    for (id, run) in &case.runs {
        if let Run::Failed(why) = run {
            line += &format!("\n    {id} failed: {why}");
        }
    }
    line
}

/// The number of failed runs.
pub(crate) fn failures(report: &Report) -> usize {
    let runs = report.cases.iter().flat_map(|case| case.runs.values());
    runs.filter(|run| matches!(run, Run::Failed(_))).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_elements() {
        let found = quartiles(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!(found, Quartiles { low: 1.75, median: 2.5, high: 3.25 });
        assert_eq!(quartiles(&[7.0]), Quartiles { low: 7.0, median: 7.0, high: 7.0 });
    }

    #[test]
    fn pairs_that_spread_are_flagged() {
        assert!(!ratio("jax", vec![1.0, 1.02, 0.98, 1.01], 1).noisy);
        assert!(ratio("jax", vec![1.0, 1.3, 0.8, 1.1], 1).noisy);
        // The same spread with twenty times as many pairs: the median is certain.
        assert!(!ratio("jax", [1.0, 1.3, 0.8, 1.1].repeat(20), 1).noisy);
        // One process is slow for its whole life.
        assert!(!ratio("jax", vec![1.0, 1.0, 1.0, 1.05, 1.05, 1.05], 2).noisy);
        assert!(ratio("jax", [[1.0; 20], [1.2; 20]].concat(), 2).noisy);
        // One interruption does not invalidate a figure.
        assert!(!ratio("jax", vec![1.0, 1.0, 1.01, 0.99, 1.0, 5.0], 1).noisy);
    }
}
