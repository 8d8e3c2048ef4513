//! Every elementwise op of one float on every `f16` and every `bf16`, and every elementwise op on
//! every element, or pair of elements, of 2 and 4 bits: the plugin against the reference
//! interpreter.
//!
//! One executable per op and element type runs over all 65,536 elements. An op that rounds may
//! differ by one unit in the last place, or as [`NEAR_ZERO`] allows. Both sides read and write
//! subnormal numbers of `bf16` as zero. An exception that is no longer needed is a failure too.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use fuseline::fusion::lower::Target;
use fuseline::fusion::op::{Fusibility, OPS, Operands, Signature, attrs};
use fuseline::fusion::program::{Program, ProgramId, ProgramOp, ProgramValue, Role};
use fuseline::fusion::{DTypeClass, DTypeSet, OpDef};
use fuseline::interp;
use fuseline::interp::SumOrder;
use fuseline::{Attrs, DType, Literal, Mode, OpCode, TensorType, with_mode};
use fuseline_qualify::judge::{Float, NEAR_ZERO, Rule, Verdict};

use crate::support;
use crate::support::plugin_for;

/// The elementwise rows with this many operands and without attributes.
fn rows(operands: usize) -> impl Iterator<Item = &'static OpDef> {
    OPS.iter().filter(move |def| {
        def.fusibility == Fusibility::Elementwise
            && matches!(def.operands, Operands::Fixed(names) if names.len() == operands)
            && def.attrs.is_empty()
    })
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

/// The results of one op on one type.
#[derive(Default)]
struct Findings {
    /// The largest difference, in units in the last place.
    worst: u64,
    /// The number of elements that differ.
    off: usize,
    /// The number of elements next to the smallest normal number that are flushed.
    flushed: usize,
    /// The number of elements that only pass by an exception of [`NEAR_ZERO`].
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
        rounding: def.rounding,
        steps: 1,
        absolute: NEAR_ZERO.iter().find(|(op, ..)| *op == def.code).map_or(0.0, |&(_, most, _)| most),
    };
    let all = |literal: &Literal| -> Vec<Float> {
        literal.bytes().chunks_exact(2).map(|raw| float(u16::from_le_bytes([raw[0], raw[1]]))).collect()
    };
    let (actual, wanted) = (all(actual), all(wanted));
    for bits in 0..=u16::MAX {
        let x = float(bits);
        let (found, right) = (actual[usize::from(bits)], wanted[usize::from(bits)]);
        match rule.judge(found, right) {
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
    let what = "every short float through every op";
    let Some(engine) = plugin_for(what, support::optimized_only()) else { return };
    let (mut report, mut failures) = (String::new(), String::new());
    let (mut count, mut excepted) = (0, BTreeSet::new());
    let arithmetic = Target::CPU.arithmetic(SumOrder::InOrder);
    for def in rows(1) {
        for dtype in [DType::F16, DType::BF16] {
            if !def.dtypes.contains(dtype) {
                continue;
            }
            count += 1;
            let program = Arc::new(program(def, dtype));
            let wanted =
                interp::call_by(arithmetic, &program.ops[0].signature, &[program.values[0].data.clone()]);
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
    let listed = NEAR_ZERO.iter().map(|(op, ..)| *op);
    assert_eq!(excepted, listed.collect(), "the exceptions that are needed, and those that are listed");
}

/// All pairs of elements of a type of 2 or 4 bits: left elements, right elements.
fn pairs(dtype: DType) -> [Arc<Literal>; 2] {
    let (bits, patterns) = (dtype.bits(), 1u32 << dtype.bits());
    let ty = TensorType::of(dtype, &[(patterns * patterns).into()]).expect("small");
    [0, bits].map(|place| {
        let element = |pair: u32| {
            let pattern = (pair >> place & (patterns - 1)) as u8;
            // In the form of host memory, sign-extended.
            let unused = 8 - bits;
            if dtype.class() == DTypeClass::Signed {
                ((pattern << unused) as i8 >> unused) as u8
            } else {
                pattern
            }
        };
        let bytes = (0..patterns * patterns).map(element).collect();
        Arc::new(Literal::from_bytes(ty.clone(), bytes).expect("in range"))
    })
}

/// One executable per type has all the ops. All results are equal.
#[test]
fn every_narrow_element_through_every_elementwise_op() {
    let what = "every element of 2 and 4 bits through every op";
    let Some(engine) = plugin_for(what, support::optimized_only()) else { return };
    let mut calls = 0;
    for dtype in DTypeSet::NARROW.iter() {
        let operands = pairs(dtype);
        let values = (0..).zip(&operands).map(|(id, data)| ProgramValue {
            id: ProgramId(id),
            role: Role::Input,
            data: data.clone(),
        });
        let mut program = Program { values: values.collect(), ..Program::default() };
        for (count, def) in [1, 2].into_iter().flat_map(|count| rows(count).map(move |def| (count, def))) {
            if !def.dtypes.contains(dtype) {
                continue;
            }
            let mut record = |op, attrs, operands: &[(ProgramId, TensorType)]| {
                let types: Vec<TensorType> = operands.iter().map(|operand| operand.1.clone()).collect();
                let signature = Signature::infer(op, attrs, &[], &types).expect("the row takes it");
                let result = ProgramId(2 + program.ops.len() as u32);
                let made = (result, signature.results()[0].clone());
                program.ops.push(ProgramOp {
                    signature: Arc::new(signature),
                    operands: operands.iter().map(|operand| operand.0).collect(),
                    results: vec![result],
                });
                program.outputs.push(result);
                made
            };
            let given = [0, 1].map(|id| (ProgramId(id), operands[0].ty().clone()));
            let result = record(def.code, Attrs::none(), &given[..count]);
            // Results are reduced to their range at the end; a conversion shows whether they were
            // in range before.
            record(OpCode::Convert, attrs::convert(DType::F32), &[result]);
        }
        calls += program.ops.len() / 2;
        let program = Arc::new(program);
        let prepared = engine.prepare(program.clone()).expect("the data is taken");
        let found = with_mode(Mode::Fused, || prepared.results()).expect("the ops run");
        let mut values = operands.to_vec();
        for (op, found) in program.ops.iter().zip(&found) {
            let signature = &op.signature;
            let given: Vec<Arc<Literal>> =
                op.operands.iter().map(|id| values[id.0 as usize].clone()).collect();
            let wanted = interp::call(signature, &given).expect("it runs").remove(0);
            assert_eq!(found.ty(), wanted.ty());
            let size = wanted.dtype().size();
            let elements = found.bytes().chunks_exact(size).zip(wanted.bytes().chunks_exact(size));
            for (index, (is, was)) in elements.enumerate() {
                let given = operands.each_ref().map(|data| data.bytes()[index]);
                assert_eq!(is, was, "{signature:?} of {given:?}");
            }
            values.push(Arc::new(wanted));
        }
    }
    assert!(calls > 100, "only {calls} ops and types");
}
