//! Every elementwise op of one float, on every `f16` and every `bf16`: the plugin against the reference interpreter.
//!
//! One executable per op and element type runs over all 65,536 elements. An op that rounds may be off by one unit in the
//! last place, or by what [`NEAR_ZERO`] says; subnormal numbers of `bf16` may be read and written as zero, as
//! `tests/support/judge.rs` says. An exception that is not needed any more is a failure too.
#![allow(missing_docs, clippy::print_stdout, reason = "a test")]

mod support;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use fuseline::fusion::op::{Fusibility, OPS, Operands, Signature};
use fuseline::fusion::program::{Program, ProgramId, ProgramOp, ProgramValue, Role};
use fuseline::fusion::{OpDef, interp};
use fuseline::{Attrs, DType, Engine, EngineConfig, Literal, Mode, TensorType, with_mode};
use support::judge::{Float, NEAR_ZERO, READS_ZERO, Rule, Verdict};

/// The rows that the test is about.
fn rows() -> impl Iterator<Item = &'static OpDef> {
    let unary = |def: &&OpDef| {
        def.fusibility == Fusibility::Elementwise
            && matches!(def.operands, Operands::Fixed([_]))
            && def.attrs.is_empty()
    };
    OPS.iter().filter(unary)
}

/// A program of one call on all elements.
fn program(def: &OpDef, dtype: DType) -> Program {
    let ty = TensorType::of(dtype, &[1 << 16]).expect("small");
    let bytes = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let data = Arc::new(Literal::from_bytes(ty.clone(), bytes).expect("fits"));
    let signature = Signature::infer(def.code, Attrs::none(), &[], &[ty]).expect("the row takes it");
    Program {
        name: format!("{} of {dtype}", def.name),
        values: vec![ProgramValue { id: ProgramId(0), role: Role::Input, data }],
        ops: vec![ProgramOp {
            signature: Arc::new(signature),
            operands: vec![ProgramId(0)],
            results: vec![ProgramId(1)],
        }],
        outputs: vec![ProgramId(1)],
        ..Program::default()
    }
}

/// What is found out about one op on one type.
#[derive(Default)]
struct Findings {
    /// Most units in the last place that a result is off by.
    worst: u64,
    /// Elements that are off by any.
    off: usize,
    /// Elements that are right only with a subnormal read or written as zero.
    flushed: usize,
    /// Elements that are right only by an exception of [`NEAR_ZERO`] or [`READS_ZERO`].
    excepted: usize,
    wrong: Vec<String>,
}

/// Compares the results of all elements, in the order of their bits.
fn compare(def: &OpDef, dtype: DType, actual: &Literal, wanted: &Literal) -> Findings {
    let mut findings = Findings::default();
    let float = |bits: u16| Float { dtype, bits: bits.into() };
    if wanted.dtype() != dtype {
        assert_eq!(wanted.dtype(), DType::Bool, "{}", def.name);
        for (bits, (actual, wanted)) in (0..=u16::MAX).zip(actual.bytes().iter().zip(wanted.bytes())) {
            if actual != wanted {
                findings.wrong.push(format!("{:?} gives {actual}", float(bits).value()));
            }
        }
        return findings;
    }
    let rule = Rule {
        numerics: def.numerics,
        steps: 1,
        absolute: NEAR_ZERO.iter().find(|(op, ..)| *op == def.code).map_or(0.0, |&(_, most, _)| most),
        reads_zero: READS_ZERO.iter().any(|(op, _)| *op == def.code),
    };
    let all = |literal: &Literal| -> Vec<Float> {
        literal.bytes().chunks_exact(2).map(|raw| float(u16::from_le_bytes([raw[0], raw[1]]))).collect()
    };
    let (actual, wanted) = (all(actual), all(wanted));
    for bits in 0..=u16::MAX {
        let x = float(bits);
        let (found, right) = (actual[usize::from(bits)], wanted[usize::from(bits)]);
        match rule.judge(found, right, wanted[x.flushed().bits as usize]) {
            Verdict::Right(steps) => {
                findings.worst = findings.worst.max(steps);
                findings.off += usize::from(steps > 0);
            }
            Verdict::Flushed => findings.flushed += 1,
            Verdict::Excepted => findings.excepted += 1,
            Verdict::Wrong => findings.wrong.push(format!(
                "{:e} gives {:e}, not {:e} ({:?} steps)",
                x.value(),
                found.value(),
                right.value(),
                found.steps(right)
            )),
        }
    }
    findings
}

#[test]
fn every_short_float_through_every_elementwise_op() {
    let engine: Engine = match EngineConfig::new().build() {
        Ok(engine) => engine,
        Err(error) => {
            println!("skipped: every short float through every op: {error}");
            return;
        }
    };
    let (mut report, mut failures) = (String::new(), String::new());
    let (mut count, mut excepted) = (0, BTreeSet::new());
    for def in rows() {
        for dtype in [DType::F16, DType::BF16] {
            if !def.dtypes.contains(dtype) {
                continue;
            }
            count += 1;
            let program = Arc::new(program(def, dtype));
            let wanted = interp::call(&program.ops[0].signature, &[program.values[0].data.clone()]);
            let prepared = engine.prepare(program.clone()).expect("the data is taken");
            let actual = with_mode(Mode::Fused, || prepared.results()).expect("the op runs");
            let found = compare(def, dtype, &actual[0], &wanted.expect("it runs")[0]);
            let _ = writeln!(
                report,
                "{:22} {dtype:4} {} ulp, {:5} off, {:4} flushed, {:3} excepted",
                def.name, found.worst, found.off, found.flushed, found.excepted
            );
            if found.excepted > 0 {
                excepted.insert(def.code);
            }
            if !found.wrong.is_empty() {
                let _ = writeln!(failures, "{} of {dtype}: {} wrong", def.name, found.wrong.len());
                let last = found.wrong.len().saturating_sub(2).max(3);
                for line in found.wrong.iter().take(3).chain(found.wrong.iter().skip(last)) {
                    let _ = writeln!(failures, "    {line}");
                }
            }
        }
    }
    println!("{report}{count} executables");
    assert!(count > 60, "only {count} ops and types");
    assert!(failures.is_empty(), "\n{failures}");
    let listed = NEAR_ZERO.iter().map(|(op, ..)| *op).chain(READS_ZERO.iter().map(|(op, _)| *op));
    assert_eq!(excepted, listed.collect(), "the exceptions that are needed, and those that are listed");
}
