//! `cargo xtask test full`: exhaustive versions of tests of which `cargo xtask test` runs a sample.
//!
//! Each of [`RUNS`] has parts that take minutes. `target/full/COMMIT` has a file for each part that
//! has passed, so an interrupted run continues where it stopped. Machines that share the parts
//! (`--shard K/N`) put their files into one folder. When every part has passed, the record
//! `tests/full.txt` is written, to be committed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::{plugins, torch};
use crate::host::Host;
use crate::soak::{Ended, clean_commit, day, run_test};
use crate::time;

/// An exhaustive version of tests.
struct Run {
    name: &'static str,
    suite: Suite,
    parts: usize,
}

enum Suite {
    /// An ignored test of the binary `ops` of the root package, on the default plugin.
    Ops,
    /// The same on the plugin of a package of the matrix.
    OpsOn(&'static str),
    /// Test modules of PyTorch's device, with variables.
    Torch(torch::Build, &'static [&'static str], &'static [torch::Variable]),
}

const CONFORMANCE: &str = "conformance::full_every_case_alone_in_every_mode";
const PROGRAMS: &str = "programs::full_programs_on_the_plugin";

const RUNS: &[Run] = &[
    Run { name: CONFORMANCE, suite: Suite::OpsOn("xla-cpu-pjrt"), parts: 4 },
    Run { name: CONFORMANCE, suite: Suite::OpsOn("fastatomstruct-xla-cpu"), parts: 4 },
    Run { name: CONFORMANCE, suite: Suite::OpsOn("lammps-jax-pjrt-cpu"), parts: 4 },
    Run { name: PROGRAMS, suite: Suite::OpsOn("xla-cpu-pjrt"), parts: 4 },
    Run { name: PROGRAMS, suite: Suite::OpsOn("fastatomstruct-xla-cpu"), parts: 4 },
    Run { name: PROGRAMS, suite: Suite::OpsOn("lammps-jax-pjrt-cpu"), parts: 4 },
    Run { name: "pairs::full_constants", suite: Suite::Ops, parts: 4 },
    Run { name: "pairs::full_combined_elements", suite: Suite::Ops, parts: 2 },
    Run { name: "pairs::full_converted_elements", suite: Suite::Ops, parts: 2 },
    Run { name: "pairs::full_other_ops", suite: Suite::Ops, parts: 2 },
    Run {
        name: "torch::compiled",
        suite: Suite::Torch(torch::Build::Plain, &[], &[torch::COMPILED]),
        parts: 1,
    },
    Run {
        name: "torch::all_samples",
        suite: Suite::Torch(
            torch::Build::Plain,
            &["test_opinfo", "test_generic"],
            &[("FUSELINE_TORCH_ALL", "1")],
        ),
        parts: 1,
    },
    Run { name: "torch::sanitized", suite: Suite::Torch(torch::Build::Sanitized, &[], &[]), parts: 1 },
];

/// The record file, relative to the workspace.
const RECORD: &str = "tests/full.txt";

impl Run {
    /// The test, and the plugin unless it is the default one.
    fn title(&self) -> String {
        match self.suite {
            Suite::OpsOn(package) => format!("{} on {package}", self.name),
            Suite::Ops | Suite::Torch(..) => self.name.to_owned(),
        }
    }
}

/// A part of a run.
#[derive(Clone, Copy)]
struct Part {
    run: &'static Run,
    /// From 1.
    number: usize,
}

impl Part {
    fn name(self) -> String {
        format!("{} {}/{}", self.run.title(), self.number, self.run.parts)
    }

    /// The file that marks the part as passed; it holds the figures that the test printed.
    fn result_file(self, folder: &Path) -> PathBuf {
        let name = self.run.title().replace("::", ".").replace(' ', "-");
        folder.join(format!("{name}.{}-{}", self.number, self.run.parts))
    }
}

fn parts() -> impl Iterator<Item = Part> {
    RUNS.iter().flat_map(|run| (1..=run.parts).map(move |number| Part { run, number }))
}

/// Parses `--shard K/N`: K, counted from 1, and N.
fn parse(arguments: &[OsString]) -> anyhow::Result<(usize, usize)> {
    let shard = match arguments {
        [] => return Ok((1, 1)),
        [flag, shard] if flag == "--shard" => shard.to_string_lossy(),
        _ => bail!("test full takes --shard K/N, or nothing"),
    };
    let parsed = shard.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parsed.filter(|(k, n)| (1..=*n).contains(k)).with_context(|| format!("{shard} is not a shard K/N"))
}

/// Runs the parts of a shard that have not yet passed at this commit.
pub(crate) fn run(host: &Host, arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let (shard, shards) = parse(arguments)?;
    let commit =
        clean_commit(host).context("the checkout has uncommitted changes, or git cannot name its commit")?;
    crate::set_up(host)?;
    let folder = host.target_dir().join("full").join(&commit);
    fs::create_dir_all(&folder)?;
    let mut failed = Vec::new();
    for (_, part) in parts().enumerate().filter(|(place, _)| place % shards == shard - 1) {
        let file = part.result_file(&folder);
        if file.exists() {
            println!("{} passed in an earlier run", part.name());
            continue;
        }
        println!("\n=== {}", part.name());
        let start = Instant::now();
        match test(host, part) {
            Ended::Passed(figures) => {
                let line = format!("{:.0} s; {}", start.elapsed().as_secs_f64(), figures.join("; "));
                println!("--- {}: {line}", part.name());
                fs::write(&file, line)?;
            }
            Ended::Skipped(why) | Ended::Failed(why) => failed.push(format!("{}: {why}", part.name())),
        }
    }
    let missing: Vec<String> =
        parts().filter(|part| !part.result_file(&folder).exists()).map(Part::name).collect();
    if missing.is_empty() {
        write_record(host, &commit, &folder)?;
    } else {
        println!(
            "\n{RECORD} is unchanged, because these have not passed at {commit}: {}",
            missing.join(", ")
        );
    }
    failed.iter().for_each(|failure| println!("FAILED {failure}"));
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn test(host: &Host, part: Part) -> Ended {
    if let Suite::Torch(build, modules, variables) = &part.run.suite {
        let tally = torch::run_modules(host, *build, &[(modules, variables)]);
        return match tally.failed.first() {
            Some(note) => Ended::Failed(format!("{}: {}: {}", tally.counts(), note.name, note.why)),
            None if tally.passed == 0 => Ended::Skipped(tally.counts()),
            None => Ended::Passed(vec![tally.counts()]),
        };
    }
    let mut command = host.cargo();
    if let Suite::OpsOn(package) = part.run.suite {
        match plugins::library(host, package) {
            Ok(library) => command.env("FUSELINE_PJRT_PLUGIN", library).env("GLOG_minloglevel", "2"),
            Err(why) if why.starts_with("no ") => return Ended::Skipped(why),
            Err(why) => return Ended::Failed(why),
        };
    }
    // The same build as in the stage `nextest`.
    command.args(["test", "--locked", "--workspace", "--all-features", "--test", "ops", "--"]);
    command.args(["--ignored", "--exact", part.run.name, "--nocapture"]);
    command.env("FUSELINE_PART", format!("{}/{}", part.number, part.run.parts));
    run_test(command)
}

/// Writes the record: commit, date, machine, and the figures of each part.
fn write_record(host: &Host, commit: &str, folder: &Path) -> anyhow::Result<()> {
    let mut text = format!("The last whole run of `cargo xtask test full`: {}, commit {commit}, ", day(host));
    text += &format!("{}, {} cores\n\n", host.platform(), std::thread::available_parallelism()?);
    let mut seconds = 0;
    for part in parts() {
        let file = part.result_file(folder);
        let said = fs::read_to_string(&file).with_context(|| format!("{} is missing", file.display()))?;
        seconds += said.split(' ').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        text += &format!("{}: {said}\n", part.name());
    }
    text += &format!("\nall: {} parts in {}\n", parts().count(), time::human(Duration::from_secs(seconds)));
    fs::write(host.root.join(RECORD), &text)?;
    println!("\n{text}\nwritten to {RECORD}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_some() {
        let parsed = |line: &str| parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(parsed("").unwrap(), (1, 1));
        assert_eq!(parsed("--shard 2/3").unwrap(), (2, 3));
        for wrong in ["--shard", "--shard 0/3", "--shard 4/3", "--shard 2", "--part 1/2", "--shard 1/2 x"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    /// A renamed test must not count as run.
    #[test]
    fn each_run_is_an_ignored_test_and_each_such_test_is_run() {
        let root = Host::detect().expect("this machine").root;
        let mut there = Vec::new();
        let files =
            [("conformance", "conformance.rs"), ("pairs", "pairs/mod.rs"), ("programs", "programs.rs")];
        for (module, file) in files {
            let code = fs::read_to_string(root.join("tests/ops").join(file)).expect("a file of tests");
            let marks = code.split("#[ignore = \"exhaustive: `cargo xtask test full`\"]\nfn ").skip(1);
            there.extend(marks.map(|rest| format!("{module}::{}", rest.split('(').next().unwrap_or(rest))));
        }
        let is_of_ops = |run: &&Run| matches!(run.suite, Suite::Ops | Suite::OpsOn(_));
        let mut wanted: Vec<&str> = RUNS.iter().filter(is_of_ops).map(|run| run.name).collect();
        there.sort();
        wanted.sort_unstable();
        wanted.dedup();
        assert_eq!(there, wanted);
    }

    #[test]
    fn what_runs_on_a_plugin_runs_on_each() {
        for name in [CONFORMANCE, PROGRAMS] {
            let packages = RUNS.iter().filter(|run| run.name == name).map(|run| match run.suite {
                Suite::OpsOn(package) => package,
                Suite::Ops | Suite::Torch(..) => panic!("{name} names no plugin"),
            });
            assert_eq!(packages.collect::<Vec<_>>(), plugins::packages().collect::<Vec<_>>());
        }
    }
}
