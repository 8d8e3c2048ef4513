//! Compares two runs: which ratios changed.

use std::fmt::Write as _;

use crate::results::{Ratio, Report};

/// The relative difference below which ratios count as equal.
const SAME: f64 = 0.1;

/// A ratio that has changed.
#[derive(Debug, PartialEq)]
struct RatioChange<'a> {
    case: &'a str,
    to: &'a str,
    before: f64,
    now: f64,
    /// One of the runs marks it as noisy.
    noisy: bool,
}

/// Compares the ratios of two runs and returns the differences, one per line.
pub(crate) fn compare(before: &Report, now: &Report) -> String {
    let mut compared = 0;
    let mut apart = Vec::new();
    for case in &now.cases {
        let Some(earlier) = before.cases.iter().find(|earlier| earlier.name == case.name) else { continue };
        for ratio in &case.ratios {
            let Some(other) = earlier.ratios.iter().find(|other| other.to == ratio.to) else { continue };
            compared += 1;
            apart.extend(difference(&case.name, other, ratio));
        }
    }
    let noisy = apart.iter().filter(|apart| apart.noisy).count();
    let mut lines = format!(
        "{} of {compared} ratios are within {:.0} % of those of {} ({}); {noisy} of the others are noisy\n",
        compared - apart.len(),
        SAME * 100.0,
        before.started,
        before.commit,
    );
    apart.sort_by(|one, other| one.noisy.cmp(&other.noisy).then(other.size().total_cmp(&one.size())));
    for one in &apart {
        let mark = if one.noisy { "  noisy" } else { "" };
        let change = (one.now / one.before - 1.0) * 100.0;
        let _ = writeln!(
            lines,
            "  {:<32} Fused over {:<16} {:>8.3} -> {:>8.3}  {change:>+6.1} %{mark}",
            one.case, one.to, one.before, one.now
        );
    }
    lines
}

fn difference<'a>(case: &'a str, before: &Ratio, now: &'a Ratio) -> Option<RatioChange<'a>> {
    let (earlier, later) = (before.quartiles.median, now.quartiles.median);
    ((later / earlier - 1.0).abs() > SAME).then(|| RatioChange {
        case,
        to: &now.to,
        before: earlier,
        now: later,
        noisy: before.noisy || now.noisy,
    })
}

impl RatioChange<'_> {
    fn size(&self) -> f64 {
        (self.now / self.before).ln().abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn a_run_is_like_itself() {
        let report = sample::report();
        let ratios: usize = report.cases.iter().map(|case| case.ratios.len()).sum();
        let said = compare(&report, &report);
        assert!(ratios > 0 && said.starts_with(&format!("{ratios} of {ratios} ratios")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }

    #[test]
    fn what_changed_is_named_clean_figures_first() {
        let before = sample::report();
        let mut now = before.clone();
        let ratios = &mut now.cases[0].ratios;
        ratios[0].quartiles.median *= 1.5;
        ratios[0].noisy = true;
        ratios[1].quartiles.median *= 0.8;
        (ratios[1].noisy, ratios[2].noisy) = (false, false);
        ratios[2].quartiles.median *= 1.05;
        let mut before = before;
        before.cases[0].ratios[1].noisy = false;
        let said = compare(&before, &now);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 3, "{said}");
        assert!(lines[1].contains("-20.0 %") && !lines[1].contains("noisy"), "{said}");
        assert!(lines[2].contains("+50.0 %") && lines[2].ends_with("noisy"), "{said}");
    }
}
