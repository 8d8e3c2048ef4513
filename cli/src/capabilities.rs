//! What a plugin was found to do, as JSON and as text.

use fuseline::{Capabilities, Engine, Features};
use serde_json::{Value, json};

use crate::text::say;

/// The capabilities and the features of an engine's plugin. Features that could not be determined
/// are replaced by the reason.
pub(crate) fn capabilities_json(engine: &Engine) -> Value {
    let Some(capabilities) = engine.capabilities() else { return Value::Null };
    let mut answer = flags_json(capabilities);
    answer["flushed"] = json!(capabilities.flushed().map(|flushed| flushed.to_string()));
    match engine.features() {
        Ok(features) => answer["features"] = json!(features.map(|features| features_json(&features))),
        Err(error) => answer["features_unknown"] = json!(error.to_string()),
    }
    answer
}

fn flags_json(capabilities: &Capabilities) -> Value {
    let missing: Vec<&str> = capabilities.missing_flags().map(|flag| flag.name).collect();
    let flag = |(flag, accepted): (&fuseline::CompilerFlag, bool)| {
        json!({
            "name": flag.name,
            "value": flag.value().to_string(),
            "usage": flag.usage.to_string(),
            "accepted": accepted,
            "missing": missing.contains(&flag.name),
            "purpose": flag.purpose,
            "without_it": flag.fallback,
        })
    };
    json!({"flags": capabilities.flags().map(flag).collect::<Vec<_>>()})
}

fn features_json(features: &Features) -> Value {
    json!({
        "donation": features.donation,
        "serialization": features.serialization,
        "memory_plans": features.memory_plans,
        "memory_statistics": features.memory_statistics,
        "host_functions": features.host_functions,
        "dtypes": features.dtypes.iter().map(|dtype| dtype.to_string()).collect::<Vec<_>>(),
    })
}

/// The features by their keys in JSON, with words for people.
const FEATURES: [(&str, &str); 5] = [
    ("donation", "reuse of argument memory"),
    ("serialization", "serialized executables"),
    ("memory_plans", "memory plans"),
    ("memory_statistics", "memory statistics"),
    ("host_functions", "calls of host functions"),
];

/// Writes the result of [`capabilities_json`], a line for each group.
pub(crate) fn capability_words(capabilities: &Value, indent: &str, out: &mut String) {
    let flags = || capabilities["flags"].as_array().into_iter().flatten();
    let total = flags().count();
    if total > 0 {
        let accepted = flags().filter(|flag| flag["accepted"] == true).count();
        say!(out, "{indent}compiler flags: {accepted} of {total} accepted");
    }
    for flag in flags().filter(|flag| flag["missing"] == true) {
        let word = |key: &str| flag[key].as_str().unwrap_or_default();
        say!(out, "{indent}  without {} ({}): {}", word("name"), word("usage"), word("without_it"));
    }
    if let Some(flushed) = capabilities["flushed"].as_str() {
        say!(out, "{indent}subnormal numbers are zero in: {flushed}");
    }
    if let Some(why) = capabilities["features_unknown"].as_str() {
        say!(out, "{indent}features: unknown ({why})");
    }
    let features = &capabilities["features"];
    if features.is_object() {
        let with = |is: bool| -> Vec<&str> {
            FEATURES.iter().filter(|(key, _)| features[*key] == is).map(|(_, words)| *words).collect()
        };
        for (label, words) in [("has", with(true)), ("lacks", with(false))] {
            if !words.is_empty() {
                say!(out, "{indent}{label}: {}", words.join(", "));
            }
        }
        let dtypes: Vec<&str> =
            features["dtypes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        say!(out, "{indent}element types: {}", dtypes.join(", "));
    }
}
