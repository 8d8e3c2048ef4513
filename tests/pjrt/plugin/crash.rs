//! Ends of a process, each in a process of its own: a plugin that aborts or exits, and mistakes for
//! which the fake plugin ends the process.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Output;
use std::sync::mpsc;
use std::time::Duration;

use fuseline::pjrt::{ClientOptions, CompileOptions, Plugin};
use fuseline::{Deadlines, Event, Tensor};
use libloading::os::unix::Library;
use pjrt_sys::*;

use super::{is_right, three};

use crate::support::fakeplugin::{FakePlugin, in_child, path, wait_for};

const SIGABRT: i32 = 6;

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A program that uses an engine and the serialized executable of a module.
fn program() {
    let plugin = FakePlugin::alone();
    let engine = plugin.config().build().unwrap();
    is_right(&three(&engine.tensor(&[1.0f32], &[1]).unwrap()).unwrap(), &[1.0]);
    let client = Plugin::open(path()).unwrap().client(&ClientOptions::new()).unwrap();
    let module =
        "module { func.func public @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }";
    let bytes = client.compile(module, &CompileOptions::new()).unwrap().serialize().unwrap();
    // SAFETY: these are the bytes that the plugin has just written.
    drop(unsafe { client.deserialize(&bytes, None) }.unwrap());
}

/// The variable with the plan of a child process.
const PLAN: &str = "FUSELINE_FAKE_PLAN";

#[test]
fn a_plugin_that_aborts_ends_the_process() {
    const TEST: &str = "plugin::crash::a_plugin_that_aborts_ends_the_process";
    for point in [
        "PJRT_Client_Create",
        "PJRT_Client_Compile",
        "PJRT_LoadedExecutable_Execute",
        "Run",
        "CopyOut",
        "PJRT_Executable_DeserializeAndLoad",
    ] {
        let plan = format!("{point} = abort");
        let Some(output) = in_child(TEST, point, &[(PLAN, &plan)], program) else { continue };
        assert_eq!(output.status.signal(), Some(SIGABRT), "{point}: {output:?}");
        assert!(stderr(&output).contains(&format!("fake plugin: {point} aborts, as planned")), "{output:?}");
    }
    if let Some(output) = in_child(TEST, "nothing", &[(PLAN, "")], program) {
        assert!(output.status.success(), "without a plan: {output:?}");
    }
}

#[test]
fn a_plugin_that_exits_ends_the_process_with_its_status() {
    const TEST: &str = "plugin::crash::a_plugin_that_exits_ends_the_process_with_its_status";
    let plan = [(PLAN, "LoadedExecutable_Execute = exit(7)")];
    if let Some(output) = in_child(TEST, "exit", &plan, program) {
        assert_eq!(output.status.code(), Some(7), "{output:?}");
    }
}

/// The process ends with its own status while the plugin hangs in a call, or on its own thread.
#[test]
fn a_process_ends_while_the_plugin_hangs() {
    const TEST: &str = "plugin::crash::a_process_ends_while_the_plugin_hangs";
    for point in ["Client_Compile", "LoadedExecutable_Execute", "Run", "CopyOut"] {
        let part = || {
            let plugin = FakePlugin::alone();
            let engine = plugin.config().build().unwrap();
            let y = three(&engine.tensor(&[1.0f32], &[1]).unwrap()).unwrap();
            let read = y.read();
            wait_for(|| plugin.hanging() > 0, || format!("{point}: nobody hangs"));
            std::mem::forget((read, y, engine));
            std::process::exit(5);
        };
        let plan = format!("{point} = hang");
        let Some(output) = in_child(TEST, point, &[(PLAN, &plan)], part) else { continue };
        assert_eq!(output.status.code(), Some(5), "{point}: {output:?}");
    }
}

/// The same if the plugin has created a static object since. Its destructor must not run while the
/// plugin is at work.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_process_ends_before_objects_that_the_plugin_has_just_created() {
    const TEST: &str = "plugin::crash::a_process_ends_before_objects_that_the_plugin_has_just_created";
    let part = || {
        let plugin = FakePlugin::alone();
        let engine = plugin.config().build().unwrap();
        let y = three(&engine.tensor(&[1.0f32], &[1]).unwrap()).unwrap();
        let read = y.read();
        wait_for(|| plugin.hanging() > 0, || "nobody hangs".to_owned());
        // SAFETY: holds because this is the declaration of the C library's header.
        unsafe extern "C" {
            safe fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
        }
        extern "C" fn destructor() {
            std::process::abort();
        }
        assert_eq!(atexit(destructor), 0);
        std::mem::forget((read, y, engine));
        std::process::exit(5);
    };
    for point in ["Client_Compile", "Run", "CopyOut"] {
        let plan = format!("{point} = hang");
        let Some(output) = in_child(TEST, point, &[(PLAN, &plan)], part) else { continue };
        assert_eq!(output.status.code(), Some(5), "{point}: {output:?}");
    }
}

/// A plugin that hangs in a compile or in its own threads does not block waiters with a deadline.
#[test]
fn who_waits_with_a_deadline_is_told_when_the_plugin_hangs() {
    const TEST: &str = "plugin::crash::who_waits_with_a_deadline_is_told_when_the_plugin_hangs";
    told_in_time(TEST, &["Client_Compile", "Run", "CopyOut"]);
}

/// The same for calls that an engine may make on the waiting thread.
#[test]
fn who_waits_with_a_deadline_is_told_when_the_plugin_hangs_on_its_own_thread() {
    const TEST: &str =
        "plugin::crash::who_waits_with_a_deadline_is_told_when_the_plugin_hangs_on_its_own_thread";
    told_in_time(TEST, &["LoadedExecutable_Execute", "Event_OnReady", "Buffer_ToHostBuffer"]);
}

fn told_in_time(test: &str, points: &[&str]) {
    const TOLD: i32 = 5;
    let mut others = Vec::new();
    for &point in points {
        let part = || {
            let plugin = FakePlugin::alone();
            let engine = plugin.config().build().unwrap();
            let x = engine.tensor(&[1.0f32], &[1]).unwrap();
            plugin.plan(&format!("{point} = hang"));
            let (send, told) = mpsc::channel();
            std::thread::spawn(move || {
                let outcome = three(&x).unwrap().to_literal_for(Duration::from_millis(100));
                send.send(outcome.map_err(|error| error.is_timeout())).unwrap();
                std::mem::forget(x);
            });
            // A limit against hangs only.
            let outcome = told.recv_timeout(Duration::from_secs(20));
            let hung = plugin.fired(point) > 0;
            println!("{point}: {outcome:?}, hung: {hung}");
            std::mem::forget(engine);
            std::process::exit(if matches!(outcome, Ok(Err(true))) && hung { TOLD } else { 6 });
        };
        let Some(output) = in_child(test, point, &[], part) else { continue };
        if output.status.code() != Some(TOLD) {
            others.push(String::from_utf8_lossy(&output.stdout).into_owned());
        }
    }
    assert!(others.is_empty(), "{others:?}");
}

/// An engine ends in time, whatever the plugin hangs in. When the plugin comes back, everything is
/// released.
#[test]
fn an_engine_ends_in_time_while_the_plugin_hangs() {
    let plugin = FakePlugin::alone();
    let limit = Duration::from_millis(400);
    let waits = Deadlines::none().wait(limit);
    for (point, deadlines) in [
        ("Client_Destroy", waits),
        ("Client_Destroy", Deadlines::none().call(limit)),
        ("LoadedExecutable_Destroy", waits),
        ("Buffer_Destroy", waits),
    ] {
        let (tell, told) = mpsc::channel();
        // Do not keep the events: some hold executables, and with them the client.
        let sink = move |event: &Event| {
            if let Event::Stuck { thread, took, .. } = event {
                tell.send((*thread, *took)).unwrap();
            }
        };
        let engine = plugin.config().deadlines(deadlines).event_sink(sink).build().unwrap();
        // On a busy machine it may be late.
        let at_last = |call: &dyn Fn() -> fuseline::Result<Tensor>| loop {
            match call() {
                Err(error) if error.is_timeout() => {}
                other => break other.unwrap(),
            }
        };
        let x = at_last(&|| engine.tensor(&[1.0f32], &[1]));
        let y = at_last(&|| three(&x).and_then(|y| y.wait().map(|()| y)));
        let (leaks, fired) = (fuseline::pjrt::counters().leaks, plugin.fired(point));
        plugin.plan(&format!("{point}@1 = hang"));
        let (send, ended) = mpsc::channel();
        let dropper = std::thread::spawn(move || {
            drop((x, y, engine));
            send.send(()).unwrap();
        });
        // A limit against hangs only.
        ended
            .recv_timeout(Duration::from_secs(60))
            .unwrap_or_else(|_| panic!("{point}: the engine does not end"));
        dropper.join().unwrap();
        // A thread of the engine may have held the last reference.
        wait_for(|| plugin.hanging() == 1, || format!("{point}: nobody hangs"));
        assert_eq!(plugin.fired(point) - fired, 1, "{point}");
        let (thread, took) = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(thread == "end" && took >= limit, "{point}: {thread}, {took:?}");
        assert!(fuseline::pjrt::counters().leaks > leaks, "{point}: it is not counted");
        plugin.heal();
        plugin.assert_clean();
    }
}

/// A plugin that refuses to destroy objects: counted, and no failure.
#[test]
fn what_cannot_be_destroyed_is_counted() {
    const TEST: &str = "plugin::crash::what_cannot_be_destroyed_is_counted";
    for function in [
        "Event_Destroy",
        "Buffer_Destroy",
        "Executable_Destroy",
        "LoadedExecutable_Destroy",
        "Client_Destroy",
    ] {
        let part = || {
            let plugin = FakePlugin::alone();
            plugin.plan(&format!("{function}@1 = fail(INTERNAL, \"planned: not now\")"));
            let engine = plugin.config().build().unwrap();
            is_right(&three(&engine.tensor(&[1.0f32], &[1]).unwrap()).unwrap(), &[1.0]);
            engine.synchronize().unwrap();
            engine.clear_cache();
            if function == "Client_Destroy" {
                drop(engine);
            } else {
                // The client would be destroyed before these objects, for which the fake plugin
                // ends the process.
                std::mem::forget(engine);
            }
            wait_for(|| plugin.fired(function) == 1, || format!("no {function}"));
            let errors = || fuseline::pjrt::counters().destroy_errors;
            wait_for(|| errors() == 1, || format!("{} are counted", errors()));
            std::process::exit(9);
        };
        let Some(output) = in_child(TEST, function, &[], part) else { continue };
        assert_eq!(output.status.code(), Some(9), "{function}: {output:?}");
    }
}

/// The table, without the safe layer.
fn raw() -> &'static PJRT_Api {
    // SAFETY: it is this project's own library, and its initialization does nothing.
    let library = unsafe { Library::new(path()) }.unwrap();
    // SAFETY: that is the type of the symbol.
    let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const PJRT_Api>(b"GetPjrtApi") }.unwrap();
    // SAFETY: the function takes nothing.
    let table = unsafe { entry() };
    std::mem::forget(library);
    // SAFETY: the table lives as long as the process.
    unsafe { &*table }
}

/// Calls a function of the table with some fields set, and returns its struct.
macro_rules! raw_call {
    ($function:ident, $args:ident { $($field:ident: $value:expr),* }) => {{
        let mut args = $args { struct_size: size_of::<$args>(), $($field: $value,)* ..Default::default() };
        // SAFETY: handles are checked by the plugin, which is what is tested.
        let error = unsafe { (raw().$function.unwrap())(&raw mut args) };
        assert!(error.is_null());
        args
    }};
}

fn raw_client() -> *mut PJRT_Client {
    raw_call!(PJRT_Client_Create, PJRT_Client_Create_Args {}).client
}

fn raw_buffer(client: *mut PJRT_Client) -> (*mut PJRT_Buffer, *mut PJRT_Event) {
    let devices = raw_call!(PJRT_Client_Devices, PJRT_Client_Devices_Args { client: client });
    // SAFETY: a client has a device.
    let device = unsafe { *devices.devices };
    let data = [1.0f32];
    let made = raw_call!(
        PJRT_Client_BufferFromHostBuffer,
        PJRT_Client_BufferFromHostBuffer_Args {
            client: client,
            data: data.as_ptr().cast(),
            type_: PJRT_Buffer_Type_PJRT_Buffer_Type_F32,
            device: device
        }
    );
    (made.buffer, made.done_with_host_buffer)
}

/// Each mistake ends the process with a message; the last case has none.
fn mistake(which: &str) {
    let client = raw_client();
    let (buffer, event) = raw_buffer(client);
    let destroy_buffer = |buffer| {
        raw_call!(PJRT_Buffer_Destroy, PJRT_Buffer_Destroy_Args { buffer: buffer });
    };
    let destroy_event = |event| {
        raw_call!(PJRT_Event_Destroy, PJRT_Event_Destroy_Args { event: event });
    };
    let destroy_client = || {
        raw_call!(PJRT_Client_Destroy, PJRT_Client_Destroy_Args { client: client });
    };
    match which {
        "twice" => {
            destroy_buffer(buffer);
            // Another object does not take the handle of the first one.
            let _other = raw_buffer(client);
            destroy_buffer(buffer);
        }
        "after" => {
            destroy_event(event);
            raw_call!(PJRT_Event_IsReady, PJRT_Event_IsReady_Args { event: event });
        }
        "kind" => destroy_event(buffer.cast()),
        "null" => destroy_buffer(std::ptr::null_mut()),
        "client" => destroy_client(),
        "lent" => {
            raw_call!(
                PJRT_Buffer_IncreaseExternalReferenceCount,
                PJRT_Buffer_IncreaseExternalReferenceCount_Args { buffer: buffer }
            );
            destroy_buffer(buffer);
        }
        _ => {
            destroy_buffer(buffer);
            destroy_event(event);
            destroy_client();
        }
    }
}

#[test]
fn mistakes_with_objects_end_the_process() {
    const TEST: &str = "plugin::crash::mistakes_with_objects_end_the_process";
    for (which, words) in [
        ("twice", "fake plugin: PJRT_Buffer_Destroy got buffer #"),
        ("after", "fake plugin: PJRT_Event_IsReady got event #"),
        ("kind", "for a event"),
        ("null", "fake plugin: PJRT_Buffer_Destroy got a null pointer for a buffer"),
        ("client", "before 2 objects made with it"),
        ("lent", "the memory that 1 external references are on"),
    ] {
        let Some(output) = in_child(TEST, which, &[], || mistake(which)) else { continue };
        assert_eq!(output.status.signal(), Some(SIGABRT), "{which}: {output:?}");
        assert!(stderr(&output).contains(words), "{which}: {output:?}");
    }
    if let Some(output) = in_child(TEST, "none", &[], || mistake("none")) {
        assert!(output.status.success(), "{output:?}");
    }
}
