//! The fake plugin is a plugin: what is not planned goes right, and everything is given back.

use std::collections::HashMap;

use fuseline::fusion::DTypeSet;
use fuseline::fusion::Signature;
use fuseline::fusion::op::{Aim, Entropy, ProgramOptions, ProgramSampler, Sampled, Seeded};
use fuseline::fusion::program::ProgramId;
use fuseline::{Attrs, Engine, EngineConfig, Mode, Tensor, with_mode};

use crate::support::fakeplugin::{FakePlugin, path};
use crate::support::number;
use crate::{COMPILE, EXECUTE};

fn sampled(seed: u64) -> Sampled {
    let mut random = Seeded::new(seed);
    let ops = 1 + random.draw(12) as usize;
    // One in four is of elements of 2 and 4 bits.
    let dtypes = if random.draw(4) == 3 { DTypeSet::NARROW } else { DTypeSet::ANY };
    let options = ProgramOptions { dtypes, ..ProgramOptions::new(Aim::Portable) };
    ProgramSampler::sample(options, &mut random, ops)
}

/// Whether a program calls handlers, which the fake plugin cannot.
fn calls_handlers(sampled: &Sampled) -> bool {
    let ops = sampled.program.ops.iter().map(|op| &op.signature);
    let mut calls = |signature: &Signature| signature.handler().is_some();
    let mut any = ops.map(|signature| {
        calls(signature) || signature.bodies().iter().any(|body| body.graph().any_op(&mut calls))
    });
    any.any(|calls| calls)
}

/// Runs a program, drops some of its values unread and compares the others.
fn check(engine: &Engine, sampled: &Sampled, seed: u64) -> Result<(), String> {
    let mut random = Seeded::new(seed);
    let mut values: HashMap<ProgramId, Tensor> = HashMap::new();
    let text = |error: fuseline::Error| error.to_string();
    for value in &sampled.program.values {
        values.insert(value.id, engine.from_literal(&value.data).map_err(text)?);
    }
    for op in &sampled.program.ops {
        let operands: Vec<&Tensor> = op.operands.iter().map(|id| &values[id]).collect();
        let (attrs, bodies) = (Attrs::clone(op.signature.attrs()), op.signature.bodies());
        let results = engine.stream().record(op.signature.op(), attrs, bodies, &operands).map_err(text)?;
        values.extend(op.results.iter().copied().zip(results));
    }
    let mut ids: Vec<ProgramId> = values.keys().copied().collect();
    ids.sort_unstable();
    for id in ids {
        let tensor = values.remove(&id).unwrap();
        if random.draw(3) > 0 {
            let data = tensor.to_literal().map_err(text)?;
            sampled.value(id).check(&data).map_err(|error| format!("value {id}: {error}"))?;
        }
    }
    Ok(())
}

fn random_programs(plugin: &FakePlugin, config: EngineConfig, count: u64) {
    let engine = config.build().unwrap();
    let first = number::<u64>("FUSELINE_SEED").unwrap_or(0) * 1_000_000;
    let mut left_out = 0;
    for seed in first..first + count {
        let sampled = sampled(seed);
        if calls_handlers(&sampled) {
            left_out += 1;
            continue;
        }
        for mode in [Mode::Fused, Mode::Strict, Mode::Debug] {
            let outcome = with_mode(mode, || check(&engine, &sampled, seed));
            outcome.unwrap_or_else(|error| {
                panic!("program {seed} in {mode:?}: {error}\n{}", sampled.program.to_json())
            });
        }
        engine.clear_cache();
    }
    assert!(left_out < count / 5, "{left_out} of {count} programs call handlers");
    let counters = engine.counters();
    assert_eq!((counters.fallbacks, counters.poisoned, counters.panics), (0, 0, 0), "{counters:?}");
    assert_eq!(plugin.calls(EXECUTE), counters.executions);
    assert_eq!(plugin.calls("Run"), counters.executions);
    drop(engine);
    plugin.assert_clean();
}

#[test]
fn random_programs_give_the_interpreters_results() {
    let plugin = FakePlugin::alone();
    random_programs(&plugin, plugin.config(), 300);
    assert!(plugin.calls(COMPILE) > 200 && plugin.created("buffer") > 1_000);
}

/// The ways that the engine takes on XLA's CPU plugin: interpreted first, compiled in a hurry, read in place.
#[test]
fn random_programs_on_a_plugin_that_says_it_is_a_cpu() {
    let plugin = FakePlugin::alone();
    random_programs(&plugin, EngineConfig::new().plugin(path()).client_option("platform", "cpu"), 200);
    assert!(plugin.calls("PJRT_Buffer_OpaqueDeviceMemoryDataPointer") > 100);
}

#[test]
#[ignore = "soak: cargo test --release --test plugin many_random_programs -- --ignored"]
fn many_random_programs() {
    let plugin = FakePlugin::alone();
    random_programs(&plugin, plugin.config(), 5_000);
    random_programs(&plugin, EngineConfig::new().plugin(path()).client_option("platform", "cpu"), 5_000);
}
