//! Options of `fuseline cache`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use fuseline::pjrt::Value;

use crate::options::{DeviceOptions, client_option};

pub(crate) const CACHE_HELP: &str = "\
The cache is in --cache-dir, or FUSELINE_CACHE_DIR, or $XDG_CACHE_HOME/fuseline, or
~/.cache/fuseline. The key that seals its entries is in FUSELINE_CACHE_KEY_FILE, or
$XDG_STATE_HOME/fuseline/cache.key, or ~/.local/state/fuseline/cache.key.

Examples:
  fuseline cache ls                               list the entries
  fuseline cache warm run.jsonl                   compile the regions of a manifest before a run
  fuseline cache explain 5f3a                     show everything about an entry
  fuseline cache prune --max-size 500M            shrink the cache

Exit status:
  0  success
  1  an entry is damaged, a region does not compile, or an operation failed
  2  the command line is wrong, or there is no such entry";

#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) command: CacheCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Compile the regions of a manifest that the cache lacks
    #[command(after_help = WARM_HELP)]
    Warm(WarmArgs),
    /// List the entries
    #[command(after_help = LS_HELP)]
    Ls(LsArgs),
    /// Show the number and size of the entries, and their environments
    Stats(StatsArgs),
    /// Open every entry and check it
    #[command(after_help = VERIFY_HELP)]
    Verify(VerifyArgs),
    /// Remove entries
    #[command(after_help = PRUNE_HELP)]
    Prune(PruneArgs),
    /// Show everything about an entry: its ops, results and environment
    #[command(after_help = EXPLAIN_HELP)]
    Explain(ExplainArgs),
    /// Write executables to a bundle, for another machine like this one
    #[command(after_help = EXPORT_HELP)]
    Export(ExportArgs),
    /// Add the executables of a bundle
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
}

impl CacheCommand {
    pub(crate) fn loads_plugin(&self) -> bool {
        match self {
            CacheCommand::Warm(_) => true,
            CacheCommand::Explain(args) => args.device.is_some(),
            _ => false,
        }
    }

    pub(crate) fn wants_json(&self) -> bool {
        match self {
            CacheCommand::Warm(args) => args.common.json,
            CacheCommand::Ls(args) => args.common.json,
            CacheCommand::Stats(args) => args.common.json,
            CacheCommand::Verify(args) => args.common.json,
            CacheCommand::Prune(args) => args.common.json,
            CacheCommand::Explain(args) => args.common.json,
            CacheCommand::Export(args) => args.common.json,
            CacheCommand::Import(args) => args.common.json,
        }
    }
}

/// Options of every subcommand.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dir: CacheDir,
}

/// The location of the cache.
#[derive(Debug, Args)]
pub(crate) struct CacheDir {
    /// Folder of the cache [default: the cache of this user's programs]
    #[arg(long = "cache-dir", value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

const WARM_HELP: &str = "\
A run writes its manifest with EngineConfig::manifest. The regions are compiled as in that run, with
its numerics and its number of replicas, for the devices of this machine. With --target, they are
compiled for devices that need not be present, named as the plugin names them. Plugins for
accelerators may support that; XLA's CPU plugin does not. Later runs have to use the same plugin
file and client options. A manifest does not contain compiler flags (EngineConfig::compiler_flag): a
program that sets them calls Engine::warm_cache or EngineConfig::warm_cache_for itself.

Examples:
  fuseline cache warm run.jsonl
  fuseline cache warm run.jsonl --jobs 8 --device /path/to/plugin.so
  fuseline cache warm run.jsonl --device libtpu.so --target v5e:2x2   for other devices; then `fuseline cache export`
  FUSELINE_CACHE=only ./program                   run without compiling anything

Exit status:
  0  the cache has every region of the manifest
  1  a region does not compile or cannot be stored
  2  the command line is wrong";

#[derive(Debug, Args)]
pub(crate) struct WarmArgs {
    /// The manifest of a run
    #[arg(value_name = "MANIFEST")]
    pub(crate) manifest: PathBuf,
    /// Number of concurrent compiles [default: as in a run, 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) jobs: Option<u32>,
    /// Compile for devices that need not be present, by the plugin's name for them
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// Describe the target devices to the plugin; may be repeated
    #[arg(long = "target-option", value_name = "NAME=VALUE", value_parser = client_option, requires = "target")]
    pub(crate) target_options: Vec<(String, Value)>,
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) place: DeviceOptions,
}

const LS_HELP: &str = "\
Examples:
  fuseline cache ls
  fuseline cache ls --json | jq '.entries | map(.bytes) | add'";

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    pub(crate) common: Common,
}

const VERIFY_HELP: &str = "\
A check is not needed for safety: a program that finds a damaged entry removes it and compiles the
region.

Exit status:
  0  every entry is intact
  1  an entry is damaged or cannot be read
  2  the command line is wrong";

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Remove damaged entries
    #[arg(long)]
    pub(crate) remove: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

const PRUNE_HELP: &str = "\
Several options together remove each entry that one of them selects. Entries that a process is
compiling now stay.

Examples:
  fuseline cache prune --max-size 500M            remove the least recently used, until this much is left
  fuseline cache prune --max-age 30d --dry-run    show what would be removed
  fuseline cache prune --environment 81c2         remove the entries of another plugin or processor
  fuseline cache prune --quarantine               compile quarantined regions again";

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["max_size", "max_age", "environment", "quarantine", "all"]))]
pub(crate) struct PruneArgs {
    /// Leave at most this many bytes: a number, with K, M or G for 1024, 1024² or 1024³
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_size: Option<u64>,
    /// Remove entries that were not used for this long: a number, with s, m, h or d for seconds,
    /// minutes, hours or days
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub(crate) max_age: Option<Duration>,
    /// Remove entries of environments whose fingerprints begin with this
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub(crate) environment: Option<String>,
    /// Lift the quarantine of all regions
    #[arg(long)]
    pub(crate) quarantine: bool,
    /// Remove every entry
    #[arg(long)]
    pub(crate) all: bool,
    /// Only show what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

const EXPLAIN_HELP: &str = "\
Examples:
  fuseline cache explain 5f3a
  fuseline cache explain 5f3a --module            as a StableHLO module too
  fuseline cache explain 5f3a --device plugin.so  how its environment differs from this plugin on this machine

Exit status:
  0  the entry was found
  1  the cache or the plugin cannot be used
  2  the command line is wrong, or there is no such entry";

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The beginning of a region's key or of an entry's name, as `ls` shows them
    #[arg(value_name = "KEY", value_parser = prefix)]
    pub(crate) key: String,
    /// Also print the region as a StableHLO module
    #[arg(long)]
    pub(crate) module: bool,
    /// Compare its environment with that of this PJRT plugin on this machine
    #[arg(long, value_name = "PLUGIN")]
    pub(crate) device: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
}

const EXPORT_HELP: &str = "\
The bundle is sealed with a key of its own: 32 random bytes in a file to which only its owner has
access. The file is created if it does not exist. Whoever has the key can make bundles that run any
code. The key of the cache is not exported.

Examples:
  fuseline cache export step.bundle --key-file bundle.key
  fuseline cache export step.bundle 5f3a 81c2 --key-file bundle.key";

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The bundle
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Only entries whose region key or name begins with one of these [default: all]
    #[arg(value_name = "KEY", value_parser = prefix)]
    pub(crate) keys: Vec<String>,
    /// Key that seals the bundle [default: FUSELINE_CACHE_BUNDLE_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
}

const IMPORT_HELP: &str = "\
Every entry is checked before the first one is added, and sealed again with the key of this cache.
Entries that are already present stay.

Examples:
  fuseline cache import step.bundle --key-file bundle.key

Exit status:
  0  the cache has every entry of the bundle
  1  the bundle is not valid and nothing was added, or an entry could not be stored
  2  the command line is wrong";

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The bundle
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Key that the bundle was sealed with [default: FUSELINE_CACHE_BUNDLE_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Splits a text into a number and what follows it.
fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = number(text).and_then(|(number, unit)| {
        let shift = match unit {
            "" => 0,
            "K" | "k" => 10,
            "M" => 20,
            "G" => 30,
            _ => return None,
        };
        number.checked_mul(1 << shift)
    });
    bytes.ok_or_else(|| "expected a number of bytes, such as 500M".to_owned())
}

fn age(text: &str) -> Result<Duration, String> {
    let seconds = number(text).and_then(|(number, unit)| {
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            "d" => 86_400,
            _ => return None,
        };
        number.checked_mul(seconds)
    });
    seconds.map(Duration::from_secs).ok_or_else(|| "expected a duration, such as 30d or 12h".to_owned())
}

fn prefix(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    match text.len() {
        1..=64 if text.bytes().all(|byte| byte.is_ascii_hexdigit()) => Ok(text),
        _ => Err("expected 1 to 64 hexadecimal digits".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_have_units() {
        assert_eq!((size("0"), size("7"), size("2K"), size("3G")), (Ok(0), Ok(7), Ok(2048), Ok(3 << 30)));
        assert_eq!(age("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(age("2d"), Ok(Duration::from_secs(172_800)));
        for wrong in ["", "M", "-1", "1T", "1.5M", "99999999999999999999", "18446744073709551615G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "1", "d", "1y", "1 d"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_are_hexadecimal() {
        assert_eq!(prefix("5F3a"), Ok("5f3a".to_owned()));
        for wrong in ["", "xyz", &"0".repeat(65)] {
            assert!(prefix(wrong).is_err(), "{wrong}");
        }
    }
}
