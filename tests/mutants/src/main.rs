//! `cargo run -p fuseline-mutants`: mutation testing of the engine's own crates.
//!
//! It draws mutations of the files that are named, builds all of them at once, and runs the tests
//! with each. A mutant that no test notices is a hole in the tests, or changes nothing. cargo-mutants
//! builds once per mutant instead, which is minutes each here. Results are kept in
//! `target/mutants/results.txt`, and a run goes on where the last one ended.
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
#[command(about = "Changes the code in one place at a time, and says which changes no test notices")]
struct Arguments {
    /// Files and folders to change, relative to the workspace.
    paths: Vec<String>,
    /// How many changes are drawn from each path; all, if it is left out.
    #[arg(long)]
    sample: Option<usize>,
    /// Draws other ones.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Filters of nextest, run one after the other until a test fails; otherwise the tests of the
    /// crate that is changed, without those that take minutes.
    #[arg(long = "tests")]
    filters: Vec<String>,
    /// Also the changes that are named in src/named.rs, each with the tests that notice it.
    #[arg(long)]
    named: bool,
    /// Prints the changes and runs nothing.
    #[arg(long)]
    list: bool,
}

/// A mutant, and the filters of the tests that may notice it.
struct Trial {
    mutation: Mutation,
    filters: Vec<String>,
    /// The path or list that it was drawn from.
    group: String,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    ensure!(
        arguments.named || !arguments.paths.is_empty(),
        "name the files or folders to change, such as fusion/src/canon"
    );
    let mut trials = if arguments.named { named::trials(&root)? } else { Vec::new() };
    draw(&root, &arguments, &mut trials)?;
    if arguments.list {
        for trial in &trials {
            println!("{}", trial.mutation.name());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let tree = Tree::new(&root)?;
    let mut mutations: Vec<_> = trials.iter().map(|trial| Some(trial.mutation.clone())).collect();
    tree.write_mutants(&mut mutations)?;
    run(&root, &tree, &trials, &mutations)
}

/// Adds mutations of each path, drawn by the hash of seed and name.
fn draw(root: &Path, arguments: &Arguments, trials: &mut Vec<Trial>) -> anyhow::Result<()> {
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
        let mut chosen = 0;
        for mutation in found {
            if chosen == arguments.sample.unwrap_or(usize::MAX) {
                break;
            }
            // One expression has one mutant, so that each stands in the text once.
            let overlaps = |other: &Trial| {
                let other = &other.mutation;
                other.file == mutation.file
                    && other.range.start <= mutation.range.end
                    && mutation.range.start <= other.range.end
            };
            if trials.iter().any(overlaps) {
                continue;
            }
            chosen += 1;
            let filters = match arguments.filters.is_empty() {
                true => own_tests(&mutation.file).iter().map(|&filter| filter.to_owned()).collect(),
                false => arguments.filters.clone(),
            };
            trials.push(Trial { mutation, filters, group: path.clone() });
        }
        eprintln!("{path}: {chosen} of {total} mutations");
    }
    Ok(())
}

/// The tests of the crate that has a file.
fn own_tests(file: &str) -> &'static [&'static str] {
    match file.split('/').next() {
        Some("fusion") => named::FUSION,
        Some("cache") => named::CACHE,
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

/// Runs tests with a mutant, 0 for none: the name of the first that failed.
fn failure(tree: &Tree, number: usize, filter: &str) -> anyhow::Result<Option<String>> {
    let mut command = tree.cargo();
    command.args(["nextest", "run", "--locked", "--workspace", "--all-features", "--profile", "mutants"]);
    command.args(["--no-tests", "pass", "-E", filter]).env(tree::VARIABLE, number.to_string());
    let output = command.output()?;
    if output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let failed = text.lines().find_map(|line| {
        let line = line.trim_start().trim_start_matches("TRY 2 ");
        let is_end = ["FAIL ", "TIMEOUT ", "SIGSEGV ", "SIGABRT ", "LEAK-FAIL "]
            .iter()
            .any(|word| line.starts_with(word));
        is_end.then(|| line.split_once(") ").map_or(line, |(_, name)| name).trim().to_owned())
    });
    match failed {
        Some(failed) => Ok(Some(failed)),
        // Listing the tests runs the mutant too.
        None if output.status.code() == Some(104) => Ok(Some("the list of tests".to_owned())),
        None => bail!("nextest ended with {}:\n{text}", output.status),
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
        if let Some(failed) = failure(tree, 0, filter)? {
            bail!("without a mutant, {failed} fails");
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
                    caught = failure(tree, index + 1, filter)?;
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
        let (seen, total) = groups.entry(&trial.group).or_default();
        *total += 1;
        match caught {
            Some(_) => *seen += 1,
            None => missed.push(name),
        }
    }
    println!("\nnot noticed:\n{}", missed.join("\n"));
    for (group, (seen, total)) in groups {
        println!("{group}: {seen} of {total} noticed");
    }
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What earlier runs found, by the mutation's name: the test that failed, or nothing.
fn results(path: &PathBuf) -> BTreeMap<String, Option<String>> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let entry = |line: &str| {
        let (name, caught) = line.split_once('\t')?;
        Some((name.to_owned(), Some(caught.to_owned()).filter(|caught| !caught.is_empty())))
    };
    text.lines().filter_map(entry).collect()
}
