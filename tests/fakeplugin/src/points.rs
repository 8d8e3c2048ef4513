//! Fault points: every function of the table, and the asynchronous work of these functions.
//!
//! Invariant: every function in the table has a row here (`table` is generated from these rows), so
//! all of them are counted and can fail.

/// A fault point.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) name: &'static str,
    /// Whether it is a function of the table, and not asynchronous work.
    pub(crate) is_call: bool,
    /// Whether it can report a failure.
    pub(crate) may_fail: bool,
    /// Whether it returns an object, which may be missing.
    pub(crate) has_object: bool,
    /// Whether its calls have a size: ops of a module, or bytes of a transfer.
    pub(crate) has_size: bool,
    /// Whether it returns an event, or buffers with one, which may fail later.
    pub(crate) has_event: bool,
}

/// An execution, on the device's thread.
pub(crate) const RUN: &str = "Run";
/// A transfer from the host, on the thread for copies.
pub(crate) const COPY_IN: &str = "CopyIn";
/// A transfer to the host, on the thread for copies.
pub(crate) const COPY_OUT: &str = "CopyOut";

const fn call(name: &'static str) -> Point {
    Point { name, is_call: true, may_fail: true, has_object: false, has_event: false, has_size: false }
}

const fn silent(name: &'static str) -> Point {
    Point { may_fail: false, ..call(name) }
}

const fn object(name: &'static str) -> Point {
    Point { has_object: true, ..call(name) }
}

const fn eventful(name: &'static str) -> Point {
    Point { has_event: true, ..object(name) }
}

const fn sized(point: Point) -> Point {
    Point { has_size: true, ..point }
}

const fn work(name: &'static str) -> Point {
    Point { is_call: false, has_size: true, ..call(name) }
}

/// All points.
pub(crate) const POINTS: [Point; 77] = [
    silent("PJRT_Error_Destroy"),
    silent("PJRT_Error_Message"),
    call("PJRT_Error_GetCode"),
    call("PJRT_Plugin_Initialize"),
    call("PJRT_Plugin_Attributes"),
    call("PJRT_Event_Destroy"),
    call("PJRT_Event_IsReady"),
    call("PJRT_Event_Await"),
    call("PJRT_Event_OnReady"),
    object("PJRT_Client_Create"),
    call("PJRT_Client_Destroy"),
    call("PJRT_Client_PlatformName"),
    call("PJRT_Client_PlatformVersion"),
    call("PJRT_Client_ProcessIndex"),
    call("PJRT_Client_Devices"),
    call("PJRT_Client_AddressableDevices"),
    call("PJRT_Client_AddressableMemories"),
    sized(object("PJRT_Client_Compile")),
    sized(eventful("PJRT_Client_BufferFromHostBuffer")),
    object("PJRT_Client_CreateViewOfDeviceBuffer"),
    call("PJRT_DeviceDescription_Id"),
    call("PJRT_DeviceDescription_ProcessIndex"),
    call("PJRT_DeviceDescription_Attributes"),
    call("PJRT_DeviceDescription_Kind"),
    call("PJRT_DeviceDescription_DebugString"),
    call("PJRT_Device_GetDescription"),
    call("PJRT_Device_IsAddressable"),
    call("PJRT_Device_LocalHardwareId"),
    call("PJRT_Device_AddressableMemories"),
    call("PJRT_Device_DefaultMemory"),
    call("PJRT_Memory_Id"),
    call("PJRT_Memory_Kind"),
    call("PJRT_Memory_DebugString"),
    call("PJRT_Memory_AddressableByDevices"),
    object("PJRT_TopologyDescription_Create"),
    call("PJRT_TopologyDescription_Destroy"),
    call("PJRT_TopologyDescription_PlatformName"),
    call("PJRT_TopologyDescription_PlatformVersion"),
    call("PJRT_TopologyDescription_GetDeviceDescriptions"),
    sized(object("PJRT_Compile")),
    call("PJRT_Executable_Destroy"),
    call("PJRT_Executable_Name"),
    call("PJRT_Executable_NumReplicas"),
    call("PJRT_Executable_NumPartitions"),
    call("PJRT_Executable_NumOutputs"),
    call("PJRT_Executable_SizeOfGeneratedCodeInBytes"),
    call("PJRT_Executable_Serialize"),
    call("PJRT_Executable_OutputElementTypes"),
    call("PJRT_Executable_OutputDimensions"),
    call("PJRT_Executable_Fingerprint"),
    call("PJRT_Executable_GetCompiledMemoryStats"),
    object("PJRT_Executable_DeserializeAndLoad"),
    call("PJRT_LoadedExecutable_Destroy"),
    object("PJRT_LoadedExecutable_GetExecutable"),
    call("PJRT_LoadedExecutable_AddressableDevices"),
    sized(eventful("PJRT_LoadedExecutable_Execute")),
    call("PJRT_Buffer_Destroy"),
    call("PJRT_Buffer_ElementType"),
    call("PJRT_Buffer_Dimensions"),
    call("PJRT_Buffer_OnDeviceSizeInBytes"),
    call("PJRT_Buffer_Device"),
    call("PJRT_Buffer_Memory"),
    call("PJRT_Buffer_Delete"),
    call("PJRT_Buffer_IsDeleted"),
    object("PJRT_Buffer_CopyToDevice"),
    object("PJRT_Buffer_CopyToMemory"),
    sized(eventful("PJRT_Buffer_ToHostBuffer")),
    call("PJRT_Buffer_IsOnCpu"),
    eventful("PJRT_Buffer_ReadyEvent"),
    call("PJRT_Buffer_IncreaseExternalReferenceCount"),
    call("PJRT_Buffer_DecreaseExternalReferenceCount"),
    call("PJRT_Buffer_OpaqueDeviceMemoryDataPointer"),
    call("PJRT_Buffer_UnsafePointer"),
    silent("PJRT_SerializedExecutable_Deleter"),
    work(RUN),
    work(COPY_IN),
    work(COPY_OUT),
];

/// The point with this name, with or without `PJRT_`.
pub(crate) fn point(name: &str) -> Option<&'static Point> {
    POINTS.iter().find(|point| point.name == name || point.name.strip_prefix("PJRT_") == Some(name))
}
