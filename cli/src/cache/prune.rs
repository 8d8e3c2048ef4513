//! `fuseline cache prune`.

use std::time::SystemTime;

use fuseline::Bytes;
use fuseline::aot::{EntryFile, Folder};
use serde_json::json;

use super::args::PruneArgs;
use super::list::entries;
use super::{ago, short};
use crate::Status;
use crate::failure::Failure;
use crate::text::say;

pub(super) fn run(args: &PruneArgs, out: &mut String) -> Result<Status, Failure> {
    // Inspection suffices for a dry run, and to find that there is nothing to do.
    let Some(mut folder) = args.common.dir.look()? else {
        match args.common.json {
            true => {
                say!(out, "{:#}", json!({"removed": [], "bytes": 0, "released": [], "dry_run": args.dry_run}))
            }
            false => say!(out, "there is no cache yet: no program has stored anything"),
        }
        return Ok(Status::Good);
    };
    let chosen = choose(args, &folder)?;
    let quarantine = if args.quarantine { folder.quarantine() } else { Vec::new() };
    if !args.dry_run {
        folder = args.common.dir.open()?;
    }
    let mut removed = Vec::new();
    for file in chosen {
        if !folder.is_in_flight(&file) && (args.dry_run || folder.remove(&file)) {
            removed.push(file);
        }
    }
    let mut released = Vec::new();
    for one in quarantine {
        if args.dry_run || folder.release(&one).map_err(Failure::run)? {
            released.push(one.name());
        }
    }
    let bytes = removed.iter().map(|file| file.size.0).sum();
    if args.common.json {
        let names: Vec<String> = removed.iter().map(EntryFile::name).collect();
        let document =
            json!({"removed": names, "bytes": bytes, "released": released, "dry_run": args.dry_run});
        say!(out, "{document:#}");
        return Ok(Status::Good);
    }
    for file in &removed {
        say!(out, "{}  {}, used {}", short(&file.name()), file.size, ago(file.used));
    }
    let (removes, releases) = match args.dry_run {
        true => ("would remove", "would release from quarantine:"),
        false => ("removed", "released from quarantine:"),
    };
    say!(out, "{removes} {}, {}", entries(removed.len()), Bytes(bytes));
    for name in &released {
        say!(out, "{releases} {}", short(name));
    }
    Ok(Status::Good)
}

/// The entries that any of the options selects, least recently used first.
fn choose(args: &PruneArgs, folder: &Folder) -> Result<Vec<EntryFile>, Failure> {
    let mut files = folder.files().map_err(Failure::run)?;
    files.sort_by_key(|file| file.used);
    let mut left: u64 = files.iter().map(|file| file.size.0).sum();
    let now = SystemTime::now();
    let mut chosen = Vec::new();
    let mut kept = Vec::new();
    for file in files {
        let is_old =
            args.max_age.is_some_and(|most| now.duration_since(file.used).is_ok_and(|age| age > most));
        // Only this option needs the contents of an entry.
        let is_of = |prefix: &String| {
            folder
                .read(&file)
                .is_ok_and(|entry| entry.is_some_and(|entry| entry.environment().starts_with(&**prefix)))
        };
        if args.all || is_old || args.environment.as_ref().is_some_and(is_of) {
            left -= file.size.0;
            chosen.push(file);
        } else {
            kept.push(file);
        }
    }
    for file in kept {
        if args.max_size.is_none_or(|most| left <= most) {
            break;
        }
        left -= file.size.0;
        chosen.push(file);
    }
    Ok(chosen)
}
