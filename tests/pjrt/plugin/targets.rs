//! Compiling for devices that are absent.

use std::path::{Path, PathBuf};

use fuseline::aot::{Manifest, Target, Warmed};
use fuseline::{EngineConfig, Error};

use super::{COMPILE, three, three_of};

use crate::support::fakeplugin::FakePlugin;
use crate::support::{place, vector};

const COMPILE_FOR: &str = "PJRT_Compile";

/// A configuration for devices of this kind.
fn on(plugin: &FakePlugin, kind: &str) -> EngineConfig {
    plugin.config().client_option("platform", "tpu").client_option("kind", kind)
}

fn target(kind: &str) -> Target {
    Target::new(kind).option("platform", "tpu")
}

/// Two regions, the second with one op more.
fn program(engine: &fuseline::Engine) -> fuseline::Result<Vec<f32>> {
    let x = vector(engine, &[1.0, 2.0, 3.0]);
    let mut numbers = three(&x)?.to_vec::<f32>()?;
    numbers.extend(three(&x)?.neg()?.to_vec::<f32>()?);
    Ok(numbers)
}

fn is_right(numbers: &[f32]) {
    let wanted = [1.0, 2.0, 3.0].map(three_of);
    let wanted: Vec<f32> = wanted.iter().copied().chain(wanted.iter().map(|x| -x)).collect();
    assert_eq!(numbers, wanted);
}

/// A manifest of the program, written without such devices.
fn manifest(plugin: &FakePlugin, root: &Path) -> Manifest {
    let path: PathBuf = root.join("run.jsonl");
    let engine = plugin.config().manifest(&path).build().unwrap();
    is_right(&program(&engine).unwrap());
    drop(engine);
    let manifest = Manifest::read(&path).unwrap();
    assert_eq!(manifest.regions().len(), 2);
    manifest
}

fn words(outcome: Result<Vec<Warmed>, Error>) -> String {
    outcome.expect_err("it is refused").to_string()
}

#[test]
fn a_run_elsewhere_finds_what_was_compiled_for_it() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    let manifest = manifest(&plugin, root.path());
    let there = || on(&plugin, "v5 lite").disk_cache(place(root.path()));
    plugin.reset();
    let mut told = 0;
    let first = there().warm_cache_for(&target("v5 lite"), &manifest, |_, _| told += 1).unwrap();
    assert!(first.iter().all(|one| matches!(one, Warmed::Compiled(_))) && told == 2, "{first:?}");
    assert_eq!((plugin.calls(COMPILE_FOR), plugin.calls(COMPILE), plugin.created("client")), (2, 0, 1));
    let second = there().warm_cache_for(&target("v5 lite"), &manifest, |_, _| ()).unwrap();
    assert_eq!(second, [Warmed::Present, Warmed::Present]);
    assert_eq!(plugin.calls(COMPILE_FOR), 2);
    plugin.assert_clean();
    // There, nothing may be compiled.
    let engine = there().cache_only(true).build().unwrap();
    let here = engine.cache_environment().unwrap();
    assert_eq!(here, there().cache_environment_for(&target("v5 lite")).unwrap());
    assert!(here.parts().all(|(name, _)| !name.starts_with("processor") && name != "threads"), "{here:?}");
    is_right(&program(&engine).unwrap());
    assert_eq!((engine.counters().loads, plugin.calls(COMPILE)), (2, 0));
    drop(engine);
    // On devices of another kind it is a miss, with the reason.
    let engine = on(&plugin, "v4").disk_cache(place(root.path())).cache_only(true).build().unwrap();
    let error = program(&engine).unwrap_err().to_string();
    assert!(error.contains("v5 lite") && error.contains("v4"), "{error}");
    drop(engine);
    plugin.assert_clean();
}

#[test]
fn what_is_asked_for_wrongly_is_refused_with_words() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    let manifest = manifest(&plugin, root.path());
    let there = || on(&plugin, "v5").disk_cache(place(root.path()));
    let asked =
        |config: EngineConfig, target: Target| words(config.warm_cache_for(&target, &manifest, |_, _| ()));
    let error = asked(there(), Target::new("v5").option("platform", "cpu"));
    assert!(
        error.contains("not supported for CPU") && error.contains("without such a device on this machine"),
        "{error}"
    );
    let error = asked(there(), target("v5").option("wings", 2));
    assert!(error.contains("unknown option wings"), "{error}");
    let error = asked(there().device(3), target("v5"));
    assert!(error.contains("needs 1 devices from number 3 on, but \"v5\" has 1"), "{error}");
    let error = asked(there().replicas(2), target("v5").option("devices", 2));
    assert!(error.contains("1 replicas, but this engine has fast numerics and 2"), "{error}");
    let error = asked(there().cache_only(true), target("v5"));
    assert!(error.contains("does not compile"), "{error}");
    let error = asked(there().without_disk_cache(), target("v5"));
    assert!(error.contains("the disk cache is off"), "{error}");
    plugin.assert_clean();
}

#[test]
fn one_that_does_not_compile_fails_no_other() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    let manifest = manifest(&plugin, root.path());
    let there = || on(&plugin, "v5").disk_cache(place(root.path()));
    let compiled = || there().warm_cache_for(&target("v5"), &manifest, |_, _| ()).unwrap();
    plugin.plan(&format!("{COMPILE_FOR}@1 = fail(INTERNAL, \"no registers left\"); Executable_Serialize@1 = fail(UNIMPLEMENTED, \"none\")"));
    let outcome = compiled();
    let failed =
        |words: &str| outcome.iter().any(|one| matches!(one, Warmed::Failed(why) if why.contains(words)));
    assert!(failed("no registers left") && failed("none"), "{outcome:?}");
    plugin.reset();
    plugin.plan(&format!("{COMPILE_FOR}@1 = null"));
    let outcome = compiled();
    let count = outcome.iter().filter(|one| matches!(one, Warmed::Compiled(_))).count();
    assert_eq!(count, 1, "{outcome:?}");
    assert_eq!((plugin.fired(COMPILE_FOR), plugin.live("topology")), (1, 0));
    plugin.reset();
    let outcome = compiled();
    assert_eq!(outcome.iter().filter(|one| **one == Warmed::Present).count(), 1, "{outcome:?}");
    plugin.assert_clean();
    let topology = "TopologyDescription_Create = null";
    plugin.plan(topology);
    let error = words(there().warm_cache_for(&target("v5"), &manifest, |_, _| ()));
    assert!(error.contains("returned no topology"), "{error}");
    plugin.assert_clean();
}

#[test]
fn a_plugin_without_the_functions_says_so() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    let manifest = manifest(&plugin, root.path());
    plugin.table("without PJRT_TopologyDescription_Create");
    let there = on(&plugin, "v5").disk_cache(place(root.path()));
    let error = words(there.warm_cache_for(&target("v5"), &manifest, |_, _| ()));
    assert!(error.contains("does not implement PJRT_TopologyDescription_Create"), "{error}");
    plugin.assert_clean();
}
