//! A copy of the workspace that contains all mutants.
//!
//! All mutants are compiled at once, and an environment variable activates one: mutant schemata,
//! after Untch, Offutt and Harrold, "Mutation Analysis Using Mutant Schemata" (1993).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::find::{ACTIVE, Mutation};

/// The environment variable that activates a mutant by its number. The first is 1.
pub(crate) const VARIABLE: &str = "FUSELINE_MUTANT";

/// The function that is added to each crate.
const CHECK: &str = r#"
#[doc(hidden)]
#[allow(warnings)]
pub fn mutant_is_active(number: u32) -> bool {
    static ACTIVE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let active = || std::env::var("FUSELINE_MUTANT").ok().and_then(|text| text.parse().ok());
    *ACTIVE.get_or_init(|| active().unwrap_or(0)) == number
}
"#;

#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    copy: PathBuf,
    /// Tracked and new files, relative to the root.
    files: Vec<String>,
}

/// The place of a mutant in the copy.
struct Place {
    file: String,
    range: Range<usize>,
    number: usize,
}

impl Tree {
    /// Prepares the copy under `target/mutants`; [`Tree::write_mutants`] fills it.
    pub(crate) fn new(root: &Path) -> anyhow::Result<Self> {
        let work = root.join("target/mutants");
        let copy = work.join("tree");
        std::fs::create_dir_all(&copy)?;
        let listed = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()?;
        ensure!(listed.status.success(), "git lists no files of {}", root.display());
        let listed = String::from_utf8(listed.stdout)?;
        let files = listed.split('\0').filter(|name| root.join(name).is_file()).map(str::to_owned).collect();
        std::fs::create_dir_all(copy.join(".cargo"))?;
        let link = |from: &Path, to: PathBuf| -> anyhow::Result<()> {
            if from.exists() && to.symlink_metadata().is_err() {
                std::os::unix::fs::symlink(from, to)?;
            }
            Ok(())
        };
        link(&root.join(".setup"), copy.join(".setup"))?;
        link(&root.join(".cargo/libclang"), copy.join(".cargo/libclang"))?;
        link(&root.join("../shared"), work.join("shared"))?;
        Ok(Self { root: root.to_owned(), copy, files })
    }

    /// A command of cargo in the copy.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(&self.copy);
        command.env("CARGO_TARGET_DIR", self.root.join("target/mutants/build"));
        command.env("RUSTFLAGS", "--cap-lints=warn");
        command
    }

    /// Writes the mutants into the copy, and sets those to `None` that do not compile. A mutant's
    /// number is its place in the list, counted from 1.
    pub(crate) fn write_mutants(&self, mutations: &mut [Option<Mutation>]) -> anyhow::Result<()> {
        loop {
            let places = self.write(mutations)?;
            let unviable = self.check(&places)?;
            if unviable.is_empty() {
                return Ok(());
            }
            for number in unviable {
                mutations[number - 1] = None;
            }
        }
    }

    fn write(&self, mutations: &[Option<Mutation>]) -> anyhow::Result<Vec<Place>> {
        let mut mutated: BTreeMap<&str, Vec<(usize, &Mutation)>> = BTreeMap::new();
        for (index, mutation) in mutations.iter().enumerate() {
            if let Some(mutation) = mutation {
                mutated.entry(&mutation.file).or_default().push((index + 1, mutation));
            }
        }
        let libraries: BTreeSet<String> = mutated.keys().map(|file| library(file)).collect();
        let mut places = Vec::new();
        for file in &self.files {
            let mut here = mutated.remove(file.as_str()).unwrap_or_default();
            let is_library = libraries.contains(file);
            if here.is_empty() && !is_library {
                write(&self.copy.join(file), &std::fs::read(self.root.join(file))?)?;
                continue;
            }
            let text = std::fs::read_to_string(self.root.join(file))?;
            here.sort_by_key(|(_, mutation)| mutation.range.start);
            let mut written = String::new();
            let mut end = 0;
            for (number, mutation) in here {
                written += &text[end..mutation.range.start];
                let start = written.len();
                written +=
                    &mutation.replacement.replace(ACTIVE, &format!("crate::mutant_is_active({number})"));
                places.push(Place { file: file.clone(), range: start..written.len(), number });
                end = mutation.range.end;
            }
            written += &text[end..];
            if is_library {
                written += CHECK;
            }
            write(&self.copy.join(file), written.as_bytes())?;
        }
        Ok(places)
    }

    /// The numbers of the mutants that do not compile.
    fn check(&self, places: &[Place]) -> anyhow::Result<Vec<usize>> {
        let mut command = self.cargo();
        command.args(["check", "--locked", "--all-features", "--keep-going", "--quiet"]);
        command.args(["--message-format=json", "--lib"]);
        for package in [
            "fuseline",
            "fuseline-sync",
            "fuseline-fusion",
            "fuseline-interp",
            "fuseline-cache",
            "fuseline-pjrt",
            "fuseline-record",
            "fuseline-runtime",
            "fuseline-capi",
        ] {
            command.args(["--package", package]);
        }
        let output = command.output().context("cargo does not start")?;
        if output.status.success() {
            return Ok(Vec::new());
        }
        let mut unviable = Vec::new();
        let mut errors = Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
            let message = &message["message"];
            if message["level"] != "error" {
                continue;
            }
            errors.push(message["rendered"].as_str().unwrap_or_default().to_owned());
            for span in message["spans"].as_array().into_iter().flatten() {
                let (Some(file), Some(start)) = (span["file_name"].as_str(), span["byte_start"].as_u64())
                else {
                    continue;
                };
                let at = usize::try_from(start)?;
                let here = |place: &&Place| file.ends_with(&place.file) && place.range.contains(&at);
                unviable.extend(places.iter().find(here).map(|place| place.number));
            }
        }
        unviable.sort_unstable();
        unviable.dedup();
        if unviable.is_empty() {
            bail!(
                "the copy does not compile for a reason that is no mutant:\n{}\n{}",
                errors.join("\n"),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        println!("{} mutants do not compile", unviable.len());
        Ok(unviable)
    }
}

/// The root module of the crate that has a file.
fn library(file: &str) -> String {
    let folder = file.split_once("src/").map_or("", |(folder, _)| folder);
    format!("{folder}src/lib.rs")
}

/// Writes a file unless it has these bytes already, so that cargo does not build it again.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, bytes).with_context(|| format!("{} cannot be written", path.display()))
}
