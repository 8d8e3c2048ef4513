//! Reads the counts of the bench `counts` from gungraun's summaries.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use fuseline_micro::op::{self, BATCH, Class};
use fuseline_micro::region;
use serde_json::Value;

use crate::figures::Counts;

/// The counts below a folder, for one op or one region.
pub(crate) fn read(folder: &Path) -> anyhow::Result<Counts> {
    let mut counts = Counts::new();
    for file in summaries(folder)? {
        let text = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
        let summary: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is not a summary", file.display()))?;
        let word = |name: &str| summary[name].as_str().unwrap_or_default();
        let (name, batch) = named(word("function_name"), word("id"))
            .with_context(|| format!("{} belongs to an unknown benchmark", file.display()))?;
        let total = &summary["profiles"][0]["data"]["total"]["metrics"]["Ir"]["values"]["new"];
        let total = total.as_f64().with_context(|| format!("{} has no count", file.display()))?;
        counts.insert(name, total / batch as f64);
    }
    if counts.is_empty() {
        bail!("there are no counts below {}", folder.display());
    }
    Ok(counts)
}

/// The summaries below a folder.
fn summaries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(summaries(&path)?);
        } else if path.file_name().is_some_and(|name| name == "summary.json") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The name of a figure, and the number of ops or regions in a batch of the bench.
fn named(function: &str, id: &str) -> Option<(String, usize)> {
    if let Some(ops) = id.strip_prefix("ops_") {
        let ops: usize = ops.parse().ok()?;
        let stage = function.trim_end_matches("_region").replace('_', " ");
        region::Stage::ALL.into_iter().find(|known| known.name() == stage)?;
        return Some((format!("region/{stage}/{ops}"), region::batch_size(ops)));
    }
    let (class, stage) = (id.replace('_', "-"), function.trim_end_matches("_handle"));
    Class::ALL.into_iter().find(|known| known.name() == class)?;
    op::Stage::ALL.into_iter().find(|known| known.name() == stage)?;
    Some((format!("op/{class}/{stage}"), BATCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benches_have_the_names_of_figures() {
        assert_eq!(named("drop_handle", "multi_output"), Some(("op/multi-output/drop".to_owned(), BATCH)));
        assert_eq!(named("handle", "dot"), Some(("op/dot/handle".to_owned(), BATCH)));
        assert_eq!(named("take_in", "ops_100").map(|(name, _)| name), Some("region/take in/100".to_owned()));
        assert_eq!(named("record_region", "ops_1").map(|(name, _)| name), Some("region/record/1".to_owned()));
        assert_eq!(named("something", "dot"), None);
    }
}
