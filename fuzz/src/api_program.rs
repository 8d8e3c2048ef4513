//! A program at the public API, on the reference device. Whatever is recorded on any stream in any
//! mode, and dropped, copied and read at any time: every value read is the one that the interpreter
//! computed.
//!
//! Each input has its own engine, so that it fails the same way alone: about 1.5 ms an execution,
//! of which the engine and its threads take a tenth.

use fuseline::fusion::{self, DTypeSet};
use fuseline::{Budgets, EngineConfig, Mode, with_mode};
use fuseline_testgen::{Aim, Entropy as _, ProgramOptions, ProgramSampler, Sampled};

use super::bytes::Bytes;
use super::script::{Refused, describe, run as run_script, script, streams};

/// Splits a byte string into a sampled program and choices of what to do with it.
pub(super) fn program<'a>(data: &'a [u8], most_ops: usize) -> (Sampled, Bytes<'a>) {
    let (mut program, mut how) = Bytes::halves(data);
    let ops = program.ops(most_ops, &mut how);
    let dtypes = if how.draw(4) == 3 { DTypeSet::NARROW } else { DTypeSet::ANY };
    let options = ProgramOptions { dtypes, ..ProgramOptions::new(Aim::Portable) };
    (ProgramSampler::sample(options, &mut program, ops), how)
}

pub(super) fn run(data: &[u8]) {
    let (sampled, mut how) = program(data, 16);
    // Regions that end early interact more.
    let ops = [Budgets::default().ops, 1, 2, 5][how.draw(4) as usize];
    let budgets = Budgets { ops, ..Budgets::default() };
    let mode = [Mode::Fused, Mode::Fused, Mode::Strict, Mode::Debug][how.draw(4) as usize];
    let rounds = 1 + how.draw(4);
    let config = EngineConfig::new().region_budgets(budgets).replay(how.draw(4) != 3);
    let engine = config.build_reference().expect("the reference engine needs threads only");
    let streams = streams(&engine);
    let steps = script(&sampled, &mut how);
    // More than two repetitions are replayed.
    for round in 0..rounds {
        let mut refused = Refused::default();
        let found = with_mode(mode, || run_script(&sampled, &steps, &streams, &mut refused));
        let found = found.and_then(|_| engine.synchronize().map_err(|error| error.to_string()));
        let counters = engine.counters();
        let fine = refused.0.is_empty() && counters.panics == 0 && counters.poisoned == 0;
        match found {
            Ok(()) if fine => {}
            Ok(()) => panic!("{refused:?}, {counters:?}\n{}", describe(&sampled, &steps)),
            Err(error) => panic!("{mode:?}, round {round}: {error}\n{}", describe(&sampled, &steps)),
        }
    }
}
