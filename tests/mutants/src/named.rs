//! Mutations requested by a review, each with the tests that have to catch it.

use std::path::Path;

use anyhow::ensure;

use crate::Trial;
use crate::find::{ACTIVE, Mutation};

struct Named {
    description: &'static str,
    file: &'static str,
    /// Text that occurs once in the file.
    original: &'static str,
    /// The new text; `MUTANT_IS_ACTIVE` stands for the condition.
    replacement: &'static str,
    /// Filters of nextest.
    tests: &'static [&'static str],
}

/// The tests of a crate, fast ones first.
pub(crate) const ENGINE: &[&str] = &[
    "(package(fuseline) or package(fuseline-runtime)) and kind(lib)",
    "package(fuseline) and (binary(engine) or binary(pjrt)) and not test(/^(collective|determinism|fork|poison)/) \
     and not test(/^plugin::(compiles|orders|sweep)|on_(a|the)_plugin|a_sink_that_feeds_itself|for_mappings/)",
];
/// The engine's tests of the disk cache, the trace cache, and values that pass between streams.
const STORE: &[&str] = &[ENGINE[0], "package(fuseline) and test(/^(plugin::environment|disk_cache)/)"];
const REPLAY: &[&str] = &[ENGINE[0], "package(fuseline) and test(/^replay/) and not test(/plugin/)"];
const STREAMS: &[&str] =
    &[ENGINE[0], "package(fuseline) and test(/^(donation|contract|events|priority|trace)/)"];
pub(crate) const FUSION: &[&str] = &["package(fuseline-fusion) and not test(/^(conformance|hostile)/)"];
/// The tests of the lowering compare with the interpreter.
pub(crate) const INTERP: &[&str] = &["package(fuseline-interp)", FUSION[0]];
pub(crate) const RECORD: &[&str] = &["package(fuseline-record)", ENGINE[0], ENGINE[1]];
pub(crate) const CACHE: &[&str] = &["package(fuseline-cache)"];
const CAPI: &[&str] = &["package(fuseline-capi)"];

const NAMED: &[Named] = &[
    Named {
        description: "Job::may_reuse asks nothing of other readers",
        file: "runtime/src/execute/job/launch.rs",
        original: "input.dies && input.value.is_last()",
        replacement: "input.dies && (MUTANT_IS_ACTIVE || input.value.is_last())",
        tests: STREAMS,
    },
    Named {
        description: "Flow::admits has no limit of bytes",
        file: "runtime/src/engine/in_flight.rs",
        original: "state.bytes.saturating_add(bytes) <= self.max_bytes",
        replacement: "(MUTANT_IS_ACTIVE || state.bytes.saturating_add(bytes) <= self.max_bytes)",
        tests: ENGINE,
    },
    Named {
        description: "InFlight::acquire counts no bytes",
        file: "runtime/src/engine/in_flight.rs",
        original: "state.bytes = state.bytes.saturating_add(bytes);",
        replacement: "if !MUTANT_IS_ACTIVE { state.bytes = state.bytes.saturating_add(bytes); }",
        tests: ENGINE,
    },
    Named {
        description: "Environment::of has no plugin's digest",
        file: "runtime/src/store/environment.rs",
        original: "plugin.to_hex().to_string()",
        replacement: "if MUTANT_IS_ACTIVE { String::new() } else { plugin.to_hex().to_string() }",
        tests: STORE,
    },
    Named {
        description: "Environment::of has no client options",
        file: "runtime/src/store/environment.rs",
        original: "client_options.to_owned()),",
        replacement: "if MUTANT_IS_ACTIVE { String::new() } else { client_options.to_owned() }),",
        tests: STORE,
    },
    Named {
        description: "Environment::of has no number of threads",
        file: "runtime/src/store/environment.rs",
        original: "parts.push((\"threads\".to_owned(), compiler.threads().to_owned()));",
        replacement: "if !MUTANT_IS_ACTIVE { parts.push((\"threads\".to_owned(), compiler.threads().to_owned())); }",
        tests: STORE,
    },
    Named {
        description: "Environment::of has no processor",
        file: "runtime/src/store/environment.rs",
        original: "parts.extend(processor::parts());",
        replacement: "if !MUTANT_IS_ACTIVE { parts.extend(processor::parts()); }",
        tests: STORE,
    },
    Named {
        description: "Environment::of has no variables",
        file: "runtime/src/store/environment.rs",
        original: "parts.extend(compiler.plugin().origin().variables()?);",
        replacement: "if !MUTANT_IS_ACTIVE { parts.extend(compiler.plugin().origin().variables()?); }",
        tests: STORE,
    },
    Named {
        description: "MemoryCache::discard compares no canonical bytes",
        file: "cache/src/memory.rs",
        original: "*entry.canonical == *canonical)?;\n        \
                   let mut state = entry.state.lock();\n        \
                   let place",
        replacement: "MUTANT_IS_ACTIVE || *entry.canonical == *canonical)?;\n        \
                   let mut state = entry.state.lock();\n        \
                   let place",
        tests: CACHE,
    },
    Named {
        description: "MemoryCache::confirm compares no canonical bytes",
        file: "cache/src/memory.rs",
        original: "*entry.canonical == *canonical);\n        \
                   if let Some(entry) = entry {\n            \
                   entry.state.lock().confirm();",
        replacement: "MUTANT_IS_ACTIVE || *entry.canonical == *canonical);\n        \
                   if let Some(entry) = entry {\n            \
                   entry.state.lock().confirm();",
        tests: CACHE,
    },
    Named {
        description: "Template::has compares no attributes",
        file: "record/src/template.rs",
        original: "signature.attrs() == attrs",
        replacement: "(MUTANT_IS_ACTIVE || signature.attrs() == attrs)",
        tests: REPLAY,
    },
    Named {
        description: "Template::has compares no bodies",
        file: "record/src/template.rs",
        original: "signature.bodies() == bodies",
        replacement: "(MUTANT_IS_ACTIVE || signature.bodies() == bodies)",
        tests: REPLAY,
    },
    Named {
        description: "compile_deadline of the C interface is the deadline of waits",
        file: "capi/src/config.rs",
        original: "config.deadlines.compile(seconds(text)?)",
        replacement: "if MUTANT_IS_ACTIVE { config.deadlines.wait(seconds(text)?) } \
                      else { config.deadlines.compile(seconds(text)?) }",
        tests: CAPI,
    },
    Named {
        description: "an operand of another stream submits nothing there",
        file: "runtime/src/engine/stream/record.rs",
        original: "owner.need(cell, Boundary::CrossStream);",
        replacement: "if !MUTANT_IS_ACTIVE { owner.need(cell, Boundary::CrossStream); }",
        tests: STREAMS,
    },
    Named {
        description: "a stream does not run after an event of another",
        file: "runtime/src/engine/stream/demand.rs",
        original: "self.replay.submit(Entry::WaitFor(fence), self);",
        replacement: "if !MUTANT_IS_ACTIVE { self.replay.submit(Entry::WaitFor(fence), self); }",
        tests: STREAMS,
    },
];

/// The named mutations of this workspace.
///
/// # Errors
///
/// If `original` does not occur exactly once in its file.
pub(crate) fn trials(root: &Path) -> anyhow::Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for named in NAMED {
        let text = std::fs::read_to_string(root.join(named.file))?;
        let mut places = text.match_indices(named.original);
        let start = places.next().map(|(start, _)| start);
        ensure!(
            start.is_some() && places.next().is_none(),
            "{}: the original text of \"{}\" does not occur exactly once",
            named.file,
            named.description
        );
        ensure!(named.replacement.contains(ACTIVE), "{}: the mutant can never be active", named.description);
        let start = start.unwrap_or_default();
        let mutation = Mutation {
            file: named.file.to_owned(),
            line: text[..start].lines().count(),
            description: named.description.to_owned(),
            range: start..start + named.original.len(),
            replacement: named.replacement.to_owned(),
        };
        trials.push(Trial {
            mutation,
            filters: named.tests.iter().map(|&filter| filter.to_owned()).collect(),
            group: "named".to_owned(),
        });
    }
    Ok(trials)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_named_mutation_has_its_text() -> anyhow::Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert_eq!(trials(&root)?.len(), NAMED.len());
        Ok(())
    }
}
