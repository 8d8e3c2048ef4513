//! Stores results on disk.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::cli::Options;
use crate::machine;
use crate::results::{FORMAT, Report, Run};
use crate::stats;

/// Takes over the cases of an earlier run that was stopped, if it measured the same things in the
/// same way.
pub(crate) fn resume(options: &Options, report: &mut Report) {
    let Ok(earlier) = read(&options.output.join("results.json")) else { return };
    let ids = |report: &Report| -> Vec<(String, bool)> {
        let contender = |one: &crate::results::Contender| (one.id.clone(), one.missing.is_some());
        report.contenders.iter().map(contender).collect()
    };
    // A tree with changes cannot be identified later.
    let same = earlier.interrupted
        && earlier.settings == report.settings
        && earlier.commit == report.commit
        && !report.commit.ends_with('+')
        && ids(&earlier) == ids(report);
    if !same {
        return;
    }
    machine::say(format_args!("bench: continuing the run that began at {}", earlier.started));
    report.started = earlier.started;
    report.contenders = earlier.contenders;
    report.cases = earlier.cases;
}

/// Reads the results in a file.
pub(crate) fn read(file: &Path) -> anyhow::Result<Report> {
    let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let mut report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{} does not contain results", file.display()))?;
    ensure!(report.format == FORMAT, "{} was written by another version of the harness", file.display());
    let sittings = report.settings.sittings;
    for ratio in report.cases.iter_mut().flat_map(|case| &mut case.ratios) {
        // This version decides which ratios are noisy, whichever version measured them.
        *ratio = stats::ratio(&ratio.to, std::mem::take(&mut ratio.pairs), sittings);
    }
    Ok(report)
}

/// Writes the results: with every sample, and, for long-term storage, without those of the rounds.
pub(crate) fn write(options: &Options, report: &Report) -> anyhow::Result<()> {
    let json =
        |report: &Report| serde_json::to_string(report).context("the results cannot be written as JSON");
    let text = json(report)?;
    replace(&options.output.join("results.json"), &text)?;
    let mut summary = report.clone();
    for run in summary.cases.iter_mut().flat_map(|case| case.runs.values_mut()) {
        if let Run::Measured(times) = run {
            times.rounds.clear();
        }
    }
    replace(&options.output.join("summary.json"), &json(&summary)?)?;
    options.json.as_deref().map_or(Ok(()), |file| replace(file, &text))
}

/// Writes a file atomically.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, file))
        .with_context(|| format!("{} cannot be written", file.display()))
}
