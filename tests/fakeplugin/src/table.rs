//! The function table, complete or with planned defects.

use std::ffi::c_void;

use parking_lot::Mutex;
use pjrt_sys::*;

use crate::functions::*;
use crate::registry::die;

/// The variable with the initial table.
const TABLE_VARIABLE: &str = "FUSELINE_FAKE_TABLE";

/// The API version, which is that of the header of `pjrt-sys`.
const VERSION: (i32, i32) = (0, 54);

macro_rules! rows {
    ($($name:ident => $function:ident,)*) => {
        fn fill(table: &mut PJRT_Api) {
            $(table.$name = Some($function);)*
        }

        /// Removes a function from a table.
        fn take(table: &mut PJRT_Api, function: &str) -> Result<(), String> {
            match function {
                $(stringify!($name) => table.$name = None,)*
                _ => return Err(format!("no function is called {function}")),
            }
            Ok(())
        }

        /// The functions of a complete table.
        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

rows! {
    PJRT_Error_Destroy => Error_Destroy,
    PJRT_Error_Message => Error_Message,
    PJRT_Error_GetCode => Error_GetCode,
    PJRT_Plugin_Initialize => Plugin_Initialize,
    PJRT_Plugin_Attributes => Plugin_Attributes,
    PJRT_Event_Destroy => Event_Destroy,
    PJRT_Event_IsReady => Event_IsReady,
    PJRT_Event_Await => Event_Await,
    PJRT_Event_OnReady => Event_OnReady,
    PJRT_Client_Create => Client_Create,
    PJRT_Client_Destroy => Client_Destroy,
    PJRT_Client_PlatformName => Client_PlatformName,
    PJRT_Client_PlatformVersion => Client_PlatformVersion,
    PJRT_Client_ProcessIndex => Client_ProcessIndex,
    PJRT_Client_Devices => Client_Devices,
    PJRT_Client_AddressableDevices => Client_AddressableDevices,
    PJRT_Client_AddressableMemories => Client_AddressableMemories,
    PJRT_Client_Compile => Client_Compile,
    PJRT_Client_BufferFromHostBuffer => Client_BufferFromHostBuffer,
    PJRT_Client_CreateViewOfDeviceBuffer => Client_CreateViewOfDeviceBuffer,
    PJRT_DeviceDescription_Id => DeviceDescription_Id,
    PJRT_DeviceDescription_ProcessIndex => DeviceDescription_ProcessIndex,
    PJRT_DeviceDescription_Attributes => DeviceDescription_Attributes,
    PJRT_DeviceDescription_Kind => DeviceDescription_Kind,
    PJRT_DeviceDescription_DebugString => DeviceDescription_DebugString,
    PJRT_Device_GetDescription => Device_GetDescription,
    PJRT_Device_IsAddressable => Device_IsAddressable,
    PJRT_Device_LocalHardwareId => Device_LocalHardwareId,
    PJRT_Device_AddressableMemories => Device_AddressableMemories,
    PJRT_Device_DefaultMemory => Device_DefaultMemory,
    PJRT_Memory_Id => Memory_Id,
    PJRT_Memory_Kind => Memory_Kind,
    PJRT_Memory_DebugString => Memory_DebugString,
    PJRT_Memory_AddressableByDevices => Memory_AddressableByDevices,
    PJRT_TopologyDescription_Create => TopologyDescription_Create,
    PJRT_TopologyDescription_Destroy => TopologyDescription_Destroy,
    PJRT_TopologyDescription_PlatformName => TopologyDescription_PlatformName,
    PJRT_TopologyDescription_PlatformVersion => TopologyDescription_PlatformVersion,
    PJRT_TopologyDescription_GetDeviceDescriptions => TopologyDescription_GetDeviceDescriptions,
    PJRT_Compile => Compile,
    PJRT_Executable_Destroy => Executable_Destroy,
    PJRT_Executable_Name => Executable_Name,
    PJRT_Executable_NumReplicas => Executable_NumReplicas,
    PJRT_Executable_NumPartitions => Executable_NumPartitions,
    PJRT_Executable_NumOutputs => Executable_NumOutputs,
    PJRT_Executable_SizeOfGeneratedCodeInBytes => Executable_SizeOfGeneratedCodeInBytes,
    PJRT_Executable_Serialize => Executable_Serialize,
    PJRT_Executable_OutputElementTypes => Executable_OutputElementTypes,
    PJRT_Executable_OutputDimensions => Executable_OutputDimensions,
    PJRT_Executable_Fingerprint => Executable_Fingerprint,
    PJRT_Executable_GetCompiledMemoryStats => Executable_GetCompiledMemoryStats,
    PJRT_Executable_DeserializeAndLoad => Executable_DeserializeAndLoad,
    PJRT_LoadedExecutable_Destroy => LoadedExecutable_Destroy,
    PJRT_LoadedExecutable_GetExecutable => LoadedExecutable_GetExecutable,
    PJRT_LoadedExecutable_AddressableDevices => LoadedExecutable_AddressableDevices,
    PJRT_LoadedExecutable_Execute => LoadedExecutable_Execute,
    PJRT_Buffer_Destroy => Buffer_Destroy,
    PJRT_Buffer_ElementType => Buffer_ElementType,
    PJRT_Buffer_Dimensions => Buffer_Dimensions,
    PJRT_Buffer_OnDeviceSizeInBytes => Buffer_OnDeviceSizeInBytes,
    PJRT_Buffer_Device => Buffer_Device,
    PJRT_Buffer_Memory => Buffer_Memory,
    PJRT_Buffer_Delete => Buffer_Delete,
    PJRT_Buffer_IsDeleted => Buffer_IsDeleted,
    PJRT_Buffer_CopyToDevice => Buffer_CopyToDevice,
    PJRT_Buffer_CopyToMemory => Buffer_CopyToMemory,
    PJRT_Buffer_ToHostBuffer => Buffer_ToHostBuffer,
    PJRT_Buffer_IsOnCpu => Buffer_IsOnCpu,
    PJRT_Buffer_ReadyEvent => Buffer_ReadyEvent,
    PJRT_Buffer_IncreaseExternalReferenceCount => Buffer_IncreaseExternalReferenceCount,
    PJRT_Buffer_DecreaseExternalReferenceCount => Buffer_DecreaseExternalReferenceCount,
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer => Buffer_OpaqueDeviceMemoryDataPointer,
    PJRT_Buffer_UnsafePointer => Buffer_UnsafePointer,
}

/// A complete table.
fn whole() -> PJRT_Api {
    let mut table = PJRT_Api { struct_size: size_of::<PJRT_Api>(), ..Default::default() };
    table.pjrt_api_version.struct_size = size_of::<PJRT_Api_Version>();
    (table.pjrt_api_version.major_version, table.pjrt_api_version.minor_version) = VERSION;
    fill(&mut table);
    table
}

/// Makes the table that a text describes; `None` for `null`. For the syntax see README.md.
fn make(text: &str) -> Result<Option<PJRT_Api>, String> {
    let mut table = whole();
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        let mut next = || words.next().ok_or_else(|| format!("something is missing behind `{word}`"));
        let number = |text: &str| text.parse::<i32>().map_err(|_| format!("{text} is no number"));
        match word {
            "null" => return Ok(None),
            "version" => {
                let version = next()?;
                let (major, minor) =
                    version.split_once('.').ok_or_else(|| format!("{version} is no version"))?;
                table.pjrt_api_version.major_version = number(major)?;
                table.pjrt_api_version.minor_version = number(minor)?;
            }
            "without" => take(&mut table, next()?)?,
            "short" => {
                let size = next()?.parse().map_err(|_| "a size is no number".to_owned())?;
                if size > size_of::<PJRT_Api>() {
                    return Err(format!("a table has {} bytes at most", size_of::<PJRT_Api>()));
                }
                table.struct_size = size;
            }
            other => return Err(format!("`{other}` is no word for a table")),
        }
    }
    Ok(Some(table))
}

/// The current text, with the address of its table.
static CHOSEN: Mutex<Option<(String, usize)>> = Mutex::new(None);

fn choose(text: &str) -> Result<usize, String> {
    let table = make(text)?;
    // Never freed: callers keep it for the life of the process.
    let address = table.map_or(0, |table| std::ptr::from_ref(Box::leak(Box::new(table))).expose_provenance());
    *CHOSEN.lock() = Some((text.to_owned(), address));
    Ok(address)
}

/// Sets the table that is returned from now on. Setting the same text again returns the same table.
pub(crate) fn set(text: &str) -> Result<(), String> {
    if CHOSEN.lock().as_ref().is_some_and(|(set, _)| set == text) {
        return Ok(());
    }
    choose(text).map(drop)
}

/// The current table.
pub(crate) fn now() -> *const c_void {
    let chosen = CHOSEN.lock().as_ref().map(|(_, address)| *address);
    let address = chosen.unwrap_or_else(|| {
        let text = std::env::var(TABLE_VARIABLE).unwrap_or_default();
        choose(&text).unwrap_or_else(|why| die(&format!("{TABLE_VARIABLE}: {why}")))
    });
    std::ptr::with_exposed_provenance(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::POINTS;

    #[test]
    fn every_function_of_the_table_is_a_point() {
        let calls = POINTS.iter().filter(|point| point.is_call).map(|point| point.name);
        assert!(calls.filter(|name| *name != "PJRT_SerializedExecutable_Deleter").eq(NAMES.iter().copied()));
    }

    #[test]
    fn a_table_is_made_of_words() {
        let table =
            make("version 0.40 without PJRT_Client_Compile short 120").expect("words").expect("a table");
        assert_eq!((table.pjrt_api_version.minor_version, table.struct_size), (40, 120));
        assert!(table.PJRT_Client_Compile.is_none() && table.PJRT_Client_Create.is_some());
        assert!(make("null").expect("a word").is_none());
        for text in ["without", "without PJRT_Nothing", "version 1", "long 3", "short 100000"] {
            make(text).expect_err(text);
        }
    }
}
