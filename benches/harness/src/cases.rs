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
    /// Libraries that have no version of it, with the reason.
    pub(crate) without: BTreeMap<String, String>,
    quick: bool,
}

/// When results are compared, and how close they must be.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Check {
    pub(crate) steps: usize,
    pub(crate) tolerance: f64,
}

/// All of them, in the order in which they are measured.
fn all() -> anyhow::Result<Vec<Case>> {
    serde_json::from_str(include_str!("../../programs/cases.json")).context("benches/programs/cases.json")
}

/// Those that the options ask for.
pub(crate) fn chosen(options: &Options) -> anyhow::Result<Vec<Case>> {
    let is_asked = |case: &Case| match &options.only {
        Some(only) => case.name.contains(only.as_str()),
        None => case.quick || !options.quick,
    };
    let chosen: Vec<Case> = all()?.into_iter().filter(is_asked).collect();
    ensure!(!chosen.is_empty(), "no case has this in its name; `fuseline bench --list` lists them");
    Ok(chosen)
}
