//! Every row of the op table, with calls made from choices: valid calls run and can be written, and
//! invalid ones have a message and never panic.
#![allow(missing_docs, reason = "a test")]

mod support;

use std::cell::Cell;
use std::sync::Arc;

use fuseline_fusion::op::{OPS, extreme, neutral};
use fuseline_fusion::{Attrs, DType, Literal, OpCode, Signature};
use fuseline_interp as interp;
use fuseline_testgen::{Aim, Entropy as _, Seeded};
use proptest::test_runner::TestCaseError;
use support::answer::{holds, is_answered};
use support::{Attempt, choices, from, runner, sampled};

/// Cases per row, and how many of them must lead to a call.
const CASES: u32 = 60;
const LEAST: u32 = 30;

fn aim(choice: bool) -> Aim {
    if choice { Aim::Portable } else { Aim::Everything }
}

#[test]
fn every_row_is_sampled_run_and_written() {
    for def in &OPS {
        let made = Cell::new(0);
        let outcome = runner(CASES).run(&(choices(60), proptest::bool::ANY), |(list, portable)| {
            let Some(call) = sampled(def, &mut from(&list), aim(portable)) else { return Ok(()) };
            made.set(made.get() + 1);
            holds(&call).map_err(|error| TestCaseError::fail(format!("{:?}: {error}", call.signature)))
        });
        outcome.unwrap_or_else(|error| panic!("{}: {error}", def.name));
        assert!(made.get() >= LEAST, "{}: only {} of {CASES} choices lead to a call", def.name, made.get());
    }
}

/// The samples of a row cover every element type that the row takes.
#[test]
fn every_element_type_is_sampled() {
    for def in &OPS {
        let mut left: Vec<_> = def.dtypes.iter().collect();
        for seed in 0..2_000 {
            if left.is_empty() {
                break;
            }
            let Some(call) = sampled(def, &mut Seeded::new(seed), aim(seed % 2 == 0)) else { continue };
            let first = call.signature.operands().first().or(call.signature.results().first());
            left.retain(|&dtype| first.is_none_or(|ty| ty.dtype() != dtype));
        }
        assert!(left.is_empty(), "{} is never sampled with {left:?}", def.name);
    }
}

#[test]
fn hostile_calls_are_refused_with_words() {
    let (mut refused, mut accepted) = (0, 0);
    for def in &OPS {
        let counts = Cell::new((0, 0));
        let case = (choices(60), choices(24), 1..4_usize);
        let outcome = runner(1_500).run(&case, |(list, changes, count)| {
            let Some(call) = sampled(def, &mut from(&list), Aim::Everything) else { return Ok(()) };
            let mut attempt = Attempt::of(&call.signature);
            let mut entropy = from(&changes);
            for _ in 0..count {
                attempt.change(&mut entropy);
            }
            let seed = entropy.draw(u32::MAX).into();
            let answer = is_answered(def, &attempt, seed)
                .map_err(|error| TestCaseError::fail(format!("{attempt:?}: {error}")))?;
            let (no, yes) = counts.get();
            counts.set(if answer { (no, yes + 1) } else { (no + 1, yes) });
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{}: {error}", def.name));
        let (no, yes) = counts.get();
        assert!(no >= 50, "{}: only {no} calls were refused", def.name);
        (refused, accepted) = (refused + no, accepted + yes);
    }
    assert!(accepted > refused / 20, "{accepted} accepted, {refused} refused: the changes are all alike");
}

/// Combined with the identity element, the ends of the range and 1 are unchanged.
#[test]
fn what_is_neutral_changes_nothing() {
    use OpCode::{Add, And, Maximum, Minimum, Multiply, Or, Xor};
    for op in [Add, And, Maximum, Minimum, Multiply, Or, Xor] {
        for dtype in op.def().dtypes.iter().filter(|&dtype| dtype != DType::F8E8M0FNU) {
            let others = [extreme(dtype, false), extreme(dtype, true), Literal::of_f64(dtype, 1.0)];
            for other in others.into_iter().filter(|other| !other.dtype().is_complex() || op == Add) {
                let types = [other.ty().clone(), other.ty().clone()];
                let signature = Signature::infer(op, Attrs::none(), &[], &types).expect("a call");
                let operands = [Arc::new(neutral(op, dtype)), Arc::new(other.clone())];
                let result = interp::call(&signature, &operands).expect("runs");
                assert_eq!(result, [other], "{op} of {dtype}");
            }
        }
    }
}
