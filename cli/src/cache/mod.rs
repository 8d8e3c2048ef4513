//! `fuseline cache`: inspects the disk cache, fills it ahead of time, moves it to other machines,
//! and removes entries.

pub(crate) mod args;
mod bundle;
mod explain;
mod list;
mod prune;
mod warm;

use std::path::PathBuf;
use std::time::SystemTime;

use fuseline::DiskCacheConfig;
use fuseline::aot::{Entry, EntryFile, Folder};

use crate::Status;
use crate::failure::Failure;
use args::{CacheArgs, CacheCommand, CacheDir};

pub(crate) fn run(args: &CacheArgs, out: &mut String) -> Result<Status, Failure> {
    match &args.command {
        CacheCommand::Warm(args) => warm::run(args, out),
        CacheCommand::Ls(args) => list::ls(args, out),
        CacheCommand::Stats(args) => list::stats(args, out),
        CacheCommand::Verify(args) => list::verify(args, out),
        CacheCommand::Prune(args) => prune::run(args, out),
        CacheCommand::Explain(args) => explain::run(args, out),
        CacheCommand::Export(args) => bundle::export(args, out),
        CacheCommand::Import(args) => bundle::import(args, out),
    }
}

impl CacheDir {
    fn config(&self) -> Result<DiskCacheConfig, Failure> {
        let config = DiskCacheConfig::of_environment().map_err(Failure::run)?;
        Ok(match &self.dir {
            Some(dir) => config.folder(dir),
            None => config,
        })
    }

    /// Opens the folder for inspection. `None` if it does not exist.
    fn look(&self) -> Result<Option<Folder>, Failure> {
        Folder::look(&self.config()?).map_err(Failure::run)
    }

    /// Opens the folder for inspection. Fails if it does not exist.
    fn look_into(&self) -> Result<Folder, Failure> {
        self.look()?
            .ok_or_else(|| Failure::Run("there is no cache yet: no program has stored anything".to_owned()))
    }

    /// Opens the folder for changes.
    fn open(&self) -> Result<Folder, Failure> {
        Folder::open(&self.config()?).map_err(Failure::run)
    }
}

/// All readable entries, and the problems of the others.
#[derive(Default)]
struct Opened {
    entries: Vec<(EntryFile, Entry)>,
    damaged: Vec<(EntryFile, String)>,
}

impl Opened {
    fn of(folder: &Folder) -> Result<Opened, Failure> {
        let mut opened = Opened::default();
        for file in folder.files().map_err(Failure::run)? {
            match folder.read(&file) {
                Ok(Some(entry)) => opened.entries.push((file, entry)),
                // It was removed meanwhile.
                Ok(None) => {}
                Err(error) => opened.damaged.push((file, error.to_string())),
            }
        }
        Ok(opened)
    }
}

/// Whether the region key or the name of an entry begins with `prefix`.
fn is_meant(file: &EntryFile, entry: &Entry, prefix: &str) -> bool {
    file.name().starts_with(prefix) || entry.region().starts_with(prefix)
}

/// The beginning of a key, long enough to be unique in practice.
fn short(key: &str) -> &str {
    key.get(..8).unwrap_or(key)
}

/// `3 h ago`.
fn ago(used: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(used).unwrap_or_default().as_secs();
    match seconds {
        0..60 => "now".to_owned(),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// Seconds since 1970, for programs.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The key file of a bundle.
fn key_file(given: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    let variable = || std::env::var_os("FUSELINE_CACHE_BUNDLE_KEY_FILE").filter(|value| !value.is_empty());
    given.cloned().or_else(|| variable().map(PathBuf::from)).ok_or_else(|| {
        Failure::Input(
            "a bundle needs a key of its own: set --key-file or FUSELINE_CACHE_BUNDLE_KEY_FILE".to_owned(),
        )
    })
}
