//! Figures by name, and the baseline.
//!
//! A name has three parts: the subject (`op`, `region`, `threads`, `read`), the variant, and the
//! stage or size, as in `op/reduce/record` and `region/seal/100`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::make_folder;

/// Instructions by name.
pub(crate) type Counts = BTreeMap<String, f64>;

/// Median and quartiles of a sample, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Time {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

/// The measurements of one subject.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Figure {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nanoseconds: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instructions: Option<f64>,
}

/// All measurements of a run.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) taken: String,
    pub(crate) commit: String,
    /// The device of executions and reads.
    pub(crate) device: String,
    pub(crate) figures: BTreeMap<String, Figure>,
}

impl Time {
    /// Statistics of a non-empty sample.
    pub(crate) fn of(mut sample: Vec<f64>) -> Time {
        sample.sort_by(f64::total_cmp);
        let at = |part: f64| sample[(part * (sample.len() - 1) as f64).round() as usize];
        Time { low: at(0.25), median: at(0.5), high: at(0.75) }
    }
}

impl Figures {
    pub(crate) fn new() -> Figures {
        Figures {
            taken: output_of("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            commit: output_of("git", &["describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]),
            device: String::new(),
            figures: BTreeMap::new(),
        }
    }

    pub(crate) fn add_time(&mut self, name: String, time: Time) {
        self.figures.entry(name).or_default().nanoseconds = Some(time);
    }

    pub(crate) fn add_counts(&mut self, counts: &Counts) {
        for (name, &count) in counts {
            self.figures.entry(name.clone()).or_default().instructions = Some(count);
        }
    }
}

/// Counts to compare with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Baseline {
    pub(crate) taken: String,
    pub(crate) commit: String,
    pub(crate) rustc: String,
    pub(crate) valgrind: String,
    /// Instructions for one op or one region.
    pub(crate) instructions: Counts,
}

impl Baseline {
    pub(crate) fn of(counts: Counts) -> Baseline {
        let Figures { taken, commit, .. } = Figures::new();
        // A count is accurate to about one in a thousand.
        let rounded = |count: f64| (count * 10.0).round() / 10.0;
        Baseline {
            taken,
            commit,
            rustc: output_of("rustc", &["--version"]),
            valgrind: output_of("valgrind", &["--version"]),
            instructions: counts.into_iter().map(|(name, count)| (name, rounded(count))).collect(),
        }
    }

    /// Reads the baseline from a file; `None` if there is no file.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Option<Baseline>> {
        if !file.exists() {
            return Ok(None);
        }
        let text =
            std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        serde_json::from_str(&text).map(Some).with_context(|| format!("{} is not a baseline", file.display()))
    }
}

/// Writes JSON for people and programs.
pub(crate) fn write(file: &Path, what: &impl Serialize) -> anyhow::Result<()> {
    make_folder(file)?;
    let text = serde_json::to_string_pretty(what).context("figures can be written as JSON")?;
    std::fs::write(file, text + "\n").with_context(|| format!("{} cannot be written", file.display()))
}

/// The output of a program, or an empty text if there is no such program.
fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let said = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    said.map(|words| String::from_utf8_lossy(&words).trim().to_owned()).unwrap_or_default()
}
