//! A plugin that crashes costs one process for each region: the next process knows the region and
//! does not try it again.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use fuseline::fusion::op::RngAlgorithm;
use fuseline::{Counters, DType, Engine, EngineConfig, Event, Result, Tensor};

use super::{is_right, three};

use crate::support::fakeplugin::{FakePlugin, in_child, wait_for};
use crate::support::{Log, place};

const PLAN: &str = "FUSELINE_FAKE_PLAN";
const ROOT: &str = "FUSELINE_TEST_ROOT";
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

/// Runs one region of three ops with the disk cache of the folder in the environment. Returns
/// events and counters.
fn run() -> (Vec<Event>, Counters) {
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    let plugin = FakePlugin::alone();
    let log = Log::default();
    let engine = plugin.config().disk_cache(place(&root)).event_sink(log.sink()).build().unwrap();
    is_right(&three(&engine.tensor(&[3.0f32], &[1]).unwrap()).unwrap(), &[3.0]);
    let counters = engine.counters();
    drop(engine);
    (log.take(), counters)
}

/// The whole region was neither compiled nor loaded, for that reason, and has the right results
/// anyway.
fn is_in_quarantine() {
    let (events, counters) = run();
    let refused = |event: &Event| match event {
        Event::CompileFailed { region, message } => region.ops == 3 && message.contains("not tried again"),
        _ => false,
    };
    assert!(events.iter().any(refused), "{events:?}");
    assert!(!events.iter().any(obtained), "{events:?}");
    assert_eq!(counters.fallbacks, 1, "{counters:?}");
}

fn is_compiled() {
    let (events, counters) = run();
    assert_eq!((counters.compiles, counters.loads, counters.fallbacks), (1, 0, 0), "{events:?}");
}

fn is_loaded() {
    let (events, counters) = run();
    assert_eq!((counters.compiles, counters.loads, counters.fallbacks), (0, 1, 0), "{events:?}");
}

/// The region of three ops was compiled or loaded.
fn obtained(event: &Event) -> bool {
    match event {
        Event::CompileFinished { region, .. } | Event::Loaded { region, .. } => region.ops == 3,
        _ => false,
    }
}

/// Runs a part in a process of its own, which must succeed.
#[track_caller]
fn well(test: &str, case: &str, root: &Path, part: fn()) {
    well_by(test, case, root, "", part);
}

/// The same with a fault plan.
#[track_caller]
fn well_by(test: &str, case: &str, root: &Path, plan: &str, part: fn()) {
    let vars = [(ROOT, root.to_str().unwrap()), (PLAN, plan)];
    if let Some(output) = in_child(test, case, &vars, part) {
        assert!(output.status.success(), "{case}: {output:?}");
    }
}

/// Runs a part in a process of its own, which must end by a signal.
#[track_caller]
fn ends_by(signal: i32, test: &str, case: &str, root: &Path, plan: &str, part: fn()) {
    let vars = [(ROOT, root.to_str().unwrap()), (PLAN, plan)];
    if let Some(output) = in_child(test, case, &vars, part) {
        assert_eq!(output.status.signal(), Some(signal), "{case}: {output:?}");
    }
}

/// R16: at each of the points where a plugin may crash on a region. After the quarantine the region
/// is tried again, without the crashing plan.
#[test]
fn a_crash_costs_one_process() {
    const TEST: &str = "plugin::quarantine::a_crash_costs_one_process";
    let places = [
        ("PJRT_Client_Compile", false),
        ("PJRT_LoadedExecutable_Execute", false),
        ("Run", false),
        ("PJRT_Executable_DeserializeAndLoad", true),
        ("PJRT_LoadedExecutable_Execute", true),
    ];
    for (place, is_warm) in places {
        let root = tempfile::tempdir().unwrap();
        let case = |what: &str| format!("{place}, warm: {is_warm}: {what}");
        if is_warm {
            well(TEST, &case("before"), root.path(), is_compiled);
        }
        let plan = format!("{place}@1 = abort");
        ends_by(SIGABRT, TEST, &case("crash"), root.path(), &plan, is_compiled);
        well(TEST, &case("after"), root.path(), is_in_quarantine);
        well(TEST, &case("and again"), root.path(), is_in_quarantine);
        // End the quarantine. (It is disabled in the processes of the test.)
        let quarantine = std::fs::read_dir(root.path().join("cache/v1/quarantine"));
        for held in quarantine.into_iter().flatten() {
            std::fs::remove_file(held.unwrap().path()).unwrap();
        }
        well(TEST, &case("later"), root.path(), is_compiled);
        well(TEST, &case("and then"), root.path(), is_loaded);
    }
}

/// Records ops on some numbers.
type Program = fn(&Engine, Tensor) -> Result<Vec<Tensor>>;

/// Runs a program for which the plugin must neither compile nor execute anything. Returns the
/// events.
fn told(config: impl FnOnce(EngineConfig) -> EngineConfig, program: Program, wanted: &[f32]) -> Vec<Event> {
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    let plugin = FakePlugin::alone();
    let log = Log::default();
    let engine = config(plugin.config()).disk_cache(place(&root)).event_sink(log.sink()).build().unwrap();
    let x = engine.tensor(&[3.0f32, 4.0], &[2]).unwrap();
    for value in program(&engine, x).unwrap() {
        for replica in value.read_replicas().unwrap() {
            assert_eq!(replica.to_vec::<f32>().unwrap(), wanted);
        }
    }
    assert_eq!(plugin.calls("PJRT_Client_Compile"), 0, "it is compiled again");
    assert_eq!(plugin.calls("PJRT_LoadedExecutable_Execute"), 0);
    assert_eq!(engine.counters().poisoned, 0);
    drop(engine);
    log.take()
}

/// The number of regions that were interpreted because of a crash; each event names it.
#[track_caller]
fn interpreted(events: &[Event]) -> usize {
    let is_said = |event: &&Event| match event {
        Event::Quarantined { region, why } => {
            assert!(
                region.ops == 1 && why.contains("its compile crashed a process; it is not tried again"),
                "{event}"
            );
            true
        }
        _ => false,
    };
    events.iter().filter(is_said).count()
}

/// The plan of a process that must request nothing of the kind from the plugin.
const NEVER: &str = "PJRT_Client_Compile = abort; PJRT_LoadedExecutable_Execute = abort";

const CRASH: &str = "PJRT_Client_Compile@1 = abort";

/// A fault costs speed, never a result: an op that crashed gets its result by other means,
/// whichever of its values is read.
#[test]
fn an_op_that_crashed_is_interpreted() {
    const TEST: &str = "plugin::quarantine::an_op_that_crashed_is_interpreted";
    let root = tempfile::tempdir().unwrap();
    let kept: fn() = || {
        let events = told(|config| config, |_, x| Ok(vec![x.neg()?]), &[-3.0, -4.0]);
        assert_eq!(interpreted(&events), 1, "{events:?}");
    };
    // Its operand dies, so its memory could be reused: another executable, and the same crash.
    let dying: fn() = || {
        let events = told(
            |config| config,
            |_, x| {
                let y = x.neg()?;
                drop(x);
                Ok(vec![y])
            },
            &[-3.0, -4.0],
        );
        assert_eq!(interpreted(&events), 1, "{events:?}");
    };
    let strict: fn() = || {
        let events =
            told(|config| config.mode(fuseline::Mode::Strict), |_, x| Ok(vec![x.neg()?]), &[-3.0, -4.0]);
        assert_eq!(interpreted(&events), 1, "{events:?}");
    };
    ends_by(SIGABRT, TEST, "crash", root.path(), CRASH, kept);
    for (case, part) in [("kept", kept), ("dying", dying), ("strict", strict)] {
        well_by(TEST, case, root.path(), NEVER, part);
    }
}

/// A crash of a region may be caused by its ops: they are not compiled either, nor is the region
/// for other results.
#[test]
fn the_ops_of_a_region_that_crashed_are_interpreted() {
    const TEST: &str = "plugin::quarantine::the_ops_of_a_region_that_crashed_are_interpreted";
    let root = tempfile::tempdir().unwrap();
    let last: fn() = || {
        let events = told(|config| config, |_, x| Ok(vec![x.neg()?.abs()?.neg()?]), &[-3.0, -4.0]);
        assert_eq!(interpreted(&events), 3, "{events:?}");
    };
    let more: fn() = || {
        let program: Program = |_, x| {
            let y = x.neg()?;
            Ok(vec![y.abs()?.neg()?, y])
        };
        let events = told(|config| config, program, &[-3.0, -4.0]);
        assert_eq!(interpreted(&events), 3, "{events:?}");
    };
    let several: fn() = || {
        let config = |config: EngineConfig| config.client_option("devices", 2).replicas(2);
        let events = told(config, |_, x| Ok(vec![x.neg()?.abs()?.neg()?]), &[-3.0, -4.0]);
        assert_eq!(interpreted(&events), 3, "{events:?}");
    };
    ends_by(SIGABRT, TEST, "crash", root.path(), CRASH, last);
    well_by(TEST, "after", root.path(), NEVER, last);
    well_by(TEST, "for other results", root.path(), NEVER, more);
    // Another environment.
    ends_by(SIGABRT, TEST, "crash of replicas", root.path(), CRASH, several);
    well_by(TEST, "after that", root.path(), NEVER, several);
}

/// Ops that only the plugin can run fail, and the error names the crash.
#[test]
fn an_op_that_nothing_else_can_run_fails_with_both_reasons() {
    const TEST: &str = "plugin::quarantine::an_op_that_nothing_else_can_run_fails_with_both_reasons";
    let root = tempfile::tempdir().unwrap();
    let draw: fn() = || {
        let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
        let plugin = FakePlugin::alone();
        let engine = plugin.config().disk_cache(place(&root)).build().unwrap();
        let state = engine.tensor(&[1u64, 2], &[2]).unwrap();
        let drawn = engine.stream().random_bits(RngAlgorithm::Default, &state, DType::U32, &[2]);
        let error = drawn.unwrap().1.to_vec::<u32>().unwrap_err();
        let text = error.to_string();
        for part in
            ["rng_bit_generator", file!(), "its compile crashed a process", "not tried again", "DEFAULT"]
        {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        assert_eq!(plugin.calls("PJRT_Client_Compile"), 0);
        let x = engine.tensor(&[1.0f32], &[1]).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0]);
    };
    ends_by(SIGABRT, TEST, "crash", root.path(), CRASH, draw);
    well_by(TEST, "after", root.path(), NEVER, draw);
}

/// An interrupt or kill does not count against the region that was running.
#[test]
fn a_kill_is_no_crash() {
    const TEST: &str = "plugin::quarantine::a_kill_is_no_crash";
    let root = tempfile::tempdir().unwrap();
    let killed = || {
        let plugin_hangs = std::thread::spawn(run);
        // The compile hangs, so only the signal ends it.
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(!plugin_hangs.is_finished());
        kill();
    };
    let killed_running = || {
        let plugin_hangs = std::thread::spawn(run);
        wait_for_the_entry();
        assert!(!plugin_hangs.is_finished());
        kill();
    };
    ends_by(SIGKILL, TEST, "compiles", root.path(), "PJRT_Client_Compile@1 = hang", killed);
    ends_by(SIGKILL, TEST, "runs", root.path(), "Run@1 = hang", killed_running);
    well(TEST, "after", root.path(), is_loaded);
}

fn kill() {
    let id = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args(["-9", &id]).status();
}

/// Waits until the notes of capabilities, plugin and environment and the executable are stored.
fn wait_for_the_entry() {
    let entries = PathBuf::from(std::env::var_os(ROOT).unwrap()).join("cache/v1/entries");
    let stored = || std::fs::read_dir(&entries).map_or(0, Iterator::count);
    wait_for(|| stored() >= 4, || format!("{} entries", stored()));
}

/// A program that ends during its first execution, or before the end of it was noted, does not
/// quarantine the executable.
#[test]
fn an_end_is_no_crash() {
    const TEST: &str = "plugin::quarantine::an_end_is_no_crash";
    let root = tempfile::tempdir().unwrap();
    let ended = || {
        let plugin_hangs = std::thread::spawn(run);
        wait_for_the_entry();
        assert!(!plugin_hangs.is_finished());
    };
    well_by(TEST, "ends", root.path(), "Run@1 = hang", ended);
    well(TEST, "after", root.path(), is_loaded);
}
