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
    let clients = plugin.created("client");
    let mut told = 0;
    let first = there().warm_cache_for(&target("v5 lite"), &manifest, |_, _| told += 1).unwrap();
    assert!(first.iter().all(|one| matches!(one, Warmed::Compiled(_))) && told == 2, "{first:?}");
    assert_eq!((plugin.calls(COMPILE_FOR), plugin.calls(COMPILE)), (2, 0));
    assert_eq!(plugin.created("client"), clients);
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

/// XLA's topology for GPUs reports the kind of the device as the version of its platform.
#[test]
fn the_version_of_a_gpu_platform_does_not_matter() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    let manifest = manifest(&plugin, root.path());
    let there = || {
        let config = plugin.config().disk_cache(place(root.path()));
        config
            .client_option("platform", "cuda")
            .client_option("kind", "H100")
            .client_option("version", "cuda 13000")
            .client_option("devices", 2)
    };
    let target = Target::new("H100").option("platform", "cuda").option("version", "NVIDIA H100");
    let made = there().warm_cache_for(&target, &manifest, |_, _| ()).unwrap();
    assert!(made.iter().all(|one| matches!(one, Warmed::Compiled(_))), "{made:?}");
    let engine = there().cache_only(true).build().unwrap();
    let here = engine.cache_environment().unwrap();
    assert_eq!(here, there().cache_environment_for(&target).unwrap());
    assert!(here.parts().all(|(name, _)| name != "platform version" && name != "topology"), "{here:?}");
    is_right(&program(&engine).unwrap());
    assert_eq!(engine.counters().loads, 2);
    drop(engine);
    plugin.assert_clean();
}

#[test]
fn a_topology_of_another_shape_is_another_environment() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    let there = |devices: i64, columns: i64| {
        let config = on(&plugin, "v5").client_option("devices", devices).client_option("columns", columns);
        config.device(1).disk_cache(place(root.path()))
    };
    let of = |devices: i64, columns: i64| target("v5").option("devices", devices).option("columns", columns);
    let engine = there(4, 2).build().unwrap();
    let here = engine.cache_environment().unwrap();
    let elsewhere =
        |devices: i64, columns: i64| there(4, 2).cache_environment_for(&of(devices, columns)).unwrap();
    assert_eq!(here, elsewhere(4, 2));
    let place = |shape: &str| ("topology", shape.to_owned());
    let found =
        here.parts().find(|(name, _)| *name == "topology").map(|(name, value)| (name, value.to_owned()));
    assert_eq!(found, Some(place("4 devices; coords 0.1")));
    for (devices, columns) in [(2, 2), (4, 1), (8, 2)] {
        assert_ne!(here, elsewhere(devices, columns), "{devices} devices, {columns} in a row");
    }
    drop(engine);
    // A plugin without the function tells the number of devices.
    plugin.table("without PJRT_DeviceDescription_Attributes");
    let engine = there(4, 2).build().unwrap();
    assert_eq!(engine.cache_environment().unwrap(), elsewhere(4, 2));
    assert_eq!(elsewhere(4, 2), elsewhere(4, 1));
    assert_ne!(elsewhere(4, 2), elsewhere(2, 2));
    drop(engine);
    plugin.assert_clean();
}
