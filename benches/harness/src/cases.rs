//! The cases: programs with sizes.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::cli::Options;

/// A program with sizes, and how its results are compared.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Case {
    /// `PROGRAM/SIZES`.
    pub(crate) name: String,
    /// The Python module.
    pub(crate) program: String,
    pub(crate) params: Value,
    pub(crate) about: String,
    pub(crate) check: Check,
    /// Libraries without a version of it, with the reason.
    pub(crate) without: BTreeMap<String, String>,
    quick: bool,
}

/// When results are compared, and the tolerance.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Check {
    pub(crate) steps: usize,
    pub(crate) tolerance: f64,
}

/// All cases, in the order of measurement.
fn all() -> anyhow::Result<Vec<Case>> {
    serde_json::from_str(include_str!("../../programs/cases.json")).context("benches/programs/cases.json")
}

/// The cases that the options select.
pub(crate) fn chosen(options: &Options) -> anyhow::Result<Vec<Case>> {
    let is_asked = |case: &Case| match &options.only {
        Some(only) => case.name.contains(only.as_str()),
        None => case.quick || !options.quick,
    };
    let chosen: Vec<Case> = all()?.into_iter().filter(is_asked).collect();
    ensure!(!chosen.is_empty(), "no case name contains this text; `fuseline bench --list` lists the cases");
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Each program has a version or a reason to have none for each library, and one small case.
    #[test]
    fn programs_have_versions_for_their_peers() {
        let cases = all().expect("they are well formed");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs");
        let mut names = BTreeSet::new();
        for case in &cases {
            assert!(names.insert(&case.name), "{} is there twice", case.name);
            assert!(case.name.starts_with(&format!("{}/", case.program)), "{}", case.name);
            let file = folder.join(format!("{}.py", case.program));
            let text = std::fs::read_to_string(&file).expect("each program has a Python file");
            for library in ["numpy", "jax", "torch"] {
                // Defined in the file, or derived from another program's version.
                let has =
                    text.contains(&format!("class {library}")) || text.contains(&format!(".{library})"));
                assert_ne!(has, case.without.contains_key(library), "{}: {library}", case.name);
            }
        }
        for program in cases.iter().map(|case| &case.program).collect::<BTreeSet<_>>() {
            assert!(
                cases.iter().any(|case| case.program == *program && case.quick),
                "{program} has no small case"
            );
        }
        assert!(names.len() >= 14);
    }
}
