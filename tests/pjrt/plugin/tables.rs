//! Files that are not plugins, and plugins that differ from the header: their error messages.

use fuseline::{EngineConfig, Origin, Stage};

use super::{is_right, three};

use crate::support::fakeplugin::{FakePlugin, path};

/// The error of opening an engine.
#[track_caller]
fn refusal(config: EngineConfig) -> String {
    let error = config.build().expect_err("it cannot be used");
    assert_eq!(error.stage(), Stage::Setup, "{error}");
    assert!(matches!(error.origin(), Origin::Environment | Origin::User), "{:?}: {error}", error.origin());
    error.to_string()
}

#[test]
fn files_that_are_no_plugins() {
    let absent = path().with_file_name("libabsent.so");
    let text = refusal(EngineConfig::new().plugin(&absent));
    assert!(text.contains("libabsent.so cannot be read"), "{text}");
    let folder = path().parent().unwrap().to_owned();
    assert!(refusal(EngineConfig::new().plugin(folder)).contains("it is not a file"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    assert!(refusal(EngineConfig::new().plugin(source)).ends_with("Cargo.toml is not a shared library"));
}

#[test]
fn tables_that_are_not_like_the_header() {
    let plugin = FakePlugin::alone();
    for (table, words) in [
        ("version 1.0", "uses PJRT API 1.0, but this build uses 0.54: the major versions must match"),
        (
            "version 0.20 without PJRT_Event_OnReady",
            "uses PJRT API 0.20, but this build uses 0.54: the plugin lacks PJRT_Event_OnReady",
        ),
        (
            "without PJRT_Client_Compile without PJRT_LoadedExecutable_Execute",
            "lacks PJRT_Client_Compile, PJRT_LoadedExecutable_Execute",
        ),
        // It ends after the events.
        ("short 160", "more functions"),
        ("short 16", "ends before its version"),
        ("null", "returned no table"),
    ] {
        plugin.table(table);
        let text = refusal(plugin.config());
        assert!(text.contains(words), "{table}: {text}");
    }
    assert_eq!(plugin.calls("PJRT_Plugin_Initialize"), 0, "nothing of it was called");
    plugin.assert_clean();
}

/// Functions that the engine does not need may be missing.
#[test]
fn tables_that_lack_what_is_not_needed() {
    let plugin = FakePlugin::alone();
    let may_lack = [
        "PJRT_Plugin_Attributes",
        "PJRT_Client_PlatformVersion",
        "PJRT_Client_AddressableMemories",
        "PJRT_Device_DefaultMemory",
        "PJRT_DeviceDescription_ProcessIndex",
        "PJRT_Executable_GetCompiledMemoryStats",
        "PJRT_Executable_SizeOfGeneratedCodeInBytes",
        "PJRT_Executable_Fingerprint",
        "PJRT_Executable_Name",
        "PJRT_Buffer_IsOnCpu",
        "PJRT_Buffer_GetMemoryLayout",
        "PJRT_Buffer_UnsafePointer",
        "PJRT_Buffer_OpaqueDeviceMemoryDataPointer",
        "PJRT_Buffer_IncreaseExternalReferenceCount",
        "PJRT_Executable_Serialize",
        "PJRT_Buffer_OnDeviceSizeInBytes",
    ];
    let all: String = may_lack
        .iter()
        .filter(|name| **name != "PJRT_Buffer_GetMemoryLayout")
        .map(|name| format!("without {name} "))
        .collect();
    for (table, platform) in
        [(all.as_str(), "fake"), (all.as_str(), "cpu"), ("version 0.99", "fake"), ("version 0.30", "cpu")]
    {
        plugin.table(table);
        let engine = plugin.config().client_option("platform", platform).build().unwrap();
        let x = engine.tensor(&[1.0f32, 2.0], &[1, 2]).unwrap();
        let y = three(&x).unwrap();
        is_right(&y, &[1.0, 2.0]);
        drop((x, y, engine));
        plugin.assert_clean();
    }
}

#[test]
fn a_plugin_that_expects_another_struct_is_named() {
    let plugin = FakePlugin::alone();
    plugin.plan("Client_Create = wrong_struct_size");
    let text = refusal(plugin.config());
    assert!(
        text.contains("PJRT_Client_Create: INVALID_ARGUMENT: Unexpected PJRT_Client_Create_Args size"),
        "{text}"
    );
    plugin.plan("Client_Create = fail(UNAVAILABLE, \"planned: the device is away\")");
    let text = refusal(plugin.config());
    assert!(text.contains("UNAVAILABLE: planned: the device is away"), "{text}");
    plugin.plan("Client_Create = null");
    assert!(refusal(plugin.config()).contains("the plugin returned no client"));
    assert_eq!(plugin.fired("Client_Create"), 3);
    plugin.heal();
    let text = refusal(plugin.config().client_option("colour", "green"));
    assert!(text.contains("unknown option colour"), "{text}");
    plugin.assert_clean();
}
