//! `fuseline doctor`.

use fuseline::mappings;
use fuseline::pjrt::discover::{Candidate, Discovery, Source, Sources, Verdict};
use serde_json::{Value, json};

use crate::Status;
use crate::capabilities::capability_words;
use crate::cli::DoctorArgs;
use crate::devices::{client_words, device_words};
use crate::failure::Failure;
use crate::probe;
use crate::text::{say, time};

const NOTHING: &str = "install a plugin, or set FUSELINE_PJRT_PLUGIN to the path of one; in a checkout of this project, \
                       `cargo xtask setup` fetches one for the CPU";

const SOURCES: [Source; 5] =
    [Source::Explicit, Source::PluginVariable, Source::NamesAndPaths, Source::Python, Source::Setup];

/// A candidate and the result of its probe.
struct Finding {
    candidate: Candidate,
    answer: Value,
}

impl Finding {
    fn is_usable(&self) -> bool {
        self.answer["usable"] == true
    }

    fn file(&self) -> String {
        let path = self.candidate.path.as_ref().map(|path| path.display().to_string());
        match (&self.candidate.name, path) {
            (Some(name), Some(path)) => format!("{name}: {path}"),
            (Some(name), None) => name.clone(),
            (None, Some(path)) => path,
            (None, None) => "an entry".to_owned(),
        }
    }
}

pub(crate) fn run(args: &DoctorArgs, out: &mut String) -> Result<Status, Failure> {
    let sources = Sources::of_process().with_explicit(args.device.clone());
    let discovery = Discovery::look(&sources);
    let mut findings: Vec<Finding> = Vec::new();
    let mut chosen = None;
    // A plugin that the user named is the only one that counts; the others are probed anyway.
    let named = discovery.candidates().iter().position(|candidate| candidate.source.is_decisive());
    for (index, candidate) in discovery.candidates().iter().enumerate() {
        let considered = chosen.is_none() && named.is_none_or(|named| named == index);
        let answer = match (&candidate.path, &candidate.verdict) {
            (Some(path), _) => probe::ask(path, considered),
            (None, Verdict::Unusable(problem)) => {
                json!({"usable": false, "problem": problem, "advice": "write the variable as name:path,name:path"})
            }
            (None, _) => json!({"usable": false, "problem": "it does not name a file", "advice": "name one"}),
        };
        let finding = Finding { candidate: candidate.clone(), answer };
        if considered && finding.is_usable() {
            chosen = Some(index);
        }
        findings.push(finding);
    }
    let smoke = chosen.map(|index| &findings[index].answer["smoke"]);
    let good = smoke.is_some_and(|smoke| smoke["passed"] == true);
    if args.json {
        let document = json(&discovery, &findings, chosen, good);
        say!(out, "{document:#}");
    } else {
        words(&discovery, &findings, chosen, named.is_some(), out);
    }
    Ok(if good { Status::Good } else { Status::Bad })
}

fn words(discovery: &Discovery, findings: &[Finding], chosen: Option<usize>, named: bool, out: &mut String) {
    say!(out, "PJRT plugins, in the order in which they are tried");
    for (number, source) in (1..).zip(SOURCES) {
        say!(out);
        say!(out, "{number}. {source}");
        for (_, note) in discovery.notes().iter().filter(|(of, _)| *of == source) {
            say!(out, "   {note}");
        }
        for (index, finding) in findings.iter().enumerate().filter(|(_, f)| f.candidate.source == source) {
            let verdict = match (chosen, named) {
                (Some(chosen), _) if chosen == index => "usable, and chosen",
                (_, true) => "usable, but another plugin was named",
                _ => "usable, but an earlier one is chosen",
            };
            finding_words(finding, verdict, out);
        }
    }
    say!(out);
    if let Some(now) = mappings::count() {
        let most = mappings::most();
        say!(
            out,
            "memory mappings: {now} in this process, at most {most} (vm.max_map_count); with {} \
             or more, executables of CPU plugins are evicted",
            most / 2
        );
    }
    match chosen.map(|index| &findings[index]) {
        None => {
            say!(out, "no plugin can be used: {NOTHING}");
        }
        Some(finding) => {
            say!(out, "chosen: {}", client_words(&finding.answer["client"]));
            let smoke = &finding.answer["smoke"];
            match smoke["ms"].as_f64() {
                Some(ms) if smoke["passed"] == true => {
                    let took = time(std::time::Duration::from_secs_f64(ms / 1e3));
                    say!(out, "test computation: correct, in {took} with its compile");
                }
                _ => {
                    say!(out, "test computation: failed: {}", smoke["problem"].as_str().unwrap_or_default());
                    say!(out, "what to do: install another version of the plugin, or choose another plugin");
                }
            }
        }
    }
}

/// What the probe found, or why it found nothing. `verdict` is for a usable plugin.
fn finding_words(finding: &Finding, verdict: &str, out: &mut String) {
    say!(out, "   {}", finding.file());
    if !finding.is_usable() {
        say!(out, "     cannot be used: {}", finding.answer["problem"].as_str().unwrap_or_default());
        let output = finding.answer["output"].as_array().into_iter().flatten();
        for (number, line) in output.filter_map(Value::as_str).enumerate() {
            let lead = if number == 0 { "its output: " } else { "            " };
            say!(out, "     {lead}{line}");
        }
        say!(out, "     what to do: {}", finding.answer["advice"].as_str().unwrap_or_default());
        return;
    }
    let client = &finding.answer["client"];
    say!(out, "     {verdict}");
    let word = |key: &str| client[key].as_str().unwrap_or_default();
    // The version of XLA's CPU platform is just its name.
    let version = Some(word("platform_version")).filter(|version| *version != word("platform"));
    let version = version.map(|version| format!(" ({version})")).unwrap_or_default();
    say!(out, "     platform {}{version}, API {}", word("platform"), word("api_version"));
    for note in client["notes"].as_array().into_iter().flatten() {
        say!(out, "     note: {}", note.as_str().unwrap_or_default());
    }
    device_words(client, "     ", out);
    let extensions: Vec<&str> =
        client["extensions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !extensions.is_empty() {
        say!(out, "     extensions: {}", extensions.join(", "));
    }
    capability_words(&finding.answer["capabilities"], "     ", out);
}

fn json(discovery: &Discovery, findings: &[Finding], chosen: Option<usize>, good: bool) -> Value {
    let candidates = findings.iter().enumerate().map(|(index, finding)| {
        let mut entry = json!({
            "source": finding.candidate.source.to_string(),
            "name": finding.candidate.name,
            "path": finding.candidate.path,
            "chosen": chosen == Some(index),
        });
        if let (Some(entry), Some(answer)) = (entry.as_object_mut(), finding.answer.as_object()) {
            entry.extend(answer.clone());
        }
        entry
    });
    let notes =
        discovery.notes().iter().map(|(source, note)| json!({"source": source.to_string(), "note": note}));
    json!({
        "status": if good { "ok" } else { "failed" },
        "advice": chosen.is_none().then_some(NOTHING),
        "mappings": {"now": mappings::count(), "most": mappings::most()},
        "candidates": candidates.collect::<Vec<_>>(),
        "sources_without": notes.collect::<Vec<_>>(),
    })
}
