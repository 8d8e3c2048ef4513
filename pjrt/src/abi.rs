//! Argument structs in a form that older and newer plugins accept, and their table entries.
//!
//! Every struct that goes to a plugin lies in a [`Block`]: the struct as `pjrt-sys` declares it
//! (API 0.54), then the fields of later headers that we use (its *tail*), then spare room, all
//! zero. `struct_size` is the size of the whole block. A plugin rejects a struct smaller than its
//! own and accepts a larger one. New fields are optional and mean "none" when zero. So the same
//! block works for plugins older and newer than our header.
//!
//! Invariants:
//! - ABI-1. A tail begins exactly where the 0.54 struct ends, and its fields have the offsets of
//!   the 0.81 header. Checked at compile time.
//! - ABI-2. `struct_size` never exceeds the block, even if an override sets it
//!   ([`super::OpenOptions`]).
//! - ABI-3. Structs inside arrays or inside other structs (`PJRT_NamedValue`,
//!   `PJRT_Buffer_MemoryLayout_Tiled`) are not padded: their stride is part of the ABI.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::ops::{Deref, DerefMut};

use pjrt_sys::*;

/// Words of spare room behind every struct: 128 bytes. The struct that has grown most from 0.54 to
/// 0.114, `PJRT_ExecuteOptions`, has 72 bytes more, of which 40 are in its tail.
const ROOM: usize = 16;

/// A struct of the C API that begins with `struct_size`.
///
/// # Safety
/// The type and its tail are `repr(C)` and valid when all bytes are zero.
pub(super) unsafe trait Struct: Sized {
    /// Fields of later headers behind the struct that we use.
    type Tail;
    /// Name in the C header.
    const NAME: &'static str;
    /// The first field.
    fn struct_size(&mut self) -> &mut usize;
}

/// An argument struct and the function that takes it.
pub(super) trait Call: Struct {
    /// Name in the C header.
    const FUNCTION: &'static str;
    /// The function's entry in a table. `None` when the plugin lacks it.
    fn entry(table: &PJRT_Api) -> Option<unsafe extern "C" fn(*mut Self) -> *mut PJRT_Error>;
}

/// A struct with its tail and spare room. See the documentation of the module.
#[repr(C)]
pub(super) struct Block<T: Struct> {
    args: T,
    pub(super) tail: T::Tail,
    room: [u64; ROOM],
}

impl<T: Struct> Block<T> {
    /// A zeroed block with `struct_size` set. `None` means the whole block.
    #[inline]
    pub(super) fn new(size: Option<usize>) -> Block<T> {
        let zeros = MaybeUninit::zeroed();
        // SAFETY: holds because `Struct` promises that zeros are a valid `T` and `T::Tail`, and
        // integers they are.
        let mut block: Block<T> = unsafe { zeros.assume_init() };
        let whole = size_of::<Block<T>>();
        *block.args.struct_size() = size.map_or(whole, |size| size.min(whole));
        block
    }

    /// Pointer to the struct, valid for the whole block.
    #[inline]
    pub(super) fn as_mut_ptr(&mut self) -> *mut T {
        std::ptr::from_mut(self).cast()
    }
}

impl<T: Struct> Deref for Block<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.args
    }
}

impl<T: Struct> DerefMut for Block<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.args
    }
}

/// Tail of `PJRT_Client_Create_Args`.
#[repr(C)]
pub(super) struct ClientCreateTail {
    pub(super) kv_try_get_callback: Option<unsafe extern "C" fn(*mut KeyValueTryGetArgs) -> *mut PJRT_Error>,
    pub(super) kv_try_get_user_arg: *mut c_void,
}

/// Tail of `PJRT_ExecuteOptions`.
#[repr(C)]
pub(super) struct ExecuteOptionsTail {
    pub(super) context: *mut PJRT_ExecuteContext,
    pub(super) call_location: *const c_char,
    num_tasks: usize,
    task_ids: *mut c_int,
    incarnation_ids: *mut i64,
}

/// Tail of `PJRT_Executable_GetCompiledMemoryStats_Args`.
#[repr(C)]
pub(super) struct CompiledMemoryStatsTail {
    pub(super) peak_memory_in_bytes: i64,
}

/// Tail of `PJRT_Executable_DeserializeAndLoad_Args`.
#[repr(C)]
pub(super) struct DeserializeTail {
    pub(super) overridden_serialized_compile_options: *const c_char,
    pub(super) overridden_serialized_compile_options_size: usize,
}

/// Tail of `PJRT_Client_CreateViewOfDeviceBuffer_Args`.
#[repr(C)]
pub(super) struct ViewTail {
    pub(super) memory: *mut PJRT_Memory,
}

/// `PJRT_KeyValueTryGetCallback_Args` of the 0.81 header. The plugin creates it, and we read and
/// fill it.
#[repr(C)]
#[allow(dead_code, reason = "the layout needs every field")]
pub(super) struct KeyValueTryGetArgs {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut PJRT_Extension_Base,
    pub(super) key: *const c_char,
    pub(super) key_size: usize,
    pub(super) callback_error: *mut PJRT_CallbackError,
    pub(super) user_arg: *mut c_void,
    pub(super) value: *mut c_char,
    pub(super) value_size: usize,
    pub(super) value_deleter_callback: Option<unsafe extern "C" fn(*mut c_char)>,
}

macro_rules! layout {
    ($($base:ident: $size:ident, $tail:ident { $($field:ident @ $offset:expr),* };)*) => {$(
        const _: () = {
            assert!(size_of::<$base>() == $size as usize, "the struct ends in padding");
            assert!(offset_of!(Block<$base>, tail) == size_of::<$base>());
            $(assert!(offset_of!(Block<$base>, tail) + offset_of!($tail, $field) == $offset);)*
        };
    )*};
}

// Offsets as a C compiler gives them for the 0.81 header on a 64-bit target.
#[cfg(target_pointer_width = "64")]
layout! {
    PJRT_Client_Create_Args: PJRT_Client_Create_Args_STRUCT_SIZE,
        ClientCreateTail { kv_try_get_callback @ 72, kv_try_get_user_arg @ 80 };
    PJRT_ExecuteOptions: PJRT_ExecuteOptions_STRUCT_SIZE,
        ExecuteOptionsTail { context @ 72, call_location @ 80, num_tasks @ 88, incarnation_ids @ 104 };
    PJRT_Executable_GetCompiledMemoryStats_Args: PJRT_Executable_GetCompiledMemoryStats_Args_STRUCT_SIZE,
        CompiledMemoryStatsTail { peak_memory_in_bytes @ 104 };
    PJRT_Executable_DeserializeAndLoad_Args: PJRT_Executable_DeserializeAndLoad_Args_STRUCT_SIZE,
        DeserializeTail { overridden_serialized_compile_options @ 48 };
    PJRT_Client_CreateViewOfDeviceBuffer_Args: PJRT_Client_CreateViewOfDeviceBuffer_Args_STRUCT_SIZE,
        ViewTail { memory @ 104 };
}

const _: () = assert!(cfg!(target_pointer_width = "64"), "offsets were checked for 64-bit targets only");
const _: () = assert!(cfg!(target_endian = "little"), "host data is little-endian throughout the crate");

macro_rules! structs {
    ($($name:ident $(+ $tail:ty)?;)*) => {
        $(
            // SAFETY: holds because bindgen makes `repr(C)` structs of integers, raw pointers,
            // optional function pointers, `bool`s and unions of those, and the tails above are made
            // of the same.
            unsafe impl Struct for $name {
                type Tail = structs!(@tail $($tail)?);
                const NAME: &'static str = stringify!($name);
                #[inline]
                fn struct_size(&mut self) -> &mut usize {
                    &mut self.struct_size
                }
            }
        )*

        /// Every struct that is put in a block, with the size of the block.
        pub(super) const STRUCTS: &[(&str, usize)] = &[$((stringify!($name), size_of::<Block<$name>>())),*];
    };
    (@tail) => { () };
    (@tail $tail:ty) => { $tail };
}

macro_rules! calls {
    ($($need:ident $function:ident($args:ident);)*) => {
        $(
            impl Call for $args {
                const FUNCTION: &'static str = stringify!($function);
                #[inline]
                fn entry(table: &PJRT_Api) -> Option<unsafe extern "C" fn(*mut Self) -> *mut PJRT_Error> {
                    table.$function
                }
            }
        )*

        /// The functions that this layer calls: name, whether it is required, whether a table has
        /// it.
        pub(super) fn functions(table: &PJRT_Api) -> impl Iterator<Item = (&'static str, bool, bool)> {
            [
                ("PJRT_Error_Destroy", true, table.PJRT_Error_Destroy.is_some()),
                ("PJRT_Error_Message", true, table.PJRT_Error_Message.is_some()),
                $((stringify!($function), calls!(@$need), table.$function.is_some()),)*
            ]
            .into_iter()
        }
    };
    (@must) => { true };
    (@may) => { false };
}

structs! {
    PJRT_Error_Destroy_Args;
    PJRT_Error_Message_Args;
    PJRT_Error_GetCode_Args;
    PJRT_Plugin_Initialize_Args;
    PJRT_Plugin_Attributes_Args;
    PJRT_Event_Destroy_Args;
    PJRT_Event_IsReady_Args;
    PJRT_Event_Await_Args;
    PJRT_Event_OnReady_Args;
    PJRT_Client_Create_Args + ClientCreateTail;
    PJRT_Client_Destroy_Args;
    PJRT_Client_PlatformName_Args;
    PJRT_Client_PlatformVersion_Args;
    PJRT_Client_ProcessIndex_Args;
    PJRT_Client_Devices_Args;
    PJRT_Client_AddressableMemories_Args;
    PJRT_Client_Compile_Args;
    PJRT_Client_BufferFromHostBuffer_Args;
    PJRT_Client_CreateViewOfDeviceBuffer_Args + ViewTail;
    PJRT_DeviceDescription_Id_Args;
    PJRT_DeviceDescription_ProcessIndex_Args;
    PJRT_DeviceDescription_Attributes_Args;
    PJRT_DeviceDescription_Kind_Args;
    PJRT_DeviceDescription_DebugString_Args;
    PJRT_Device_GetDescription_Args;
    PJRT_Device_IsAddressable_Args;
    PJRT_Device_LocalHardwareId_Args;
    PJRT_Device_AddressableMemories_Args;
    PJRT_Device_DefaultMemory_Args;
    PJRT_Device_MemoryStats_Args;
    PJRT_Memory_Id_Args;
    PJRT_Memory_Kind_Args;
    PJRT_Memory_DebugString_Args;
    PJRT_Memory_AddressableByDevices_Args;
    PJRT_TopologyDescription_Create_Args;
    PJRT_TopologyDescription_Destroy_Args;
    PJRT_TopologyDescription_PlatformName_Args;
    PJRT_TopologyDescription_PlatformVersion_Args;
    PJRT_TopologyDescription_GetDeviceDescriptions_Args;
    PJRT_Compile_Args;
    PJRT_Executable_Destroy_Args;
    PJRT_Executable_Name_Args;
    PJRT_Executable_NumReplicas_Args;
    PJRT_Executable_NumPartitions_Args;
    PJRT_Executable_NumOutputs_Args;
    PJRT_Executable_SizeOfGeneratedCodeInBytes_Args;
    PJRT_Executable_GetCostAnalysis_Args;
    PJRT_Executable_OptimizedProgram_Args;
    PJRT_Executable_Serialize_Args;
    PJRT_Executable_OutputElementTypes_Args;
    PJRT_Executable_OutputDimensions_Args;
    PJRT_Executable_Fingerprint_Args;
    PJRT_Executable_GetCompiledMemoryStats_Args + CompiledMemoryStatsTail;
    PJRT_Executable_DeserializeAndLoad_Args + DeserializeTail;
    PJRT_LoadedExecutable_Destroy_Args;
    PJRT_LoadedExecutable_GetExecutable_Args;
    PJRT_LoadedExecutable_AddressableDevices_Args;
    PJRT_LoadedExecutable_Execute_Args;
    PJRT_Buffer_Destroy_Args;
    PJRT_Buffer_ElementType_Args;
    PJRT_Buffer_Dimensions_Args;
    PJRT_Buffer_OnDeviceSizeInBytes_Args;
    PJRT_Buffer_Device_Args;
    PJRT_Buffer_Memory_Args;
    PJRT_Buffer_Delete_Args;
    PJRT_Buffer_IsDeleted_Args;
    PJRT_Buffer_CopyToDevice_Args;
    PJRT_Buffer_CopyToMemory_Args;
    PJRT_Buffer_GetMemoryLayout_Args;
    PJRT_Buffer_ToHostBuffer_Args;
    PJRT_Buffer_IsOnCpu_Args;
    PJRT_Buffer_ReadyEvent_Args;
    PJRT_Buffer_IncreaseExternalReferenceCount_Args;
    PJRT_Buffer_DecreaseExternalReferenceCount_Args;
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args;
    PJRT_Buffer_UnsafePointer_Args;
    PJRT_Program;
    PJRT_ExecuteOptions + ExecuteOptionsTail;
    PJRT_Buffer_MemoryLayout;
}

calls! {
    must PJRT_Error_GetCode(PJRT_Error_GetCode_Args);
    may PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args);
    may PJRT_Plugin_Attributes(PJRT_Plugin_Attributes_Args);
    must PJRT_Event_Destroy(PJRT_Event_Destroy_Args);
    must PJRT_Event_IsReady(PJRT_Event_IsReady_Args);
    must PJRT_Event_Await(PJRT_Event_Await_Args);
    must PJRT_Event_OnReady(PJRT_Event_OnReady_Args);
    must PJRT_Client_Create(PJRT_Client_Create_Args);
    must PJRT_Client_Destroy(PJRT_Client_Destroy_Args);
    must PJRT_Client_PlatformName(PJRT_Client_PlatformName_Args);
    may PJRT_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args);
    may PJRT_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args);
    must PJRT_Client_Devices(PJRT_Client_Devices_Args);
    may PJRT_Client_AddressableMemories(PJRT_Client_AddressableMemories_Args);
    must PJRT_Client_Compile(PJRT_Client_Compile_Args);
    must PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args);
    may PJRT_Client_CreateViewOfDeviceBuffer(PJRT_Client_CreateViewOfDeviceBuffer_Args);
    must PJRT_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args);
    may PJRT_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args);
    may PJRT_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args);
    must PJRT_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args);
    may PJRT_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args);
    must PJRT_Device_GetDescription(PJRT_Device_GetDescription_Args);
    must PJRT_Device_IsAddressable(PJRT_Device_IsAddressable_Args);
    may PJRT_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args);
    may PJRT_Device_AddressableMemories(PJRT_Device_AddressableMemories_Args);
    may PJRT_Device_DefaultMemory(PJRT_Device_DefaultMemory_Args);
    may PJRT_Device_MemoryStats(PJRT_Device_MemoryStats_Args);
    may PJRT_Memory_Id(PJRT_Memory_Id_Args);
    may PJRT_Memory_Kind(PJRT_Memory_Kind_Args);
    may PJRT_Memory_DebugString(PJRT_Memory_DebugString_Args);
    may PJRT_Memory_AddressableByDevices(PJRT_Memory_AddressableByDevices_Args);
    may PJRT_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args);
    may PJRT_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args);
    may PJRT_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args);
    may PJRT_TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args);
    may PJRT_TopologyDescription_GetDeviceDescriptions(PJRT_TopologyDescription_GetDeviceDescriptions_Args);
    may PJRT_Compile(PJRT_Compile_Args);
    must PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args);
    may PJRT_Executable_Name(PJRT_Executable_Name_Args);
    may PJRT_Executable_NumReplicas(PJRT_Executable_NumReplicas_Args);
    may PJRT_Executable_NumPartitions(PJRT_Executable_NumPartitions_Args);
    must PJRT_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args);
    may PJRT_Executable_SizeOfGeneratedCodeInBytes(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args);
    may PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args);
    may PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args);
    may PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args);
    must PJRT_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args);
    must PJRT_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args);
    may PJRT_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args);
    may PJRT_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args);
    may PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args);
    must PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args);
    must PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args);
    must PJRT_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args);
    must PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args);
    must PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args);
    may PJRT_Buffer_ElementType(PJRT_Buffer_ElementType_Args);
    may PJRT_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args);
    may PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args);
    may PJRT_Buffer_Device(PJRT_Buffer_Device_Args);
    may PJRT_Buffer_Memory(PJRT_Buffer_Memory_Args);
    may PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args);
    may PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args);
    may PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args);
    may PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args);
    may PJRT_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args);
    must PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args);
    may PJRT_Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args);
    must PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args);
    may PJRT_Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args);
    may PJRT_Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args);
    may PJRT_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args);
    may PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args);
}
