//! The functions of the table.
//!
//! Each function counts its call, does what is planned for it, checks the size of its struct, and
//! then does its work. A panic in one ends the process, as it must at a C boundary.
#![allow(non_snake_case, non_upper_case_globals, reason = "named as in the C header")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuseline_fusion::Literal;
use fuseline_fusion::text::TextModule;
use pjrt_sys::*;

use crate::buffer::{Buffer, Lease, Place};
use crate::client::{Client, Device, Memory, Topology, list, number_of, text, type_of};
use crate::event::{Event, HostMemory, Listener, Promise, Status, error_of, event_of, pointer};
use crate::executable::Program;
use crate::plan::{Failure, UNIMPLEMENTED};
use crate::registry::{Held, Kind, die, hold, insert, remove};
use crate::world::{Fault, enter};

/// The parts of the plan that a function handles itself.
struct Planned {
    /// The function must return no object.
    null: bool,
    /// The event that it returns must fail.
    event_error: Option<Failure>,
}

/// Runs a function's own part, with the steps before and after it.
fn answer(
    function: &'static str,
    (size, wanted): (usize, usize),
    of: u64,
    own: impl FnOnce(Planned) -> Status,
) -> *mut PJRT_Error {
    let mut planned = Planned { null: false, event_error: None };
    let unexpected = |size| {
        Failure::invalid(format!(
            "Unexpected {function}_Args size: expected {wanted}, got {size}. Check installed software versions."
        ))
    };
    let outcome = match enter(function, of) {
        Fault::Fail(failure) => Err(failure),
        Fault::WrongStructSize => Err(unexpected(size.saturating_sub(8))),
        _ if size < wanted => Err(unexpected(size)),
        Fault::None => own(planned),
        Fault::Null => {
            planned.null = true;
            own(planned)
        }
        Fault::Event(failure) => {
            planned.event_error = Some(failure);
            own(planned)
        }
    };
    outcome.map_or_else(|failure| error_of(&failure), |()| std::ptr::null_mut())
}

/// Declares a function: `Name(args: Struct) { .. }`, with a second name for the planned part, and
/// an expression after `;` for the size of the call.
macro_rules! functions {
    ($($name:ident($args:ident: $ty:ident $(, $planned:ident)? $(; $of:expr)?) $body:block)*) => {$(
        pub(crate) unsafe extern "C" fn $name(raw: *mut $ty) -> *mut PJRT_Error {
            let size = unsafe { (*raw).struct_size };
            #[allow(unused_variables, reason = "most calls have no size")]
            let $args = unsafe { &mut *raw };
            #[allow(unused_mut, unused_assignments, reason = "most calls have no size")]
            let mut of = 0;
            $(of = $of;)?
            answer(concat!("PJRT_", stringify!($name)), (size, size_of::<$ty>()), of, |planned| {
                $(let $planned = &planned;)?
                let _ = &planned;
                $body
                Ok(())
            })
        }
    )*};
}

/// The object of a handle, for a call with this name.
macro_rules! held {
    ($function:literal, $kind:ident, $ty:ty, $pointer:expr) => {
        hold::<$ty>($function, Kind::$kind, $pointer.addr())
    };
}

// ----- errors: these functions cannot fail -----

pub(crate) unsafe extern "C" fn Error_Destroy(args: *mut PJRT_Error_Destroy_Args) {
    let _ = enter("PJRT_Error_Destroy", 0);
    drop(remove::<Failure>("PJRT_Error_Destroy", Kind::Error, unsafe { (*args).error }.addr()));
}

pub(crate) unsafe extern "C" fn Error_Message(args: *mut PJRT_Error_Message_Args) {
    let _ = enter("PJRT_Error_Message", 0);
    let args = unsafe { &mut *args };
    let error = held!("PJRT_Error_Message", Error, Failure, args.error);
    args.message = error.message.as_ptr().cast();
    args.message_size = error.message.len();
}

unsafe extern "C" fn serialized_deleter(raw: *mut PJRT_SerializedExecutable) {
    let _ = enter("PJRT_SerializedExecutable_Deleter", 0);
    drop(remove::<Vec<u8>>("PJRT_SerializedExecutable_Deleter", Kind::Serialized, raw.addr()));
}

/// The plugin's attributes.
struct Attributes([PJRT_NamedValue; 1]);

// SAFETY: the pointers in it are to constants.
unsafe impl Sync for Attributes {}
// SAFETY: as above.
unsafe impl Send for Attributes {}

const FAKE_VERSION: &str = "fake_version";

functions! {
    Error_GetCode(args: PJRT_Error_GetCode_Args) {
        args.code = held!("PJRT_Error_GetCode", Error, Failure, args.error).code;
    }
    Plugin_Initialize(args: PJRT_Plugin_Initialize_Args) {}
    Plugin_Attributes(args: PJRT_Plugin_Attributes_Args) {
        static ATTRIBUTES: std::sync::OnceLock<Attributes> = std::sync::OnceLock::new();
        let attributes = ATTRIBUTES.get_or_init(|| {
            let mut value = PJRT_NamedValue {
                struct_size: size_of::<PJRT_NamedValue>(),
                name: FAKE_VERSION.as_ptr().cast(),
                name_size: FAKE_VERSION.len(),
                type_: PJRT_NamedValue_Type_PJRT_NamedValue_kInt64,
                value_size: 1,
                ..Default::default()
            };
            value.__bindgen_anon_1.int64_value = 1;
            Attributes([value])
        });
        args.attributes = attributes.0.as_ptr();
        args.num_attributes = attributes.0.len();
    }

    // ----- events -----

    Event_Destroy(args: PJRT_Event_Destroy_Args) {
        let event = remove::<Event>("PJRT_Event_Destroy", Kind::Event, args.event.addr());
        let pending = event.pending.load(Ordering::SeqCst);
        if pending > 0 {
            die(&format!("PJRT_Event_Destroy takes an event with {pending} callbacks that were not called"));
        }
    }
    Event_IsReady(args: PJRT_Event_IsReady_Args) {
        args.is_ready = held!("PJRT_Event_IsReady", Event, Event, args.event).promise.is_kept();
    }
    Event_Await(args: PJRT_Event_Await_Args) {
        held!("PJRT_Event_Await", Event, Event, args.event).promise.wait()?;
    }
    Event_OnReady(args: PJRT_Event_OnReady_Args) {
        let function = args.callback.ok_or_else(|| Failure::invalid("no callback"))?;
        let event = held!("PJRT_Event_OnReady", Event, Event, args.event);
        let (promise, pending) = (event.promise.clone(), event.pending.clone());
        // The event is no longer in use: a callback may destroy it.
        drop(event);
        pending.fetch_add(1, Ordering::SeqCst);
        let listener = Listener { function, argument: args.user_arg };
        promise.when_kept(move |status| {
            pending.fetch_sub(1, Ordering::SeqCst);
            listener.tell(status);
        });
    }

    // ----- the client and its devices -----

    Client_Create(args: PJRT_Client_Create_Args, planned) {
        args.client = std::ptr::null_mut();
        if !planned.null {
            args.client = pointer(unsafe { Client::create(args.create_options, args.num_options) }?);
        }
    }
    Client_Destroy(args: PJRT_Client_Destroy_Args) {
        remove::<Client>("PJRT_Client_Destroy", Kind::Client, args.client.addr()).finish();
    }
    Client_PlatformName(args: PJRT_Client_PlatformName_Args) {
        let client = held!("PJRT_Client_PlatformName", Client, Client, args.client);
        args.platform_name = client.platform.as_ptr().cast();
        args.platform_name_size = client.platform.len();
    }
    Client_PlatformVersion(args: PJRT_Client_PlatformVersion_Args) {
        let client = held!("PJRT_Client_PlatformVersion", Client, Client, args.client);
        args.platform_version = client.version.as_ptr().cast();
        args.platform_version_size = client.version.len();
    }
    Client_ProcessIndex(args: PJRT_Client_ProcessIndex_Args) {
        let _client = held!("PJRT_Client_ProcessIndex", Client, Client, args.client);
        args.process_index = 0;
    }
    Client_Devices(args: PJRT_Client_Devices_Args) {
        let client = held!("PJRT_Client_Devices", Client, Client, args.client);
        args.devices = client.devices().as_ptr().cast();
        args.num_devices = client.devices().len();
    }
    Client_AddressableDevices(args: PJRT_Client_AddressableDevices_Args) {
        let client = held!("PJRT_Client_AddressableDevices", Client, Client, args.client);
        args.addressable_devices = client.devices().as_ptr().cast();
        args.num_addressable_devices = client.devices().len();
    }
    Client_AddressableMemories(args: PJRT_Client_AddressableMemories_Args) {
        let client = held!("PJRT_Client_AddressableMemories", Client, Client, args.client);
        args.addressable_memories = client.memories().as_ptr().cast();
        args.num_addressable_memories = client.memories().len();
    }
    Client_Compile(args: PJRT_Client_Compile_Args, planned; unsafe { ops(args.program) }) {
        let client = held!("PJRT_Client_Compile", Client, Client, args.client);
        let options = unsafe { list(args.compile_options.cast::<u8>(), args.compile_options_size) };
        client.unknown_flags.check(options)?;
        let program = Program::compile(client.devices(), unsafe { code(args.program) }?, options)?;
        args.executable = std::ptr::null_mut();
        if !planned.null {
            args.executable = pointer(insert(Kind::LoadedExecutable, Arc::new(program), client.handle));
        }
    }
    Client_BufferFromHostBuffer(args: PJRT_Client_BufferFromHostBuffer_Args, planned; unsafe { bytes(args) }) {
        let client = held!("PJRT_Client_BufferFromHostBuffer", Client, Client, args.client);
        if args.num_byte_strides > 0 || !args.device_layout.is_null() {
            return Err(Failure::new(UNIMPLEMENTED, "strides and layouts of host data"));
        }
        let ty = unsafe { type_of(args.type_, args.dims, args.num_dims) }?;
        let place = place(&client, args.device, args.memory)?;
        let lease = match args.host_buffer_semantics {
            PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableOnlyDuringCall => Lease::Call,
            PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes => Lease::Transfer,
            PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableZeroCopy => Lease::InPlace { writable: false },
            _ => Lease::InPlace { writable: true },
        };
        // There is no length: the caller guarantees that of the type.
        let memory = HostMemory { start: args.data.cast_mut().cast(), len: ty.bytes().0 as usize };
        args.buffer = std::ptr::null_mut();
        args.done_with_host_buffer = std::ptr::null_mut();
        let failure = planned.event_error.clone();
        if !planned.null {
            let (buffer, done) = unsafe { Buffer::from_host(&client, ty, memory, lease, failure, place) }?;
            args.buffer = pointer(buffer);
            args.done_with_host_buffer = event_of(done, client.handle);
        }
    }
    Client_CreateViewOfDeviceBuffer(args: PJRT_Client_CreateViewOfDeviceBuffer_Args, planned) {
        let client = held!("PJRT_Client_CreateViewOfDeviceBuffer", Client, Client, args.client);
        let ty = unsafe { type_of(args.element_type, args.dims, args.num_dims) }?;
        let place = place(&client, args.device, std::ptr::null_mut())?;
        let bytes = unsafe { list(args.device_buffer_ptr.cast::<u8>(), ty.bytes().0 as usize) }.to_vec();
        let data = Literal::from_bytes(ty, bytes).map_err(|error| Failure::invalid(error.to_string()))?;
        args.buffer = std::ptr::null_mut();
        if !planned.null {
            let gone = Promise::new();
            if let Some(function) = args.on_delete_callback {
                let memory = HostMemory { start: args.device_buffer_ptr.cast(), len: 0 };
                let argument = HostMemory { start: args.on_delete_callback_arg.cast(), len: 0 };
                gone.when_kept(move |_| {
                    let (memory, argument) = (memory, argument);
                    unsafe { function(memory.start.cast(), argument.start.cast()) };
                });
            }
            args.buffer = pointer(Buffer::view(data, gone, place));
        }
    }
    DeviceDescription_Id(args: PJRT_DeviceDescription_Id_Args) {
        let device = held!("PJRT_DeviceDescription_Id", Device, Device, args.device_description);
        args.id = device.index as i32;
    }
    DeviceDescription_ProcessIndex(args: PJRT_DeviceDescription_ProcessIndex_Args) {
        let _device = held!("PJRT_DeviceDescription_ProcessIndex", Device, Device, args.device_description);
        args.process_index = 0;
    }
    DeviceDescription_Attributes(args: PJRT_DeviceDescription_Attributes_Args) {
        let device = held!("PJRT_DeviceDescription_Attributes", Device, Device, args.device_description);
        // The list lives as long as the device.
        args.attributes = device.attributes.list().as_ptr();
        args.num_attributes = device.attributes.list().len();
    }
    DeviceDescription_Kind(args: PJRT_DeviceDescription_Kind_Args) {
        let device = held!("PJRT_DeviceDescription_Kind", Device, Device, args.device_description);
        args.device_kind = device.kind.as_ptr().cast();
        args.device_kind_size = device.kind.len();
    }
    DeviceDescription_DebugString(args: PJRT_DeviceDescription_DebugString_Args) {
        let device = held!("PJRT_DeviceDescription_DebugString", Device, Device, args.device_description);
        args.debug_string = device.words.as_ptr().cast();
        args.debug_string_size = device.words.len();
    }
    Device_GetDescription(args: PJRT_Device_GetDescription_Args) {
        let device = held!("PJRT_Device_GetDescription", Device, Device, args.device);
        args.device_description = pointer(device.handle);
    }
    Device_IsAddressable(args: PJRT_Device_IsAddressable_Args) {
        let _device = held!("PJRT_Device_IsAddressable", Device, Device, args.device);
        args.is_addressable = true;
    }
    Device_LocalHardwareId(args: PJRT_Device_LocalHardwareId_Args) {
        args.local_hardware_id = held!("PJRT_Device_LocalHardwareId", Device, Device, args.device).hardware as i32;
    }
    Device_AddressableMemories(args: PJRT_Device_AddressableMemories_Args) {
        let device = held!("PJRT_Device_AddressableMemories", Device, Device, args.device);
        let client = hold::<Client>("PJRT_Device_AddressableMemories", Kind::Client, device.client);
        args.memories = client.memories()[device.index..].as_ptr().cast();
        args.num_memories = 1;
    }
    Device_DefaultMemory(args: PJRT_Device_DefaultMemory_Args) {
        let device = held!("PJRT_Device_DefaultMemory", Device, Device, args.device);
        let client = hold::<Client>("PJRT_Device_DefaultMemory", Kind::Client, device.client);
        args.memory = pointer(client.memories()[device.index]);
    }
    Memory_Id(args: PJRT_Memory_Id_Args) {
        args.id = held!("PJRT_Memory_Id", Memory, Memory, args.memory).index as i32;
    }
    Memory_Kind(args: PJRT_Memory_Kind_Args) {
        const KIND: &str = "device";
        let _memory = held!("PJRT_Memory_Kind", Memory, Memory, args.memory);
        args.kind = KIND.as_ptr().cast();
        args.kind_size = KIND.len();
    }
    Memory_DebugString(args: PJRT_Memory_DebugString_Args) {
        let memory = held!("PJRT_Memory_DebugString", Memory, Memory, args.memory);
        args.debug_string = memory.words.as_ptr().cast();
        args.debug_string_size = memory.words.len();
    }
    Memory_AddressableByDevices(args: PJRT_Memory_AddressableByDevices_Args) {
        let memory = held!("PJRT_Memory_AddressableByDevices", Memory, Memory, args.memory);
        args.devices = memory.device.as_ptr().cast();
        args.num_devices = 1;
    }

    // ----- devices that are absent -----

    TopologyDescription_Create(args: PJRT_TopologyDescription_Create_Args, planned) {
        let name = unsafe { text(args.topology_name, args.topology_name_size) };
        args.topology = std::ptr::null_mut();
        if !planned.null {
            args.topology = pointer(unsafe { Topology::create(&name, args.create_options, args.num_options) }?);
        }
    }
    TopologyDescription_Destroy(args: PJRT_TopologyDescription_Destroy_Args) {
        drop(remove::<Topology>("PJRT_TopologyDescription_Destroy", Kind::Topology, args.topology.addr()));
    }
    TopologyDescription_PlatformName(args: PJRT_TopologyDescription_PlatformName_Args) {
        let topology = held!("PJRT_TopologyDescription_PlatformName", Topology, Topology, args.topology);
        args.platform_name = topology.platform.as_ptr().cast();
        args.platform_name_size = topology.platform.len();
    }
    TopologyDescription_PlatformVersion(args: PJRT_TopologyDescription_PlatformVersion_Args) {
        let topology = held!("PJRT_TopologyDescription_PlatformVersion", Topology, Topology, args.topology);
        args.platform_version = topology.version.as_ptr().cast();
        args.platform_version_size = topology.version.len();
    }
    TopologyDescription_GetDeviceDescriptions(args: PJRT_TopologyDescription_GetDeviceDescriptions_Args) {
        let topology = held!("PJRT_TopologyDescription_GetDeviceDescriptions", Topology, Topology, args.topology);
        args.descriptions = topology.devices().as_ptr().cast();
        args.num_descriptions = topology.devices().len();
    }
    Compile(args: PJRT_Compile_Args, planned; unsafe { ops(args.program) }) {
        let topology = held!("PJRT_Compile", Topology, Topology, args.topology);
        let options = unsafe { list(args.compile_options.cast::<u8>(), args.compile_options_size) };
        let program = Program::compile(topology.devices(), unsafe { code(args.program) }?, options)?;
        args.executable = std::ptr::null_mut();
        if !planned.null {
            args.executable = pointer(insert(Kind::Executable, Arc::new(program), topology.handle));
        }
    }

    // ----- executables -----

    Executable_Destroy(args: PJRT_Executable_Destroy_Args) {
        drop(remove::<Program>("PJRT_Executable_Destroy", Kind::Executable, args.executable.addr()));
    }
    Executable_Name(args: PJRT_Executable_Name_Args) {
        let program = held!("PJRT_Executable_Name", Executable, Program, args.executable);
        args.executable_name = program.name.as_ptr().cast();
        args.executable_name_size = program.name.len();
    }
    Executable_NumReplicas(args: PJRT_Executable_NumReplicas_Args) {
        args.num_replicas = held!("PJRT_Executable_NumReplicas", Executable, Program, args.executable).devices.len();
    }
    Executable_NumPartitions(args: PJRT_Executable_NumPartitions_Args) {
        let _program = held!("PJRT_Executable_NumPartitions", Executable, Program, args.executable);
        args.num_partitions = 1;
    }
    Executable_NumOutputs(args: PJRT_Executable_NumOutputs_Args) {
        args.num_outputs = held!("PJRT_Executable_NumOutputs", Executable, Program, args.executable).outputs.len();
    }
    Executable_SizeOfGeneratedCodeInBytes(args: PJRT_Executable_SizeOfGeneratedCodeInBytes_Args) {
        let program = held!("PJRT_Executable_SizeOfGeneratedCodeInBytes", Executable, Program, args.executable);
        args.size_in_bytes = program.text_len() as i64;
    }
    Executable_OutputElementTypes(args: PJRT_Executable_OutputElementTypes_Args) {
        let program = held!("PJRT_Executable_OutputElementTypes", Executable, Program, args.executable);
        args.output_types = program.types.as_ptr().cast_mut();
        args.num_output_types = program.types.len();
    }
    Executable_OutputDimensions(args: PJRT_Executable_OutputDimensions_Args) {
        let program = held!("PJRT_Executable_OutputDimensions", Executable, Program, args.executable);
        args.num_outputs = program.ranks.len();
        args.dims = program.dims.as_ptr();
        args.dim_sizes = program.ranks.as_ptr();
    }
    Executable_Fingerprint(args: PJRT_Executable_Fingerprint_Args) {
        let program = held!("PJRT_Executable_Fingerprint", Executable, Program, args.executable);
        args.executable_fingerprint = program.fingerprint.as_ptr().cast();
        args.executable_fingerprint_size = program.fingerprint.len();
    }
    Executable_GetCompiledMemoryStats(args: PJRT_Executable_GetCompiledMemoryStats_Args) {
        let program = held!("PJRT_Executable_GetCompiledMemoryStats", Executable, Program, args.executable);
        args.generated_code_size_in_bytes = program.text_len() as i64;
        [args.argument_size_in_bytes, args.output_size_in_bytes, args.alias_size_in_bytes] = program.memory();
        args.temp_size_in_bytes = 0;
    }
    Executable_Serialize(args: PJRT_Executable_Serialize_Args) {
        let program = held!("PJRT_Executable_Serialize", Executable, Program, args.executable);
        let bytes = Arc::new(program.serialize());
        args.serialized_bytes = bytes.as_ptr().cast();
        args.serialized_bytes_size = bytes.len();
        args.serialized_executable = pointer(insert(Kind::Serialized, bytes, 0));
        args.serialized_executable_deleter = Some(serialized_deleter);
    }
    Executable_DeserializeAndLoad(args: PJRT_Executable_DeserializeAndLoad_Args, planned) {
        /// Fields that later headers have added.
        #[repr(C)]
        struct Longer {
            args: PJRT_Executable_DeserializeAndLoad_Args,
            options: *const u8,
            options_size: usize,
        }
        let client = held!("PJRT_Executable_DeserializeAndLoad", Client, Client, args.client);
        let bytes = unsafe { list(args.serialized_executable.cast::<u8>(), args.serialized_executable_size) };
        let longer = (args.struct_size >= size_of::<Longer>()).then_some(std::ptr::from_mut(args).cast::<Longer>());
        let given = longer.map(|longer| unsafe { list((*longer).options, (*longer).options_size) });
        let given = given.filter(|options| !options.is_empty());
        let program = Program::deserialize(&client, bytes, given)?;
        args.loaded_executable = std::ptr::null_mut();
        if !planned.null {
            args.loaded_executable = pointer(insert(Kind::LoadedExecutable, Arc::new(program), client.handle));
        }
    }
    LoadedExecutable_Destroy(args: PJRT_LoadedExecutable_Destroy_Args) {
        drop(remove::<Program>("PJRT_LoadedExecutable_Destroy", Kind::LoadedExecutable, args.executable.addr()));
    }
    LoadedExecutable_GetExecutable(args: PJRT_LoadedExecutable_GetExecutable_Args, planned) {
        let program = held!("PJRT_LoadedExecutable_GetExecutable", LoadedExecutable, Program, args.loaded_executable);
        args.executable = std::ptr::null_mut();
        if !planned.null {
            args.executable = pointer(insert(Kind::Executable, program.shared().clone(), client_of(&program)));
        }
    }
    LoadedExecutable_AddressableDevices(args: PJRT_LoadedExecutable_AddressableDevices_Args) {
        let program = held!("PJRT_LoadedExecutable_AddressableDevices", LoadedExecutable, Program, args.executable);
        args.addressable_devices = program.device_handles.as_ptr().cast();
        args.num_addressable_devices = program.device_handles.len();
    }
    LoadedExecutable_Execute(
        args: PJRT_LoadedExecutable_Execute_Args, planned;
        held!("PJRT_LoadedExecutable_Execute", LoadedExecutable, Program, args.executable).ops()
    ) {
        const FUNCTION: &str = "PJRT_LoadedExecutable_Execute";
        let program = held!("PJRT_LoadedExecutable_Execute", LoadedExecutable, Program, args.executable);
        let client = hold::<Client>(FUNCTION, Kind::Client, client_of(&program));
        let options = unsafe { &*args.options };
        if options.num_send_ops > 0 || options.num_recv_ops > 0 {
            return Err(Failure::new(UNIMPLEMENTED, "send and receive callbacks"));
        }
        let kept = unsafe { list(options.non_donatable_input_indices, options.num_non_donatable_input_indices) };
        let lists = unsafe { list(args.argument_lists, args.num_devices) };
        let arguments: Vec<Vec<Held<Buffer>>> = lists
            .iter()
            .map(|arguments| {
                let arguments = unsafe { list(*arguments, args.num_args) };
                arguments.iter().map(|raw| hold::<Buffer>(FUNCTION, Kind::Buffer, raw.addr())).collect()
            })
            .collect();
        let failure = planned.event_error.clone();
        let started = program.shared().execute(&client, client.handle, &arguments, kept, failure)?;
        for (device, (outputs, end)) in started.into_iter().enumerate() {
            let list = unsafe { *args.output_lists.add(device) };
            for (place, output) in outputs.into_iter().enumerate() {
                let is_lost = planned.null && place == 0;
                if is_lost {
                    drop(remove::<Buffer>(FUNCTION, Kind::Buffer, output));
                }
                let output = if is_lost { std::ptr::null_mut() } else { pointer(output) };
                unsafe { *list.add(place) = output };
            }
            if !args.device_complete_events.is_null() {
                unsafe { *args.device_complete_events.add(device) = event_of(end, client.handle) };
            }
        }
    }

    // ----- buffers -----

    Buffer_Destroy(args: PJRT_Buffer_Destroy_Args) {
        let buffer = remove::<Buffer>("PJRT_Buffer_Destroy", Kind::Buffer, args.buffer.addr());
        let references = buffer.references();
        if references > 0 {
            die(&format!("PJRT_Buffer_Destroy takes the memory that {references} external references are on"));
        }
        let gone = buffer.gone.clone();
        drop(buffer);
        if let Some(gone) = gone {
            gone.keep(Ok(()));
        }
    }
    Buffer_ElementType(args: PJRT_Buffer_ElementType_Args) {
        args.type_ = number_of(held!("PJRT_Buffer_ElementType", Buffer, Buffer, args.buffer).ty.dtype());
    }
    Buffer_Dimensions(args: PJRT_Buffer_Dimensions_Args) {
        let buffer = held!("PJRT_Buffer_Dimensions", Buffer, Buffer, args.buffer);
        args.dims = buffer.dims.as_ptr();
        args.num_dims = buffer.dims.len();
    }
    Buffer_OnDeviceSizeInBytes(args: PJRT_Buffer_OnDeviceSizeInBytes_Args) {
        let buffer = held!("PJRT_Buffer_OnDeviceSizeInBytes", Buffer, Buffer, args.buffer);
        buffer.value()?;
        args.on_device_size_in_bytes = buffer.ty.bytes().0 as usize;
    }
    Buffer_Device(args: PJRT_Buffer_Device_Args) {
        let buffer = held!("PJRT_Buffer_Device", Buffer, Buffer, args.buffer);
        let client = hold::<Client>("PJRT_Buffer_Device", Kind::Client, buffer.client);
        args.device = pointer(client.devices()[buffer.device]);
    }
    Buffer_Memory(args: PJRT_Buffer_Memory_Args) {
        let buffer = held!("PJRT_Buffer_Memory", Buffer, Buffer, args.buffer);
        buffer.value()?;
        let client = hold::<Client>("PJRT_Buffer_Memory", Kind::Client, buffer.client);
        args.memory = pointer(client.memories()[buffer.device]);
    }
    Buffer_Delete(args: PJRT_Buffer_Delete_Args) {
        held!("PJRT_Buffer_Delete", Buffer, Buffer, args.buffer).delete();
    }
    Buffer_IsDeleted(args: PJRT_Buffer_IsDeleted_Args) {
        args.is_deleted = held!("PJRT_Buffer_IsDeleted", Buffer, Buffer, args.buffer).is_deleted();
    }
    Buffer_CopyToDevice(args: PJRT_Buffer_CopyToDevice_Args, planned) {
        let buffer = held!("PJRT_Buffer_CopyToDevice", Buffer, Buffer, args.buffer);
        let device = held!("PJRT_Buffer_CopyToDevice", Device, Device, args.dst_device);
        args.dst_buffer = std::ptr::null_mut();
        if !planned.null {
            let place = Place { device: device.index, client: device.client };
            args.dst_buffer = pointer(Buffer::of(buffer.ty.clone(), buffer.value()?, place));
        }
    }
    Buffer_CopyToMemory(args: PJRT_Buffer_CopyToMemory_Args, planned) {
        let buffer = held!("PJRT_Buffer_CopyToMemory", Buffer, Buffer, args.buffer);
        let memory = held!("PJRT_Buffer_CopyToMemory", Memory, Memory, args.dst_memory);
        args.dst_buffer = std::ptr::null_mut();
        if !planned.null {
            let place = Place { device: memory.index, client: buffer.client };
            args.dst_buffer = pointer(Buffer::of(buffer.ty.clone(), buffer.value()?, place));
        }
    }
    Buffer_ToHostBuffer(args: PJRT_Buffer_ToHostBuffer_Args, planned; args.dst_size as u64) {
        let buffer = held!("PJRT_Buffer_ToHostBuffer", Buffer, Buffer, args.src);
        if args.dst.is_null() {
            args.dst_size = buffer.ty.bytes().0 as usize;
            args.event = std::ptr::null_mut();
            return Ok(());
        }
        check_row_major(args.host_layout, buffer.dims.len())?;
        let client = hold::<Client>("PJRT_Buffer_ToHostBuffer", Kind::Client, buffer.client);
        let memory = HostMemory { start: args.dst.cast(), len: args.dst_size };
        args.event = std::ptr::null_mut();
        let done = unsafe { buffer.to_host(&client, memory, planned.event_error.clone()) }?;
        if !planned.null {
            args.event = event_of(done, client.handle);
        }
    }
    Buffer_IsOnCpu(args: PJRT_Buffer_IsOnCpu_Args) {
        let buffer = held!("PJRT_Buffer_IsOnCpu", Buffer, Buffer, args.buffer);
        args.is_on_cpu = hold::<Client>("PJRT_Buffer_IsOnCpu", Kind::Client, buffer.client).is_cpu();
    }
    Buffer_ReadyEvent(args: PJRT_Buffer_ReadyEvent_Args, planned) {
        let buffer = held!("PJRT_Buffer_ReadyEvent", Buffer, Buffer, args.buffer);
        let failed = |failure| Promise::kept(Err(failure));
        let promise = match planned.event_error.clone() {
            Some(failure) => failed(failure),
            None => buffer.value().map_or_else(failed, |value| value.promise.clone()),
        };
        args.event = std::ptr::null_mut();
        if !planned.null {
            args.event = event_of(promise, buffer.client);
        }
    }
    Buffer_IncreaseExternalReferenceCount(args: PJRT_Buffer_IncreaseExternalReferenceCount_Args) {
        held!("PJRT_Buffer_IncreaseExternalReferenceCount", Buffer, Buffer, args.buffer).borrow()?;
    }
    Buffer_DecreaseExternalReferenceCount(args: PJRT_Buffer_DecreaseExternalReferenceCount_Args) {
        held!("PJRT_Buffer_DecreaseExternalReferenceCount", Buffer, Buffer, args.buffer).give_back()?;
    }
    Buffer_OpaqueDeviceMemoryDataPointer(args: PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args) {
        let buffer = held!("PJRT_Buffer_OpaqueDeviceMemoryDataPointer", Buffer, Buffer, args.buffer);
        args.device_memory_ptr = buffer.address()?;
    }
    Buffer_UnsafePointer(args: PJRT_Buffer_UnsafePointer_Args) {
        args.buffer_pointer = held!("PJRT_Buffer_UnsafePointer", Buffer, Buffer, args.buffer).address()?.addr();
    }
}

/// The text of a module.
unsafe fn code<'a>(program: *const PJRT_Program) -> Result<&'a [u8], Failure> {
    let program = unsafe { &*program };
    let format = unsafe { text(program.format, program.format_size) };
    if format == "mlir" {
        Ok(unsafe { list(program.code.cast::<u8>(), program.code_size) })
    } else {
        Err(Failure::new(UNIMPLEMENTED, format!("programs of the format {format}")))
    }
}

/// The number of ops of a module, if it can be parsed.
unsafe fn ops(program: *const PJRT_Program) -> u64 {
    let code = unsafe { list((*program).code.cast::<u8>(), (*program).code_size) };
    let module = std::str::from_utf8(code).ok().and_then(|text| TextModule::parse(text).ok());
    module.map_or(0, |module| module.main().graph().nodes().len() as u64)
}

/// The bytes of a transfer from the host.
unsafe fn bytes(args: &PJRT_Client_BufferFromHostBuffer_Args) -> u64 {
    unsafe { type_of(args.type_, args.dims, args.num_dims) }.map_or(0, |ty| ty.bytes().0)
}

/// The place of a new buffer.
fn place(
    client: &Held<Client>,
    device: *mut PJRT_Device,
    memory: *mut PJRT_Memory,
) -> Result<Place, Failure> {
    let device = match memory.is_null() {
        true => device.addr(),
        false => hold::<Memory>("a new buffer", Kind::Memory, memory.addr()).device[0],
    };
    let device = hold::<Device>("a new buffer", Kind::Device, device);
    if device.client == client.handle {
        Ok(Place { device: device.index, client: client.handle })
    } else {
        Err(Failure::invalid("the device is another client's"))
    }
}

fn client_of(program: &Program) -> usize {
    let device = hold::<Device>("an executable", Kind::Device, program.device_handles[0]);
    device.client
}

/// Host data is requested in the device's order, which is row-major here.
fn check_row_major(layout: *const PJRT_Buffer_MemoryLayout, rank: usize) -> Status {
    if layout.is_null() {
        return Ok(());
    }
    let layout = unsafe { &*layout };
    if layout.type_ != PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled {
        return Err(Failure::new(UNIMPLEMENTED, "layouts by strides"));
    }
    let tiled = unsafe { layout.__bindgen_anon_1.tiled };
    let order = unsafe { list(tiled.minor_to_major, tiled.minor_to_major_size) };
    if order.iter().rev().copied().eq(0..rank as i64) {
        Ok(())
    } else {
        Err(Failure::new(UNIMPLEMENTED, format!("the order {order:?} of dimensions")))
    }
}
