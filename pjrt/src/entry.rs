//! The properties of devices and memories that a client reads once, at start.

use std::ptr::NonNull;

use pjrt_sys::*;

use super::api::{Api, call, id, list, text};
use super::error::{Error, optional};

/// The properties of a device.
pub(super) struct DeviceEntry {
    pub(super) raw: NonNull<PJRT_Device>,
    pub(super) description: *mut PJRT_DeviceDescription,
    pub(super) id: i64,
    pub(super) process_index: i64,
    pub(super) local_hardware_id: Option<i64>,
    pub(super) kind: String,
    pub(super) addressable: bool,
    /// Slots in the client's list of memories.
    pub(super) memories: Vec<u32>,
    pub(super) default_memory: Option<u32>,
}

impl DeviceEntry {
    pub(super) fn read(
        api: &Api,
        raw: NonNull<PJRT_Device>,
        memories: &[MemoryEntry],
    ) -> Result<DeviceEntry, Error> {
        let device = raw.as_ptr();
        // SAFETY: holds because the device belongs to the client that is being described.
        let out = unsafe { call!(api, PJRT_Device_GetDescription_Args { device: device }) }?;
        let description = out.device_description;
        // SAFETY: holds because the description lives as long as its device.
        let out = unsafe { call!(api, PJRT_DeviceDescription_Id_Args { device_description: description }) }?;
        let id_of_device = id(out.id);
        // SAFETY: holds because the description lives as long as its device.
        let out = unsafe {
            call!(api, PJRT_DeviceDescription_ProcessIndex_Args { device_description: description })
        };
        let process_index = optional(out)?.map_or(0, |out| id(out.process_index));
        // SAFETY: holds because the description lives as long as its device.
        let out =
            unsafe { call!(api, PJRT_DeviceDescription_Kind_Args { device_description: description }) }?;
        // SAFETY: holds because the kind lives as long as the device.
        let kind = unsafe { text(out.device_kind, out.device_kind_size) };
        // SAFETY: holds because the device lives.
        let out = unsafe { call!(api, PJRT_Device_IsAddressable_Args { device: device }) }?;
        let mut entry = DeviceEntry {
            raw,
            description,
            id: id_of_device,
            process_index,
            local_hardware_id: None,
            kind,
            addressable: out.is_addressable,
            memories: Vec::new(),
            default_memory: None,
        };
        // Plugins answer the rest only for their own devices.
        if entry.addressable {
            entry.read_local(api, memories)?;
        }
        Ok(entry)
    }

    fn read_local(&mut self, api: &Api, memories: &[MemoryEntry]) -> Result<(), Error> {
        let device = self.raw.as_ptr();
        let slot = |raw: *mut PJRT_Memory| {
            let slot = memories.iter().position(|entry| std::ptr::eq(entry.raw.as_ptr(), raw));
            slot.and_then(|slot| u32::try_from(slot).ok())
        };
        // SAFETY: holds because the device lives.
        let out = unsafe { call!(api, PJRT_Device_LocalHardwareId_Args { device: device }) };
        self.local_hardware_id = optional(out)?.map(|out| id(out.local_hardware_id)).filter(|id| *id >= 0);
        // SAFETY: holds because the device lives.
        if let Ok(out) = unsafe { call!(api, PJRT_Device_AddressableMemories_Args { device: device }) } {
            // SAFETY: holds because the list lives as long as the device.
            let raws = unsafe { list(out.memories, out.num_memories) };
            self.memories = raws.iter().filter_map(|raw| slot(*raw)).collect();
        }
        // SAFETY: holds because the device lives.
        if let Ok(out) = unsafe { call!(api, PJRT_Device_DefaultMemory_Args { device: device }) } {
            self.default_memory = slot(out.memory);
        }
        Ok(())
    }
}

/// The properties of a memory.
pub(super) struct MemoryEntry {
    pub(super) raw: NonNull<PJRT_Memory>,
    pub(super) id: i64,
    pub(super) kind: String,
}

impl MemoryEntry {
    pub(super) fn read(api: &Api, raw: NonNull<PJRT_Memory>) -> Result<MemoryEntry, Error> {
        let memory = raw.as_ptr();
        // SAFETY: holds because the memory belongs to the client that is being described.
        let out = unsafe { call!(api, PJRT_Memory_Id_Args { memory: memory }) }?;
        let id = id(out.id);
        // SAFETY: holds because the memory belongs to the client that is being described.
        let out = unsafe { call!(api, PJRT_Memory_Kind_Args { memory: memory }) }?;
        // SAFETY: holds because the kind lives as long as the memory.
        let kind = unsafe { text(out.kind, out.kind_size) };
        Ok(MemoryEntry { raw, id, kind })
    }
}
