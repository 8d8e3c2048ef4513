//! `fuseline cache explain`.

use fuseline::aot::{Entry, EntryFile, EntryKind, Environment};
use fuseline::fusion::canon::CanonRegion;
use fuseline::fusion::ir::Ref;
use fuseline::{DiskCacheConfig, EngineConfig};
use serde_json::{Value, json};

use super::args::ExplainArgs;
use super::list::entry_json;
use super::{Opened, ago, is_meant, short};
use crate::Status;
use crate::failure::Failure;
use crate::region_history::attributes;
use crate::text::{count, say, time};

pub(super) fn run(args: &ExplainArgs, out: &mut String) -> Result<Status, Failure> {
    let folder = args.common.dir.look_into()?;
    let opened = Opened::of(&folder)?;
    let meant: Vec<&(EntryFile, Entry)> =
        opened.entries.iter().filter(|(file, entry)| is_meant(file, entry, &args.key)).collect();
    let quarantine = folder.quarantine();
    let crashed: Vec<_> = quarantine.iter().filter(|one| one.name().starts_with(&args.key)).collect();
    if meant.is_empty() && crashed.is_empty() {
        return Err(Failure::Input(format!(
            "no entry of {} has a key or name that begins with {}",
            folder.path().display(),
            args.key
        )));
    }
    let here = match &args.device {
        Some(plugin) => Some(here(plugin, args.common.dir.config()?)?),
        None => None,
    };
    let all: Vec<Entry> = meant.iter().map(|(_, entry)| entry.clone()).collect();
    let known = folder.environments(&all);
    let mut documents = Vec::new();
    for (file, entry) in meant {
        let there = known.get(entry.environment());
        let in_quarantine = quarantine.iter().find(|one| one.is_about(entry)).map(ToString::to_string);
        if args.common.json {
            let differences = differences(here.as_ref(), there);
            let mut document = entry_json(file, entry);
            document["outputs"] = json!(entry.outputs());
            document["aliases"] = json!(entry.aliases());
            document["constants"] = json!(entry.constants());
            document["quick"] = json!(entry.is_quick());
            document["calls"] =
                json!(entry.canon().map(|canon| ops(canon).map(|row| row.join(" ")).collect::<Vec<_>>()));
            document["environment_parts"] = json!(there.map(|there| there.parts().collect::<Vec<_>>()));
            document["differs_here"] = json!(differences);
            document["quarantine"] = json!(in_quarantine);
            document["module"] = json!(args.module.then(|| entry.module()));
            documents.push(document);
        } else {
            words(args, file, entry, there, here.as_ref(), in_quarantine.as_deref(), out);
        }
    }
    for one in crashed {
        match args.common.json {
            true => documents.push(json!({"name": one.name(), "kind": null, "quarantine": one.to_string()})),
            false => say!(out, "region {} is in quarantine: {one}", short(&one.name())),
        }
    }
    if args.common.json {
        say!(out, "{:#}", Value::Array(documents));
    }
    Ok(Status::Good)
}

/// The environment of a plugin on this machine.
fn here(plugin: &std::path::Path, config: DiskCacheConfig) -> Result<Environment, Failure> {
    let engine = EngineConfig::new().plugin(plugin).disk_cache(config).build().map_err(Failure::run)?;
    engine.cache_environment().ok_or_else(|| {
        Failure::Run(
            "the environment of this machine is unknown: the cache or the plugin's file cannot be read"
                .to_owned(),
        )
    })
}

/// The parts that differ: name, value in the entry, value here. `None` if they are unknown.
fn differences<'a>(
    here: Option<&'a Environment>,
    there: Option<&'a Environment>,
) -> Option<Vec<(&'a str, &'a str, &'a str)>> {
    Some(there?.differences(here?))
}

fn words(
    args: &ExplainArgs,
    file: &EntryFile,
    entry: &Entry,
    there: Option<&Environment>,
    here: Option<&Environment>,
    quarantine: Option<&str>,
    out: &mut String,
) {
    let what = match entry.kind() {
        EntryKind::Executable if entry.is_quick() => "a baseline executable, compiled without optimizations",
        EntryKind::Executable => "an executable",
        EntryKind::NotWorthIt => {
            "an executable that is not kept, because it takes longer to load than to compile"
        }
        _ => "a note",
    };
    say!(out, "entry {}: {what}", file.name());
    say!(out, "  region       {}, {}", entry.region(), count(entry.ops(), "op"));
    say!(out, "  file         {}, used {}", file.size, ago(file.used));
    say!(out, "  compile      {}", time(entry.compile_time()));
    if let Some(took) = entry.load_time() {
        say!(out, "  load         {}", time(took));
    }
    if let Some(why) = quarantine {
        say!(out, "  quarantine   {why}");
    }
    if let Some(canon) = entry.canon() {
        let mut title = "inputs";
        for (index, ty) in canon.graph().params().iter().enumerate() {
            let lifted = if canon.lifted()[index] { ", a lifted scalar" } else { "" };
            let alias = entry.aliases().into_iter().find(|&(param, _)| param as usize == index);
            let alias = alias.map(|(_, place)| format!(", may be donated to output {place}"));
            let constants = entry.constants();
            let constant = constants.iter().find(|(param, _)| *param as usize == index);
            let constant = constant.map(|(_, value)| format!(", compiled in as the constant {value}"));
            let (alias, constant) = (alias.unwrap_or_default(), constant.unwrap_or_default());
            say!(out, "  {title:<12} in{index}: {ty}{lifted}{alias}{constant}");
            title = "";
        }
        let mut title = "outputs";
        for output in entry.outputs() {
            if let Some(ty) = canon.graph().type_of(Ref::Result(output)) {
                say!(out, "  {title:<12} %{output}: {ty}");
                title = "";
            }
        }
        say!(out, "  ops");
        let rows: Vec<[String; 3]> = ops(canon).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (first, second) = (width(0), width(1));
        for [results, types, call] in &rows {
            say!(out, "    {results:<first$} : {types:<second$} = {call}");
        }
    }
    say!(out, "  environment  {}", entry.environment());
    match (here, there) {
        (_, None) if entry.kind() != EntryKind::Note => say!(out, "    unknown"),
        (Some(_), Some(_)) => {
            let differing = differences(here, there).unwrap_or_default();
            for (part, was, is) in &differing {
                say!(out, "    {part}: {was}; here {is}");
            }
            if differing.is_empty() {
                say!(out, "    the same as on this machine");
            }
        }
        (None, Some(there)) => {
            for (part, value) in there.parts() {
                say!(out, "    {part}: {value}");
            }
        }
        _ => {}
    }
    if args.module {
        say!(out, "{}", entry.module().trim_end());
    }
}

/// For each op its results, their types, and the call.
fn ops(canon: &CanonRegion) -> impl Iterator<Item = [String; 3]> {
    let name = |value: &Ref| match value {
        Ref::Param(index) => format!("in{index}"),
        Ref::Result(index) => format!("%{index}"),
    };
    canon.graph().nodes().iter().map(move |node| {
        let signature = node.signature();
        let list = |values: &[Ref]| values.iter().map(name).collect::<Vec<_>>().join(", ");
        let types: Vec<String> = signature.results().iter().map(ToString::to_string).collect();
        let mut call = format!("{}({})", signature.op().name(), list(node.operands()));
        let attrs = attributes(signature.def(), signature.attrs());
        if !attrs.is_empty() {
            call = format!("{call} {{{attrs}}}");
        }
        [list(&node.results().collect::<Vec<_>>()), types.join(", "), call]
    })
}
