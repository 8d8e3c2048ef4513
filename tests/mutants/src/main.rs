//! `cargo run -p fuseline-mutants`: mutation testing of the engine's own crates.
//!
//! The program samples mutations of the given files, builds all of them at once, and runs the tests
//! on each mutant. A mutant is caught if a test fails. A mutant that is missed shows a hole in the
//! tests, or is equivalent to the original. cargo-mutants builds once per mutant, which takes
//! minutes in this workspace. `target/mutants/results.txt` keeps the results, and a later run skips
//! the mutants that it lists.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks to its user")]

mod find;
mod named;
mod tree;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use clap::Parser;

use find::Mutation;
use tree::Tree;

#[derive(Debug, Parser)]
#[command(about = "Runs the tests on mutants of the code, and lists those that no test catches")]
struct Arguments {
    /// Files and folders to mutate, relative to the workspace.
    paths: Vec<String>,
    /// How many mutations to sample from each path [default: all].
    #[arg(long)]
    sample: Option<usize>,
    /// The seed of the sample.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Filters of nextest, run in order until a test fails [default: the tests of the mutated crate
    /// that do not take minutes].
    #[arg(long = "tests")]
    filters: Vec<String>,
    /// Include the mutations of src/named.rs, with the tests that have to catch them.
    #[arg(long)]
    named: bool,
    /// Print the mutations and run nothing.
    #[arg(long)]
    list: bool,
}

/// A mutation, and the filters of the tests that may catch it.
struct Trial {
    mutation: Mutation,
    filters: Vec<String>,
    /// The path that it was sampled from, or "named".
    group: String,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    ensure!(
        arguments.named || !arguments.paths.is_empty(),
        "name the files or folders to mutate, such as fusion/src/canon"
    );
    let mut trials = if arguments.named { named::trials(&root)? } else { Vec::new() };
    sample(&root, &arguments, &mut trials)?;
    if arguments.list {
        for trial in &trials {
            println!("{}", trial.mutation.name());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let tree = Tree::new(&root)?;
    let mut mutations: Vec<_> = trials.iter().map(|trial| Some(trial.mutation.clone())).collect();
    tree.write_mutants(&mut mutations)?;
    for (trial, mutation) in trials.iter().zip(&mutations) {
        if mutation.is_none() {
            ensure!(trial.group != "named", "{} does not compile", trial.mutation.name());
            println!("{} does not compile", trial.mutation.name());
        }
    }
    run(&root, &tree, &trials, &mutations)
}

/// Adds a sample of the mutations of each path, in the order of a hash of seed and name.
fn sample(root: &Path, arguments: &Arguments, trials: &mut Vec<Trial>) -> anyhow::Result<()> {
    for path in &arguments.paths {
        let mut found = Vec::new();
        for file in files(root, path)? {
            let text = std::fs::read_to_string(root.join(&file))?;
            found.extend(find::mutations(&file, &text).with_context(|| format!("{file} cannot be parsed"))?);
        }
        let total = found.len();
        found.sort_by_key(|mutation| {
            *blake3::hash(format!("{} {}", arguments.seed, mutation.name()).as_bytes()).as_bytes()
        });
        let mut sampled = 0;
        for mutation in found {
            if sampled == arguments.sample.unwrap_or(usize::MAX) {
                break;
            }
            // A replacement contains the original text, which therefore has no other mutation in
            // it.
            let overlaps = |other: &Trial| {
                let other = &other.mutation;
                other.file == mutation.file
                    && other.range.start <= mutation.range.end
                    && mutation.range.start <= other.range.end
            };
            if trials.iter().any(overlaps) {
                continue;
            }
            sampled += 1;
            let filters = match arguments.filters.is_empty() {
                true => own_tests(&mutation.file).iter().map(|&filter| filter.to_owned()).collect(),
                false => arguments.filters.clone(),
            };
            trials.push(Trial { mutation, filters, group: path.clone() });
        }
        eprintln!("{path}: {sampled} of {total} mutations");
    }
    Ok(())
}

/// The tests of the crate that has a file.
fn own_tests(file: &str) -> &'static [&'static str] {
    match file.split('/').next() {
        Some("fusion") => named::FUSION,
        Some("interp") => named::INTERP,
        Some("cache") => named::CACHE,
        Some("record") => named::RECORD,
        _ => named::ENGINE,
    }
}

/// The Rust files of a path, without files of tests.
fn files(root: &Path, path: &str) -> anyhow::Result<Vec<String>> {
    let whole = root.join(path);
    if whole.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&whole).with_context(|| format!("{path} cannot be read"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let inner = format!("{path}/{name}");
        if root.join(&inner).is_dir() {
            if name != "tests" {
                found.extend(files(root, &inner)?);
            }
        } else if name.ends_with(".rs") && !matches!(name.as_str(), "tests.rs" | "models.rs") {
            found.push(inner);
        }
    }
    found.sort();
    Ok(found)
}

/// Runs tests on a mutant, or on the original for 0, and returns the name of a test that failed.
fn failing_test(tree: &Tree, number: usize, filter: &str) -> anyhow::Result<Option<String>> {
    let mut command = tree.cargo();
    command.args(["nextest", "run", "--locked", "--workspace", "--all-features", "--profile", "mutants"]);
    command.args(["--no-tests", "pass", "-E", filter]).env(tree::VARIABLE, number.to_string());
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    // The exit codes of nextest: a test failed, or a test binary could not list its tests.
    match output.status.code() {
        Some(0) => Ok(None),
        Some(100) => {
            let failure = text.lines().find(|line| line.trim_start().starts_with("TRY 2 "));
            let name = failure.and_then(|line| line.split_once(") ")).map_or("a test", |(_, name)| name);
            Ok(Some(name.trim().to_owned()))
        }
        Some(104) => Ok(Some("the list of tests".to_owned())),
        _ => bail!("nextest ended with {}:\n{text}", output.status),
    }
}

fn run(
    root: &Path,
    tree: &Tree,
    trials: &[Trial],
    mutations: &[Option<Mutation>],
) -> anyhow::Result<ExitCode> {
    let path = root.join("target/mutants/results.txt");
    let known = results(&path);
    let mut filters: Vec<_> = trials.iter().flat_map(|trial| &trial.filters).collect();
    filters.sort_unstable();
    filters.dedup();
    for filter in filters {
        let start = Instant::now();
        if let Some(failed) = failing_test(tree, 0, filter)? {
            bail!("{failed} fails without a mutant");
        }
        println!("{filter}: {:.0} s without a mutant", start.elapsed().as_secs_f64());
    }
    let mut groups: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut missed = Vec::new();
    for (index, trial) in trials.iter().enumerate() {
        if mutations[index].is_none() {
            continue;
        }
        let name = trial.mutation.name();
        let caught = match known.get(&name) {
            Some(caught) => caught.clone(),
            None => {
                let start = Instant::now();
                let mut caught = None;
                for filter in &trial.filters {
                    caught = failing_test(tree, index + 1, filter)?;
                    if caught.is_some() {
                        break;
                    }
                }
                let verdict = caught.as_deref().unwrap_or("MISSED");
                println!("{name}\n    {verdict} ({:.0} s)", start.elapsed().as_secs_f64());
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
                writeln!(file, "{name}\t{}", caught.as_deref().unwrap_or_default())?;
                caught
            }
        };
        let (count, total) = groups.entry(&trial.group).or_default();
        *total += 1;
        match caught {
            Some(_) => *count += 1,
            None => missed.push(name),
        }
    }
    println!("\nmissed:\n{}", missed.join("\n"));
    for (group, (count, total)) in groups {
        println!("{group}: {count} of {total} caught");
    }
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The results of earlier runs: by the name of a mutation, the test that caught it.
fn results(path: &PathBuf) -> BTreeMap<String, Option<String>> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let entry = |line: &str| {
        let (name, caught) = line.split_once('\t')?;
        Some((name.to_owned(), Some(caught.to_owned()).filter(|caught| !caught.is_empty())))
    };
    text.lines().filter_map(entry).collect()
}
