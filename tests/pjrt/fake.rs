//! The PJRT layer on fake plugins: versions, sizes, lost and late events, failing destructors.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use fuseline::pjrt::{
    ApiVersion, Client, ClientOptions, Code, CompileOptions, Error, ExecuteOptions, HostData, KeyValueStore,
    OpenFault, OpenOptions, Plugin, counters,
};
use fuseline_fusion::{DType, TensorType};
use pjrt_sys::*;

use crate::fixtures::Choices;
use crate::fixtures::fake::{self, World};

fn four() -> TensorType {
    TensorType::of(DType::U8, &[4]).expect("small")
}

fn buffer(client: &Client) -> fuseline::pjrt::Buffer {
    client.buffer_from_host(&four(), &[1, 2, 3, 4], &client.devices()[0]).expect("a buffer")
}

#[test]
fn a_plugin_with_nothing_but_the_necessary_works() {
    let world = World::new();
    let client = world.client();
    assert_eq!((client.platform_name(), client.platform_version()), ("fake", ""));
    assert_eq!(client.memories(), []);
    let executable = client.compile("module", &CompileOptions::new()).expect("compiles");
    assert_eq!((executable.name(), executable.parameters()), ("", None));
    let input = buffer(&client);
    let options = ExecuteOptions { want_completion_event: true, ..Default::default() };
    let run = executable.execute(&[&input], &options).expect("runs");
    run.done.as_ref().expect("asked for").wait().expect("succeeds");
    assert_eq!(run.outputs[0].to_host().expect("read"), [7; 4]);
    // A missing function is an error that names function and plugin.
    let error = input.on_device_size().expect_err("absent");
    assert!(error.is_unimplemented() && !error.is_from_plugin());
    let words =
        "the plugin /fake/plugin.so (PJRT API 0.54) does not implement PJRT_Buffer_OnDeviceSizeInBytes";
    assert_eq!((error.message(), error.function()), (words, "PJRT_Buffer_OnDeviceSizeInBytes"));
    assert!(executable.cost_analysis().expect_err("absent").is_unimplemented());
    assert_eq!(executable.serialize().expect("bytes"), [1, 2, 3]);
    let stats = executable.memory_stats().expect("statistics");
    assert_eq!((stats.arguments, stats.host_temporaries, stats.peak), (1, 99, None), "the peak is not there");
    assert!(client.devices()[0].memory_stats().expect_err("absent").is_unimplemented());
    drop((client, executable, input, run));
    world.assert_clean();
    let notes = fake::plugin().version_notes();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("PJRT_Executable_GetCostAnalysis"), "{notes:?}");
}

#[test]
fn tables_of_every_length_are_read_within_their_bounds() {
    let full = fake::table();
    let whole = size_of::<PJRT_Api>();
    // The bytes after the claimed end are poison that would show up as functions.
    for size in 0..=whole + 64 {
        let mut words = vec![usize::MAX; whole / 8 + 16];
        let bytes = std::ptr::from_ref(&full).cast::<u8>();
        // SAFETY: both sides have that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes, words.as_mut_ptr().cast::<u8>(), size.min(whole)) };
        words[0] = size;
        let table: &'static [usize] = words.leak();
        // SAFETY: the table is readable far beyond the size it claims.
        let outcome =
            unsafe { Plugin::from_table(table.as_ptr().cast(), "/fake/short.so", &OpenOptions::new()) };
        let needed = std::mem::offset_of!(PJRT_Api, PJRT_Executable_OutputDimensions) + 8;
        match outcome {
            Ok(_) => assert!(size >= needed, "opened with {size} bytes"),
            Err(error) => {
                assert!(size < needed, "{size}: {error}");
                match error.fault() {
                    OpenFault::BadTable(_) => assert!(size < 40, "{size}: {error}"),
                    OpenFault::Version { theirs, missing } => {
                        assert_eq!(*theirs, ApiVersion { major: 0, minor: 54 });
                        assert!(
                            size >= 40 && missing.contains(&"PJRT_Executable_OutputDimensions"),
                            "{error}"
                        );
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    // SAFETY: null is allowed.
    let error = unsafe { Plugin::from_table(std::ptr::null(), "/fake/null.so", &OpenOptions::new()) };
    assert!(error.expect_err("null").to_string().contains("returned no table"));
}

#[test]
fn versions_that_do_not_fit_are_one_sentence() {
    let mut table = fake::table();
    table.pjrt_api_version.major_version = 1;
    let error = fake::open(table, &OpenOptions::new()).expect_err("another major");
    let words = "the PJRT plugin /fake/plugin.so uses PJRT API 1.54, but this build uses 0.54: \
                 the major versions must match";
    assert_eq!(error.to_string(), words);
    let mut table = fake::table();
    table.pjrt_api_version.minor_version = 12;
    table.PJRT_Client_Compile = None;
    table.PJRT_Event_OnReady = None;
    let error = fake::open(table, &OpenOptions::new()).expect_err("functions missing");
    let words = "the PJRT plugin /fake/plugin.so uses PJRT API 0.12, but this build uses 0.54: \
                 the plugin lacks PJRT_Event_OnReady, PJRT_Client_Compile";
    assert_eq!(error.to_string(), words);
    let mut table = fake::table();
    table.pjrt_api_version.minor_version = 1_000;
    let newer = fake::open(table, &OpenOptions::new()).expect("newer is fine");
    assert!(newer.version_notes()[0].contains("newer than 0.114"), "{:?}", newer.version_notes());
    let mut table = fake::table();
    table.pjrt_api_version.minor_version = 40;
    let older = fake::open(table, &OpenOptions::new()).expect("older is fine");
    assert!(older.version_notes()[0].contains("older than 0.54"), "{:?}", older.version_notes());
}

#[test]
fn every_necessary_function_is_checked_for() {
    let words = size_of::<PJRT_Api>() / 8;
    let mut needed = 0;
    for word in std::mem::offset_of!(PJRT_Api, PJRT_Error_Destroy) / 8..words {
        let mut table = fake::table();
        let start = std::ptr::from_mut(&mut table).cast::<usize>();
        // SAFETY: the table has that many words.
        let entry = unsafe { start.add(word) };
        // SAFETY: that is one of them.
        if unsafe { entry.read() } == 0 {
            continue;
        }
        // SAFETY: a null entry is `None`.
        unsafe { entry.write(0) };
        match fake::open(table, &OpenOptions::new()) {
            Ok(plugin) => assert!(!plugin.version_notes().is_empty()),
            Err(error) => {
                needed += 1;
                assert!(matches!(error.fault(), OpenFault::Version { missing, .. } if missing.len() == 1));
            }
        }
    }
    assert_eq!(needed, 28);
}

unsafe extern "C" fn initialize_fails(_: *mut PJRT_Plugin_Initialize_Args) -> *mut PJRT_Error {
    static WORLD: std::sync::OnceLock<Arc<World>> = std::sync::OnceLock::new();
    WORLD.get_or_init(World::new).planned(14, "the device is in use")
}

#[test]
fn a_failed_initialisation_is_told_in_the_plugins_words() {
    let mut table = fake::table();
    table.PJRT_Plugin_Initialize = Some(initialize_fails);
    let error = fake::open(table, &OpenOptions::new()).expect_err("fails");
    let OpenFault::Initialise(inner) = error.fault() else { panic!("{error}") };
    assert_eq!((inner.code(), inner.message()), (Code::Unavailable, "the device is in use"));
    let words = "the PJRT plugin /fake/plugin.so could not be initialised: \
                 PJRT_Plugin_Initialize: UNAVAILABLE: the device is in use";
    assert_eq!(error.to_string(), words);
}

/// A plugin that requires structs to have exactly its own size.
unsafe extern "C" fn strict_client_create(args: *mut PJRT_Client_Create_Args) -> *mut PJRT_Error {
    // SAFETY: the caller passes a live struct.
    let size = unsafe { (*args).struct_size };
    if size != 72 {
        static WORLD: std::sync::OnceLock<Arc<World>> = std::sync::OnceLock::new();
        return WORLD.get_or_init(World::new).planned(3, &format!("expected 72, got {size}"));
    }
    // SAFETY: the caller passes a live struct.
    unsafe { fake::client_create(args) }
}

#[test]
fn a_plugin_that_demands_equality_gets_it() {
    let world = World::new();
    let options = ClientOptions::new().set("world", Arc::as_ptr(&world).addr() as i64);
    let mut table = fake::table();
    table.PJRT_Client_Create = Some(strict_client_create);
    let padded = fake::open(table, &OpenOptions::new()).expect("opens");
    let error = padded.client(&options).expect_err("too large");
    assert!(error.message().starts_with("expected 72, got "), "{error}");
    let exact = OpenOptions::new().struct_size("PJRT_Client_Create_Args", 72).expect("possible");
    let client = fake::open(table, &exact).expect("opens").client(&options).expect("exactly 72");
    drop(client);
    world.assert_clean();
    assert!(OpenOptions::new().struct_size("PJRT_No_Such_Args", 72).is_err());
    assert!(OpenOptions::new().struct_size("PJRT_Client_Create_Args", 10_000).is_err(), "more than there is");
    assert!(OpenOptions::new().struct_size("PJRT_Client_Create_Args", 0).is_err());
}

#[test]
fn every_code_comes_through_and_every_error_is_destroyed() {
    let world = World::new();
    let client = world.client();
    for number in 0..20 {
        world.fail("PJRT_Client_Compile", number, "no luck");
        let error = client.compile("module", &CompileOptions::new()).expect_err("planned");
        assert_eq!((error.code(), error.message()), (Code::from_number(number), "no luck"));
        assert!(error.is_from_plugin());
        assert_eq!(error.is_resource_exhausted(), number == 8);
        assert_eq!(error.is_unimplemented(), number == 12);
        assert_eq!(error.is_failed_precondition(), number == 9);
        assert_eq!(error.is_unavailable(), number == 14);
        assert_eq!(error.is_deadline_exceeded(), number == 4);
        assert_eq!(error.is_cancelled(), number == 1 || number == 10);
    }
    assert_eq!(world.live(), 1, "the client");
    drop(client);
    world.assert_clean();
}

#[test]
fn a_failure_in_the_middle_loses_nothing() {
    for function in [
        "PJRT_LoadedExecutable_GetExecutable",
        "PJRT_Executable_NumOutputs",
        "PJRT_Executable_OutputElementTypes",
        "PJRT_Executable_OutputDimensions",
        "PJRT_LoadedExecutable_AddressableDevices",
    ] {
        let world = World::new();
        let client = world.client();
        world.fail(function, 13, "planned");
        let error = client.compile("module", &CompileOptions::new()).expect_err(function);
        assert_eq!(error.function(), function);
        assert_eq!(world.live(), 1, "{function}");
        drop(client);
        world.assert_clean();
    }
    for function in ["PJRT_Client_PlatformName", "PJRT_Client_Devices", "PJRT_Client_Create"] {
        let world = World::new();
        world.fail(function, 13, "planned");
        let options = ClientOptions::new().set("world", Arc::as_ptr(&world).addr() as i64);
        assert_eq!(fake::plugin().client(&options).expect_err(function).function(), function);
        world.assert_clean();
    }
}

#[test]
fn an_execution_without_an_output_loses_nothing() {
    let world = World::new();
    let client = world.client();
    world.outputs.store(3, Ordering::Relaxed);
    let executable = client.compile("module", &CompileOptions::new()).expect("compiles");
    world.null_output.store(true, Ordering::Relaxed);
    let options = ExecuteOptions { want_completion_event: true, ..Default::default() };
    let error = executable.execute(&[], &options).expect_err("an output is missing");
    assert_eq!(error.message(), "the plugin returned no buffer");
    drop((executable, client));
    world.assert_clean();
}

#[test]
fn failing_destructors_are_counted_and_nothing_else() {
    let world = World::new();
    let client = world.client();
    let (one, two) = (buffer(&client), buffer(&client));
    let before = counters();
    world.fail("PJRT_Buffer_Destroy", 13, "planned");
    drop(one);
    world.heal();
    drop(two);
    // Other tests of this binary may also fail destructors, but counts never decrease.
    assert!(counters().destroy_errors > before.destroy_errors);
    drop(client);
    assert_eq!(world.live(), 1, "the buffer that would not go");
}

#[test]
fn a_callback_runs_once_whenever_the_event_is_dropped() {
    for (drop_first, outcome) in [(true, Ok(())), (false, Ok(())), (true, Err((13, "bad".to_owned())))] {
        let world = World::new();
        let client = world.client();
        world.hold.store(true, Ordering::Relaxed);
        let event = buffer(&client).ready_event().expect("an event");
        assert!(!event.is_ready().expect("an answer"));
        let (send, receive) = mpsc::channel();
        for index in 0..3 {
            let send = send.clone();
            event.on_ready(move |outcome| send.send((index, outcome.is_ok())).expect("the test waits"));
        }
        drop(send);
        let mut event = Some(event);
        if drop_first {
            event = None;
            drop(client);
            assert_eq!(world.calls("PJRT_Event_Destroy"), 1, "only the event of the host data");
            assert_eq!(world.calls("PJRT_Client_Destroy"), 0);
        } else {
            drop(client);
        }
        assert!(receive.try_recv().is_err(), "called too early");
        world.finish_all(outcome.clone());
        let called: Vec<_> = receive.iter().collect();
        assert_eq!(called, [0, 1, 2].map(|index| (index, outcome.is_ok())));
        drop(event);
        // If the last handle is dropped in a callback, another thread destroys the client.
        wait_until(|| world.calls("PJRT_Client_Destroy") == 1 && world.live() == 0);
        world.assert_clean();
        let here = std::thread::current();
        let expected = if drop_first { Some("pjrt-client-destroy") } else { here.name() };
        assert_eq!(world.destroyed_on.lock().expect("no panic").as_deref(), expected);
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 10, "waited too long");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_refused_callback_runs_with_the_refusal() {
    let world = World::new();
    let client = world.client();
    world.hold.store(true, Ordering::Relaxed);
    let source = buffer(&client);
    let event = source.ready_event().expect("an event");
    world.fail("PJRT_Event_OnReady", 13, "no callbacks today");
    let (send, receive) = mpsc::channel::<Result<(), Error>>();
    event.on_ready(move |outcome| send.send(outcome).expect("the test waits"));
    let error = receive.recv().expect("called").expect_err("refused");
    assert_eq!(error.message(), "no callbacks today");
    assert!(receive.recv().is_err(), "once");
    // A read whose end cannot be observed: the callback gets an error, and the memory is not freed
    // while the plugin may use it.
    let (send, receive) = mpsc::channel();
    let before = counters().leaks;
    source.to_host_async().expect("starts").on_ready(move |bytes| send.send(bytes).expect("the test waits"));
    assert!(receive.recv().expect("called").is_err());
    drop(source.to_host_async().expect("starts"));
    assert!(counters().leaks >= before + 2);
    // Owned data whose end cannot be observed is leaked.
    let dropped = Arc::new(AtomicUsize::new(0));
    let data = HostData::zero_copy(Owner(Arc::clone(&dropped)));
    let made = client.buffer_from_owned(&four(), data, &client.devices()[0]).expect("a buffer");
    drop(made);
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    assert!(counters().leaks >= before + 3);
    world.heal();
    world.finish_all(Ok(()));
    drop((event, source, client));
    world.assert_clean();
}

struct Owner(Arc<AtomicUsize>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &[1, 2, 3, 4]
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn owned_data_goes_once_and_not_before_the_plugin_is_done() {
    let world = World::new();
    let client = world.client();
    let first = client.devices().remove(0);
    let device = &first;
    let dropped = Arc::new(AtomicUsize::new(0));
    let made = client
        .buffer_from_owned(&four(), HostData::zero_copy(Owner(Arc::clone(&dropped))), device)
        .expect("a buffer");
    assert_eq!(dropped.load(Ordering::Relaxed), 0, "dropped while the buffer lives");
    world.hold.store(true, Ordering::Relaxed);
    drop(made);
    assert_eq!(dropped.load(Ordering::Relaxed), 0, "dropped while the plugin still uses it");
    world.finish_all(Ok(()));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    // Until transferred: released when the transfer is done, not when the call returns.
    let data = HostData::until_transferred(Owner(Arc::clone(&dropped)));
    let made = client.buffer_from_owned(&four(), data, device).expect("a buffer");
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "dropped while the transfer runs");
    world.finish_all(Ok(()));
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    drop(made);
    world.finish_all(Ok(()));
    // A failed call passes nothing to the plugin.
    world.fail("PJRT_Client_BufferFromHostBuffer", 8, "full");
    let data = HostData::zero_copy(Owner(Arc::clone(&dropped)));
    assert!(client.buffer_from_owned(&four(), data, device).expect_err("full").is_resource_exhausted());
    assert_eq!(dropped.load(Ordering::Relaxed), 3);
    world.heal();
    // A plugin without events cannot be observed.
    world.no_events.store(true, Ordering::Relaxed);
    let data = HostData::zero_copy(Owner(Arc::clone(&dropped)));
    drop(client.buffer_from_owned(&four(), data, device).expect("a buffer"));
    assert_eq!(dropped.load(Ordering::Relaxed), 3, "freed without being told");
    drop((client, first));
    world.assert_clean();
}

/// Panics when it is dropped, once.
struct Bomb(Arc<AtomicBool>);

impl AsRef<[u8]> for Bomb {
    fn as_ref(&self) -> &[u8] {
        &[0; 4]
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if !self.0.swap(true, Ordering::Relaxed) {
            panic!("planned: an owner that panics when it is dropped");
        }
    }
}

#[test]
fn panics_in_callbacks_stop_there() {
    let world = World::new();
    let client = world.client();
    world.hold.store(true, Ordering::Relaxed);
    let source = buffer(&client);
    let before = counters().callback_panics;
    let event = source.ready_event().expect("an event");
    let (send, receive) = mpsc::channel();
    event.on_ready(|_| panic!("planned: a callback that panics"));
    event.on_ready(move |outcome| send.send(outcome).expect("the test waits"));
    source.to_host_async().expect("starts").on_ready(|_| panic!("planned: a reader that panics"));
    let exploded = Arc::new(AtomicBool::new(false));
    let data = HostData::zero_copy(Bomb(Arc::clone(&exploded)));
    drop(client.buffer_from_owned(&four(), data, &client.devices()[0]).expect("a buffer"));
    world.finish_all(Ok(()));
    assert!(receive.recv().expect("called, though its neighbour panicked").is_ok());
    assert!(exploded.load(Ordering::Relaxed));
    assert!(counters().callback_panics >= before + 3);
    drop((event, source, client));
    world.assert_clean();
}

#[test]
fn an_abandoned_read_keeps_its_memory_until_the_copy_is_done() {
    let world = World::new();
    let client = world.client();
    let source = buffer(&client);
    world.hold.store(true, Ordering::Relaxed);
    let copy = source.to_host_async().expect("starts");
    assert!(!copy.is_ready().expect("an answer"));
    drop(copy);
    assert_eq!(world.calls("PJRT_Event_OnReady"), 1, "nobody waits for the copy");
    assert_eq!(world.num_held(), 1);
    drop((source, client));
    assert_eq!(world.calls("PJRT_Client_Destroy"), 0, "the client is needed for the copy");
    world.finish_all(Ok(()));
    wait_until(|| world.calls("PJRT_Client_Destroy") == 1);
    wait_until(|| world.live() == 0);
    world.assert_clean();
}

#[test]
fn handles_die_in_any_order_on_any_thread() {
    for seed in 0..300 {
        let mut choices = Choices(seed);
        let world = World::new();
        let client = world.client();
        world.outputs.store(1 + choices.below(3), Ordering::Relaxed);
        world.hold.store(choices.below(2) == 0, Ordering::Relaxed);
        let options = ExecuteOptions { want_completion_event: true, ..Default::default() };
        let mut things: Vec<Box<dyn Send>> = Vec::new();
        let executable = client.compile("module", &CompileOptions::new()).expect("compiles");
        for _ in 0..choices.below(6) {
            let input = buffer(&client);
            let run = executable.execute(&[&input], &options).expect("runs");
            let event = input.ready_event().expect("an event");
            if choices.below(2) == 0 {
                let held = (client.clone(), run.outputs[0].ready_event());
                event.on_ready(move |_| drop(held));
            }
            things.push(Box::new(run.outputs[0].to_host_async()));
            things.push(Box::new(input));
            things.push(Box::new(run));
            things.push(Box::new(event));
            let data = HostData::zero_copy(vec![0u8; 4]);
            things.push(Box::new(client.buffer_from_owned(&four(), data, &client.devices()[0])));
        }
        things.push(Box::new(client.devices()));
        things.push(Box::new(executable));
        things.push(Box::new(client));
        std::thread::scope(|scope| {
            choices.drop_on_threads(scope, things);
            for _ in 0..3 {
                let world = &world;
                scope.spawn(move || world.finish_all(Ok(())));
            }
        });
        world.hold.store(false, Ordering::Relaxed);
        wait_until(|| {
            world.finish_all(Ok(()));
            world.calls("PJRT_Client_Destroy") == 1 && world.live() == 0
        });
        world.assert_clean();
    }
}

struct Shelf;

/// Set when the store is dropped.
static GONE: AtomicBool = AtomicBool::new(false);

impl Drop for Shelf {
    fn drop(&mut self) {
        GONE.store(true, Ordering::Relaxed);
    }
}

/// A client may still use its store while it is destroyed.
unsafe extern "C" fn destroy_with_store(args: *mut PJRT_Client_Destroy_Args) -> *mut PJRT_Error {
    // Long enough for a store that is dropped too early.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!GONE.load(Ordering::Relaxed), "the store went before the client");
    // SAFETY: the caller passes a live struct.
    unsafe { fake::Client_Destroy(args) }
}

impl KeyValueStore for Shelf {
    fn get(&self, key: &[u8], timeout: std::time::Duration) -> Result<Vec<u8>, String> {
        match key {
            b"panic" => panic!("planned: a store that panics"),
            b"none" => Err(format!("not within {timeout:?}")),
            _ => Ok([key, b"!"].concat()),
        }
    }

    fn try_get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        if key == b"none" { Ok(None) } else { Ok(Some(Vec::new())) }
    }

    fn put(&self, _key: &[u8], value: &[u8]) -> Result<(), String> {
        if value.is_empty() { Err("nothing to put".into()) } else { Ok(()) }
    }
}

/// The answers of the store's callbacks, as text.
static ANSWERS: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();

/// In this fake, errors of callbacks are boxed texts.
unsafe extern "C" fn make_error(
    _: PJRT_Error_Code,
    words: *const std::ffi::c_char,
    len: usize,
) -> *mut PJRT_Error {
    // SAFETY: the layer passes a text with its length.
    let bytes = unsafe { std::slice::from_raw_parts(words.cast::<u8>(), len) };
    Box::into_raw(Box::new(String::from_utf8_lossy(bytes).into_owned())).cast()
}

/// A `PJRT_Client_Create` that tries the key-value callbacks, like that of a multi-process plugin.
unsafe extern "C" fn create_with_store(args: *mut PJRT_Client_Create_Args) -> *mut PJRT_Error {
    #[repr(C)]
    struct Extended {
        base: PJRT_Client_Create_Args,
        try_get: Option<unsafe extern "C" fn(*mut TryGet) -> *mut PJRT_Error>,
        try_get_arg: *mut c_void,
    }
    #[repr(C)]
    struct TryGet {
        struct_size: usize,
        extension_start: usize,
        key: *const u8,
        key_size: usize,
        callback_error: *mut PJRT_CallbackError,
        user_arg: *mut c_void,
        value: *mut u8,
        value_size: usize,
        free: Option<unsafe extern "C" fn(*mut std::ffi::c_char)>,
    }
    // SAFETY: the block is larger than this.
    let extended = unsafe { &*args.cast::<Extended>() };
    let mut callback: PJRT_CallbackError = Some(make_error);
    let mut answers = Vec::new();
    let mut note =
        |error: *mut PJRT_Error, value: *mut u8, size: usize, free: Option<unsafe extern "C" fn(_)>| {
            if error.is_null() {
                let value_bytes = match size {
                    0 => &[],
                    // SAFETY: an answer without an error has a value of that size.
                    _ => unsafe { std::slice::from_raw_parts(value, size) },
                };
                answers.push(String::from_utf8_lossy(value_bytes).into_owned());
                if let Some(free) = free {
                    // SAFETY: the value came with this function.
                    unsafe { free(value.cast()) };
                }
            } else {
                // SAFETY: `make_error` made it.
                answers.push(format!("error: {}", unsafe { Box::from_raw(error.cast::<String>()) }));
            }
        };
    for key in ["a", "none", "panic"] {
        let mut get = PJRT_KeyValueGetCallback_Args {
            key: key.as_ptr().cast(),
            key_size: key.len(),
            timeout_in_ms: 20,
            callback_error: &raw mut callback,
            user_arg: extended.base.kv_get_user_arg,
            ..Default::default()
        };
        let function = extended.base.kv_get_callback.expect("a callback");
        // SAFETY: the struct is filled as the header says.
        let error = unsafe { function(&raw mut get) };
        note(error, get.value.cast(), get.value_size, get.value_deleter_callback);
    }
    for key in ["a", "none"] {
        let mut get = TryGet {
            struct_size: size_of::<TryGet>(),
            extension_start: 0,
            key: key.as_ptr(),
            key_size: key.len(),
            callback_error: &raw mut callback,
            user_arg: extended.try_get_arg,
            value: std::ptr::null_mut(),
            value_size: 0,
            free: None,
        };
        let function = extended.try_get.expect("a callback");
        // SAFETY: the struct is filled as the header says.
        let error = unsafe { function(&raw mut get) };
        note(error, get.value, get.value_size, get.free);
    }
    for value in ["v", ""] {
        let mut put = PJRT_KeyValuePutCallback_Args {
            key: "a".as_ptr().cast(),
            key_size: 1,
            value: value.as_ptr().cast(),
            value_size: value.len(),
            callback_error: &raw mut callback,
            user_arg: extended.base.kv_put_user_arg,
            ..Default::default()
        };
        let function = extended.base.kv_put_callback.expect("a callback");
        // SAFETY: the struct is filled as the header says.
        let error = unsafe { function(&raw mut put) };
        note(error, std::ptr::null_mut(), 0, None);
    }
    ANSWERS.set(answers).expect("once");
    // SAFETY: the caller passes a live struct.
    unsafe { fake::client_create(args) }
}

#[test]
fn the_key_value_store_answers_and_its_panics_are_errors() {
    let world = World::new();
    let mut table = fake::table();
    table.PJRT_Client_Create = Some(create_with_store);
    table.PJRT_Client_Destroy = Some(destroy_with_store);
    let options =
        ClientOptions::new().set("world", Arc::as_ptr(&world).addr() as i64).key_value_store(Arc::new(Shelf));
    let client = fake::open(table, &OpenOptions::new()).expect("opens").client(&options).expect("starts");
    let answers = ANSWERS.get().expect("asked");
    let expected = [
        "a!",
        "error: not within 20ms",
        "error: the key-value store panicked",
        "",
        "error: the key has no value yet",
        "",
        "error: nothing to put",
    ];
    assert_eq!(answers, &expected);
    drop(options);
    // The last handle is dropped in a callback, so another thread destroys the client.
    world.hold.store(true, Ordering::Relaxed);
    let event = buffer(&client).ready_event().expect("an event");
    event.on_ready(move |_| drop(client));
    drop(event);
    world.finish_all(Ok(()));
    wait_until(|| GONE.load(Ordering::Relaxed));
    world.assert_clean();
}
