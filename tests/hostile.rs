//! Hostile input at the public API and below it: sizes, attributes and names at which rules break are refused with words, before
//! anything of their size is allocated, and never by a panic; and nothing but what was lowered reaches a plugin.
//!
//! What holds for single calls of every row is in `fusion/tests/ops.rs`, for hostile text in `fusion/tests/text.rs`.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod alloc_support;
#[path = "../fusion/tests/support/hostile.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "shared with other tests, and used in part")]
mod hostile;
mod support;

use alloc_support::peak;
use fuseline::embed::{Call, Session};
use fuseline::fusion::Site;
use fuseline::fusion::op::{Aim, Entropy, OPS, Seeded, attrs};
use fuseline::fusion::program::Program;
use fuseline::{DType, OpCode, Origin, Result, TensorType};
use hostile::{Attempt, pick, place, sampled};

/// What an answer to a hostile call may take, whatever the call is about.
const MOST: u64 = 1 << 20;

/// Sizes at which rules break, alone or as products.
const SIZES: [u64; 16] = [
    0,
    1,
    2,
    3,
    (1 << 16) + 1,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    (1 << 32) + 1,
    (1 << 59) - 1,
    1 << 59,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// A call whose operands have hostile sizes, and with hostile attributes now and then; `None` when the choices lead nowhere.
fn attempt(entropy: &mut dyn Entropy) -> Option<Attempt> {
    let def = &OPS[place(entropy, OPS.len())];
    let call = sampled(def, entropy, Aim::Everything)?;
    let mut attempt = Attempt::of(&call.signature);
    let changes = 1 + entropy.draw(3);
    for _ in 0..changes {
        if entropy.draw(3) == 0 {
            attempt.change_attr(entropy);
            continue;
        }
        let at = place(entropy, attempt.operands.len());
        let Some(ty) = attempt.operands.get_mut(at) else { continue };
        let mut dims = ty.dims().to_vec();
        let axis = place(entropy, dims.len());
        match entropy.draw(4) {
            0 => dims.resize(pick(entropy, &[0, 1, 15, 16, 17, 18]), 1),
            1 => dims.iter_mut().for_each(|dim| *dim = pick(entropy, &SIZES)),
            _ if dims.is_empty() => dims.push(pick(entropy, &SIZES)),
            _ => dims[axis] = pick(entropy, &SIZES),
        }
        // What the library refuses here can be in no call; what it takes may have 2^62 elements.
        let (new, most) = peak(|| TensorType::of(ty.dtype(), &dims));
        assert!(most <= MOST, "{dims:?}: {most} bytes");
        if let Ok(new) = new {
            // Ops of several operands want them alike.
            let old = ty.clone();
            match entropy.draw(2) {
                0 => attempt.operands[at] = new,
                _ => attempt.operands.iter_mut().filter(|ty| **ty == old).for_each(|ty| *ty = new.clone()),
            }
        }
    }
    Some(attempt)
}

/// Answers calls of hostile sizes: (refused, taken).
fn hostile_sizes(cases: u64) -> (u64, u64) {
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..cases {
        let Some(attempt) = attempt(&mut Seeded::new(seed)) else { continue };
        let (answer, most) = peak(|| attempt.infer());
        assert!(most <= MOST, "case {seed}: {most} bytes for {attempt:?}");
        match answer {
            Ok(signature) => {
                taken += 1;
                let results = signature.results().iter().chain(signature.operands());
                assert!(results.into_iter().all(|ty| ty.bytes().0 <= i64::MAX as u64 && ty.rank() <= 16));
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() > attempt.def.name.len() + 4, "case {seed}: {error:?}");
            }
        }
    }
    (refused, taken)
}

#[test]
fn hostile_sizes_are_answered_without_memory() {
    let (refused, taken) = hostile_sizes(100_000);
    // Both, or the calls are all alike.
    assert!(refused > 20_000 && taken > 20_000, "{refused} refused, {taken} taken");
}

/// The long one: `cargo test --release --test hostile -- --ignored`; `FUSELINE_HOSTILE` says how many cases, 10^7 if nothing.
#[test]
#[ignore = "soak: `cargo xtask soak hostile-sizes`"]
fn soak_hostile_sizes_are_answered_without_memory() {
    let cases = support::number("FUSELINE_HOSTILE").unwrap_or(10_000_000);
    let (refused, taken) = hostile_sizes(cases);
    println!("figures: {cases} cases, {refused} refused, {taken} taken, at most {MOST} bytes each, 0 panics");
}

// ----- the public API -----

/// A refused call or read: an error with words, within memory.
fn is_refused<T>(what: &str, call: impl FnOnce() -> Result<T>) {
    let (result, most) = peak(call);
    let Err(error) = result else { panic!("{what} is not refused") };
    assert!(most <= MOST, "{what}: {most} bytes");
    assert_eq!(error.origin(), Origin::User, "{what}: {error}");
    assert!(error.to_string().len() > 20, "{what}: {error}");
}

/// Calls that no device could run are refused where they are made.
#[test]
fn impossible_sizes_are_refused_where_they_are_asked_for() {
    let engine = support::config().build_reference().unwrap();
    let x = engine.tensor(&[1.0f32, 2.0], &[2]).unwrap();
    for dims in [&[u64::MAX][..], &[1 << 62, 4], &[1 << 32, 1 << 31], &[1 << 63], &[1; 17], &[1 << 61, 2]] {
        is_refused("broadcast_to", || x.sum(&[0])?.broadcast_to(dims));
        is_refused("reshape", || x.reshape(dims));
        is_refused("tensor", || engine.tensor(&[0.0f32; 2], dims));
        is_refused("iota", || engine.stream().iota(DType::F32, dims, 0));
    }
    // As many elements as it has, by a product that wraps around.
    is_refused("reshape", || x.reshape(&[(1 << 63) + 1, 2]));
    is_refused("pad", || x.pad(&x.sum(&[0])?, &[i64::MAX], &[i64::MAX], &[0]));
    is_refused("pad", || x.pad(&x.sum(&[0])?, &[0], &[0], &[i64::MAX]));
    is_refused("pad", || x.pad(&x.sum(&[0])?, &[i64::MIN], &[i64::MIN], &[0]));
    is_refused("slice", || x.slice(&[0], &[i64::MAX], &[1]));
    is_refused("slice", || x.slice(&[i64::MIN], &[2], &[1]));
    is_refused("slice", || x.slice(&[0], &[2], &[0]));
    is_refused("transpose", || x.transpose(&[i64::MAX]));
    is_refused("sum", || x.sum(&[i64::MIN]));
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(engine.counters().panics, 0);
}

/// Values that have a type and fit nowhere: recorded, and refused by the device when they are needed.
#[test]
fn what_fits_no_memory_is_an_error_of_its_readers() {
    for engine in support::engines(support::config) {
        let x = engine.tensor(&[1.0f32, 2.0], &[2]).unwrap();
        for dims in [&[1u64 << 58][..], &[1 << 40, 1 << 18], &[2, 1 << 57]] {
            let axis = dims.len() as i64 - 1;
            let huge = x.sum(&[0]).unwrap().broadcast_to(dims).unwrap();
            let (read, most) = peak(|| huge.to_literal());
            let error = read.expect_err("it has 2^60 bytes");
            assert!(error.to_string().len() > 20 && most <= MOST, "{most} bytes: {error}");
            let iota = engine.stream().iota(DType::F32, dims, axis).unwrap();
            let _ = iota.neg().unwrap().wait().expect_err("it has 2^60 bytes");
        }
        // Others are not concerned.
        assert_eq!(x.neg().unwrap().to_vec::<f32>().unwrap(), [-1.0, -2.0]);
        assert_eq!(engine.counters().panics, 0);
    }
}

/// A value that is only said to be large takes no memory: a placeholder of a stream, a body or a program, and the program as text says why it is not written.
#[test]
fn placeholders_of_any_size_take_no_memory() {
    let session = Session::reference(support::config()).unwrap();
    let stream = session.open_stream().unwrap();
    for dims in [&[1u64 << 40][..], &[1 << 58], &[1 << 30, 1 << 20]] {
        let ty = TensorType::of(DType::F32, dims).unwrap();
        let (function, most) = peak(|| -> Result<_> {
            let late = session.placeholder(stream, &ty)?;
            session.release(late)?;
            let trace = session.begin_trace()?;
            let x = session.placeholder(trace, &ty)?;
            let y = session.record(trace, Call::new(OpCode::Negate, &[x]))?[0].id;
            let function = session.end_trace(trace, "large", &[y])?;
            session.release(x)?;
            session.release(y)?;
            Ok(function)
        });
        assert!(most <= MOST, "{dims:?}: {most} bytes");
        let function = function.unwrap();
        is_refused("program", || session.program(function));
        let small = session.upload(stream, &TensorType::of(DType::F32, &[1]).unwrap(), &[0; 4]).unwrap();
        is_refused("call", || session.call(stream, function, &[small], Site::Unknown));
        session.release(small).unwrap();
        session.forget(function).unwrap();
    }
    // Where there is memory, it is written, and says the same when it is read.
    let trace = session.begin_trace().unwrap();
    let ty = TensorType::of(DType::F32, &[3]).unwrap();
    let x = session.placeholder(trace, &ty).unwrap();
    let y = session.record(trace, Call::new(OpCode::Negate, &[x])).unwrap()[0].id;
    let function = session.end_trace(trace, "small", &[y]).unwrap();
    let program = session.program(function).unwrap();
    assert_eq!((program.values.len(), program.values[0].data.ty()), (1, &ty));
    assert_eq!(Program::parse(&program.to_json()).unwrap(), program);
    assert_eq!(session.counters().panics, 0);
}

/// Nothing at all is a tensor like any other, whatever its other sizes are.
#[test]
fn tensors_without_elements_work() {
    for engine in support::engines(support::config) {
        for dims in [&[0u64][..], &[0, 7], &[1 << 40, 0], &[0, 1 << 31, 1 << 20]] {
            let x = engine.tensor::<f32>(&[], dims).unwrap();
            let y = x.neg().unwrap().add(&x).unwrap();
            assert_eq!((y.dims(), y.to_vec::<f32>().unwrap()), (dims, Vec::new()));
            let axes: Vec<i64> = (0..dims.len() as i64).collect();
            assert_eq!(y.sum(&axes).unwrap().to_vec::<f32>().unwrap(), [0.0]);
        }
    }
}

// ----- programs as files -----

/// A program of one value, with these ops and outputs.
fn file(ops: &str, outputs: &str) -> String {
    format!(
        r#"{{"values": [{{"id": 0, "role": "input", "dtype": "f32", "shape": [1], "data": "AACAPw=="}}],
            "ops": [{ops}], "outputs": {outputs}}}"#
    )
}

fn op(name: &str, operands: &str, results: &str) -> String {
    let result = r#"{"id": ID, "dtype": "f32", "shape": [1]}"#.replace("ID", results);
    format!(r#"{{"op": "stablehlo.{name}", "operands": {operands}, "results": [{result}], "attrs": {{}}}}"#)
}

/// Programs that go in circles, or out of bounds: a value is defined once, and before its use.
#[test]
fn programs_that_go_in_circles_are_refused() {
    let negate = |operands: &str, results: &str| op("negate", operands, results);
    let sound = file(&negate("[0]", "1"), "[1]");
    Program::parse(&sound).unwrap_or_else(|error| panic!("{error}: the tests' own form is wrong"));
    let two = |first: String, second: String| format!("{first}, {second}");
    let cases = [
        ("an op that uses itself", file(&negate("[1]", "1"), "[1]"), "not defined before"),
        (
            "two that use each other",
            file(&two(negate("[2]", "1"), negate("[1]", "2")), "[2]"),
            "not defined before",
        ),
        ("a later value", file(&two(negate("[2]", "1"), negate("[0]", "2")), "[1]"), "not defined before"),
        ("a value made twice", file(&two(negate("[0]", "1"), negate("[0]", "1")), "[1]"), "defined twice"),
        ("an input that is made", file(&negate("[0]", "0"), "[0]"), "defined twice"),
        ("an output of nobody", file(&negate("[0]", "1"), "[7]"), "not defined"),
        ("an id below zero", file(&negate("[-1]", "1"), "[1]"), "0 to 2^32 - 1"),
        ("an id of 2^32", file(&negate("[4294967296]", "1"), "[1]"), "0 to 2^32 - 1"),
    ];
    for (what, text, words) in cases {
        let (read, most) = peak(|| Program::parse(&text));
        let error = read.map(drop).expect_err(what).to_string();
        assert!(error.contains(words), "{what}: {error}");
        assert!(most <= MOST, "{what}: {most} bytes");
    }
}

/// Files whose sizes say one thing and whose data another, or that nest without end.
#[test]
fn files_that_promise_too_much_are_refused_without_memory() {
    let value = |shape: &str, data: &str| {
        format!(
            r#"{{"values": [{{"id": 0, "role": "input", "dtype": "f32", "shape": {shape}, "data": "{data}"}}],
                "ops": [], "outputs": [0]}}"#
        )
    };
    let ones = format!("[{}1]", "1, ".repeat(16));
    for shape in
        ["[4611686018427387904]", "[9223372036854775808]", "[4294967296, 4294967296]", "[-1]", "[1.5]", &ones]
    {
        let text = value(shape, "AACAPw==");
        let (read, most) = peak(|| Program::parse(&text));
        let _ = read.map(drop).expect_err(shape);
        assert!(most <= MOST, "{shape}: {most} bytes");
    }
    for deep in ["[".repeat(100_000), r#"{"values": "#.repeat(100_000)] {
        let (read, most) = peak(|| Program::parse(&deep));
        let _ = read.map(drop).expect_err("it never ends");
        assert!(most <= 4 << 20, "{most} bytes");
    }
}

// ----- names -----

/// What an op, a function or a module may be called by who means harm.
const NAMES: [&str; 16] = [
    "a\nb",
    "a\"",
    "a\\",
    "a}",
    "}\n}\nmodule {",
    "@main",
    "a b",
    "%x",
    "a\0",
    "",
    "ümlaut",
    "a\u{202e}b",
    "\") {",
    "stablehlo.custom_call @evil()",
    "a\u{feff}",
    "<{a = \"b\"}>",
];

/// A name that would need an escape is refused wherever a user gives one, with the rule.
#[test]
fn names_with_syntax_in_them_are_refused() {
    const TEXT: &str = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
        %0 = stablehlo.negate %x : tensor<2xf32>
        return %0 : tensor<2xf32> }";
    let engine = support::config().build_reference().unwrap();
    let x = engine.tensor(&[1.0f32, 2.0], &[2]).unwrap();
    let long = "a".repeat(129);
    for name in NAMES.into_iter().chain([long.as_str()]) {
        let error = fuseline::CustomOp::from_stablehlo(name, TEXT).map(drop).expect_err(name).to_string();
        assert!(error.contains("a name of at most 128"), "{name:?}: {error}");
        let config = fuseline::handler::Config::none();
        let attrs = attrs::custom_call(name, config, false);
        is_refused(name, || engine.stream().record(OpCode::CustomCall, attrs, &[], &[&x]));
        struct Nothing;
        impl fuseline::handler::Handler for Nothing {
            fn results(
                &self,
                operands: &[TensorType],
                _: &fuseline::handler::Config,
            ) -> std::result::Result<Vec<TensorType>, String> {
                Ok(operands.to_vec())
            }

            fn run(&self, _: fuseline::handler::HandlerCall<'_>) -> std::result::Result<(), String> {
                Ok(())
            }
        }
        assert!(fuseline::handler::register(name, Nothing).is_err(), "{name:?} is a handler's name");
        // An op is known by its name in the table, and nothing else.
        let text = file(&op(&name.escape_default().to_string(), "[0]", "1"), "[1]");
        assert!(Program::parse(&text).is_err(), "{name:?} is an op");
    }
}
