//! Random programs that come in several sizes, as batches and sequences do. A size may run padded,
//! interpreted or on an executable of its own. Every value read is the one that the reference
//! interpreter computed.
//!
//! `FUSELINE_PROGRAMS` multiplies the number of programs, and `FUSELINE_SEED` changes them.

use fuseline::fusion::{OpCode, OpDef};
use fuseline::{Counters, EngineConfig, ShapeClasses};
use fuseline_testgen::{Aim, Entropy as _, ProgramOptions, Seeded, sample_sizes};

use crate::support;
use crate::support::script::{Refused, describe, run, script, streams};
use crate::support::{number, plugin_for};

/// The sizes of a program. The first two get executables of their own. Of the others, all but one
/// are padded to the same size.
const SIZES: [u64; 5] = [5, 3, 6, 9, 4];

/// Whether most samples of an op have a padding rule (`fusion/src/shape_class/rules.rs`). A region
/// with a single op without a rule is not padded. Elementwise ops share a rule, so a few of them
/// are enough.
fn is_mostly_padded(def: &OpDef) -> bool {
    use OpCode::*;
    let elementwise = [Add, Subtract, Multiply, Maximum, Negate, Tanh, Compare, Select, Convert];
    let others = [BroadcastInDim, Iota, Transpose, Concatenate, Reduce, DotGeneral];
    elementwise.contains(&def.code) || others.contains(&def.code)
}

/// Runs programs in all sizes on an engine, three times, and returns what it did.
fn check(config: EngineConfig, accepts: fn(&OpDef) -> bool, programs: u32) -> Option<Counters> {
    let engine = plugin_for("programs whose sizes vary", config)?;
    let streams = streams(&engine);
    let mut entropy = Seeded::new(number("FUSELINE_SEED").unwrap_or(17));
    for program in 0..programs * number("FUSELINE_PROGRAMS").unwrap_or(1) {
        let options = ProgramOptions { accepts, ..ProgramOptions::new(Aim::Portable) };
        let all = sample_sizes(options, &mut entropy, 6, &SIZES);
        let how = u64::from(entropy.draw(u32::MAX));
        for round in 0..3 {
            for (sampled, size) in all.iter().zip(SIZES) {
                let steps = script(sampled, &mut Seeded::new(how));
                let outcome = run(sampled, &steps, &streams, &mut Refused::default());
                outcome.unwrap_or_else(|error| {
                    let program = format!("program {program}, size {size}, round {round}");
                    panic!("{engine:?}: {program}: {error}\n{}", describe(sampled, &steps))
                });
            }
            support::wait_until(&engine, |counters| counters.pending_compiles == 0);
        }
        if engine.counters().cached_executables > 500 {
            engine.clear_cache();
        }
    }
    let counters = engine.counters();
    println!("figures: {counters:?}");
    assert_eq!((counters.fallbacks, counters.poisoned, counters.panics), (0, 0, 0), "{counters:?}");
    Some(counters)
}

/// The default engine, and one that pads with masks, with and without the interpreter. Without it,
/// a second size is padded at once.
fn check_all(accepts: fn(&OpDef) -> bool, programs: u32) {
    for classes in [ShapeClasses::Unmasked, ShapeClasses::Masked] {
        let config = || EngineConfig::new().shape_classes(classes);
        let Some(default) = check(config(), accepts, programs) else { return };
        assert!(default.interpreted > u64::from(programs), "{default:?}");
        let Some(compiled) = check(config().interpret_cold_regions(false), accepts, programs) else { return };
        assert!(compiled.padded > u64::from(programs), "{compiled:?}");
    }
}

#[test]
fn programs_whose_sizes_vary() {
    check_all(is_mostly_padded, 25);
}

#[test]
#[ignore = "soak: `cargo xtask soak varying-sizes`"]
fn soak_programs_whose_sizes_vary() {
    check_all(is_mostly_padded, 25);
    check_all(|_| true, 10);
}
