//! `cargo xtask test`: everything that must hold before a change is merged.
//!
//! A run is a list of [`Stage`]s, cheap ones first. Each returns a [`Tally`]; no stage stops the
//! run. A stage that cannot run is skipped with a reason, and the summary repeats every reason, so
//! that a skip never looks like a success. The reason must be a missing prerequisite
//! ([`prerequisites`]), and each stage must have its minimum number of checks ([`least`]).
//!
//! `FUSELINE_TEST_MINUTES` limits the time. A stage that would exceed it is skipped too, so that a
//! slow machine skips the last stages and still has results of the others.

mod abort;
mod api;
mod cargo;
pub(crate) mod full;
mod isolate;
mod least;
mod libtest;
mod models;
mod nextest;
mod plugins;
mod prerequisites;
mod sanitizers;
mod tally;
mod tidy;
mod torch;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::host::Host;
use crate::time;
use tally::{Summary, Tally};

/// The variable that limits the minutes of a run.
const LIMIT: &str = "FUSELINE_TEST_MINUTES";

/// A part of a test run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Fmt,
    Tidy,
    Deny,
    Clippy,
    Doc,
    Api,
    Nextest,
    Doctest,
    Plugins,
    Torch,
    Features,
    PanicAbort,
    Loom,
    LoomWeakened,
    Shuttle,
    Tsan,
    Asan,
}

/// Which stages to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    All,
    Quick,
    These(Vec<Stage>),
}

impl Stage {
    /// Every stage, in the order of a run.
    pub(crate) const ALL: [Stage; 17] = [
        Stage::Fmt,
        Stage::Tidy,
        Stage::Deny,
        Stage::Clippy,
        Stage::Doc,
        Stage::Api,
        Stage::Nextest,
        Stage::Doctest,
        Stage::Plugins,
        Stage::Torch,
        Stage::Features,
        Stage::PanicAbort,
        Stage::Loom,
        Stage::LoomWeakened,
        Stage::Shuttle,
        Stage::Tsan,
        Stage::Asan,
    ];

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Fmt => "fmt",
            Stage::Tidy => "tidy",
            Stage::Deny => "deny",
            Stage::Clippy => "clippy",
            Stage::Doc => "doc",
            Stage::Api => "api",
            Stage::Nextest => "nextest",
            Stage::Doctest => "doctest",
            Stage::Features => "features",
            Stage::PanicAbort => "panic-abort",
            Stage::Loom => "loom",
            Stage::LoomWeakened => "loom-weakened",
            Stage::Shuttle => "shuttle",
            Stage::Tsan => "tsan",
            Stage::Asan => "asan",
            Stage::Plugins => "plugins",
            Stage::Torch => "torch",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Stage::Fmt => "every file is formatted",
            Stage::Tidy => {
                "rules on files: sizes, paths, unsafe code, references in documents, dependencies of crates"
            }
            Stage::Deny => "licences, bans and sources of dependencies (needs cargo-deny)",
            Stage::Clippy => "no lint warns, in any target, with all features",
            Stage::Doc => "the documentation builds without a warning or a broken link",
            Stage::Api => "the public API of the published crates is the one in tests/api",
            Stage::Nextest => "unit and integration tests, each in its own process",
            Stage::Doctest => "examples in the documentation",
            Stage::Features => {
                "the crate builds without warnings with sets of features that have every two together and apart"
            }
            Stage::PanicAbort => "the library with panic=abort, including panics in the user's code",
            Stage::Loom => {
                "models of the lock-free parts (tests `loom_*`), all schedules with at most 3 preemptions"
            }
            Stage::LoomWeakened => "each named memory ordering, when weakened, makes a loom model fail",
            Stage::Shuttle => "larger concurrent scenarios (tests `shuttle_*`), random schedules",
            Stage::Tsan => "stress tests (`stress_*`) under the thread sanitizer",
            Stage::Asan => {
                "stress tests, the PJRT layer on fake plugins, and programs in C, under the address and the leak \
                 sanitizer"
            }
            Stage::Plugins => {
                "conformance, random programs and donation on other PJRT plugins (fetches two; alone: all cases)"
            }
            Stage::Torch => {
                "the PyTorch device: builds and installs its wheel, and runs its tests (fetches PyTorch)"
            }
        }
    }

    /// Its duration on two slow cores, in whole minutes, without any earlier build.
    fn minutes(self) -> u64 {
        match self {
            Stage::Fmt | Stage::Tidy | Stage::Deny => 0,
            Stage::Doctest | Stage::Api => 1,
            Stage::Doc | Stage::Features | Stage::PanicAbort => 2,
            Stage::Plugins => 4,
            // It builds the models, unless the stage before has.
            Stage::LoomWeakened => 4,
            Stage::Loom | Stage::Shuttle => 5,
            Stage::Clippy | Stage::Tsan => 6,
            Stage::Asan => 8,
            Stage::Torch => 14,
            Stage::Nextest => 26,
        }
    }

    fn is_quick(self) -> bool {
        matches!(self, Stage::Fmt | Stage::Tidy | Stage::Clippy | Stage::Nextest)
    }

    /// Whether it compiles the crates that need set-up.
    fn needs_setup(self) -> bool {
        !matches!(self, Stage::Fmt | Stage::Tidy | Stage::Deny)
    }

    fn run(self, host: &Host, extent: plugins::Extent) -> Tally {
        match self {
            Stage::Plugins => plugins::run(host, extent),
            Stage::Fmt => cargo::fmt(host),
            Stage::Tidy => tidy::run(host),
            Stage::Deny => cargo::deny(host),
            Stage::Clippy => cargo::clippy(host),
            Stage::Doc => cargo::doc(host),
            Stage::Api => api::run(host),
            Stage::Nextest => nextest::run(host),
            Stage::Doctest => libtest::doctests(host),
            Stage::Features => cargo::features(host),
            Stage::PanicAbort => abort::run(host),
            Stage::Loom => models::loom(host),
            Stage::LoomWeakened => models::loom_weakened(host),
            Stage::Shuttle => models::shuttle(host),
            Stage::Tsan => sanitizers::tsan(host),
            Stage::Asan => sanitizers::asan(host),
            Stage::Torch => torch::run(host),
        }
    }
}

/// The stages as a table.
pub(crate) fn list() -> String {
    Stage::ALL
        .iter()
        .map(|stage| {
            let quick = if stage.is_quick() { "quick" } else { "" };
            format!("{:<14}{quick:<7}{}\n", stage.name(), stage.what())
        })
        .collect()
}

/// Runs set-up and the selected stages, and prints the summary, whose last line has the counts.
pub(crate) fn run(host: &Host, selection: &Selection) -> anyhow::Result<ExitCode> {
    let stages: Vec<Stage> = match selection {
        Selection::All => Stage::ALL.to_vec(),
        Selection::Quick => Stage::ALL.into_iter().filter(|stage| stage.is_quick()).collect(),
        Selection::These(stages) => stages.clone(),
    };
    let extent = match selection {
        Selection::These(_) => plugins::Extent::All,
        Selection::All | Selection::Quick => plugins::Extent::Part,
    };
    let limit = limit(host)?;
    let mut summary = Summary::default();
    let begin = Instant::now();
    let set_up = crate::set_up(host);
    if let Err(error) = &set_up {
        eprintln!("{error:#}");
        summary.add("set-up", 1, Tally::failed("set-up", format!("{error:#}")), begin.elapsed());
    }
    for stage in stages {
        println!("\n=== {}: {}", stage.name(), stage.what());
        let start = Instant::now();
        let least = least::of(stage.name());
        let tally = if set_up.is_err() && stage.needs_setup() {
            Tally::failed(stage.name(), "set-up failed")
        } else if let Some(why) = limit.and_then(|limit| too_late(stage, begin.elapsed(), limit)) {
            println!("{why}");
            Tally::skipped(stage.name(), why)
        } else {
            stage.run(host, extent)
        };
        let tally = least::judge(stage.name(), least, prerequisites::judge(host, tally));
        println!("--- {}: {} in {}", stage.name(), tally.counts(), time::human(start.elapsed()));
        summary.add(stage.name(), least.checks, tally, start.elapsed());
    }
    print!("\n{summary}");
    Ok(if summary.succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The time limit of the run, if there is one.
fn limit(host: &Host) -> anyhow::Result<Option<Duration>> {
    let Some(text) = host.var(LIMIT) else { return Ok(None) };
    let minutes = text.to_str().and_then(|text| text.parse().ok());
    let minutes: u64 = minutes
        .with_context(|| format!("{LIMIT} is {}, which is not a number of minutes", text.display()))?;
    Ok(Some(Duration::from_secs(minutes * 60)))
}

/// Why a stage is not started, if it would not end in time.
fn too_late(stage: Stage, gone: Duration, limit: Duration) -> Option<String> {
    let takes = Duration::from_secs(stage.minutes() * 60);
    (gone + takes > limit).then(|| {
        let (gone, takes, limit) = (time::human(gone), time::human(takes), time::human(limit));
        format!("no time: it may take {takes}, and {gone} of {limit} have passed ({LIMIT})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_not_end_in_time_is_not_begun() {
        let minutes = |minutes| Duration::from_secs(60 * minutes);
        let takes = Stage::Torch.minutes();
        assert_eq!(too_late(Stage::Torch, minutes(10), minutes(10 + takes)), None);
        let why = too_late(Stage::Torch, minutes(11), minutes(10 + takes)).expect("it is too late");
        assert!(why.contains("11 min 00 s") && why.contains(LIMIT), "{why}");
        assert_eq!(too_late(Stage::Tidy, minutes(9), minutes(10)), None);
    }

    #[test]
    fn a_limit_is_a_number_of_minutes() {
        let mut host = Host::detect().expect("this machine");
        for (text, wanted) in
            [(None, Ok(None)), (Some("2"), Ok(Some(Duration::from_secs(120)))), (Some("2m"), Err(()))]
        {
            host.vars.remove(std::ffi::OsStr::new(LIMIT));
            host.vars.extend(text.map(|text| (LIMIT.into(), text.into())));
            assert_eq!(limit(&host).map_err(|_| ()), wanted, "{text:?}");
        }
    }
}
