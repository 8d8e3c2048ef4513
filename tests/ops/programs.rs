//! Random programs through the public API: whatever is recorded on any stream in any mode, and
//! dropped, copied and read at any time, every value read is the one that the reference interpreter
//! computed.
//!
//! Programs are made from choices, so a failure shrinks to a small one. It is printed in the
//! program format, with what was done with its values. `FUSELINE_PROGRAMS` multiplies the number of
//! programs, `FUSELINE_SEED` and `FUSELINE_PART` change them, and `FUSELINE_PROGRAM_LOG` names a
//! file for the program under test, to find one that crashes the process.

use std::env;

use fuseline::fusion::DTypeSet;
use fuseline::fusion::program::ProgramId;
use fuseline::{
    Complex, Counters, DType, Engine, EngineConfig, Literal, Mode, Numerics, ShapeClasses, Stream, with_mode,
};
use fuseline_testgen::{Aim, Choices, ProgramOptions, ProgramSampler, Sampled, Seeded};
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::num::u32::ANY;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::support;
use crate::support::script::{Outcome, Refused, STREAMS, Step, describe, run, script, streams};
use crate::support::{number, plugin_for};

const MODES: [Mode; 3] = [Mode::Fused, Mode::Strict, Mode::Debug];

/// Checks relations between counters that hold if nothing failed.
fn is_consistent(did: &Counters, outcome: &Outcome) -> Result<(), String> {
    let expected = [
        ("ops", did.ops, outcome.ops),
        ("host_reads", did.host_reads, outcome.reads),
        ("panics", did.panics, 0),
    ];
    let whole = did.compile_failures == 0 && did.fallbacks == 0 && !outcome.refused;
    let when_whole = [
        ("hits, misses and skipped", did.hits + did.misses + did.skipped, did.regions),
        ("executions and skipped", did.executions + did.skipped, did.regions),
        ("compiles", did.compiles, did.misses),
        ("poisoned", did.poisoned, 0),
    ];
    for (what, found, wanted) in expected.into_iter().chain(when_whole.into_iter().filter(|_| whole)) {
        if found != wanted {
            return Err(format!("{what}: {found} counted, expected {wanted}: {did:?}"));
        }
    }
    Ok(())
}

/// Runs a program in the modes of the batch, in Fused mode [`Batch::rounds`] times. The last two
/// rounds begin when every compile has ended.
fn check(
    engine: &Engine,
    streams: &[Stream],
    sampled: &Sampled,
    steps: &[Step],
    batch: &Batch,
    refused: &mut Refused,
) -> Result<(), String> {
    // Executables must still be cached the second time.
    if engine.counters().cached_executables > 1_000 {
        engine.clear_cache();
    }
    for &mode in batch.modes {
        let rounds = if mode == Mode::Fused { batch.rounds } else { 1 };
        for round in 0..rounds {
            if round > 0 && round + 2 == rounds {
                support::wait_until(engine, |counters| counters.pending_compiles == 0);
            }
            let in_round = |error| format!("{} mode, run {round}: {error}", mode.name());
            let before = engine.counters();
            let outcome = with_mode(mode, || run(sampled, steps, streams, refused)).map_err(in_round)?;
            engine.synchronize().map_err(|error| in_round(error.to_string()))?;
            let did = engine.counters().since(&before);
            if !batch.is_counted {
                continue;
            }
            is_consistent(&did, &outcome).map_err(in_round)?;
            if round > 0 && (did.compiles, did.misses, did.compile_failures) != (0, 0, 0) {
                return Err(in_round(format!("it compiles again: {did:?}")));
            }
        }
    }
    Ok(())
}

// ----- programs -----

/// A number of programs of up to a number of ops.
struct Batch {
    programs: u32,
    ops: usize,
    modes: &'static [Mode],
    /// How often each is run in Fused mode.
    rounds: usize,
    /// Whether the numbers of compiles and executions follow from the number of regions.
    is_counted: bool,
}

fn on_engine(engine: &Engine, batches: &[Batch], shrinks: u32) -> Refused {
    let streams = streams(engine);
    let log = env::var_os("FUSELINE_PROGRAM_LOG");
    let refused = std::cell::RefCell::new(Refused::default());
    let mut total = (0, 0);
    for batch in batches {
        let config = Config {
            cases: batch.programs * number("FUSELINE_PROGRAMS").unwrap_or(1),
            failure_persistence: None,
            max_shrink_iters: shrinks,
            ..Config::default()
        };
        let mut seed = [0x5e; 32];
        seed[..4].copy_from_slice(&number::<u32>("FUSELINE_SEED").unwrap_or(0).to_le_bytes());
        seed[4] = u8::try_from(support::part().number()).expect("few parts");
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        // Long lists, so that most programs are long; a list that is too long costs nothing. One
        // program in four has elements of 2 and 4 bits, with which plugins do not compute.
        let case = (
            vec(ANY, batch.ops * 8..=batch.ops * 16),
            vec(ANY, batch.ops * 6),
            1..=batch.ops,
            weighted(0.25),
        );
        let counted = std::cell::Cell::new((0, 0));
        let outcome = runner.run(&case, |(program, how, ops, narrow)| {
            let dtypes = if narrow { DTypeSet::NARROW } else { DTypeSet::ANY };
            let options = ProgramOptions { dtypes, ..ProgramOptions::new(Aim::Portable) };
            let mut sampled = ProgramSampler::sample(options, &mut Choices::new(&program), ops);
            if engine.pjrt_device().is_none() {
                // The interpreter computed the expected results, so it needs no tolerance.
                sampled.values.iter_mut().for_each(|value| value.tolerance = 0.0);
            }
            let steps = script(&sampled, &mut Choices::new(&how));
            if let Some(log) = &log {
                std::fs::write(log, describe(&sampled, &steps)).expect("the log can be written");
            }
            let (programs, ops) = counted.get();
            counted.set((programs + 1, ops + sampled.program.ops.len()));
            check(engine, &streams, &sampled, &steps, batch, &mut refused.borrow_mut())
                .map_err(|error| TestCaseError::fail(format!("{error}\n{}", describe(&sampled, &steps))))
        });
        let (programs, ops) = counted.get();
        total = (total.0 + programs, total.1 + ops);
        // The choices add nothing to the program.
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(reason, _)) => panic!("{engine:?}: {reason}"),
            Err(error) => panic!("{engine:?}: {error}"),
        }
    }
    println!("{engine:?}: {} programs, {} ops, {:?}", total.0, total.1, engine.counters());
    refused.into_inner()
}

#[test]
fn programs_on_the_reference_device() {
    let engine = support::config().build_reference().expect("the reference engine needs nothing");
    let batches = [
        Batch { programs: 2_000, ops: 24, modes: &MODES, rounds: 2, is_counted: true },
        Batch { programs: 40, ops: 200, modes: &[Mode::Fused], rounds: 2, is_counted: true },
    ];
    let refused = on_engine(&engine, &batches, 2_000);
    assert!(refused.0.is_empty(), "the interpreter runs everything: {refused:?}");
}

/// Each region runs both ways the first time, and the results of the ops count.
#[test]
fn programs_whose_regions_are_compared() {
    for engine in support::engines(|| support::config().numerics(Numerics::Exact).compare_regions(true)) {
        let programs = if engine.pjrt_device().is_none() { 300 } else { 12 };
        on_engine(
            &engine,
            &[Batch { programs, ops: 16, modes: &[Mode::Fused], rounds: 2, is_counted: false }],
            200,
        );
        let counters = engine.counters();
        assert_eq!(counters.different, 0, "{counters:?}");
        assert!(counters.compared > 10, "{counters:?}");
    }
}

/// Small programs, which the interpreter runs in place of the plugin.
#[test]
fn programs_that_are_interpreted_first() {
    let what = "the programs that are interpreted first";
    let Some(engine) = plugin_for(what, EngineConfig::new()) else { return };
    let batch = Batch { programs: 150, ops: 16, modes: &[Mode::Fused], rounds: 2, is_counted: false };
    on_engine(&engine, &[batch], 200);
    let counters = engine.counters();
    assert!(counters.interpreted > 150, "{counters:?}");
    assert_eq!((counters.fallbacks, counters.poisoned, counters.panics), (0, 0, 0), "{counters:?}");
}

/// Checks random programs on the default engine, and on one that pads with masks. Each program runs
/// until its regions have been interpreted, run by a baseline and run by an optimized executable.
fn check_default_engines() {
    for classes in [ShapeClasses::Unmasked, ShapeClasses::Masked] {
        let config = EngineConfig::new().shape_classes(classes);
        let Some(engine) = plugin_for("the programs on the default engine", config) else { return };
        let batch = Batch { programs: 250, ops: 8, modes: &[Mode::Fused], rounds: 14, is_counted: false };
        on_engine(&engine, &[batch], 50);
        let counters = engine.counters();
        println!("figures: {classes:?}: {counters:?}");
        assert!(counters.interpreted > 250 && counters.executions > 250, "{counters:?}");
        assert_eq!((counters.fallbacks, counters.poisoned, counters.panics), (0, 0, 0), "{counters:?}");
    }
}

#[test]
fn programs_on_the_default_engine() {
    check_default_engines();
}

#[test]
#[ignore = "soak: `cargo xtask soak default-engine`"]
fn soak_programs_on_the_default_engine() {
    check_default_engines();
}

/// The values that a program reads in each of its rounds on an engine, or the first wrong one.
fn reads(
    engine: &Engine,
    streams: &[Stream],
    (sampled, steps): (&Sampled, &[Step]),
    rounds: usize,
) -> Result<Vec<Vec<(ProgramId, Literal)>>, String> {
    let round = |_| {
        let outcome = run(sampled, steps, streams, &mut Refused::default())?;
        engine.synchronize().map_err(|error| error.to_string())?;
        Ok(outcome.data)
    };
    (0..rounds).map(round).collect()
}

/// With `reproducible`, two runs of a program on several streams read the same bits. The runs cover
/// interpreted, compiled and merged regions. The second engine has more threads and other work.
#[test]
fn programs_with_several_streams_are_reproducible() {
    const ROUNDS: usize = 13;
    let config = || EngineConfig::new().reproducible(true);
    let what = "the reproducible programs";
    let Some(alone) = plugin_for(what, config().drive_threads(1).compile_threads(1)) else { return };
    let Some(busy) = plugin_for(what, config().drive_threads(3).compile_threads(3)) else { return };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| support::work_until(&busy, &stop));
        let streams = [&alone, &busy].map(|engine| [(); STREAMS].map(|()| engine.new_stream()));
        let mut entropy = Seeded::new(number("FUSELINE_SEED").unwrap_or(3));
        let mut several = 0;
        let outcome = (0..20).try_for_each(|program| {
            let options = ProgramOptions { dtypes: DTypeSet::ANY, ..ProgramOptions::new(Aim::Portable) };
            let sampled = ProgramSampler::sample(options, &mut entropy, 16);
            let steps = script(&sampled, &mut entropy);
            several += usize::from(steps.iter().any(|step| matches!(step, Step::Op(_, 1.., _))));
            let program = |error| format!("program {program}: {error}\n{}", describe(&sampled, &steps));
            let [first, second] = [(&alone, &streams[0]), (&busy, &streams[1])]
                .map(|(engine, streams)| reads(engine, streams, (&sampled, &steps), ROUNDS));
            let (first, second) = (first.map_err(program)?, second.map_err(program)?);
            match (0..ROUNDS).find(|&round| first[round] != second[round]) {
                None => Ok(()),
                Some(round) => Err(program(format!("round {round} differs"))),
            }
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome.unwrap_or_else(|error| panic!("{error}"));
        assert!(several > 6, "{several} programs use several streams");
    });
    for counters in [alone.counters(), busy.counters()] {
        println!("{counters:?}");
        assert!(counters.interpreted > 100 && counters.compiles > 20, "{counters:?}");
    }
}

/// Programs compiled to baseline executables (`runtime/src/tier/baseline.rs`), which omit
/// optimizations of LLVM, have the same results.
#[test]
fn programs_that_are_compiled_in_a_hurry() {
    let config = support::optimized_only().compiler_flag("xla_backend_optimization_level", 0i64);
    let Some(engine) = plugin_for("the programs that are compiled in a hurry", config) else { return };
    let batch = Batch { programs: 40, ops: 16, modes: &[Mode::Fused], rounds: 2, is_counted: true };
    on_engine(&engine, &[batch], 200);
}

/// Ops that XLA does not compile, by a part of its message.
const UNCOMPILED: &[(&str, &str)] = &[];

/// Checks batches of random programs on the plugin.
fn check_on_the_plugin(batches: &[Batch]) {
    let what = "the plugin half of the random programs";
    // Every program has other regions, so the default engine would interpret them all
    // (`programs_that_are_interpreted_first`).
    let Some(engine) = plugin_for(what, support::optimized_only()) else { return };
    let refused = on_engine(&engine, batches, 200);
    for (message, count) in &refused.0 {
        println!("not compiled ({count} times): {message}");
        assert!(
            UNCOMPILED.iter().any(|(part, _)| message.contains(part)),
            "the plugin refuses what is portable: {message}"
        );
    }
    let programs: u32 = batches.iter().map(|batch| batch.programs).sum();
    println!("figures: {programs} programs, {} ops", engine.counters().ops);
}

#[test]
fn programs_on_the_plugin() {
    check_on_the_plugin(&[
        Batch { programs: 36, ops: 8, modes: &MODES, rounds: 2, is_counted: true },
        Batch { programs: 24, ops: 24, modes: &[Mode::Fused], rounds: 2, is_counted: true },
        Batch { programs: 3, ops: 200, modes: &[Mode::Fused], rounds: 2, is_counted: true },
    ]);
}

#[test]
#[ignore = "exhaustive: `cargo xtask test full`"]
fn full_programs_on_the_plugin() {
    let share = |programs| support::part().share(programs);
    check_on_the_plugin(&[
        Batch { programs: share(1_500), ops: 8, modes: &MODES, rounds: 2, is_counted: true },
        Batch { programs: share(460), ops: 24, modes: &MODES, rounds: 2, is_counted: true },
        Batch { programs: share(40), ops: 200, modes: &[Mode::Fused], rounds: 2, is_counted: true },
    ]);
}

/// Constants whose quotient traps on the machine. XLA divides constants at compile time, and would
/// crash on these.
#[test]
fn constants_are_divided_as_data_is() {
    for engine in support::engines_of_all_tiers(support::config) {
        let stream = engine.stream();
        macro_rules! divided {
            ($($ty:ident),*) => {$(
                let least = $ty::MIN;
                let lhs = [7, 7, 7, least, least, least];
                let rhs = [2, 0, !0, !0, 0, 1];
                let constant = |data: &[$ty; 6]| stream.constant(Literal::from_slice(&[6], data).unwrap()).unwrap();
                let (quotient, rest) = (constant(&lhs).div(&constant(&rhs)), constant(&lhs).rem(&constant(&rhs)));
                let by = |f: fn($ty, $ty) -> $ty, zero: fn($ty) -> $ty| {
                    let pairs = lhs.iter().zip(&rhs);
                    pairs.map(|(&a, &b)| if b == 0 { zero(a) } else { f(a, b) }).collect::<Vec<$ty>>()
                };
                assert_eq!(quotient.unwrap().to_vec::<$ty>().unwrap(), by($ty::wrapping_div, |_| !0));
                assert_eq!(rest.unwrap().to_vec::<$ty>().unwrap(), by($ty::wrapping_rem, |a| a));
            )*};
        }
        divided!(i8, i16, i32, i64, u8, u16, u32, u64);
    }
}

/// XLA's constant folder crashes on a complex constant with one element, or one number in all
/// elements, that is converted to real numbers.
#[test]
fn complex_constants_become_real_ones() {
    for engine in support::engines_of_all_tiers(support::config) {
        let stream = engine.stream();
        for (dims, data) in [
            (&[2u64][..], &[Complex::new(2.25f32, -2.75), Complex::new(0.0, 1.0)][..]),
            (&[], &[Complex::new(2.25, -2.75)]),
            (&[2], &[Complex::new(2.25, -2.75), Complex::new(2.25, -2.75)]),
        ] {
            let z = stream.constant(Literal::from_slice(dims, data).unwrap()).unwrap();
            let real: Vec<f64> = data.iter().map(|z| z.re.into()).collect();
            let ints: Vec<i32> = real.iter().map(|&x| x as i32).collect();
            let bools: Vec<bool> = real.iter().map(|&x| x != 0.0).collect();
            assert_eq!(z.convert(DType::F64).unwrap().to_vec::<f64>().unwrap(), real);
            assert_eq!(z.convert(DType::I32).unwrap().to_vec::<i32>().unwrap(), ints);
            assert_eq!(z.convert(DType::Bool).unwrap().to_vec::<bool>().unwrap(), bools);
        }
    }
}

/// XLA's simplifier joins two bitcasts into one that its verifier refuses, if both change the
/// width. A lifted `f64` is passed as two words.
#[test]
fn bitcasts_of_bitcasts_compile() {
    for engine in support::engines_of_all_tiers(support::config) {
        let bytes = 1.5f64.to_le_bytes().map(|byte| byte as i8);
        let lifted = engine.scalar(1.5f64).bitcast(DType::I8).unwrap();
        assert_eq!(lifted.to_vec::<i8>().unwrap(), bytes);
        let x = engine.tensor(&[1.5f64], &[]).unwrap();
        let there_and_back = x.bitcast(DType::I8).unwrap().bitcast(DType::U64).unwrap();
        assert_eq!(there_and_back.to_vec::<u64>().unwrap(), [1.5f64.to_bits()]);
        assert_eq!(engine.counters().compile_failures, 0);
    }
}

/// XLA's simplifier makes one slice of two, and clamps only the sum of their positions.
#[test]
fn a_slice_of_a_slice_stays_inside() {
    for engine in support::engines_of_all_tiers(support::config) {
        let x = engine.tensor(&[0.0f32, 1.0, 2.0, 3.0, 4.0], &[5]).unwrap();
        let [zero, two] = [0i32, 2].map(|place| engine.tensor(&[place], &[]).unwrap());
        let four = x.dynamic_slice(&[&zero], &[4]).unwrap();
        assert_eq!(four.dynamic_slice(&[&two], &[3]).unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    }
}

/// XLA's simplifier takes the magnitude of a complex iota for the iota, and aborts the process.
#[test]
fn a_complex_iota_has_a_magnitude() {
    for engine in support::engines_of_all_tiers(support::config) {
        let iota = engine.stream().iota(DType::C64, &[2, 3], 1).unwrap();
        assert_eq!(iota.abs().unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    }
}

/// The keys of the regions that an engine seals for a program.
fn keys(config: EngineConfig, build: impl Fn(EngineConfig) -> Option<Engine>) -> Option<Vec<String>> {
    let log = support::Log::default();
    let engine = build(config.event_sink(log.sink()))?;
    let x = engine.tensor(&[1.0f32, 2.0], &[2]).unwrap();
    let y = ((&x * 0.5).unwrap() + &x).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.5, 3.0]);
    let sealed = |event| match event {
        fuseline::Event::Sealed { region, .. } => Some(region.key.to_string()),
        _ => None,
    };
    Some(log.take().into_iter().filter_map(sealed).collect())
}

/// Everything that an executable depends on besides the region is in the key too.
#[test]
fn another_device_or_flag_is_another_key() {
    let on_reference = || keys(support::config(), |config| config.build_reference().ok());
    let on_plugin = |config| keys(config, |config| plugin_for("the plugin half of the keys", config));
    let reference = on_reference().expect("it needs nothing");
    assert_eq!(on_reference().as_ref(), Some(&reference));
    let Some(plain) = on_plugin(support::config()) else { return };
    assert_eq!((reference.len(), plain.len()), (1, 1));
    assert_ne!(plain, reference);
    assert_eq!(on_plugin(support::config()).as_ref(), Some(&plain));
    let mut known = vec![plain];
    for (flag, value) in [
        ("xla_cpu_enable_fast_math", true),
        ("xla_cpu_enable_fast_math", false),
        ("xla_cpu_fast_math_honor_nans", true),
    ] {
        let flagged = on_plugin(support::config().compiler_flag(flag, value));
        let flagged = flagged.expect("there is a plugin");
        assert!(!known.contains(&flagged), "{flag} = {value} changes no key");
        known.push(flagged);
    }
}
