//! The child of a fork releases nothing to the plugin, whose threads do not exist there (B2 of
//! `sync/src/fork.rs`).
#![cfg(target_os = "linux")]

use fuseline::Tensor;

use super::three;

use crate::support::fakeplugin::FakePlugin;
use crate::support::in_fork;

/// Calls that release objects.
const BACK: [&str; 4] =
    ["PJRT_Buffer_Destroy", "PJRT_LoadedExecutable_Destroy", "PJRT_Event_Destroy", "PJRT_Client_Destroy"];

#[test]
fn a_child_gives_nothing_back() {
    let plugin = FakePlugin::alone();
    let engine = plugin.config().build().unwrap();
    let stream = engine.new_stream();
    let uploaded = engine.tensor(&[1.0f32, 2.0], &[2]).unwrap();
    let computed: Vec<Tensor> =
        [&uploaded, &stream.tensor(&[3.0f32], &[1]).unwrap()].map(|x| three(x).unwrap()).into();
    computed.iter().for_each(|value| value.wait().unwrap());
    engine.synchronize().unwrap();
    let given_back = || BACK.map(|function| plugin.calls(function));
    assert!(plugin.live("buffer") >= 3 && plugin.live("loaded_executable") >= 1);
    // Each is the last handle on an object. The plugin's counts have a lock, but no thread holds
    // it, since nothing is in flight.
    let status = in_fork(|| {
        let before = given_back();
        drop(computed);
        drop(uploaded);
        drop(stream);
        engine.clear_cache();
        drop(engine);
        i32::from(given_back() != before)
    });
    assert_eq!(status, 0, "the child has called the plugin");
}
