//! Every op on every element type that its row of the op table allows: the plugin against the reference interpreter.
//!
//! The calls are those of the rows' generators, so an op is compared the day its row is added; their data are the special
//! values of the element types (`tests/support/special.rs`). Elementwise ops get them in all combinations. A pair of which
//! no call can be made is a failure, and so is an exception that is not needed any more.
//!
//! `FUSELINE_PAIRS` names ops to compare only those, and `FUSELINE_PAIR_LOG` a file that holds the pair under test, for when
//! the plugin takes the process down.
#![allow(missing_docs, clippy::print_stdout, reason = "a test")]

mod calls;
mod compare;
mod exceptions;
#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;

use calls::{Pair, calls, dtype_attr, pairs};
use compare::{Case, Outcome, run};
use exceptions::EXCEPTIONS;
use fuseline::fusion::DTypeClass;
use fuseline::fusion::op::Fusibility;
use fuseline::{EngineConfig, OpCode};

/// Pairs that one test compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Integers,
    Floats,
    Complex,
    Converted,
    Moved,
    Indexed,
    Combined,
    Opaque,
}

impl Family {
    fn of(pair: &Pair) -> Family {
        match (pair.def.fusibility, pair.dtype.class()) {
            (Fusibility::Elementwise | Fusibility::Movement, _) if dtype_attr(pair.def).is_some() => {
                Family::Converted
            }
            (Fusibility::Elementwise, DTypeClass::Float) => Family::Floats,
            (Fusibility::Elementwise, DTypeClass::Complex) => Family::Complex,
            (Fusibility::Elementwise, _) => Family::Integers,
            (Fusibility::Movement | Fusibility::Source, _) => Family::Moved,
            (Fusibility::Indexing, _) => Family::Indexed,
            (Fusibility::Reduction | Fusibility::Contraction, _) => Family::Combined,
            (Fusibility::Opaque, _) => Family::Opaque,
        }
    }
}

/// What an element that differs can be like.
type Kind = (&'static str, fn(&Case) -> bool);

/// The elements that differ, by what they are like; those that are like nothing in particular with the farthest off first.
fn summary(pair: &Pair, cases: &[Case]) -> String {
    let mut text = format!("{pair}: {} elements differ\n", cases.len());
    let kinds: [Kind; 4] = [
        ("nonfinite", exceptions::is_not_finite),
        ("subnormal", exceptions::has_subnormal),
        ("extreme", exceptions::is_extreme),
        ("zero", exceptions::has_zero),
    ];
    let mut left: Vec<&Case> = cases.iter().collect();
    for (name, is) in kinds {
        let (these, rest): (Vec<&Case>, Vec<&Case>) = left.into_iter().partition(|case| is(case));
        left = rest;
        if let Some(first) = these.first() {
            let _ = writeln!(text, "    {} {name}, as {}", these.len(), cut(&first.to_string()));
        }
    }
    left.sort_by(|a, b| b.steps.total_cmp(&a.steps));
    for case in left.iter().take(3) {
        let _ = writeln!(text, "    ({}) {}", left.len(), cut(&case.to_string()));
    }
    text
}

fn cut(text: &str) -> String {
    text.chars().take(1_500).collect()
}

/// Compares the pairs of a family, of which there must be so many at least.
fn compare(family: Family, least: usize) {
    let engine = match EngineConfig::new().build() {
        Ok(engine) => engine,
        Err(error) => {
            println!("skipped: every op on every element type: {error}");
            return;
        }
    };
    let only = env::var("FUSELINE_PAIRS").ok();
    let is_asked =
        |pair: &Pair| only.as_ref().is_none_or(|only| only.split(',').any(|name| name == pair.def.name));
    let log = env::var_os("FUSELINE_PAIR_LOG");
    let (mut failures, mut compared, mut ran) = (String::new(), 0, 0);
    let mut covered: BTreeMap<usize, BTreeSet<(OpCode, bool)>> = BTreeMap::new();
    for pair in pairs().into_iter().filter(|pair| Family::of(pair) == family && is_asked(pair)) {
        if let Some(log) = &log {
            std::fs::write(log, pair.to_string()).expect("the log can be written");
        }
        let calls = calls(pair);
        if calls.is_empty() {
            // Not every type is the bits of every other, or the sum of its products.
            let may_be = dtype_attr(pair.def).is_some() && pair.def.fusibility != Fusibility::Elementwise;
            if !may_be {
                let _ = writeln!(failures, "{pair}: no call can be made");
            }
            continue;
        }
        let mut excused = |index: usize, is: bool| {
            covered.entry(index).or_default().insert((pair.def.code, is));
        };
        let exceptions: Vec<usize> =
            (0..EXCEPTIONS.len()).filter(|&index| EXCEPTIONS[index].covers(&pair)).collect();
        exceptions.iter().for_each(|&index| excused(index, false));
        let (mut cases, mut refused) = (Vec::new(), Vec::new());
        for outcome in run(&engine, &calls) {
            ran += 1;
            match outcome {
                Outcome::Refused(message) => refused.push(message),
                Outcome::Ran(found) => {
                    for case in found {
                        match exceptions.iter().find(|&&index| (EXCEPTIONS[index].excuses)(&case)) {
                            Some(&index) => excused(index, true),
                            None => cases.push(case),
                        }
                    }
                }
            }
        }
        compared += 1;
        if let Some(message) = refused.first() {
            let _ = writeln!(
                failures,
                "{pair}: {} of {} calls are refused: {}",
                refused.len(),
                calls.len(),
                cut(message)
            );
        }
        if !cases.is_empty() {
            failures.push_str(&summary(&pair, &cases));
        }
        engine.clear_cache();
    }
    for (index, uses) in covered {
        let exception = &EXCEPTIONS[index];
        let ops: BTreeSet<OpCode> = uses.iter().map(|&(op, _)| op).collect();
        for op in ops.into_iter().filter(|&op| !uses.contains(&(op, true))) {
            let _ = writeln!(failures, "{op} does not need the exception: {}", exception.why);
        }
    }
    println!("{family:?}: {compared} pairs, {ran} calls");
    assert!(failures.is_empty(), "\n{failures}");
    assert!(only.is_some() || compared >= least, "{family:?}: only {compared} pairs");
}

/// An exception that no pair can need is noticed too.
#[test]
fn exceptions_are_about_pairs() {
    for exception in EXCEPTIONS {
        for op in exception.ops {
            let covers = |pair: &Pair| pair.def.code == *op && exception.covers(pair);
            assert!(pairs().iter().any(covers), "{op}: {}", exception.why);
        }
    }
}

macro_rules! families {
    ($($test:ident: $family:ident, at least $least:literal;)*) => {$(
        #[test]
        fn $test() {
            compare(Family::$family, $least);
        }
    )*};
}

families! {
    integers_by_themselves: Integers, at least 315;
    floats_by_themselves: Floats, at least 725;
    complex_numbers_by_themselves: Complex, at least 76;
    converted_elements: Converted, at least 1464;
    moved_elements: Moved, at least 659;
    indexed_elements: Indexed, at least 168;
    combined_elements: Combined, at least 536;
    other_ops: Opaque, at least 489;
}
