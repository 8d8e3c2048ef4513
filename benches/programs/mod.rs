//! The measured programs: one version for Fuseline's public API, here, and one for its peers, in
//! the Python file of the same name.
//!
//! A program takes its sizes from `cases.json`, makes its data with [`data`], which `data.py`
//! reproduces bit for bit, and then steps. A step ends when the host holds what a user would read
//! (a loss, a sum). So a time includes the result's arrival, and nothing is in flight between
//! steps. Peers are compared by [`Program::outputs`].

mod adam;
mod batches;
mod black_scholes;
mod chain;
mod data;
mod decode;
mod gpt2;
mod kmeans;
mod logistic;
mod lstm;
mod mlp;
mod nbody;
mod norms;
mod resnet;
mod stencil;
#[path = "../../examples/common/tape.rs"]
#[allow(dead_code, reason = "shared with the examples, which use all of it")]
mod tape;
mod training;

use std::collections::BTreeMap;

use fuseline::{Engine, Result, Tensor};
use serde_json::Value;

/// A program that is ready to step.
pub(crate) trait Program {
    /// One step, including its read.
    ///
    /// # Errors
    /// Those of its calls.
    fn step(&mut self) -> Result<()>;

    /// The results of the steps so far: names, and all elements in order.
    ///
    /// # Errors
    /// Those of the reads.
    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>>;
}

/// A number of the file as a size.
fn size(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// The sizes of a case.
#[derive(Clone, Debug)]
pub(crate) struct Params(BTreeMap<String, Value>);

impl Params {
    /// A size of the case. If it is missing, `cases.json` has a bug, which a test would find.
    pub(crate) fn int(&self, name: &str) -> usize {
        self.0.get(name).and_then(size).unwrap_or_else(|| panic!("bug: no {name} in cases.json"))
    }

    /// A list of sizes of the case.
    pub(crate) fn ints(&self, name: &str) -> Vec<usize> {
        let values = self.0.get(name).and_then(Value::as_array);
        let ints = values.and_then(|values| values.iter().map(size).collect());
        ints.unwrap_or_else(|| panic!("bug: no list {name} in cases.json"))
    }
}

type Make = fn(&Engine, &Params) -> Result<Box<dyn Program>>;

/// The programs, by name.
const PROGRAMS: &[(&str, Make)] = &[
    ("chain", chain::make),
    ("mlp", mlp::make),
    ("adam", adam::make),
    ("black_scholes", black_scholes::make),
    ("nbody", nbody::make),
    ("stencil", stencil::make),
    ("kmeans", kmeans::make),
    ("logistic", logistic::make),
    ("decode", decode::make),
    ("batches", batches::make),
    ("norms", norms::make),
    ("gpt2", gpt2::make),
    ("resnet", resnet::make),
    ("lstm", lstm::make),
    ("training", training::make),
];

/// A program with sizes, and how it is compared.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// `PROGRAM/SIZES`.
    pub(crate) name: String,
    program: String,
    params: Params,
    /// Whether it is the small case of its program.
    #[cfg(test)]
    pub(crate) quick: bool,
}

impl Case {
    /// All cases, in the order of measurement.
    pub(crate) fn all() -> Vec<Case> {
        let cases: Value = serde_json::from_str(include_str!("cases.json")).expect("bug: cases.json");
        let text = |case: &Value, key: &str| case[key].as_str().expect("bug: cases.json").to_owned();
        let case = |case: &Value| Case {
            name: text(case, "name"),
            program: text(case, "program"),
            params: Params(serde_json::from_value(case["params"].clone()).expect("bug: cases.json")),
            #[cfg(test)]
            quick: case["quick"] == true,
        };
        cases.as_array().expect("bug: cases.json").iter().map(case).collect()
    }

    /// Makes the program, before its first step.
    ///
    /// # Errors
    /// Those of the calls that make its data.
    pub(crate) fn make(&self, engine: &Engine) -> Result<Box<dyn Program>> {
        let found = PROGRAMS.iter().find(|(name, _)| *name == self.program);
        found.expect("bug: cases.json names an unknown program").1(engine, &self.params)
    }
}

/// The elements of some tensors, by name.
fn read<'a>(
    tensors: impl IntoIterator<Item = (&'static str, &'a Tensor)>,
) -> Result<Vec<(&'static str, Vec<f32>)>> {
    tensors.into_iter().map(|(name, tensor)| Ok((name, tensor.to_vec()?))).collect()
}
