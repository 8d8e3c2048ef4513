//! The minimum number of checks and the maximum number of ignored tests of each stage, from the
//! committed file `tests/counts.txt`.
//!
//! A stage with fewer checks fails, whether tests were removed, are no longer found, or are
//! ignored. A stage that is skipped as a whole counts as that many skipped checks.

use std::collections::BTreeMap;

use super::tally::Tally;

/// The file and its contents.
const FILE: &str = "tests/counts.txt";
const COUNTS: &str = include_str!("../../../tests/counts.txt");

/// The limits of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Least {
    pub(crate) checks: usize,
    ignored: usize,
}

/// Parses the file: a line for each stage with its name, its checks and its ignored tests.
fn parse(text: &str) -> BTreeMap<&str, Least> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| match *line.split_whitespace().collect::<Vec<_>>() {
            [stage, checks, ignored] => {
                let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{FILE}: {line}: {text}"));
                (stage, Least { checks: number(checks), ignored: number(ignored) })
            }
            _ => panic!("{FILE}: {line}: a stage, its checks and its ignored tests"),
        })
        .collect()
}

/// The limits of a stage.
pub(crate) fn of(stage: &str) -> Least {
    *parse(COUNTS).get(stage).unwrap_or_else(|| panic!("{FILE} has no line for {stage}"))
}

/// Counts a stage that was skipped as a whole, and fails one with too few checks.
pub(crate) fn judge(stage: &str, least: Least, mut tally: Tally) -> Tally {
    if let ([], [note], 0) = (&*tally.failed, &mut *tally.skipped, tally.passed)
        && note.name == stage
    {
        note.count = least.checks;
        return tally;
    }
    let ignored = tally.skipped.iter().filter(|note| note.is_ignored()).count();
    let checks = tally.passed + tally.skips() - ignored;
    // Failures say more than the number of checks.
    if tally.failed.is_empty() && checks < least.checks {
        let had = least.checks;
        tally.fail(
            "count",
            format!("{checks} checks ran, but at least {had} are expected: find out what is missing, or update {FILE}"),
        );
    }
    if ignored > least.ignored {
        let had = least.ignored;
        tally.fail(
            "ignored",
            format!("{ignored} tests are ignored, but at most {had} are expected: find out which, or update {FILE}"),
        );
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::super::Stage;
    use super::*;

    const LEAST: Least = Least { checks: 3, ignored: 1 };

    #[test]
    fn every_stage_has_a_line() {
        let known = parse(COUNTS);
        let stages: Vec<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        assert!(stages.iter().all(|stage| known[stage].checks > 0));
        assert_eq!(known.len(), stages.len());
    }

    #[test]
    fn fewer_checks_are_a_failure() {
        let with = |passed, skips: &[&str]| {
            let mut tally = Tally { passed, ..Tally::default() };
            skips.iter().for_each(|why| tally.skip("test", *why));
            judge("nextest", LEAST, tally).counts()
        };
        assert_eq!(with(3, &[]), "3 passed, 0 failed, 0 skipped");
        assert_eq!(with(2, &["no plugin"]), "2 passed, 0 failed, 1 skipped");
        assert_eq!(with(2, &[]), "2 passed, 1 failed, 0 skipped");
        assert_eq!(with(2, &["ignored"]), "2 passed, 1 failed, 1 skipped");
        assert_eq!(with(3, &["ignored"]), "3 passed, 0 failed, 1 skipped");
        assert_eq!(with(3, &["ignored", "ignored: slow"]), "3 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn a_stage_that_is_skipped_counts_as_its_checks() {
        let skipped = judge("tsan", LEAST, Tally::skipped("tsan", "no sanitizer"));
        assert_eq!(skipped.counts(), "0 passed, 0 failed, 3 skipped");
    }
}
