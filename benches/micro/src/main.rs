//! `cargo xtask micro`: times every stage, adds Callgrind's counts, and reports what changed since
//! the baseline.
//!
//! Input: the engine ([`sample`]), and the output folder of the bench `counts` ([`counts`]), if
//! there is Callgrind. Output: two tables on the terminal, and a JSON file with the same figures
//! for the report of `cargo xtask bench`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks to its user")]

#[path = "../../programs/bare.rs"]
mod bare;
mod counts;
mod figures;
mod round_trip;
mod sample;
mod sampling;
mod table;
mod wait;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser;
use serde::Serialize;

use figures::{Baseline, Counts, Figures};
use table::{Change, Table};

/// Measures what recording an op and running a region cost, stage by stage.
///
/// Times are medians of this run. Instructions are counted by Callgrind where valgrind is
/// installed; they are the same in every run, and compared with benches/baseline.json.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask micro", max_term_width = 100)]
struct Options {
    /// Make this run's counts the baseline
    #[arg(long)]
    save: bool,
    /// Fail if a count grew by more than 1 % since the baseline
    #[arg(long)]
    check: bool,
    /// Only counts, no times
    #[arg(long)]
    no_times: bool,
    /// Only times, no counts
    #[arg(long)]
    no_counts: bool,
    /// File of the figures
    #[arg(long, value_name = "FILE", default_value = "bench-report/micro.json")]
    output: PathBuf,
    /// Folder of the counts
    #[arg(long, hide = true, value_name = "FOLDER")]
    counts: Option<PathBuf>,
    /// Baseline to compare with
    #[arg(long, hide = true, value_name = "FILE", default_value = "benches/baseline.json")]
    baseline: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("micro: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures everything. Returns whether no count grew that must not.
fn run(options: &Options) -> anyhow::Result<bool> {
    let mut figures = Figures::new();
    if !options.no_times {
        sample::everything(&mut figures)?;
    }
    let counts = match &options.counts {
        Some(folder) if !options.no_counts => counts::read(folder)?,
        _ => Counts::new(),
    };
    figures.add_counts(&counts);
    let tables = table::tables(&figures);
    print!("{}", table::render(&tables));
    let report = Report { taken: &figures.taken, commit: &figures.commit, tables: &tables };
    figures::write(&options.output, &report)?;
    println!("{}", options.output.display());
    if options.save || options.check {
        ensure!(
            !counts.is_empty(),
            "no instructions were counted: install valgrind (Debian: apt install valgrind)"
        );
    }
    if options.save {
        figures::write(&options.baseline, &Baseline::of(counts))?;
        println!("{} is the new baseline", options.baseline.display());
        return Ok(true);
    }
    let Some(baseline) = Baseline::read(&options.baseline)? else {
        ensure!(!options.check, "there is no baseline at {}", options.baseline.display());
        return Ok(true);
    };
    if counts.is_empty() {
        return Ok(true);
    }
    let changes = table::changes(&counts, &baseline);
    let Baseline { taken, commit, rustc, valgrind, .. } = &baseline;
    println!("since the baseline of {taken} ({commit}, {rustc}, {valgrind}):");
    changes.iter().for_each(|change| println!("  {change}"));
    if changes.is_empty() {
        println!("  no count changed by more than 1 %");
    }
    Ok(!(options.check && changes.iter().any(Change::grew)))
}

/// The contents of the file of figures.
#[derive(Serialize)]
struct Report<'a> {
    taken: &'a str,
    commit: &'a str,
    tables: &'a [Table],
}

/// Creates the folder of a file.
fn make_folder(file: &Path) -> anyhow::Result<()> {
    let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))
}
