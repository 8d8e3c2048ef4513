//! Plugins that lack what others have: the engine finds out, and goes on without.

use std::path::Path;

use fuseline::{COMPILER_FLAGS, Engine, EngineConfig, Event};

use super::{COMPILE, is_right, three};
use crate::support::fakeplugin::FakePlugin;
use crate::support::{Log, place, vector};

/// Names of the flags that the engine reported as refused, by event.
fn refused(log: &Log) -> Vec<Vec<&'static str>> {
    let names = |event: Event| match event {
        Event::FlagsRefused { flags } => Some(flags.iter().map(|flag| flag.name).collect()),
        _ => None,
    };
    log.take().into_iter().filter_map(names).collect()
}

fn cpu(plugin: &FakePlugin, unknown_flags: &str) -> EngineConfig {
    plugin.config().client_option("platform", "cpu").client_option("unknown_flags", unknown_flags)
}

/// An engine computes, and every compile of its ops succeeds.
fn computes(engine: &Engine) {
    is_right(&three(&vector(engine, &[1.0, -2.0, 3.0])).unwrap(), &[1.0, -2.0, 3.0]);
    let counters = engine.counters();
    assert_eq!((counters.fallbacks, counters.poisoned), (0, 0), "{counters:?}");
}

#[test]
fn refused_flags_are_left_out_and_reported_once() {
    let plugin = FakePlugin::alone();
    let all: Vec<&str> = COMPILER_FLAGS.iter().map(|flag| flag.name).collect();
    let cases = [
        ("", vec![]),
        ("xla_cpu_use_fusion_emitters", vec!["xla_cpu_use_fusion_emitters"]),
        (
            "xla_cpu_use_xnnpack,xla_cpu_multi_thread_eigen",
            vec!["xla_cpu_use_xnnpack", "xla_cpu_multi_thread_eigen"],
        ),
        // Either of these stands in for the other.
        ("xla_cpu_scheduler_type", vec![]),
        ("xla_cpu_enable_concurrency_optimized_scheduler", vec![]),
        (&all.join(","), all.clone()),
    ];
    for (unknown, wanted) in &cases {
        for quoted in ["", "~"] {
            let log = Log::default();
            let config = cpu(&plugin, &format!("{quoted}{unknown}")).event_sink(log.sink());
            let engine = config.build().unwrap();
            computes(&engine);
            let mut told = refused(&log);
            // A flag with two uses has two rows.
            told.iter_mut().for_each(|names| {
                names.sort_unstable();
                names.dedup();
            });
            let mut wanted = wanted.clone();
            wanted.sort_unstable();
            wanted.dedup();
            let wanted = if wanted.is_empty() { vec![] } else { vec![wanted] };
            assert_eq!(told, wanted, "{quoted}{unknown}");
        }
    }
    plugin.assert_clean();
}

/// A flag of the user is not dropped: the user may rely on it.
#[test]
fn a_refused_flag_of_the_user_is_an_error_at_once() {
    let plugin = FakePlugin::alone();
    let error = cpu(&plugin, "xla_of_the_user").compiler_flag("xla_of_the_user", true).build().unwrap_err();
    assert!(error.to_string().contains("No such compile option: 'xla_of_the_user'"), "{error}");
}

/// The number of compiles until an engine has started.
fn compiles_at_start(plugin: &FakePlugin, root: &Path, unknown_flags: &str) -> u64 {
    let before = plugin.calls(COMPILE);
    let engine = cpu(plugin, unknown_flags).disk_cache(place(root)).build().unwrap();
    let compiles = plugin.calls(COMPILE) - before;
    assert!(engine.capabilities().unwrap().flushed().is_some());
    computes(&engine);
    compiles
}

#[test]
fn later_engines_know_what_the_first_one_found_out() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    let unknown = "xla_cpu_scheduler_type";
    assert_eq!(compiles_at_start(&plugin, root.path(), unknown), 3, "all, all but one, the probe");
    assert_eq!(compiles_at_start(&plugin, root.path(), unknown), 0);
    // Another cache knows nothing.
    let other = tempfile::tempdir().unwrap();
    assert_eq!(compiles_at_start(&plugin, other.path(), unknown), 3);
}

/// A plugin that compiles nothing at first is asked again later.
#[test]
fn what_a_sick_plugin_says_is_not_kept() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    plugin.plan(&format!("{COMPILE} = fail(INTERNAL, \"not today\")"));
    let engine = cpu(&plugin, "").disk_cache(place(root.path())).build().unwrap();
    drop(engine);
    plugin.heal();
    assert_eq!(compiles_at_start(&plugin, root.path(), ""), 2, "all, the probe");
}
