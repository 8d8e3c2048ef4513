//! Counts of checks, and the summary at the end of a run.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::time;

/// A check that did not pass, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) name: String,
    pub(crate) why: String,
    /// The number of checks it stands for: more than one for a stage that was skipped as a whole.
    pub(crate) count: usize,
}

impl Note {
    pub(crate) fn new(name: impl Into<String>, why: impl Into<String>) -> Note {
        Note { name: name.into(), why: why.into(), count: 1 }
    }

    /// Whether it is a test marked `#[ignore]`, which runs by name and is not skipped for a missing
    /// prerequisite.
    pub(crate) fn is_ignored(&self) -> bool {
        self.why == "ignored" || self.why.starts_with("ignored,") || self.why.starts_with("ignored:")
    }
}

/// The results of a stage's checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: Vec<Note>,
    pub(crate) skipped: Vec<Note>,
}

impl Tally {
    /// One check that passed.
    pub(crate) fn passed() -> Tally {
        Tally { passed: 1, ..Tally::default() }
    }

    /// One check that failed.
    pub(crate) fn failed(name: impl Into<String>, why: impl Into<String>) -> Tally {
        let mut tally = Tally::default();
        tally.fail(name, why);
        tally
    }

    /// A stage that could not run here.
    pub(crate) fn skipped(name: impl Into<String>, why: impl Into<String>) -> Tally {
        let mut tally = Tally::default();
        tally.skip(name, why);
        tally
    }

    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.failed.push(Note::new(name, why));
    }

    pub(crate) fn skip(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.skipped.push(Note::new(name, why));
    }

    /// How many checks were skipped.
    pub(crate) fn skips(&self) -> usize {
        self.skipped.iter().map(|note| note.count).sum()
    }

    /// The counts, as in the last line of a run.
    pub(crate) fn counts(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed.len(), self.skips())
    }

    /// Puts words before the name of each note.
    pub(crate) fn prefix(&mut self, words: &str) {
        for note in self.failed.iter_mut().chain(&mut self.skipped) {
            note.name = format!("{words}: {}", note.name);
        }
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.passed += other.passed;
        self.failed.extend_from_slice(&other.failed);
        self.skipped.extend_from_slice(&other.skipped);
    }
}

/// The stages of a run. Displayed as a table with the minimum checks of each, then every failure
/// and skip with its reason, then the counts.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    stages: Vec<Line>,
}

/// A stage: its name, its minimum checks, its results and its duration.
type Line = (&'static str, usize, Tally, Duration);

impl Summary {
    pub(crate) fn add(&mut self, stage: &'static str, least: usize, tally: Tally, took: Duration) {
        self.stages.push((stage, least, tally, took));
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.stages.iter().all(|(_, _, tally, _)| tally.failed.is_empty())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14}{:>8}{:>8}{:>8}{:>9}{:>14}",
            "stage", "least", "passed", "failed", "skipped", "time"
        )?;
        let mut total = Tally::default();
        let mut notes = String::new();
        for (stage, least, tally, took) in &self.stages {
            let (passed, failed, skipped) = (tally.passed, tally.failed.len(), tally.skips());
            let took = time::human(*took);
            writeln!(f, "{stage:<14}{least:>8}{passed:>8}{failed:>8}{skipped:>9}{took:>14}")?;
            for (word, list) in [("FAILED", &tally.failed), ("skipped", &tally.skipped)] {
                for Note { name, why, .. } in list {
                    let why = why.trim_end().replace('\n', "\n    ");
                    writeln!(notes, "{word} {stage} {name}: {why}")?;
                }
            }
            total.add(tally);
        }
        if !notes.is_empty() {
            write!(f, "\n{notes}")?;
        }
        writeln!(f, "\n{}", total.counts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_counts_and_every_note_is_told() {
        let mut summary = Summary::default();
        summary.add("fmt", 1, Tally::passed(), Duration::from_millis(300));
        let mut tally = Tally { passed: 3, ..Tally::default() };
        tally.fail("lib::broken", "left: 1\nright: 2");
        tally.skip("lib::gpu", "no CUDA plugin");
        summary.add("nextest", 5, tally, Duration::from_secs(75));
        assert_eq!(
            summary.to_string(),
            "\
stage            least  passed  failed  skipped          time
fmt                  1       1       0        0        0.30 s
nextest              5       3       1        1        75.0 s

FAILED nextest lib::broken: left: 1
    right: 2
skipped nextest lib::gpu: no CUDA plugin

4 passed, 1 failed, 1 skipped
"
        );
        assert!(!summary.succeeded());
    }

    #[test]
    fn a_run_without_failures_succeeds() {
        let mut summary = Summary::default();
        summary.add("tsan", 1, Tally::skipped("tsan", "only on x86_64"), Duration::ZERO);
        assert!(summary.succeeded());
        assert!(summary.to_string().ends_with("\n0 passed, 0 failed, 1 skipped\n"));
    }
}
