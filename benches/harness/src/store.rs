//! Results on disk.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::cli::Options;
use crate::machine;
use crate::results::{FORMAT, Report};

/// Takes over the cases of an earlier run, if it measured the same things in the same way: that one was stopped.
pub(crate) fn resume(options: &Options, report: &mut Report) {
    let Ok(text) = fs::read_to_string(options.output.join("results.json")) else { return };
    let Ok(earlier) = serde_json::from_str::<Report>(&text) else { return };
    let ids = |report: &Report| -> Vec<(String, bool)> {
        let contender = |one: &crate::results::Contender| (one.id.clone(), one.missing.is_some());
        report.contenders.iter().map(contender).collect()
    };
    // A tree with changes has no name by which it could be known again.
    let same = earlier.format == FORMAT
        && earlier.interrupted
        && earlier.settings == report.settings
        && earlier.commit == report.commit
        && !report.commit.ends_with('+')
        && ids(&earlier) == ids(report);
    if !same {
        return;
    }
    machine::say(format_args!("bench: going on where a run ended that began {}", earlier.started));
    report.started = earlier.started;
    report.contenders = earlier.contenders;
    report.cases = earlier.cases;
}

/// Writes the results where they are wanted.
pub(crate) fn write(options: &Options, report: &Report) -> anyhow::Result<()> {
    let text = serde_json::to_string(report).context("the results cannot be written as JSON")?;
    replace(&options.output.join("results.json"), &text)?;
    options.json.as_deref().map_or(Ok(()), |file| replace(file, &text))
}

/// Writes a file whole or not at all.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, file))
        .with_context(|| format!("{} cannot be written", file.display()))
}
