//! Every op on every element type that its row of the op table allows: the plugin against the
//! reference interpreter.
//!
//! The rows' generators make the calls, so an op is compared as soon as it has a row. The data are
//! the special values of the element types (`qualify/src/special.rs`); elementwise ops get them
//! in all combinations. A pair without a possible call is a failure, and so is an exception that is
//! no longer needed.
//!
//! Families whose compiles take minutes are sampled ([`SHARE`]); `cargo xtask test full` runs all
//! of their pairs.
//!
//! `FUSELINE_PAIRS` restricts the test to these ops. `FUSELINE_PAIR_LOG` names a file for the first
//! of the pairs under test, to find one that crashes the process.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::{Display, Write as _};

use fuseline::fusion::DTypeClass;
use fuseline::fusion::lower::Target;
use fuseline::fusion::op::Fusibility;
use fuseline::interp::SumOrder;
use fuseline::qualification::OperandKind;
use fuseline::{Engine, EngineConfig, OpCode};
use fuseline_qualify::calls::{Call, MOST, Pair, calls, dtype_attr, pairs, splats};
use fuseline_qualify::compare::{Case, Outcome, run};
use fuseline_qualify::exceptions::{self, EXCEPTIONS};

use crate::support;

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

    /// The minimum number of pairs.
    fn least(self) -> usize {
        match self {
            Family::Integers => 315,
            Family::Floats => 725,
            Family::Complex => 76,
            Family::Converted => 1464,
            Family::Moved => 659,
            Family::Indexed => 168,
            Family::Combined => 536,
            Family::Opaque => 489,
        }
    }
}

/// A property of a differing element.
type Kind = (&'static str, fn(&Case) -> bool);

/// Groups the differing elements by property; those without one are sorted by difference, largest
/// first.
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

/// The results of comparing pairs.
#[derive(Default)]
struct Findings {
    pairs: usize,
    calls: usize,
    /// Descriptions of the failures.
    failures: String,
    /// By the index of an exception: the ops of the pairs that it covers, and whether one of their
    /// elements needed it.
    covered: BTreeMap<usize, BTreeSet<(OpCode, bool)>>,
}

impl Findings {
    /// Adds the outcomes of a pair's calls.
    fn add(&mut self, pair: &Pair, outcomes: Vec<Outcome>) {
        let exceptions: Vec<usize> =
            (0..EXCEPTIONS.len()).filter(|&index| EXCEPTIONS[index].covers(pair)).collect();
        let mut excused = |index: usize, is: bool| {
            self.covered.entry(index).or_default().insert((pair.def.code, is));
        };
        exceptions.iter().for_each(|&index| excused(index, false));
        let (mut cases, mut refused) = (Vec::new(), Vec::new());
        let calls = outcomes.len();
        for outcome in outcomes {
            match outcome {
                Outcome::Refused(message) => refused.push(message),
                Outcome::Failed(message) => panic!("{pair}: {message}"),
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
        self.pairs += 1;
        self.calls += calls;
        if let Some(message) = refused.first() {
            let (refused, message) = (refused.len(), cut(message));
            let _ = writeln!(self.failures, "{pair}: {refused} of {calls} calls are refused: {message}");
        }
        if !cases.is_empty() {
            self.failures.push_str(&summary(pair, &cases));
        }
    }

    /// Runs the calls of some pairs in one region, and adds the outcomes.
    fn add_all(&mut self, engine: &Engine, made: &[(&Pair, Vec<Call>)], operand_kind: OperandKind) {
        let flat: Vec<&Call> = made.iter().flat_map(|(_, calls)| calls).collect();
        let arithmetic = Target::CPU.arithmetic(SumOrder::InOrder);
        let mut outcomes = run(engine, &flat, operand_kind, arithmetic).into_iter();
        for (pair, calls) in made.iter().filter(|(_, calls)| !calls.is_empty()) {
            self.add(pair, outcomes.by_ref().take(calls.len()).collect());
        }
        engine.clear_cache();
    }

    fn judge(self, what: &str) {
        let Findings { pairs, calls, failures, .. } = self;
        println!("figures: {what}: {pairs} pairs, {calls} calls");
        assert!(failures.is_empty(), "\n{failures}");
    }

    /// An exception that no element of an op needed is a failure too, on a build that is listed as
    /// needing it.
    fn needs_all_exceptions(&mut self, engine: &Engine) {
        for (&index, uses) in &self.covered {
            let exception = &EXCEPTIONS[index];
            if !exceptions::is_listed(engine, exception.builds) {
                continue;
            }
            let ops: BTreeSet<OpCode> = uses.iter().map(|&(op, _)| op).collect();
            for op in ops.into_iter().filter(|&op| !uses.contains(&(op, true))) {
                let _ = writeln!(self.failures, "{op} does not need the exception: {}", exception.why);
            }
        }
    }
}

/// The number of pairs of one op whose calls are in one region: most of a small compile is a fixed
/// cost.
const TOGETHER: usize = 16;

fn plugin(config: EngineConfig) -> Option<Engine> {
    support::plugin_for("every op on every element type", config)
}

/// The configurations that compile the regions of a family, in turns. The interpreter, which makes
/// the expected results, runs none of them. For ops that move and
/// combine, LLVM takes half of the time, so every second region of these has no optimizations.
/// Elementwise ops are vectorized only at the higher level, and some of the opaque ones share a
/// region.
fn engines(family: Family) -> Option<Vec<Engine>> {
    let mut engines = vec![plugin(support::optimized_only())?];
    if matches!(family, Family::Moved | Family::Indexed | Family::Combined) {
        let quick = support::optimized_only()
            .compiler_flag("xla_backend_optimization_level", 0i64)
            .compiler_flag("xla_cpu_parallel_codegen_split_count", 1i64);
        engines.push(plugin(quick)?);
    }
    Some(engines)
}

/// Which part of the pairs is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    All,
    /// One in [`SHARE`] pairs of each op, at least one.
    Sample,
}

/// One in this many pairs of an op is in the sample. The first one depends on the op, so that the
/// sample has all element types.
const SHARE: usize = 12;

/// The pairs to compare, and whether they are all pairs of their ops. At least `least` pairs must
/// match. `FUSELINE_PAIRS` selects ops by name, and `FUSELINE_PART` a part of them.
fn asked(extent: Extent, least: usize, wanted: impl Fn(&Pair) -> bool) -> (Vec<Pair>, bool) {
    let pairs: Vec<Pair> = pairs().into_iter().filter(wanted).collect();
    assert!(pairs.len() >= least, "only {} pairs", pairs.len());
    let by_op: Vec<&[Pair]> = pairs.chunk_by(|a, b| a.def.code == b.def.code).collect();
    if let Ok(only) = env::var("FUSELINE_PAIRS") {
        let is_asked = |op: &&[Pair]| only.split(',').any(|name| name == op[0].def.name);
        return (by_op.into_iter().filter(is_asked).flatten().copied().collect(), true);
    }
    let part = support::part();
    let by_op = by_op.into_iter().enumerate().filter(|(place, _)| part.has(*place));
    let pairs = by_op.flat_map(|(place, op)| match extent {
        Extent::All => op.iter().step_by(1),
        Extent::Sample => op[place % SHARE.min(op.len())..].iter().step_by(SHARE),
    });
    (pairs.copied().collect(), extent == Extent::All)
}

/// Notes what is under test.
fn note(what: &dyn Display) {
    if let Some(log) = env::var_os("FUSELINE_PAIR_LOG") {
        std::fs::write(log, what.to_string()).expect("the log can be written");
    }
}

/// Compares pairs of a family.
fn compare(family: Family, extent: Extent) {
    let Some(engines) = engines(family) else { return };
    let (pairs, all) = asked(extent, family.least(), |pair| Family::of(pair) == family);
    let mut findings = Findings::default();
    let groups = pairs.chunk_by(|a, b| a.def.code == b.def.code).flat_map(|same| same.chunks(TOGETHER));
    for (group, engine) in groups.zip(engines.iter().cycle()) {
        note(&group[0]);
        let made: Vec<(&Pair, Vec<Call>)> = group.iter().map(|pair| (pair, calls(*pair, MOST))).collect();
        for (pair, _) in made.iter().filter(|(_, calls)| calls.is_empty()) {
            // Not every type can be a bitcast of every other, or the sum of its products.
            let may_be = dtype_attr(pair.def).is_some() && pair.def.fusibility != Fusibility::Elementwise;
            if !may_be {
                let _ = writeln!(findings.failures, "{pair}: no call can be made");
            }
        }
        findings.add_all(engine, &made, OperandKind::Uploaded);
    }
    if all {
        findings.needs_all_exceptions(&engines[0]);
    }
    findings.judge(&format!("{family:?}"));
}

/// The largest number of a pair's calls with constants, and of those whose operands are one number
/// each: compiles are expensive.
const MAX_CONSTANT: usize = 2;

/// XLA folds constants at compile time with other code than it generates.
fn compare_constants(extent: Extent) {
    let folded = |pair: &Pair| !pair.def.exchanges();
    let Some(engine) = plugin(support::optimized_only()) else { return };
    let (pairs, _) = asked(extent, 4_000, folded);
    let mut findings = Findings::default();
    // All types of an op in one region, since compiles are expensive.
    for pairs in pairs.chunk_by(|a, b| a.def.code == b.def.code) {
        note(&pairs[0]);
        let with_splats = |pair: Pair| {
            let calls = calls(pair, 1 << 10);
            let every = calls.len().div_ceil(MAX_CONSTANT).max(1);
            let mut calls: Vec<Call> = calls.into_iter().step_by(every).collect();
            // A matrix of one number is singular, and whether that is detected depends on rounding.
            if pair.def.fusibility != Fusibility::Opaque {
                let splats: Vec<Call> = calls.iter().flat_map(splats).collect();
                calls.extend(splats);
            }
            calls
        };
        let made: Vec<(&Pair, Vec<Call>)> = pairs.iter().map(|pair| (pair, with_splats(*pair))).collect();
        // Each call becomes hundreds of ops, so all types together exceed the limit of a graph.
        let is_large = matches!(pairs[0].def.code, OpCode::Polygamma | OpCode::Zeta);
        for made in made.chunks(if is_large { 1 } else { made.len() }) {
            findings.add_all(&engine, made, OperandKind::Constant);
        }
    }
    findings.judge("constants");
}

#[test]
fn constants() {
    compare_constants(Extent::Sample);
}

#[test]
#[ignore = "exhaustive: `cargo xtask test full`"]
fn full_constants() {
    compare_constants(Extent::All);
}

/// An exception that no pair can need is detected too.
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
    ($($test:ident: $family:ident, $extent:ident;)*) => {$(
        #[test]
        fn $test() {
            compare(Family::$family, Extent::$extent);
        }
    )*};
}

families! {
    integers_by_themselves: Integers, All;
    floats_by_themselves: Floats, All;
    complex_numbers_by_themselves: Complex, All;
    converted_elements: Converted, Sample;
    moved_elements: Moved, All;
    indexed_elements: Indexed, All;
    combined_elements: Combined, Sample;
    other_ops: Opaque, Sample;
}

#[test]
#[ignore = "exhaustive: `cargo xtask test full`"]
fn full_converted_elements() {
    compare(Family::Converted, Extent::All);
}

#[test]
#[ignore = "exhaustive: `cargo xtask test full`"]
fn full_combined_elements() {
    compare(Family::Combined, Extent::All);
}

#[test]
#[ignore = "exhaustive: `cargo xtask test full`"]
fn full_other_ops() {
    compare(Family::Opaque, Extent::All);
}

/// The sample contains every op and every element type.
#[test]
fn the_sample_has_every_op() {
    let (all, _) = asked(Extent::All, 0, |_| true);
    let (sample, _) = asked(Extent::Sample, 0, |_| true);
    let ops = |pairs: &[Pair]| pairs.iter().map(|pair| pair.def.code).collect::<BTreeSet<OpCode>>();
    assert_eq!(ops(&sample), ops(&all));
    let types = |pairs: &[Pair]| pairs.iter().map(|pair| pair.dtype).collect::<BTreeSet<_>>();
    assert_eq!(types(&sample), types(&all));
    assert!(sample.len() < all.len() / 2, "{} of {}", sample.len(), all.len());
}
