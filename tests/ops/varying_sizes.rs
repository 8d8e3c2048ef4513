//! Random programs that come in several sizes, as batches and sequences do: whatever runs a size, a
//! padded region too, every value read is the one that the reference interpreter computed.
//!
//! `FUSELINE_PROGRAMS` multiplies the number of programs, and `FUSELINE_SEED` changes them.

use fuseline::{Counters, EngineConfig, ShapeClasses, Stream};
use fuseline_testgen::{Aim, Entropy as _, ProgramOptions, Seeded, sample_sizes};

use crate::support;
use crate::support::script::{Refused, STREAMS, describe, run, script};
use crate::support::{number, plugin_for};

/// The sizes of a program. The first ones are not in the order in which they get executables.
const SIZES: [u64; 8] = [7, 12, 6, 11, 9, 10, 13, 8];

/// Runs programs in all sizes on an engine, three times, and returns what it did.
fn check(config: EngineConfig, programs: u32) -> Option<Counters> {
    let engine = plugin_for("programs whose sizes vary", config)?;
    let streams: Vec<Stream> =
        std::iter::once(engine.stream().clone()).chain((1..STREAMS).map(|_| engine.new_stream())).collect();
    let mut entropy = Seeded::new(number("FUSELINE_SEED").unwrap_or(17));
    for program in 0..programs * number("FUSELINE_PROGRAMS").unwrap_or(1) {
        let all = sample_sizes(ProgramOptions::new(Aim::Portable), &mut entropy, 8, &SIZES);
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
fn check_all(programs: u32) {
    for classes in [ShapeClasses::Unmasked, ShapeClasses::Masked] {
        let config = || EngineConfig::new().shape_classes(classes);
        let Some(default) = check(config(), programs) else { return };
        assert!(default.interpreted > u64::from(programs), "{default:?}");
        let Some(compiled) = check(config().interpret_cold_regions(false), programs) else { return };
        assert!(compiled.padded > u64::from(programs), "{compiled:?}");
    }
}

#[test]
fn programs_whose_sizes_vary() {
    check_all(20);
}

#[test]
#[ignore = "soak: `cargo xtask soak varying-sizes`"]
fn soak_programs_whose_sizes_vary() {
    check_all(20);
}
