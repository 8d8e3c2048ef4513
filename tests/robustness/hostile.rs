//! Hostile input at the public API and below. Invalid sizes, attributes and names are refused with
//! a message, before anything of their size is allocated, and never by a panic. Only what was
//! lowered reaches a plugin.
//!
//! Value checks, if they are on, find indices and other data out of range, with the line that is
//! wrong.
//!
//! For single calls of every row see `fusion/tests/ops.rs`; for hostile text see
//! `fusion/tests/text.rs`.

#[path = "../../fusion/tests/support/hostile.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "shared with other tests, and used in part")]
mod attempts;

use attempts::{Attempt, pick, place, sampled};
use fuseline::embed::{Call, Session};
use fuseline::fusion::Site;
use fuseline::fusion::op::{OPS, attrs};
use fuseline::fusion::program::Program;
use fuseline::nn::{self, CrossEntropy, Reduction};
use fuseline::{
    DType, EngineConfig, Error, Mode, OpCode, Origin, Result, Stage, Tensor, TensorType, unchecked, with_mode,
};
use fuseline_testgen::{Aim, Entropy, Seeded};

use crate::alloc_support::peak;
use crate::support;

/// The largest allocation while refusing a hostile call.
const MOST: u64 = 1 << 20;

/// Sizes at which rules could break, alone or as products.
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

/// A call whose operands have hostile sizes, sometimes with hostile attributes; `None` if the
/// choices lead to no call.
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
        // A type that is refused here can be in no call; accepted types may have 2^62 elements.
        let (new, most) = peak(|| TensorType::of(ty.dtype(), &dims));
        assert!(most <= MOST, "{dims:?}: {most} bytes");
        if let Ok(new) = new {
            // Ops with several operands want equal types.
            let old = ty.clone();
            match entropy.draw(2) {
                0 => attempt.operands[at] = new,
                _ => attempt.operands.iter_mut().filter(|ty| **ty == old).for_each(|ty| *ty = new.clone()),
            }
        }
    }
    Some(attempt)
}

/// Makes calls with hostile sizes. Returns how many were refused and accepted.
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
    // There must be enough of both.
    assert!(refused > 20_000 && taken > 20_000, "{refused} refused, {taken} taken");
}

/// The long version: `cargo test --release --test robustness hostile:: -- --ignored`.
/// `FUSELINE_HOSTILE` sets the number of cases (default 10^7).
#[test]
#[ignore = "soak: `cargo xtask soak hostile-sizes`"]
fn soak_hostile_sizes_are_answered_without_memory() {
    let cases = support::number("FUSELINE_HOSTILE").unwrap_or(10_000_000);
    let (refused, taken) = hostile_sizes(cases);
    println!("figures: {cases} cases, {refused} refused, {taken} taken, at most {MOST} bytes each, 0 panics");
}

// ----- the public API -----

/// Checks that a call or read is refused with a message, within the memory limit.
fn is_refused<T>(what: &str, call: impl FnOnce() -> Result<T>) {
    let (result, most) = peak(call);
    let Err(error) = result else { panic!("{what} is not refused") };
    assert!(most <= MOST, "{what}: {most} bytes");
    assert_eq!(error.origin(), Origin::User, "{what}: {error}");
    assert!(error.to_string().len() > 20, "{what}: {error}");
}

/// Calls that no device could run are refused at the call.
#[test]
fn impossible_sizes_are_refused_where_they_are_asked_for() {
    let engine = support::config().build_reference().unwrap();
    let x = engine.tensor(&[1.0f32, 2.0], &[2]).unwrap();
    for dims in [&[usize::MAX][..], &[1 << 62, 4], &[1 << 32, 1 << 31], &[1 << 63], &[1; 17], &[1 << 61, 2]] {
        is_refused("broadcast_to", || x.sum(&[0])?.broadcast_to(dims));
        is_refused("reshape", || x.reshape(dims));
        is_refused("tensor", || engine.tensor(&[0.0f32; 2], dims));
        is_refused("iota", || engine.stream().iota(DType::F32, dims, 0));
    }
    // As many elements as it has, by a product that overflows.
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

/// Values with a valid type that fit into no memory: recorded, and refused by the device when they
/// are needed.
#[test]
fn what_fits_no_memory_is_an_error_of_its_readers() {
    for engine in support::engines_of_all_tiers(support::config) {
        let x = engine.tensor(&[1.0f32, 2.0], &[2]).unwrap();
        for dims in [&[1usize << 58][..], &[1 << 40, 1 << 18], &[2, 1 << 57]] {
            let axis = dims.len() as i64 - 1;
            let huge = x.sum(&[0]).unwrap().broadcast_to(dims).unwrap();
            let (read, most) = peak(|| huge.to_literal());
            let error = read.expect_err("it has 2^60 bytes");
            assert!(error.to_string().len() > 20 && most <= MOST, "{most} bytes: {error}");
            let iota = engine.stream().iota(DType::F32, dims, axis).unwrap();
            let _ = iota.neg().unwrap().wait().expect_err("it has 2^60 bytes");
        }
        // Other values are not affected.
        assert_eq!(x.neg().unwrap().to_vec::<f32>().unwrap(), [-1.0, -2.0]);
        assert_eq!(engine.counters().panics, 0);
    }
}

/// A value that only claims to be large allocates no memory: a placeholder of a stream, a body or a
/// program. Writing the program as text is an error.
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
    // If it fits into memory, it is written, and reads back equal.
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

/// An empty tensor is a tensor like any other, whatever its other sizes are.
#[test]
fn tensors_without_elements_work() {
    for engine in support::engines_of_all_tiers(support::config) {
        for dims in [&[0usize][..], &[0, 7], &[1 << 40, 0], &[0, 1 << 31, 1 << 20]] {
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

/// Programs with cycles or invalid references: a value is defined once, before its use.
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

/// Files whose sizes and data disagree, or that nest endlessly.
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

/// A file that names one tuple often costs a multiple of its own length, not a copy for each name.
#[test]
fn a_tuple_that_is_named_often_is_not_copied() {
    const ELEMENTS: usize = 2_000;
    let elements = vec![r#"{"shape": [], "dtype": "i32"}"#; ELEMENTS].join(", ");
    let tuple = |operands: &str, elements: &str, id: usize| {
        format!(
            r#"{{"op": "stablehlo.tuple", "operands": [{operands}], "attrs": {{}},
                "results": [{{"id": {id}, "shape": [], "dtype": "tuple", "elements": [{elements}]}}]}}"#
        )
    };
    let text = format!(
        r#"{{"values": [{{"id": 0, "role": "const", "shape": [], "dtype": "i32", "data": "AwAAAA=="}}],
            "ops": [{}, {}], "outputs": [0]}}"#,
        tuple(&vec!["0"; ELEMENTS].join(", "), &elements, 1),
        tuple(&vec!["1"; ELEMENTS].join(", "), "", 2),
    );
    let (read, most) = peak(|| Program::parse(&text));
    let error = read.map(drop).expect_err("the second tuple has no elements by its type").to_string();
    assert!(error.contains("the declared type"), "{error}");
    assert!(most <= 32 << 20, "{most} bytes for {} of text", text.len());
}

// ----- names -----

/// Malicious names of ops, functions and modules.
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

/// A name that would need an escape is refused wherever a user provides one, with the rule.
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
        // An op is known by its name in the table only.
        let text = file(&op(&name.escape_default().to_string(), "[0]", "1"), "[1]");
        assert!(Program::parse(&text).is_err(), "{name:?} is an op");
    }
}

// ----- values out of range -----

/// The default configuration of checks.
fn checking() -> EngineConfig {
    support::config()
}

/// Checks that a call failed a check of this op, in this file, with these words.
#[track_caller]
fn failed_check<T: std::fmt::Debug>(result: Result<T>, op: &str, words: &str) -> Error {
    let error = result.expect_err("something is out of range");
    assert!(error.is_failed_check(), "{error}");
    assert_eq!((error.op_name(), error.stage(), error.origin()), (Some(op), Stage::Execute, Origin::User));
    let text = error.to_string();
    assert!(text.contains("tests/robustness/hostile.rs:") && text.contains(words), "{text}");
    error
}

type Method = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Methods that take indices below 3 into `f32[3, 2]`, by the op in their errors.
const METHODS: [(&str, Method); 8] = [
    ("take", |x, i| x.take(i, 0)),
    ("take", |x, i| nn::embedding(x, i)),
    ("take_along", |x, i| x.take_along(&i.unsqueeze(1)?.broadcast_to(&[2, 2])?, 0)),
    ("one_hot", |_, i| i.one_hot(3, DType::F32)),
    ("embedding", |x, i| nn::grad::embedding(3, i, &x.narrow(0, 0, 2)?)),
    ("cross_entropy", |x, i| nn::cross_entropy(&x.transpose(&[1, 0])?, i)),
    ("nll", |x, i| {
        nn::nll(&x.transpose(&[1, 0])?, i, &CrossEntropy { ignored: Some(-100), ..Default::default() })
    }),
    ("scatter_with", |x, i| {
        let dims = attrs::IndexDimensionNumbers {
            window: &[1],
            collapsed: &[0],
            index_map: &[0],
            index_vector: 1,
            ..Default::default()
        };
        Tensor::scatter_with(x, &i.reshape(&[2, 1])?, &x.narrow(0, 0, 2)?, dims, |old, new| old.add(&new))
    }),
];

#[test]
fn indices_out_of_range_are_told_at_the_next_read() {
    support::on_all_tiers(checking, |engine| {
        let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
        for (op, method) in METHODS {
            for (bad, words) in [([0i64, 3], "the index 3"), ([-1, 2], "the index -1")] {
                for mode in [Mode::Fused, Mode::Strict] {
                    let (good, bad) = (engine.tensor(&[2i64, 0], &[2])?, engine.tensor(&bad, &[2])?);
                    with_mode(mode, || {
                        method(&x, &good)?.wait()?;
                        let made = method(&x, &bad)?;
                        let error = failed_check(made.to_vec::<f32>(), op, words);
                        assert!(error.to_string().contains("which is 0 to 2"), "{error}");
                        // Reported once; the op returns its usual result (CHECK-1, CHECK-3).
                        let plain = unchecked(|| method(&x, &bad))?.to_vec::<f32>()?;
                        assert_eq!(made.to_vec::<f32>()?, plain, "{op}");
                        // It is checked again.
                        failed_check(method(&x, &bad)?.wait(), op, words);
                        Ok::<(), Error>(())
                    })?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn debug_mode_refuses_indices_out_of_range_at_the_call() {
    support::on_engines(
        || support::config().check_indices(false),
        |engine| {
            let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
            let bad = engine.tensor(&[0i64, 3], &[2])?;
            for (op, method) in METHODS {
                with_mode(Mode::Debug, || {
                    let error = failed_check(method(&x, &bad).map(drop), op, "the index 3");
                    assert!(!error.to_string().contains("later read"), "{error}");
                    // No check remains.
                    x.to_vec::<f32>().map(drop)
                })?;
                // In other modes they are turned off.
                method(&x, &bad)?.wait()?;
            }
            let error = with_mode(Mode::Debug, || x.take(&bad, 0)).unwrap_err();
            let line = line!() - 1;
            assert!(error.to_string().contains(&format!("tests/robustness/hostile.rs:{line}")), "{error}");
            Ok(())
        },
    );
}

/// Indices of every element type, including those on the host.
#[test]
fn indices_of_every_type_are_checked() {
    let engine = checking().build_reference().unwrap();
    let x = engine.tensor(&[1.0f32; 300], &[300]).unwrap();
    let small = engine.tensor(&[1.0f32; 3], &[3]).unwrap();
    let read = |x: &Tensor, index: &Tensor| x.take(index, 0).and_then(|rows| rows.to_vec::<f32>());
    let of = |dtype, value: i64| engine.tensor(&[value], &[1]).unwrap().convert(dtype).unwrap();
    for dtype in
        [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64]
    {
        assert_eq!(read(&x, &of(dtype, 127)).unwrap(), [1.0]);
        assert_eq!(read(&small, &of(dtype, 2)).unwrap(), [1.0]);
        failed_check(read(&small, &of(dtype, 3)), "take", "the index 3 is out of range, which is 0 to 2");
        let low = if of(dtype, 0).dtype().bits() < 16 { "100" } else { "299" };
        let low: i64 = low.parse().unwrap();
        assert_eq!(read(&x, &of(dtype, low)).unwrap(), [1.0]);
    }
    failed_check(read(&x, &of(DType::I8, -128)), "take", "the index -128");
    failed_check(read(&x, &of(DType::I64, i64::MIN)), "take", &format!("the index {}", i64::MIN));
    let most = engine.tensor(&[u64::MAX], &[1]).unwrap();
    failed_check(read(&x, &most), "take", &format!("the index {}", u64::MAX));
    // Empty indices into an empty tensor.
    let nothing = engine.tensor(&[0.0f32; 0], &[0]).unwrap();
    assert_eq!(read(&nothing, &engine.tensor(&[0i32; 0], &[0]).unwrap()).unwrap(), [0.0f32; 0]);
    // A scalar index on the host is an error of the call.
    for (index, is_inside) in [(0i32, true), (2, true), (3, false), (-1, false)] {
        let taken = small.take(&engine.scalar(index), 0);
        assert_eq!(taken.as_ref().is_err_and(Error::is_failed_check), !is_inside, "{taken:?}");
    }
    // Several dimensions at once, each with its own size; with a window, by its position.
    let grid = engine.tensor(&[0.0f32; 12], &[3, 4]).unwrap();
    let put = |places: [i32; 2], window: usize| {
        let (dims, updates): (&[i64], &[usize]) =
            if window == 1 { (&[], &[1]) } else { (&[1], &[1, window]) };
        let numbers = attrs::IndexDimensionNumbers {
            window: dims,
            collapsed: if window == 1 { &[0, 1] } else { &[0] },
            index_map: &[0, 1],
            index_vector: 1,
            ..Default::default()
        };
        let places = engine.tensor(&places, &[1, 2])?;
        let updates = engine.full(1.0f32, updates)?;
        Tensor::scatter_with(&grid, &places, &updates, numbers, |_, new| Ok(new))?.to_vec::<f32>()
    };
    for (places, window, is_inside) in
        [([2, 3], 1, true), ([3, 0], 1, false), ([0, 4], 1, false), ([2, 1], 3, true), ([2, 2], 3, false)]
    {
        assert_eq!(put(places, window).is_ok(), is_inside, "{places:?} of {window}");
    }
    let drawn = fuseline::random::Generator::new(engine.stream(), 1).unwrap().bernoulli(1.5, &[2]);
    support::refused(drawn, "a probability of 1.5");
}

#[test]
fn what_must_be_true_is_checked_whatever_the_mode() {
    support::on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[0.5f32, 1.5], &[2])?;
        let is_low = x.less_equal(&engine.scalar(1.0f32))?;
        is_low.narrow(0, 0, 1)?.check_all("rates", "a rate is above 1")?;
        x.wait()?;
        (&x * 2.0)?.wait()?;
        is_low.check_all("rates", "a rate is above 1")?;
        failed_check((&x * 2.0)?.wait(), "rates", "a rate is above 1");
        (&x * 2.0)?.wait()?;
        let error = with_mode(Mode::Debug, || is_low.check_all("rates", "a rate is above 1"));
        failed_check(error, "rates", "a rate is above 1");
        let error = engine.scalar(false).check_all("rates", "it is false");
        failed_check(error, "rates", "it is false");
        support::refused(x.check_all("rates", ""), "must be bool");
        Ok(())
    });
}

/// VC2: for every kind of read. Ops recorded after the fault do not hide it.
#[test]
fn a_failed_check_is_told_however_it_is_read_and_however_late() {
    support::on_all_tiers(checking, |engine| {
        let x = engine.tensor(&[1.0f32, 2.0, 3.0], &[3])?;
        let bad = engine.tensor(&[0i32, 7], &[2])?;
        let fault = || x.take(&bad, 0);
        failed_check(
            fault()?.item::<f32>().or_else(|_| fault()?.sum(&[0])?.item::<f32>()),
            "take",
            "the index 7",
        );
        failed_check(fault()?.read_replicas(), "take", "the index 7");
        failed_check(support::block_on(fault()?.read()), "take", "the index 7");
        let (send, receive) = std::sync::mpsc::channel();
        fault()?.read_with(move |data| send.send(data).unwrap());
        failed_check(receive.recv().unwrap(), "take", "the index 7");
        let kept = fault()?;
        failed_check(engine.synchronize(), "take", "the index 7");
        engine.synchronize()?;
        drop(kept);
        // A thousand steps later, without a read.
        let mut y = fault()?.sum(&[0])?;
        let line = line!() - 1;
        for step in 0..1_000 {
            let good = engine.tensor(&[step % 3, 2], &[2])?;
            y = (&y * 0.5)?.add(&x.take(&good, 0)?.sum(&[0])?)?;
            if step % 10 == 0 {
                engine.stream().flush();
            }
        }
        let error = failed_check(y.to_vec::<f32>(), "take", "the index 7");
        assert!(
            !error.to_string().contains(&format!("hostile.rs:{line}")),
            "the line is that of the closure"
        );
        assert!(y.to_vec::<f32>()?[0] > 0.0);
        Ok(())
    });
}

/// A steady loop with checks compiles nothing and is replayed. A wrong step is reported, with its
/// index.
#[test]
fn checks_of_a_steady_loop_are_replayed() {
    support::on_all_tiers(checking, |engine| {
        let table = engine.tensor(&[0.5f32; 20], &[10, 2])?;
        let places = engine.tensor(&[1i32, 0], &[2])?;
        let mut state = engine.full(0.0f32, &[2, 2])?;
        let mut warm = None;
        for step in 0..300 {
            let index = if step == 250 { 10 } else { step % 10 };
            let indices = engine.tensor(&[index, 3], &[2])?;
            let labels = indices.convert(DType::I64)?;
            state = (&state * 0.9)?.add(&table.take(&indices, 0)?)?.take(&places, 0)?;
            let loss = nn::cross_entropy_with(
                &state.matmul(&table.transpose(&[1, 0])?)?,
                &labels,
                &CrossEntropy { reduction: Reduction::Sum, ..Default::default() },
            )?;
            // Without a read in most steps, and with one.
            let outcome = if step % 5 == 0 {
                loss.item::<f32>().map(drop)
            } else {
                engine.stream().flush();
                Ok(())
            };
            match step {
                250 => drop(failed_check(outcome, "take", "the index 10 is out of range, which is 0 to 9")),
                _ => outcome?,
            }
            if step == 100 {
                warm = Some(engine.counters());
            }
            if step == 249 {
                let (warm, now) = (warm.unwrap(), engine.counters());
                assert_eq!((now.compiles, now.misses), (warm.compiles, warm.misses));
                assert!(now.replayed > warm.replayed + 500, "{} {}", warm.replayed, now.replayed);
            }
        }
        // The failed value is checked again, and nothing else is new.
        let (warm, now) = (warm.unwrap(), engine.counters());
        assert!(now.compiles <= warm.compiles + 4, "{} {}", warm.compiles, now.compiles);
        Ok(())
    });
}

/// A failed check is reported on streams that use the stream's values, and on no other.
#[test]
fn checks_follow_values_from_stream_to_stream() {
    support::on_all_tiers(checking, |engine| {
        let [one, two, three, apart] = std::array::from_fn(|_| engine.new_stream());
        for _ in 0..20 {
            let x = one.tensor(&[1.0f32, 2.0, 3.0], &[3])?;
            let bad = one.tensor(&[0i32, 5], &[2])?;
            let taken = x.take(&bad, 0)?;
            let doubled = two.tensor(&[2.0f32, 2.0], &[2])?.mul(&taken)?;
            let other = apart.tensor(&[1.0f32], &[1])?;
            other.add(&other)?.wait()?;
            let last = three.tensor(&[1.0f32, 1.0], &[2])?.add(&doubled)?;
            drop((taken, doubled, x, bad));
            failed_check(last.to_vec::<f32>(), "take", "the index 5");
            assert_eq!(last.to_vec::<f32>()?, [3.0, 7.0]);
            one.synchronize()?;
            two.synchronize()?;
        }
        // The stream that found it may be closed.
        let last = {
            let gone = engine.new_stream();
            let x = gone.tensor(&[1.0f32, 2.0, 3.0], &[3])?;
            let made = x.take(&gone.tensor(&[4i32], &[1])?, 0)?;
            let last = two.tensor(&[2.0f32], &[1])?.mul(&made)?;
            made.on_ready(|_| ());
            last
        };
        failed_check(last.wait(), "take", "the index 4");
        Ok(())
    });
}

/// A function returns its checks as one more result; bodies of loops have none.
#[test]
fn functions_are_checked_and_loops_are_not() {
    support::on_all_tiers(checking, |engine| {
        let x = engine.tensor(&[1.0f32, 2.0, 3.0], &[3])?;
        let ty = |dtype, dims: &[u64]| TensorType::of(dtype, dims);
        let trace = engine.stream().begin_function("test.rows");
        let [i, j] = [trace.param(&ty(DType::I32, &[2])?)?, trace.param(&ty(DType::I64, &[2])?)?];
        let y = x.take(&i, 0)?.add(&x.take(&j, 0)?)?;
        i.less(&engine.scalar(2i32))?.check_all("rows", "an index is not below 2")?;
        let inner = trace.end(&[y])?;
        let trace = engine.stream().begin_function("test.outer");
        let [i, j] = [trace.param(&ty(DType::I32, &[2])?)?, trace.param(&ty(DType::I64, &[2])?)?];
        let made = inner.call(&trace.stream(), &[&i, &j])?;
        assert_eq!(made.len(), 1);
        let outer = trace.end(&[made[0].neg()?])?;
        for function in [&inner, &outer] {
            for mode in [Mode::Fused, Mode::Debug] {
                for (first, second, wrong) in [
                    ([0, 1], [2, 2], None),
                    ([0, 9], [2, 2], Some(("take", "the index 9"))),
                    ([0, 1], [2, -3], Some(("take", "the index -3"))),
                    ([0, 2], [2, 2], Some(("rows", "an index is not below 2"))),
                ] {
                    let (i, j) = (engine.tensor(&first, &[2])?, engine.tensor(&second.map(i64::from), &[2])?);
                    for is_written_out in [false, true] {
                        let results = with_mode(mode, || match is_written_out {
                            false => function.call(engine.stream(), &[&i, &j]),
                            true => function.write_out(engine.stream(), &[&i, &j]),
                        });
                        let read = results.and_then(|results| {
                            assert_eq!((results.len(), mode == Mode::Debug && wrong.is_some()), (1, false));
                            results[0].to_vec::<f32>()
                        });
                        match wrong {
                            None => drop(read?),
                            Some((op, words)) => drop(failed_check(read, op, words)),
                        }
                    }
                }
            }
        }
        // Values made in a body have no data of their own, so nothing in it is checked; the index
        // of a loop comes from outside.
        let looped = engine.stream().for_range(0..3, x.clone(), |i, carried| {
            carried.add(&carried.take(&i.add(&i)?.reshape(&[1])?, 0)?.broadcast_to(&[3])?)
        })?;
        looped.wait()
    });
}

/// A value that was checked is not checked again: no op is recorded for it.
#[test]
fn a_value_is_checked_once() {
    let engine = checking().build_reference().unwrap();
    let ops = || {
        engine.synchronize().unwrap();
        engine.counters().ops
    };
    let x = engine.tensor(&[1.0f32, 2.0, 3.0], &[3]).unwrap();
    let i = engine.tensor(&[0i64, 2], &[2]).unwrap();
    let mut counts = Vec::new();
    // First with a larger bound, then with its own, then twice more.
    let wide = engine.tensor(&[0.0f32; 9], &[9]).unwrap();
    for table in [&wide, &x, &x, &wide] {
        let before = ops();
        drop(table.take(&i, 0).unwrap());
        counts.push(ops() - before);
    }
    assert_eq!(counts, [4, 4, 1, 1], "bits, a start, the largest; the rows");
}
