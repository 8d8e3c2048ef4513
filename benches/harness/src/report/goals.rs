//! The goals for Fuseline's figures, and whether the results meet them.
//!
//! Each goal is about ratios of Fused over another contender in some of the cases: of a steady
//! step, or of the first ten steps of a new process, compiles included. A noisy ratio neither meets
//! nor misses a goal; it is counted. A goal whose cases were not measured, or are all noisy, is
//! open.

use std::fmt::Write as _;

use super::findings::{FUSED, Mean, name, parts, ratio, times};
use super::words::{three, time};
use crate::results::{CaseResult, Report};

/// The number of first steps of a new process.
const FIRST: usize = 10;

/// The longest time that a recording call may wait, in nanoseconds.
const LONGEST_WAIT: u64 = 5_000_000;

/// The programs of training.
const TRAINING: [&str; 5] = ["mlp", "resnet", "gpt2", "lstm", "adam"];

/// Their cases with layers of 256 and more.
const WIDE: [&str; 3] = ["mlp/784-512-512-10", "gpt2/width 256", "gpt2/width 768"];

/// What is compared.
#[derive(Clone, Copy)]
enum Part {
    Steady,
    First,
}

/// How the ratios of several cases are combined.
#[derive(Clone, Copy)]
enum Take {
    Mean,
    Largest,
}

/// A goal.
struct Goal {
    what: &'static str,
    part: Part,
    /// Id of the other contender.
    over: &'static str,
    /// Whether a case counts.
    counts: fn(&CaseResult) -> bool,
    take: Take,
    /// The upper limit; `None` for a figure without a goal.
    most: Option<f64>,
}

fn is_program(case: &CaseResult) -> bool {
    parts(&case.name).0 != "chain"
}

fn is_training(case: &CaseResult) -> bool {
    TRAINING.contains(&parts(&case.name).0)
}

fn is_wide(case: &CaseResult) -> bool {
    WIDE.contains(&case.name.as_str())
}

fn is_chain(case: &CaseResult) -> bool {
    case.name == "chain/50 ops on 1k"
}

/// Whether `jax.jit` is faster than PyTorch eager in this case.
fn is_for_compilers(case: &CaseResult) -> bool {
    let median = |id| ratio(case, id).map(|ratio| ratio.quartiles.median);
    matches!((median("torch"), median("jax")), (Some(torch), Some(jax)) if torch < jax)
}

const fn steady(
    what: &'static str,
    over: &'static str,
    counts: fn(&CaseResult) -> bool,
    take: Take,
    most: f64,
) -> Goal {
    Goal { what, part: Part::Steady, over, counts, take, most: Some(most) }
}

const GOALS: [Goal; 10] = [
    steady("a chain of 50 ops on 1,024 elements", "jax", is_chain, Take::Largest, 1.5),
    steady("a chain of 50 ops on 1,024 elements", "jax-eager", is_chain, Take::Largest, 1.0 / 40.0),
    steady("training, layers of 256 and more", "jax", is_wide, Take::Largest, 1.15),
    steady(
        "training, all other cases",
        "jax",
        |case| is_training(case) && !is_wide(case),
        Take::Largest,
        1.4,
    ),
    steady("each program", "fuseline-strict", is_program, Take::Largest, 0.5),
    steady("all programs", "fuseline-strict", is_program, Take::Mean, 0.2),
    steady("where jax.jit is faster than PyTorch eager", "torch", is_for_compilers, Take::Largest, 1.0),
    Goal { most: None, ..steady("all cases", "torch-compile", |_| true, Take::Mean, 1.0) },
    Goal { part: Part::First, ..steady("first ten steps, each case", "jax", |_| true, Take::Largest, 1.0) },
    Goal {
        part: Part::First,
        most: None,
        ..steady("first ten steps, all cases", "jax", |_| true, Take::Mean, 1.0)
    },
];

/// The result of a goal.
#[derive(Debug)]
pub(super) struct Figure {
    /// A description: `each program, over Fuseline Strict`.
    pub(super) what: String,
    /// `at most 0.500`, or nothing.
    pub(super) goal: Option<String>,
    /// The figure, with the case of the largest one: `0.43 (decode/8 tokens)`.
    pub(super) found: Option<String>,
    /// The number of cases that count, and of noisy ones.
    pub(super) cases: usize,
    pub(super) noisy: usize,
    /// `None` if there is no figure or no goal.
    pub(super) is_met: Option<bool>,
}

/// The duration of the first ten steps of Fused, relative to another contender.
pub(super) fn first(case: &CaseResult, over: &str) -> Option<f64> {
    let sum = |id| -> Option<u64> { Some(times(case, id)?.warm.get(..FIRST)?.iter().sum()) };
    let (fused, other) = (sum(FUSED)?, sum(over)?);
    (other > 0).then(|| fused as f64 / other as f64)
}

/// All figures in display order; the last ones come from the engine's counters.
pub(super) fn figures(report: &Report) -> Vec<Figure> {
    let ratios = GOALS.iter().map(|goal| figure(report, goal));
    ratios.chain([steady_compiles(report), longest_wait(report)]).collect()
}

fn figure(report: &Report, goal: &Goal) -> Figure {
    let mut noisy = 0;
    let mut of: Vec<(&str, f64)> = Vec::new();
    for case in report.cases.iter().filter(|case| (goal.counts)(case)) {
        match goal.part {
            Part::First => of.extend(first(case, goal.over).map(|ratio| (case.name.as_str(), ratio))),
            Part::Steady => match ratio(case, goal.over) {
                Some(ratio) if ratio.noisy => noisy += 1,
                Some(ratio) => of.push((&case.name, ratio.quartiles.median)),
                None => {}
            },
        }
    }
    let found = match goal.take {
        Take::Mean => {
            Mean::of(&of.iter().map(|&(_, ratio)| ratio).collect::<Vec<_>>()).map(|mean| (None, mean.mean))
        }
        Take::Largest => of
            .iter()
            .max_by(|one, other| one.1.total_cmp(&other.1))
            .map(|&(case, ratio)| ((of.len() > 1).then_some(case), ratio)),
    };
    Figure {
        what: format!("{}, over {}", goal.what, name(report, goal.over)),
        goal: goal.most.map(|most| format!("at most {}", three(most))),
        found: found.map(|(case, ratio)| match case {
            Some(case) => format!("{} ({case})", three(ratio)),
            None => three(ratio),
        }),
        cases: of.len(),
        noisy,
        is_met: found.and_then(|(_, ratio)| Some(ratio <= goal.most?)),
    }
}

fn steady_compiles(report: &Report) -> Figure {
    let compiles = |case| Some(times(case, FUSED)?.engine.as_ref()?.steady_compiles);
    let counts: Vec<u64> = report.cases.iter().filter_map(compiles).collect();
    let sum: u64 = counts.iter().sum();
    let found = (!counts.is_empty()).then(|| sum.to_string());
    let is_met = found.as_ref().map(|_| sum == 0);
    let what = "compiles in steady steps".to_owned();
    Figure { what, goal: Some("none".to_owned()), found, cases: counts.len(), noisy: 0, is_met }
}

fn longest_wait(report: &Report) -> Figure {
    let wait = |case: &CaseResult| times(case, FUSED)?.engine.as_ref()?.longest_wait;
    let waits: Vec<u64> = report.cases.iter().filter_map(wait).collect();
    let found = waits.iter().copied().max();
    Figure {
        what: "longest wait of a call that records an op".to_owned(),
        goal: Some(format!("at most {}", time(LONGEST_WAIT as f64))),
        found: found.map(|wait| time(wait as f64)),
        cases: waits.len(),
        noisy: 0,
        is_met: found.map(|wait| wait <= LONGEST_WAIT),
    }
}

/// The figures in lines, for the terminal.
pub(crate) fn lines(report: &Report) -> String {
    let mut lines = String::from("time of Fused divided by the time of another contender\n");
    for figure in figures(report) {
        let found = figure.found.as_deref().unwrap_or("open");
        let goal = figure.goal.as_deref().unwrap_or("");
        let noisy = if figure.noisy > 0 { format!(", {} noisy", figure.noisy) } else { String::new() };
        let verdict = verdict(&figure);
        let _ = writeln!(
            lines,
            "  {:62} {found:38} {goal:14} {verdict:6} of {}{noisy}",
            figure.what, figure.cases
        );
    }
    lines
}

/// The verdict as a word.
pub(super) fn verdict(figure: &Figure) -> &'static str {
    match figure.is_met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use crate::results::Run;

    /// The sample report with the figures of one case changed.
    fn with(name: &str, to: &str, median: f64, noisy: bool) -> Report {
        let mut report = sample::report();
        let case = &mut report.cases[0];
        name.clone_into(&mut case.name);
        let ratio = case.ratios.iter_mut().find(|ratio| ratio.to == to).unwrap();
        (ratio.quartiles.median, ratio.noisy) = (median, noisy);
        report
    }

    fn found(report: &Report, what: &str) -> Figure {
        figures(report).into_iter().find(|figure| figure.what == what).unwrap()
    }

    #[test]
    fn the_largest_decides_and_is_named() {
        let what = "each program, over Fuseline Strict";
        let is_met = |median| found(&with("adam/x", "fuseline-strict", median, false), what).is_met;
        assert_eq!(is_met(9.0), Some(false));
        let figure = found(&with("adam/x", "fuseline-strict", 9.0, false), what);
        assert_eq!(figure.found.as_deref(), Some("9.00 (adam/x)"));
        // Noisy ratios do not decide.
        let noisy = found(&with("adam/x", "fuseline-strict", 9.0, true), what);
        assert_eq!((noisy.noisy - 1, noisy.cases + 1), (figure.noisy, figure.cases));
        assert_ne!(noisy.found, figure.found);
        // A chain does not count as a program.
        let chain = found(&with("chain/x", "fuseline-strict", 9.0, false), what);
        assert_ne!(chain.found, figure.found);
    }

    #[test]
    fn a_goal_without_cases_is_open() {
        let what = "a chain of 50 ops on 1,024 elements, over jax.jit";
        let open = found(&sample::report(), what);
        assert_eq!((open.is_met, open.found, open.cases), (None, None, 0));
        let met = found(&with("chain/50 ops on 1k", "jax", 1.5, false), what);
        assert_eq!((met.is_met, met.found.as_deref()), (Some(true), Some("1.50")));
        assert_eq!(found(&with("chain/50 ops on 1k", "jax", 1.51, false), what).is_met, Some(false));
    }

    #[test]
    fn first_steps_count_what_is_compiled_in_them() {
        let mut report = sample::report();
        let case = &mut report.cases[0];
        for (id, steps) in
            [(FUSED, [30, 2, 2, 2, 2, 2, 2, 2, 2, 4]), ("jax", [91, 1, 1, 1, 1, 1, 1, 1, 1, 1])]
        {
            let Some(Run::Measured(times)) = case.runs.get_mut(id) else { panic!("{id} was measured") };
            times.warm = steps.into_iter().chain([1_000_000]).collect();
        }
        assert_eq!(first(case, "jax"), Some(0.5));
        let Some(Run::Measured(times)) = case.runs.get_mut("jax") else { unreachable!() };
        times.warm.truncate(9);
        assert_eq!(first(case, "jax"), None, "not so many steps");
    }

    #[test]
    fn compiles_in_steady_steps_are_missed_goals() {
        let mut report = sample::report();
        let what = "compiles in steady steps";
        assert_eq!(found(&report, what).is_met, Some(false), "the made-up case of new lengths compiles");
        report.cases.truncate(20);
        assert_eq!(found(&report, what).is_met, Some(true));
        report.cases.clear();
        assert_eq!(found(&report, what).is_met, None);
    }

    #[test]
    fn calls_that_wait_long_are_missed_goals() {
        let mut report = sample::report();
        let what = "longest wait of a call that records an op";
        let figure = found(&report, what);
        assert_eq!((figure.is_met, figure.found.as_deref()), (Some(false), Some(time(6e6).as_str())));
        report.cases.truncate(20);
        assert_eq!(found(&report, what).is_met, Some(true));
        for case in &mut report.cases {
            let Some(Run::Measured(times)) = case.runs.get_mut(FUSED) else { continue };
            times.engine.as_mut().unwrap().longest_wait = None;
        }
        assert_eq!(found(&report, what).is_met, None, "older results do not say");
    }

    #[test]
    fn every_figure_has_a_line() {
        let report = sample::report();
        let lines = lines(&report);
        assert_eq!(lines.lines().count(), 1 + figures(&report).len());
        assert!(!lines.contains("NaN"), "{lines}");
    }
}
