//! A plugin that crashes costs one process for each region: the next one finds what it was about and does not try that again.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use fuseline::{Counters, Event};

use crate::support::fakeplugin::{FakePlugin, in_child, wait_for};
use crate::support::{Log, place};
use crate::{is_right, three};

const PLAN: &str = "FUSELINE_FAKE_PLAN";
const ROOT: &str = "FUSELINE_TEST_ROOT";
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

/// Runs one region of three ops with the disk cache of the folder that the environment names; what was told, and counted.
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

/// The region as a whole was neither compiled nor loaded, for that reason, and gave what it should all the same.
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

/// In a process of its own, which ends well.
#[track_caller]
fn well(test: &str, case: &str, root: &Path, part: fn()) {
    let root = root.to_str().unwrap();
    if let Some(output) = in_child(test, case, &[(ROOT, root)], part) {
        assert!(output.status.success(), "{case}: {output:?}");
    }
}

/// In a process of its own, which ends by a signal.
#[track_caller]
fn ends_by(signal: i32, test: &str, case: &str, root: &Path, plan: &str, part: fn()) {
    let vars = [(ROOT, root.to_str().unwrap()), (PLAN, plan)];
    if let Some(output) = in_child(test, case, &vars, part) {
        assert_eq!(output.status.signal(), Some(signal), "{case}: {output:?}");
    }
}

/// R16: at each of the places where a plugin may crash on a region.
#[test]
fn a_crash_costs_one_process() {
    const TEST: &str = "quarantine::a_crash_costs_one_process";
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
    }
}

/// Who interrupts or kills a process has nothing against the region that it was at.
#[test]
fn a_kill_is_no_crash() {
    const TEST: &str = "quarantine::a_kill_is_no_crash";
    let root = tempfile::tempdir().unwrap();
    let killed = || {
        let plugin_hangs = std::thread::spawn(run);
        // The plan has the compile hang; then nobody ends it but the signal.
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(!plugin_hangs.is_finished());
        let id = std::process::id().to_string();
        let _ = std::process::Command::new("kill").args(["-9", &id]).status();
    };
    for place in ["PJRT_Client_Compile", "Run"] {
        ends_by(SIGKILL, TEST, place, root.path(), &format!("{place}@1 = hang"), killed);
    }
    well(TEST, "after", root.path(), is_compiled);
    well(TEST, "later", root.path(), is_loaded);
}

/// A program that ends with its first execution under way, or before that it is over was noted, has done nothing to the executable.
#[test]
fn an_end_is_no_crash() {
    const TEST: &str = "quarantine::an_end_is_no_crash";
    let root = tempfile::tempdir().unwrap();
    let ended = || {
        let plugin_hangs = std::thread::spawn(run);
        let entries = PathBuf::from(std::env::var_os(ROOT).unwrap()).join("cache/v1/entries");
        // Of the plugin, of the environment, and the executable.
        let stored = || std::fs::read_dir(&entries).map_or(0, Iterator::count);
        wait_for(|| stored() >= 3, || format!("{} entries", stored()));
        assert!(!plugin_hangs.is_finished());
    };
    let vars = [(ROOT, root.path().to_str().unwrap()), (PLAN, "Run@1 = hang")];
    if let Some(output) = in_child(TEST, "ends", &vars, ended) {
        assert!(output.status.success(), "{output:?}");
    }
    well(TEST, "after", root.path(), is_loaded);
}
