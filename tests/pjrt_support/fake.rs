//! A PJRT plugin made of Rust: it counts its objects, finishes its work when it is told to, and fails when it is told
//! to. It is strict where real plugins are lenient, so that a wrong call shows.
//!
//! Every client belongs to a [`World`], named by the client option `world`; all its objects do too.
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::disallowed_types,
    clippy::print_stderr,
    reason = "the other side of the C API: it trusts its caller and uses no model checker"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fuseline::pjrt::{Client, ClientOptions, OpenOptions, Plugin};
use pjrt_sys::*;

/// A status: number of the code, and words.
pub(crate) type Status = Result<(), (u32, String)>;

/// Every live object of every world, to tell a dead one before it is touched.
static ALIVE: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// A failed assertion must not hide behind the lock that it held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process if an object is dead: there is no safe way on.
fn assert_alive(raw: usize, function: &str) {
    if !lock(&ALIVE).contains(&raw) {
        eprintln!("{function} was called on a dead object");
        std::process::abort();
    }
}

/// What a test sees and steers.
#[derive(Default)]
pub(crate) struct World {
    /// Live objects: what they are, where they are.
    live: Mutex<BTreeSet<(&'static str, usize)>>,
    /// Functions that are to fail from now on.
    fail: Mutex<BTreeMap<&'static str, (u32, String)>>,
    /// While true, new events wait for [`World::finish_all`].
    pub(crate) hold: AtomicBool,
    held: Mutex<Vec<Arc<Core>>>,
    /// What was done wrong.
    wrongs: Mutex<Vec<String>>,
    /// How often each function was called.
    calls: Mutex<BTreeMap<&'static str, usize>>,
    /// Executions return null for this output.
    pub(crate) null_output: AtomicBool,
    /// `BufferFromHostBuffer` and `ReadyEvent` return no event.
    pub(crate) no_events: AtomicBool,
    /// Number of outputs of the next executable.
    pub(crate) outputs: AtomicUsize,
    /// The thread that destroyed the client was one of these.
    pub(crate) destroyed_on: Mutex<Option<String>>,
}

impl World {
    pub(crate) fn new() -> Arc<World> {
        let world = World::default();
        world.outputs.store(1, Ordering::Relaxed);
        Arc::new(world)
    }

    pub(crate) fn client(self: &Arc<World>) -> Client {
        let options = ClientOptions::new().set("world", Arc::as_ptr(self).addr() as i64);
        plugin().client(&options).expect("the fake client starts")
    }

    pub(crate) fn fail(&self, function: &'static str, code: u32, words: &str) {
        lock(&self.fail).insert(function, (code, words.into()));
    }

    pub(crate) fn heal(&self) {
        lock(&self.fail).clear();
    }

    pub(crate) fn calls(&self, function: &'static str) -> usize {
        lock(&self.calls).get(function).copied().unwrap_or(0)
    }

    pub(crate) fn live(&self) -> usize {
        lock(&self.live).len()
    }

    /// Finishes the events held back so far, from this thread.
    pub(crate) fn finish_all(&self, outcome: Status) {
        let held = std::mem::take(&mut *lock(&self.held));
        for core in held {
            core.finish(outcome.clone());
        }
    }

    pub(crate) fn num_held(&self) -> usize {
        lock(&self.held).len()
    }

    /// Nothing lives and nothing was done wrong.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let live = lock(&self.live).clone();
        let wrongs = lock(&self.wrongs).clone();
        assert_eq!(live, BTreeSet::new(), "live objects");
        assert_eq!(wrongs, Vec::<String>::new(), "wrong calls");
    }

    fn wrong(&self, what: impl Into<String>) {
        lock(&self.wrongs).push(what.into());
    }

    /// Counts a call; the error that it is to give, if any.
    fn enter(self: &Arc<World>, function: &'static str) -> Option<*mut PJRT_Error> {
        *lock(&self.calls).entry(function).or_default() += 1;
        let planned = lock(&self.fail).get(function).cloned();
        planned.map(|(code, words)| self.error(code, &words))
    }

    fn error(self: &Arc<World>, code: u32, words: &str) -> *mut PJRT_Error {
        self.make("error", FakeError { world: Arc::clone(self), code, words: words.into() }).cast()
    }

    /// An error of this world, for functions that belong to no client.
    pub(crate) fn planned(self: &Arc<World>, code: u32, words: &str) -> *mut PJRT_Error {
        self.error(code, words)
    }

    fn make<T>(&self, kind: &'static str, object: T) -> *mut T {
        let raw = Box::into_raw(Box::new(object));
        lock(&ALIVE).insert(raw.addr());
        lock(&self.live).insert((kind, raw.addr()));
        raw
    }

    /// Frees an object; a second time is noted, not done.
    unsafe fn destroy<T>(&self, kind: &'static str, raw: *mut T) {
        if lock(&self.live).remove(&(kind, raw.addr())) {
            lock(&ALIVE).remove(&raw.addr());
            drop(unsafe { Box::from_raw(raw) });
        } else {
            self.wrong(format!("{kind} destroyed twice"));
        }
    }

    /// A new event of work that is done at once, or held back.
    fn event(self: &Arc<World>) -> *mut PJRT_Event {
        let core = Arc::new(Core::default());
        self.hold_or_finish(Arc::clone(&core));
        self.event_of(core)
    }

    fn event_of(self: &Arc<World>, core: Arc<Core>) -> *mut PJRT_Event {
        if self.no_events.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        self.make("event", FakeEvent { world: Arc::clone(self), core }).cast()
    }

    fn hold_or_finish(&self, core: Arc<Core>) {
        match self.hold.load(Ordering::Relaxed) {
            true => lock(&self.held).push(core),
            false => core.finish(Ok(())),
        }
    }
}

struct FakeError {
    world: Arc<World>,
    code: u32,
    words: String,
}

struct FakeEvent {
    world: Arc<World>,
    core: Arc<Core>,
}

#[derive(Default)]
struct Core {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    done: Option<Status>,
    callbacks: Vec<Callback>,
}

struct Callback {
    world: Arc<World>,
    function: unsafe extern "C" fn(*mut PJRT_Error, *mut c_void),
    argument: usize,
}

impl Callback {
    fn call(self, outcome: &Status) {
        let error = match outcome {
            Ok(()) => std::ptr::null_mut(),
            Err((code, words)) => self.world.error(*code, words),
        };
        unsafe { (self.function)(error, std::ptr::with_exposed_provenance_mut(self.argument)) };
    }
}

impl Core {
    fn finish(&self, outcome: Status) {
        let callbacks = {
            let mut state = lock(&self.state);
            state.done = Some(outcome.clone());
            std::mem::take(&mut state.callbacks)
        };
        self.wake.notify_all();
        for callback in callbacks {
            callback.call(&outcome);
        }
    }

    fn wait(&self) -> Status {
        let mut state = lock(&self.state);
        loop {
            match &state.done {
                Some(outcome) => return outcome.clone(),
                None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

pub(crate) struct FakeClient {
    world: Arc<World>,
    device: FakeDevice,
    devices: [usize; 1],
}

struct FakeDevice(#[allow(dead_code, reason = "it needs an address")] u8);

struct FakeBuffer {
    world: Arc<World>,
    deleted: AtomicBool,
    bytes: Vec<u8>,
    /// Finished when the buffer is destroyed: the runtime is done with the host data then.
    done: Option<Arc<Core>>,
}

struct FakeExecutable {
    world: Arc<World>,
    device: usize,
    types: Vec<PJRT_Buffer_Type>,
    ranks: Vec<usize>,
    dims: Vec<i64>,
}

struct FakeBytes {
    world: Arc<World>,
    bytes: Vec<u8>,
}

/// Declares a function of the table, `name(args: Type, object: Kind in field, world)`. It checks the struct's size,
/// fails if that is planned, and else runs the body.
macro_rules! function {
    ($name:ident($args:ident: $ty:ident, $object:ident: $kind:ident in $field:ident, $world:ident) $body:block) => {
        #[allow(non_snake_case, reason = "named as in the C header")]
        pub(crate) unsafe extern "C" fn $name(args: *mut $ty) -> *mut PJRT_Error {
            let $args = unsafe { &mut *args };
            assert_alive($args.$field.addr(), stringify!($name));
            let $object = unsafe { &*$args.$field.cast::<$kind>() };
            let $world = Arc::clone(&$object.world);
            if $args.struct_size < size_of::<$ty>() {
                $world.wrong(concat!(stringify!($name), " got a short struct"));
            }
            if let Some(error) = $world.enter(concat!("PJRT_", stringify!($name))) {
                return error;
            }
            $body
            std::ptr::null_mut()
        }
    };
}

pub(crate) unsafe extern "C" fn error_destroy(args: *mut PJRT_Error_Destroy_Args) {
    let raw = unsafe { (*args).error }.cast::<FakeError>();
    assert_alive(raw.addr(), "Error_Destroy");
    let world = Arc::clone(unsafe { &(*raw).world });
    unsafe { world.destroy("error", raw) };
}

pub(crate) unsafe extern "C" fn error_message(args: *mut PJRT_Error_Message_Args) {
    let args = unsafe { &mut *args };
    assert_alive(args.error.addr(), "Error_Message");
    let error = unsafe { &*args.error.cast::<FakeError>() };
    args.message = error.words.as_ptr().cast();
    args.message_size = error.words.len();
}

pub(crate) unsafe extern "C" fn error_get_code(args: *mut PJRT_Error_GetCode_Args) -> *mut PJRT_Error {
    let args = unsafe { &mut *args };
    args.code = unsafe { &*args.error.cast::<FakeError>() }.code;
    std::ptr::null_mut()
}

function!(Event_Destroy(args: PJRT_Event_Destroy_Args, event: FakeEvent in event, world) {
    let pending = lock(&event.core.state).callbacks.len();
    if pending > 0 {
        world.wrong(format!("an event was destroyed with {pending} callbacks pending"));
    }
    unsafe { world.destroy("event", args.event.cast::<FakeEvent>()) };
});
function!(Event_IsReady(args: PJRT_Event_IsReady_Args, event: FakeEvent in event, world) {
    args.is_ready = lock(&event.core.state).done.is_some();
});
function!(Event_Await(args: PJRT_Event_Await_Args, event: FakeEvent in event, world) {
    if let Err((code, words)) = event.core.wait() {
        return world.error(code, &words);
    }
});
function!(Event_OnReady(args: PJRT_Event_OnReady_Args, event: FakeEvent in event, world) {
    let function = args.callback.expect("a callback");
    let argument = args.user_arg.expose_provenance();
    let callback = Callback { world: Arc::clone(&world), function, argument };
    let mut state = lock(&event.core.state);
    match state.done.clone() {
        None => state.callbacks.push(callback),
        Some(outcome) => {
            drop(state);
            callback.call(&outcome);
        }
    }
});

pub(crate) unsafe extern "C" fn client_create(args: *mut PJRT_Client_Create_Args) -> *mut PJRT_Error {
    let args = unsafe { &mut *args };
    let options = unsafe { std::slice::from_raw_parts(args.create_options, args.num_options) };
    let world = options.iter().find_map(|option| {
        let name = unsafe { std::slice::from_raw_parts(option.name.cast::<u8>(), option.name_size) };
        (name == b"world").then_some(unsafe { option.__bindgen_anon_1.int64_value })
    });
    let world: *const World = std::ptr::with_exposed_provenance(world.expect("a world") as usize);
    unsafe { Arc::increment_strong_count(world) };
    let world = unsafe { Arc::from_raw(world) };
    if let Some(error) = world.enter("PJRT_Client_Create") {
        return error;
    }
    let client = FakeClient { world: Arc::clone(&world), device: FakeDevice(0), devices: [0] };
    let raw = world.make("client", client);
    unsafe { (*raw).devices = [std::ptr::from_ref(&(*raw).device).expose_provenance()] };
    args.client = raw.cast();
    std::ptr::null_mut()
}

function!(Client_Destroy(args: PJRT_Client_Destroy_Args, client: FakeClient in client, world) {
    if lock(&world.live).iter().any(|(kind, _)| *kind != "client" && *kind != "error") {
        world.wrong("the client was destroyed before its objects");
    }
    *lock(&world.destroyed_on) = std::thread::current().name().map(str::to_owned);
    unsafe { world.destroy("client", args.client.cast::<FakeClient>()) };
});
function!(Client_PlatformName(args: PJRT_Client_PlatformName_Args, client: FakeClient in client, world) {
    args.platform_name = "fake".as_ptr().cast();
    args.platform_name_size = 4;
});
function!(Client_Devices(args: PJRT_Client_Devices_Args, client: FakeClient in client, world) {
    args.devices = client.devices.as_ptr().cast();
    args.num_devices = 1;
});
function!(Client_Compile(args: PJRT_Client_Compile_Args, client: FakeClient in client, world) {
    let outputs = world.outputs.load(Ordering::Relaxed);
    let executable = FakeExecutable {
        world: Arc::clone(&world),
        device: client.devices[0],
        types: vec![PJRT_Buffer_Type_PJRT_Buffer_Type_U8; outputs],
        ranks: vec![1; outputs],
        dims: vec![4; outputs],
    };
    args.executable = world.make("loaded executable", executable).cast();
});
function!(Client_BufferFromHostBuffer(args: PJRT_Client_BufferFromHostBuffer_Args, client: FakeClient in client, world) {
    let dims = unsafe { std::slice::from_raw_parts(args.dims, args.num_dims) };
    let len: i64 = dims.iter().product();
    let bytes = unsafe { std::slice::from_raw_parts(args.data.cast::<u8>(), len as usize) }.to_vec();
    // Host data that may be used in place is needed until the buffer goes.
    let zero_copy =
        args.host_buffer_semantics >= PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableZeroCopy;
    let done = zero_copy.then(Arc::<Core>::default);
    args.done_with_host_buffer = match &done {
        Some(core) => world.event_of(Arc::clone(core)),
        None => world.event(),
    };
    let buffer = FakeBuffer { world: Arc::clone(&world), deleted: AtomicBool::new(false), bytes, done };
    args.buffer = world.make("buffer", buffer).cast();
});

pub(crate) unsafe extern "C" fn device_get_description(
    args: *mut PJRT_Device_GetDescription_Args,
) -> *mut PJRT_Error {
    let args = unsafe { &mut *args };
    args.device_description = args.device.cast();
    std::ptr::null_mut()
}
pub(crate) unsafe extern "C" fn description_id(args: *mut PJRT_DeviceDescription_Id_Args) -> *mut PJRT_Error {
    unsafe { (*args).id = 0 as c_int };
    std::ptr::null_mut()
}
pub(crate) unsafe extern "C" fn description_kind(
    args: *mut PJRT_DeviceDescription_Kind_Args,
) -> *mut PJRT_Error {
    let args = unsafe { &mut *args };
    args.device_kind = "fake".as_ptr().cast::<c_char>();
    args.device_kind_size = 4;
    std::ptr::null_mut()
}
pub(crate) unsafe extern "C" fn is_addressable(args: *mut PJRT_Device_IsAddressable_Args) -> *mut PJRT_Error {
    unsafe { (*args).is_addressable = true };
    std::ptr::null_mut()
}

function!(Executable_Destroy(args: PJRT_Executable_Destroy_Args, executable: FakeExecutable in executable, world) {
    unsafe { world.destroy("executable", args.executable.cast::<FakeExecutable>()) };
});
function!(Executable_NumOutputs(args: PJRT_Executable_NumOutputs_Args, executable: FakeExecutable in executable, world) {
    args.num_outputs = executable.types.len();
});
function!(Executable_OutputElementTypes(args: PJRT_Executable_OutputElementTypes_Args, executable: FakeExecutable in executable, world) {
    args.output_types = executable.types.as_ptr().cast_mut();
    args.num_output_types = executable.types.len();
});
function!(Executable_OutputDimensions(args: PJRT_Executable_OutputDimensions_Args, executable: FakeExecutable in executable, world) {
    args.num_outputs = executable.ranks.len();
    args.dim_sizes = executable.ranks.as_ptr();
    args.dims = executable.dims.as_ptr();
});
function!(Executable_GetCompiledMemoryStats(args: PJRT_Executable_GetCompiledMemoryStats_Args, executable: FakeExecutable in executable, world) {
    // As plugins do that are older than the field for the peak.
    args.argument_size_in_bytes = executable.types.len() as i64;
    args.host_temp_size_in_bytes = 99;
});
function!(Executable_Serialize(args: PJRT_Executable_Serialize_Args, executable: FakeExecutable in executable, world) {
    let bytes = world.make("serialised", FakeBytes { world: Arc::clone(&world), bytes: vec![1, 2, 3] });
    args.serialized_executable = bytes.cast();
    args.serialized_bytes = unsafe { (*bytes).bytes.as_ptr() }.cast();
    args.serialized_bytes_size = 3;
    args.serialized_executable_deleter = Some(serialized_delete);
});
unsafe extern "C" fn serialized_delete(raw: *mut PJRT_SerializedExecutable) {
    assert_alive(raw.addr(), "the deleter");
    let raw = raw.cast::<FakeBytes>();
    let world = Arc::clone(unsafe { &(*raw).world });
    unsafe { world.destroy("serialised", raw) };
}
function!(LoadedExecutable_Destroy(args: PJRT_LoadedExecutable_Destroy_Args, executable: FakeExecutable in executable, world) {
    unsafe { world.destroy("loaded executable", args.executable.cast::<FakeExecutable>()) };
});
function!(LoadedExecutable_GetExecutable(args: PJRT_LoadedExecutable_GetExecutable_Args, executable: FakeExecutable in loaded_executable, world) {
    let copy = FakeExecutable {
        world: Arc::clone(&world),
        device: executable.device,
        types: executable.types.clone(),
        ranks: executable.ranks.clone(),
        dims: executable.dims.clone(),
    };
    args.executable = world.make("executable", copy).cast();
});
function!(LoadedExecutable_AddressableDevices(args: PJRT_LoadedExecutable_AddressableDevices_Args, executable: FakeExecutable in executable, world) {
    args.addressable_devices = std::ptr::from_ref(&executable.device).cast();
    args.num_addressable_devices = 1;
});
function!(LoadedExecutable_Execute(args: PJRT_LoadedExecutable_Execute_Args, executable: FakeExecutable in executable, world) {
    let outputs = unsafe { *args.output_lists };
    for index in 0..executable.types.len() {
        let buffer =
            FakeBuffer { world: Arc::clone(&world), deleted: AtomicBool::new(false), bytes: vec![7; 4], done: None };
        let raw = match world.null_output.load(Ordering::Relaxed) && index == 0 {
            true => std::ptr::null_mut(),
            false => world.make("buffer", buffer),
        };
        unsafe { *outputs.add(index) = raw.cast() };
    }
    if !args.device_complete_events.is_null() {
        unsafe { *args.device_complete_events = world.event() };
    }
});

function!(Buffer_Destroy(args: PJRT_Buffer_Destroy_Args, buffer: FakeBuffer in buffer, world) {
    let done = buffer.done.clone();
    unsafe { world.destroy("buffer", args.buffer.cast::<FakeBuffer>()) };
    if let Some(done) = done {
        world.hold_or_finish(done);
    }
});
function!(Buffer_Delete(args: PJRT_Buffer_Delete_Args, buffer: FakeBuffer in buffer, world) {
    buffer.deleted.store(true, Ordering::Relaxed);
});
function!(Buffer_IsDeleted(args: PJRT_Buffer_IsDeleted_Args, buffer: FakeBuffer in buffer, world) {
    args.is_deleted = buffer.deleted.load(Ordering::Relaxed);
});
function!(Buffer_ReadyEvent(args: PJRT_Buffer_ReadyEvent_Args, buffer: FakeBuffer in buffer, world) {
    args.event = world.event();
});
function!(Buffer_ToHostBuffer(args: PJRT_Buffer_ToHostBuffer_Args, buffer: FakeBuffer in src, world) {
    assert!(args.dst_size >= buffer.bytes.len());
    args.event = world.event();
    // Written late, when there is somebody to hold it back: by the event's first callback's time at the latest.
    unsafe { args.dst.cast::<u8>().copy_from(buffer.bytes.as_ptr(), buffer.bytes.len()) };
});

unsafe extern "C" fn initialize(_: *mut PJRT_Plugin_Initialize_Args) -> *mut PJRT_Error {
    std::ptr::null_mut()
}

/// A table with every function above.
pub(crate) fn table() -> PJRT_Api {
    let mut table = PJRT_Api { struct_size: size_of::<PJRT_Api>(), ..Default::default() };
    table.pjrt_api_version.major_version = 0;
    table.pjrt_api_version.minor_version = 54;
    table.PJRT_Error_Destroy = Some(error_destroy);
    table.PJRT_Error_Message = Some(error_message);
    table.PJRT_Error_GetCode = Some(error_get_code);
    table.PJRT_Plugin_Initialize = Some(initialize);
    table.PJRT_Event_Destroy = Some(Event_Destroy);
    table.PJRT_Event_IsReady = Some(Event_IsReady);
    table.PJRT_Event_Await = Some(Event_Await);
    table.PJRT_Event_OnReady = Some(Event_OnReady);
    table.PJRT_Client_Create = Some(client_create);
    table.PJRT_Client_Destroy = Some(Client_Destroy);
    table.PJRT_Client_PlatformName = Some(Client_PlatformName);
    table.PJRT_Client_Devices = Some(Client_Devices);
    table.PJRT_Client_Compile = Some(Client_Compile);
    table.PJRT_Client_BufferFromHostBuffer = Some(Client_BufferFromHostBuffer);
    table.PJRT_DeviceDescription_Id = Some(description_id);
    table.PJRT_DeviceDescription_Kind = Some(description_kind);
    table.PJRT_Device_GetDescription = Some(device_get_description);
    table.PJRT_Device_IsAddressable = Some(is_addressable);
    table.PJRT_Executable_Destroy = Some(Executable_Destroy);
    table.PJRT_Executable_NumOutputs = Some(Executable_NumOutputs);
    table.PJRT_Executable_OutputElementTypes = Some(Executable_OutputElementTypes);
    table.PJRT_Executable_OutputDimensions = Some(Executable_OutputDimensions);
    table.PJRT_Executable_GetCompiledMemoryStats = Some(Executable_GetCompiledMemoryStats);
    table.PJRT_Executable_Serialize = Some(Executable_Serialize);
    table.PJRT_LoadedExecutable_Destroy = Some(LoadedExecutable_Destroy);
    table.PJRT_LoadedExecutable_GetExecutable = Some(LoadedExecutable_GetExecutable);
    table.PJRT_LoadedExecutable_AddressableDevices = Some(LoadedExecutable_AddressableDevices);
    table.PJRT_LoadedExecutable_Execute = Some(LoadedExecutable_Execute);
    table.PJRT_Buffer_Destroy = Some(Buffer_Destroy);
    table.PJRT_Buffer_Delete = Some(Buffer_Delete);
    table.PJRT_Buffer_IsDeleted = Some(Buffer_IsDeleted);
    table.PJRT_Buffer_ReadyEvent = Some(Buffer_ReadyEvent);
    table.PJRT_Buffer_ToHostBuffer = Some(Buffer_ToHostBuffer);
    table
}

/// Opens a table that stays for the life of the process.
pub(crate) fn open(table: PJRT_Api, options: &OpenOptions) -> Result<Plugin, fuseline::pjrt::OpenError> {
    let table: &'static PJRT_Api = Box::leak(Box::new(table));
    unsafe { Plugin::from_table(std::ptr::from_ref(table).cast(), "/fake/plugin.so", options) }
}

/// The well-behaved fake.
pub(crate) fn plugin() -> Plugin {
    static PLUGIN: std::sync::OnceLock<Plugin> = std::sync::OnceLock::new();
    *PLUGIN.get_or_init(|| open(table(), &OpenOptions::new()).expect("the fake opens"))
}
