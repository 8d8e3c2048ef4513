//! `fuseline cache ls`, `stats` and `verify`.

use std::collections::BTreeMap;

use fuseline::Bytes;
use fuseline::aot::{Entry, EntryFile, EntryKind};
use serde_json::{Value, json};

use super::args::{LsArgs, StatsArgs, VerifyArgs};
use super::{Opened, ago, seconds, short};
use crate::Status;
use crate::failure::Failure;
use crate::text::{count, milliseconds, note, say, time};

pub(super) fn ls(args: &LsArgs, out: &mut String) -> Result<Status, Failure> {
    let Some(folder) = args.common.dir.look()? else {
        return Ok(empty(args.common.json, out));
    };
    let mut opened = Opened::of(&folder)?;
    // Crash notes are not listed; `stats` counts them.
    opened.entries.retain(|(_, entry)| entry.kind() != EntryKind::Note);
    opened.entries.sort_by_key(|(file, _)| std::cmp::Reverse(file.used));
    if args.common.json {
        let entries: Vec<Value> =
            opened.entries.iter().map(|(file, entry)| entry_json(file, entry)).collect();
        let document = json!({
            "folder": folder.path(),
            "entries": entries,
            "damaged": damaged_json(&opened),
        });
        say!(out, "{document:#}");
    } else {
        let head =
            ["KEY", "NAME", "OPS", "SIZE", "COMPILE", "LOAD", "USED", "ENVIRONMENT"].map(str::to_owned);
        let rows = opened.entries.iter().map(|(file, entry)| {
            [
                short(entry.region()).to_owned(),
                short(&file.name()).to_owned(),
                entry.ops().to_string(),
                match entry.kind() {
                    EntryKind::NotWorthIt => "not kept".to_owned(),
                    _ => file.size.to_string(),
                },
                time(entry.compile_time()),
                entry.load_time().map_or("-".to_owned(), time),
                ago(file.used),
                short(entry.environment()).to_owned(),
            ]
        });
        table(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), out);
        report_damaged(&opened);
    }
    Ok(Status::Good)
}

fn empty(is_json: bool, out: &mut String) -> Status {
    if is_json {
        say!(out, "{:#}", json!({"folder": null, "entries": [], "damaged": []}));
    } else {
        say!(out, "there is no cache yet: no program has stored anything");
    }
    Status::Good
}

pub(super) fn entry_json(file: &EntryFile, entry: &Entry) -> Value {
    json!({
        "key": entry.region(),
        "name": file.name(),
        "kind": entry.kind().name(),
        "ops": entry.ops(),
        "bytes": file.size.0,
        "compile_ms": milliseconds(entry.compile_time()),
        "load_ms": entry.load_time().map(milliseconds),
        "used": seconds(file.used),
        "environment": entry.environment(),
    })
}

fn damaged_json(opened: &Opened) -> Vec<Value> {
    let row =
        |(file, why): &(EntryFile, String)| json!({"name": file.name(), "bytes": file.size.0, "why": why});
    opened.damaged.iter().map(row).collect()
}

fn report_damaged(opened: &Opened) {
    if !opened.damaged.is_empty() {
        let entries = opened.damaged.len();
        let words = if entries == 1 { "1 entry is".to_owned() } else { format!("{entries} entries are") };
        note(format_args!("fuseline: {words} damaged; `fuseline cache verify` shows the reasons"));
    }
}

/// Prints a table. Numbers need no special alignment.
fn table<const N: usize>(rows: &[[String; N]], out: &mut String) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        say!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

pub(super) fn stats(args: &StatsArgs, out: &mut String) -> Result<Status, Failure> {
    let Some(folder) = args.common.dir.look()? else {
        return Ok(empty(args.common.json, out));
    };
    let opened = Opened::of(&folder)?;
    let (orphans, strangers) = folder.litter().map_err(Failure::run)?;
    let quarantine = folder.quarantine();
    let (mut kinds, mut environments) = (BTreeMap::new(), BTreeMap::new());
    let mut total = (0usize, 0u64);
    for (file, entry) in &opened.entries {
        let add = |sum: &mut (usize, u64)| *sum = (sum.0 + 1, sum.1 + file.size.0);
        add(kinds.entry(entry.kind()).or_default());
        add(&mut total);
        if entry.kind() != EntryKind::Note {
            add(environments.entry(entry.environment().to_owned()).or_default());
        }
    }
    let all: Vec<Entry> = opened.entries.iter().map(|(_, entry)| entry.clone()).collect();
    let known = folder.environments(&all);
    // The parts by which people tell environments apart.
    let words = |environment: &str| {
        let parts: BTreeMap<&str, &str> = known.get(environment)?.parts().collect();
        let names = ["platform", "PJRT version", "numerics", "processor model name", "threads"];
        let said = names.iter().filter_map(|name| parts.get(name).map(|value| format!("{name} {value}")));
        Some(said.collect::<Vec<_>>().join(", "))
    };
    if args.common.json {
        let sums = |(entries, bytes): (usize, u64)| json!({"entries": entries, "bytes": bytes});
        let kinds: BTreeMap<&str, Value> =
            kinds.iter().map(|(kind, &sum)| (kind.name(), sums(sum))).collect();
        let environments: Vec<Value> = environments
            .iter()
            .map(|(name, sum)| {
                let parts = known.get(name).map(|known| known.parts().collect::<Vec<_>>());
                json!({"environment": name, "entries": sum.0, "bytes": sum.1, "parts": parts})
            })
            .collect();
        let quarantine: Vec<Value> = quarantine
            .iter()
            .map(|one| json!({"name": one.name(), "why": one.to_string(), "until": seconds(one.until())}))
            .collect();
        let document = json!({
            "folder": folder.path(),
            "entries": total.0,
            "bytes": total.1,
            "kinds": kinds,
            "environments": environments,
            "damaged": damaged_json(&opened),
            "quarantine": quarantine,
            "orphans": orphans,
            "strangers": strangers,
        });
        say!(out, "{document:#}");
        return Ok(Status::Good);
    }
    say!(out, "folder       {}", folder.path().display());
    say!(out, "entries      {}, {}", total.0, Bytes(total.1));
    for (kind, sum) in &kinds {
        let words = match kind {
            EntryKind::Executable => "executables",
            EntryKind::NotWorthIt => "not kept, because they take longer to load than to compile",
            _ => "notes of environments and plugins",
        };
        say!(out, "  {:<10} {words}, {}", sum.0, Bytes(sum.1));
    }
    for (environment, sum) in &environments {
        let words = words(environment).unwrap_or_else(|| "unknown".to_owned());
        say!(out, "environment  {}: {}, {}; {words}", short(environment), entries(sum.0), Bytes(sum.1));
    }
    say!(out, "damaged      {}", opened.damaged.len());
    say!(out, "quarantine   {}", quarantine.len());
    for one in &quarantine {
        say!(out, "  {} {one}", short(&one.name()));
    }
    say!(out, "orphans      {orphans}, to be removed by the next run");
    if strangers > 0 {
        say!(out, "other files  {}", count(strangers, "file"));
    }
    Ok(Status::Good)
}

pub(super) fn entries(number: usize) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{number} entries") }
}

pub(super) fn verify(args: &VerifyArgs, out: &mut String) -> Result<Status, Failure> {
    let Some(folder) = args.common.dir.look()? else {
        return Ok(empty(args.common.json, out));
    };
    let opened = Opened::of(&folder)?;
    let mut removed = 0;
    if args.remove && !opened.damaged.is_empty() {
        let folder = args.common.dir.open()?;
        removed = opened.damaged.iter().filter(|(file, _)| folder.remove(file)).count();
    }
    let good = opened.entries.len();
    if args.common.json {
        let document = json!({"good": good, "damaged": damaged_json(&opened), "removed": removed});
        say!(out, "{document:#}");
    } else {
        for (file, why) in &opened.damaged {
            say!(out, "{}: {why}", file.name());
        }
        say!(out, "{} good, {} damaged", entries(good), opened.damaged.len());
        if removed > 0 {
            say!(out, "removed {}", entries(removed));
        }
    }
    Ok(if opened.damaged.is_empty() { Status::Good } else { Status::Bad })
}
