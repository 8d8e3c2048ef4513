//! Clients with no more devices than the engine needs, on plugins that know the option for that and
//! on those that do not.

use std::path::PathBuf;

use fuseline::{Engine, EngineConfig};

use super::{is_right, three};
use crate::support::fakeplugin::{FakePlugin, path};
use crate::support::vector;

const CREATE: &str = "PJRT_Client_Create";

/// A copy of the plugin under another name, since the name decides about the option.
fn named(folder: &tempfile::TempDir, name: &str) -> PathBuf {
    let copy = folder.path().join(name);
    std::fs::copy(path(), &copy).unwrap();
    copy
}

/// How many devices the client has, and the id and the number of the hardware of the engine's.
fn found(engine: &Engine) -> (usize, i64, Option<i64>) {
    is_right(&three(&vector(engine, &[1.0, 2.0])).unwrap(), &[1.0, 2.0]);
    let device = engine.pjrt_device().unwrap();
    (device.client().devices().len(), device.id(), device.local_hardware_id())
}

fn refused(config: EngineConfig) -> String {
    config.build().expect_err("it is refused").to_string()
}

#[test]
fn a_cpu_plugin_creates_the_devices_that_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = FakePlugin::alone_at(named(&folder, "fake_cpu.so"));
    let config = || plugin.config().client_option("platform", "cpu").device(1);
    assert_eq!(found(&config().build().unwrap()), (2, 1, Some(1)));
    assert_eq!(plugin.calls(CREATE), 1);
    assert_eq!(found(&config().client_option("cpu_device_count", 4).build().unwrap()), (4, 1, Some(1)));
    // One that does not know the option is used without it.
    plugin.reset();
    let without = || config().client_option("unknown_options", "cpu_device_count");
    assert_eq!(found(&without().client_option("devices", 3).build().unwrap()), (3, 1, Some(1)));
    assert_eq!(plugin.calls(CREATE), 2);
    let error = refused(without());
    assert!(error.contains("device 1 was asked for, but the plugin has 1 devices here"), "{error}");
    // What the user sets is not left out.
    plugin.reset();
    let error = refused(without().client_option("cpu_device_count", 4));
    assert!(error.contains("unknown option cpu_device_count"), "{error}");
    assert_eq!(plugin.calls(CREATE), 1);
    // Another error is no reason to try again.
    plugin.reset();
    plugin.plan("Client_Create = fail(UNAVAILABLE, \"the device is away\")");
    assert!(refused(config()).contains("the device is away"));
    assert_eq!(plugin.calls(CREATE), 1);
    plugin.heal();
    plugin.assert_clean();
}

#[test]
fn a_gpu_plugin_uses_the_devices_of_the_engine_only() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = FakePlugin::alone_at(named(&folder, "fake_cuda_plugin.so"));
    let config = || plugin.config().client_option("platform", "cuda").client_option("devices", 4);
    assert_eq!(found(&config().build().unwrap()), (1, 0, Some(0)));
    assert_eq!(found(&config().device(2).build().unwrap()), (1, 0, Some(2)));
    assert_eq!(found(&config().device(1).replicas(2).build().unwrap()), (2, 0, Some(1)));
    let error = refused(config().device(3).replicas(2));
    let words = "2 replicas from device 3 on were asked for, but the plugin has 4 devices here";
    assert!(error.contains(words), "{error}");
    assert!(refused(config().device(4)).contains("No visible devices"));
    // The user's choice counts, and the device is one of that.
    let chosen = config().client_option("visible_devices", vec![1i64, 3]).device(1);
    assert_eq!(found(&chosen.build().unwrap()), (2, 1, Some(3)));
    plugin.reset();
    let without = config().client_option("unknown_options", "visible_devices").device(2);
    assert_eq!(found(&without.build().unwrap()), (4, 2, Some(2)));
    assert_eq!(plugin.calls(CREATE), 2);
    plugin.assert_clean();
}
