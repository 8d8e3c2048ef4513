//! The fake plugin is a valid plugin: without planned faults everything works, and nothing leaks.

use std::collections::HashMap;

use fuseline::fusion::DTypeSet;
use fuseline::fusion::Signature;
use fuseline::fusion::program::ProgramId;
use fuseline::pjrt::{ClientOptions, Code, CompileOptions, ExecuteOptions, Plugin, bytes_of};
use fuseline::{Attrs, Engine, EngineConfig, Mode, OpCode, Tensor, with_mode};
use fuseline_testgen::{Aim, Entropy, ProgramOptions, ProgramSampler, Sampled, Seeded};

use super::{COMPILE, EXECUTE, three, three_of};

use crate::support::fakeplugin::{FakePlugin, path};
use crate::support::number;

fn sampled(seed: u64) -> Sampled {
    let mut random = Seeded::new(seed);
    let ops = 1 + random.draw(12) as usize;
    // One in four has elements of 2 and 4 bits.
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
    let before = [EXECUTE, "Run"].map(|point| plugin.calls(point));
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
    let after = [EXECUTE, "Run"].map(|point| plugin.calls(point));
    assert_eq!([after[0] - before[0], after[1] - before[1]], [counters.executions; 2]);
    drop(engine);
    plugin.assert_clean();
}

#[test]
fn random_programs_give_the_interpreters_results() {
    let plugin = FakePlugin::alone();
    random_programs(&plugin, plugin.config(), 300);
    assert!(plugin.calls(COMPILE) > 200 && plugin.created("buffer") > 1_000);
}

/// The paths that the engine takes on XLA's CPU plugin: interpreted first, baseline compiles, reads
/// in place.
#[test]
fn random_programs_on_a_plugin_that_says_it_is_a_cpu() {
    let plugin = FakePlugin::alone();
    random_programs(&plugin, plugin.config().client_option("platform", "cpu"), 200);
    assert!(plugin.calls("PJRT_Buffer_OpaqueDeviceMemoryDataPointer") > 100);
}

#[test]
#[ignore = "soak: cargo test --release --test pjrt plugin::many_random_programs -- --ignored"]
fn many_random_programs() {
    let plugin = FakePlugin::alone();
    random_programs(&plugin, plugin.config(), 5_000);
    random_programs(&plugin, plugin.config().client_option("platform", "cpu"), 5_000);
}

const MODULE: &str = "module @sum { func.func public @main(%a: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<2xf32>) -> tensor<2xf32> {
  %0 = \"stablehlo.add\"(%a, %b) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32> } }";

/// A serialized executable runs again, and every change of it is refused.
#[test]
fn serialised_executables_are_whole_or_refused() {
    let plugin = FakePlugin::alone();
    let client = Plugin::open(path()).unwrap().client(&ClientOptions::new()).unwrap();
    let executable = client.compile(MODULE, &CompileOptions::new()).unwrap();
    let bytes = executable.serialize().unwrap();
    // SAFETY: these bytes are no code, and the plugin checks them.
    let load = |bytes: &[u8]| unsafe { client.deserialize(bytes, None) };
    let again = load(&bytes).unwrap();
    assert_eq!((again.name(), again.outputs()), ("sum", executable.outputs()));
    assert_eq!(again.fingerprint().unwrap(), executable.fingerprint().unwrap());
    assert_eq!(again.serialize().unwrap(), bytes);
    let (ty, devices) = (again.outputs()[0].clone(), client.devices());
    let upload = |data: [f32; 2]| client.buffer_from_host(&ty, bytes_of(&data), &devices[0]).unwrap();
    let (a, b) = (upload([1.0, 2.0]), upload([10.0, 20.0]));
    // Donation with and without a veto.
    for (vetoes, is_gone) in [(&[0i64][..], false), (&[], true)] {
        let options = ExecuteOptions { non_donatable: vetoes, ..ExecuteOptions::default() };
        let sum = again.execute(&[&a, &b], &options).unwrap().outputs.pop().unwrap();
        assert_eq!(sum.to_host().unwrap(), bytes_of(&[11.0f32, 22.0]));
        assert_eq!((a.is_deleted(), b.is_deleted()), (Ok(is_gone), Ok(false)));
    }
    let error = again.execute(&[&a, &b], &ExecuteOptions::default()).unwrap_err();
    assert!(error.message().contains("deleted or donated"), "{error}");
    let refused = |bytes: &[u8]| load(bytes).expect_err("it is damaged").code() == Code::DataLoss;
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(refused(&damaged), "bit {bit}");
    }
    assert!((0..bytes.len()).all(|len| refused(&bytes[..len])));
    assert!(refused(&[bytes.as_slice(), b" "].concat()));
    assert!(plugin.calls("PJRT_Executable_DeserializeAndLoad") > 8 * bytes.len() as u64);
    drop((a, b, executable, again, devices, client));
    plugin.assert_clean();
}

/// Several devices of one client that compute together.
#[test]
fn replicas_exchange_their_data() {
    let plugin = FakePlugin::alone();
    let engine = plugin.config().client_option("devices", 3i64).replicas(3).build().unwrap();
    let x = engine.tensor_per_replica(&[&[1.0f32, 2.0], &[3.0, 4.0], &[5.0, 6.0]], &[2]).unwrap();
    let sum = three(&x).unwrap().all_reduce(OpCode::Add, None).unwrap();
    let parts = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]].map(|part: [f32; 2]| part.map(three_of));
    let wanted = [0, 1].map(|place| parts.iter().map(|part| part[place]).sum::<f32>());
    for found in sum.read_replicas().unwrap() {
        assert_eq!(found.to_vec::<f32>().unwrap(), wanted);
    }
    // It fails on one of them, so the whole execution fails.
    plugin.plan("Run@1 = fail(ABORTED, \"planned: a link is down\")");
    let error = three(&x).unwrap().to_vec::<f32>().unwrap_err();
    assert!(error.to_string().contains("ABORTED: planned: a link is down"), "{error}");
    assert_eq!(plugin.fired("Run"), 1);
    drop((x, sum, engine));
    plugin.assert_clean();
}
