//! Every function of a plugin fails in every possible way, at its first calls. A program is right
//! or reports the error, the engine works after the fault, and nothing leaks.
//!
//! Functions that destroy objects do not fail here, because the objects would stay (see
//! `crash.rs`).

use fuseline::pjrt::Counters;
use fuseline::{Engine, EngineConfig, Result};

use super::{three, three_of};

use crate::support::fakeplugin::{FakePlugin, wait_for};

/// Functions that an engine calls, and their asynchronous work.
const POINTS: &[&str] = &[
    "PJRT_Client_Create",
    "PJRT_Client_PlatformName",
    "PJRT_Client_PlatformVersion",
    "PJRT_Client_ProcessIndex",
    "PJRT_Client_Devices",
    "PJRT_Client_AddressableMemories",
    "PJRT_Client_Compile",
    "PJRT_Client_BufferFromHostBuffer",
    "PJRT_DeviceDescription_Id",
    "PJRT_DeviceDescription_ProcessIndex",
    "PJRT_DeviceDescription_Kind",
    "PJRT_Device_GetDescription",
    "PJRT_Device_IsAddressable",
    "PJRT_Device_LocalHardwareId",
    "PJRT_Device_AddressableMemories",
    "PJRT_Device_DefaultMemory",
    "PJRT_Memory_Id",
    "PJRT_Memory_Kind",
    "PJRT_Executable_Name",
    "PJRT_Executable_NumOutputs",
    "PJRT_Executable_SizeOfGeneratedCodeInBytes",
    "PJRT_Executable_OutputElementTypes",
    "PJRT_Executable_OutputDimensions",
    "PJRT_Executable_GetCompiledMemoryStats",
    "PJRT_LoadedExecutable_GetExecutable",
    "PJRT_LoadedExecutable_AddressableDevices",
    "PJRT_LoadedExecutable_Execute",
    "PJRT_Buffer_IsDeleted",
    "PJRT_Buffer_ToHostBuffer",
    "PJRT_Buffer_IsOnCpu",
    "PJRT_Buffer_OnDeviceSizeInBytes",
    "PJRT_Buffer_ReadyEvent",
    "PJRT_Buffer_IncreaseExternalReferenceCount",
    "PJRT_Buffer_OpaqueDeviceMemoryDataPointer",
    "PJRT_Event_Await",
    "PJRT_Event_OnReady",
    "PJRT_Error_GetCode",
    "Run",
    "CopyIn",
    "CopyOut",
];

/// Functions that return an object, which may be missing, and those whose events may fail.
const OBJECTS: &[&str] = &[
    "PJRT_Client_Create",
    "PJRT_Client_Compile",
    "PJRT_LoadedExecutable_GetExecutable",
    "PJRT_LoadedExecutable_Execute",
    "PJRT_Client_BufferFromHostBuffer",
    "PJRT_Buffer_ToHostBuffer",
    "PJRT_Buffer_ReadyEvent",
];
const EVENTS: &[&str] = &[
    "PJRT_LoadedExecutable_Execute",
    "PJRT_Client_BufferFromHostBuffer",
    "PJRT_Buffer_ToHostBuffer",
    "PJRT_Buffer_ReadyEvent",
];

fn actions(point: &str) -> Vec<&'static str> {
    let mut actions = vec!["fail(INTERNAL, \"planned\")", "oom", "delay(1)", "hang"];
    if point.starts_with("PJRT_") {
        actions.push("wrong_struct_size");
    }
    if OBJECTS.contains(&point) {
        actions.push("null");
    }
    if EVENTS.contains(&point) {
        actions.push("event_error(INTERNAL, \"planned\")");
    }
    actions
}

/// Possible messages of a fault, from the plugin or the layer.
const WORDS: [&str; 5] = [
    "planned",
    "Unexpected PJRT_",
    "the plugin returned no",
    "deleted or donated",
    "was asked for, but the plugin has 0 devices",
];

/// A program with scalars, results that die and are updated in place, a wait, a read and an
/// asynchronous read.
fn program(engine: &Engine) -> Result<()> {
    let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
    let y = three(&x)?;
    y.wait()?;
    let z = ((y * 0.5)? + 1.0)?;
    assert_eq!(
        crate::support::block_on(z.read())?.to_vec::<f32>()?,
        [1.0, 2.0].map(|x| three_of(x) * 0.5 + 1.0)
    );
    let mut sum = z;
    for _ in 0..3 {
        sum = sum.add(&x)?;
        engine.stream().flush();
    }
    assert_eq!(sum.to_vec::<f32>()?, [1.0, 2.0].map(|x: f32| three_of(x) * 0.5 + 1.0 + 3.0 * x));
    engine.synchronize()
}

#[track_caller]
fn says_why(outcome: Result<()>, what: &str) {
    if let Err(error) = outcome {
        let text = error.to_string();
        assert!(WORDS.iter().any(|words| text.contains(words)), "{what}: {text}");
    }
}

/// Injects a fault. Returns whether it happened.
fn one_fault(plugin: &FakePlugin, config: EngineConfig, point: &str, action: &str, call: u32) -> bool {
    let what = format!("{point}@{call} = {action}");
    let before = plugin.fired(point);
    // Functions on errors need an error first.
    let first =
        if point == "PJRT_Error_GetCode" { "Client_Compile = fail(ABORTED, \"planned\");" } else { "" };
    plugin.plan(&format!("{first}{what}"));
    let run = |config: EngineConfig| match config.build() {
        Err(error) => says_why(Err(error), &what),
        Ok(engine) => {
            says_why(program(&engine), &what);
            plugin.heal();
            engine.clear_cache();
            program(&engine).unwrap_or_else(|error| panic!("{what}: afterwards: {error}"));
            assert_eq!(engine.counters().panics, 0, "{what}");
        }
    };
    if action == "hang" {
        // Another thread releases it.
        std::thread::scope(|scope| {
            let running = scope.spawn(|| run(config));
            wait_for(|| running.is_finished() || plugin.hanging() > 0, || format!("{what}: nobody hangs"));
            let is_over = || {
                plugin.release();
                running.is_finished()
            };
            wait_for(is_over, || format!("{what}: it does not go on"));
            running.join().unwrap_or_else(|_| panic!("{what}: a panic"));
        });
    } else {
        run(config);
    }
    let fired = plugin.fired(point) > before;
    plugin.heal();
    plugin.assert_clean();
    fired
}

/// The roles of the plugin: a device of its own, a CPU that compiles regions, and one that
/// interprets new regions.
fn configs(plugin: &FakePlugin) -> [EngineConfig; 3] {
    let cpu = |config: EngineConfig| config.client_option("platform", "cpu");
    [plugin.config(), cpu(plugin.config().interpret_cold_regions(false)), cpu(plugin.config())]
}

fn sweep(plugin: &FakePlugin, calls: u32) {
    let (before, mut happened) = (fuseline::pjrt::counters(), 0);
    for point in POINTS {
        let mut ever = 0;
        for which in 0..3 {
            for action in actions(point) {
                // Up to the last call.
                let faults = (1..=calls)
                    .map(|call| one_fault(plugin, configs(plugin)[which].clone(), point, action, call));
                ever += faults.take_while(|fired| *fired).count();
            }
        }
        println!("{point}: {ever} faults");
        assert!(ever > 0, "{point} is never called");
        happened += ever;
    }
    println!("{happened} faults in all");
    // The target of a copy is leaked if the plugin cannot report its end.
    let counters = Counters { leaks: before.leaks, ..fuseline::pjrt::counters() };
    assert_eq!(counters, before);
}

#[test]
fn every_function_fails_in_every_way() {
    sweep(&FakePlugin::alone(), 3);
}

#[test]
#[ignore = "soak: `cargo xtask soak plugin-sweep`"]
fn every_call_fails_in_every_way() {
    sweep(&FakePlugin::alone(), 1_000);
}
