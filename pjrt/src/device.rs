//! Devices and memories of a client: their properties and memory usage.
//!
//! Ids, kinds and the relations between devices and memories are read once, when the client starts.
//! Reading them needs no call of the plugin. Sizes are in bytes.

use std::fmt;

use pjrt_sys::*;

use super::api::{call, list, text};
use super::client::Client;
use super::entry::{DeviceEntry, MemoryEntry};
use super::error::Error;
use super::value::{Value, read_named_values};

/// A device of a client. Keeps the client alive. `Send + Sync`; cloning costs one atomic increment.
#[derive(Clone, PartialEq, Eq)]
pub struct Device {
    client: Client,
    slot: u32,
}

/// Memory in use on a device, in bytes. Values that a plugin does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes in use now.
    pub bytes_in_use: i64,
    /// Most bytes ever in use.
    pub peak_bytes_in_use: Option<i64>,
    /// Allocations made so far (a count, not bytes).
    pub num_allocs: Option<i64>,
    /// Largest single allocation so far.
    pub largest_alloc_size: Option<i64>,
    /// Most bytes that can be in use.
    pub bytes_limit: Option<i64>,
    /// Bytes reserved.
    pub bytes_reserved: Option<i64>,
    /// Most bytes ever reserved.
    pub peak_bytes_reserved: Option<i64>,
    /// Most bytes that can be reserved.
    pub bytes_reservable_limit: Option<i64>,
    /// Largest block that could be allocated now.
    pub largest_free_block_bytes: Option<i64>,
    /// Bytes the allocator holds, in use or not.
    pub pool_bytes: Option<i64>,
    /// Most bytes the allocator ever held.
    pub peak_pool_bytes: Option<i64>,
}

impl Client {
    /// Every device, including those of other processes, in the plugin's order.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        (0..self.device_entries().len() as u32).map(|slot| Device::new(self, slot)).collect()
    }

    /// The devices that this process can use, in the plugin's order.
    #[must_use]
    pub fn addressable_devices(&self) -> Vec<Device> {
        self.devices().into_iter().filter(Device::is_addressable).collect()
    }

    /// The device with this id.
    #[must_use]
    pub fn device(&self, id: i64) -> Option<Device> {
        let slot = self.device_entries().iter().position(|entry| entry.id == id)?;
        Some(Device::new(self, u32::try_from(slot).ok()?))
    }

    /// The memories that this process can use. Empty when the plugin does not list them.
    #[must_use]
    pub fn memories(&self) -> Vec<Memory> {
        (0..self.memory_entries().len() as u32).map(|slot| Memory::new(self, slot)).collect()
    }
}

impl Device {
    pub(super) fn new(client: &Client, slot: u32) -> Device {
        Device { client: client.clone(), slot }
    }

    fn entry(&self) -> &DeviceEntry {
        &self.client.device_entries()[self.slot as usize]
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    pub(super) fn raw(&self) -> *mut PJRT_Device {
        self.entry().raw.as_ptr()
    }

    /// The client of the device.
    #[must_use]
    #[inline]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Id, unique among the devices of all processes.
    #[must_use]
    #[inline]
    pub fn id(&self) -> i64 {
        self.entry().id
    }

    /// Index of the process that can use the device.
    #[must_use]
    #[inline]
    pub fn process_index(&self) -> i64 {
        self.entry().process_index
    }

    /// Number of the hardware on this machine, as drivers count. `None` if there is none.
    #[must_use]
    #[inline]
    pub fn local_hardware_id(&self) -> Option<i64> {
        self.entry().local_hardware_id
    }

    /// Vendor's name of this kind of device (`NVIDIA H200`, `cpu`).
    #[must_use]
    #[inline]
    pub fn kind(&self) -> &str {
        &self.entry().kind
    }

    /// True when this process can use the device.
    #[must_use]
    #[inline]
    pub fn is_addressable(&self) -> bool {
        self.entry().addressable
    }

    /// The memories the device can use.
    #[must_use]
    pub fn memories(&self) -> Vec<Memory> {
        self.entry().memories.iter().map(|slot| Memory::new(&self.client, *slot)).collect()
    }

    /// The default memory for data of the device.
    #[must_use]
    pub fn default_memory(&self) -> Option<Memory> {
        self.entry().default_memory.map(|slot| Memory::new(&self.client, slot))
    }

    /// The plugin's attributes of the device, such as coordinates in a mesh.
    ///
    /// # Errors
    /// When the plugin has no such function.
    pub fn attributes(&self) -> Result<Vec<(String, Value)>, Error> {
        let api = self.client.api();
        let description = self.entry().description;
        // SAFETY: holds because the client, and with it the device, lives.
        let out = unsafe {
            call!(api, PJRT_DeviceDescription_Attributes_Args { device_description: description })
        }?;
        // SAFETY: holds because the list lives as long as the device.
        Ok(unsafe { read_named_values(out.attributes, out.num_attributes) })
    }

    /// A description of the device in one line, for logs.
    ///
    /// # Errors
    /// When the plugin has no such function.
    pub fn debug_string(&self) -> Result<String, Error> {
        let api = self.client.api();
        let description = self.entry().description;
        // SAFETY: holds because the client, and with it the device, lives.
        let out = unsafe {
            call!(api, PJRT_DeviceDescription_DebugString_Args { device_description: description })
        }?;
        // SAFETY: holds because the text lives as long as the device.
        Ok(unsafe { text(out.debug_string, out.debug_string_size) })
    }

    /// The memory usage of the device.
    ///
    /// # Errors
    /// Unimplemented on platforms that do not track it (such as XLA:CPU).
    pub fn memory_stats(&self) -> Result<MemoryStats, Error> {
        // SAFETY: holds because the client, and with it the device, lives.
        let out = unsafe { call!(self.client.api(), PJRT_Device_MemoryStats_Args { device: self.raw() }) }?;
        let some = |is_set: bool, value: i64| is_set.then_some(value);
        Ok(MemoryStats {
            bytes_in_use: out.bytes_in_use,
            peak_bytes_in_use: some(out.peak_bytes_in_use_is_set, out.peak_bytes_in_use),
            num_allocs: some(out.num_allocs_is_set, out.num_allocs),
            largest_alloc_size: some(out.largest_alloc_size_is_set, out.largest_alloc_size),
            bytes_limit: some(out.bytes_limit_is_set, out.bytes_limit),
            bytes_reserved: some(out.bytes_reserved_is_set, out.bytes_reserved),
            peak_bytes_reserved: some(out.peak_bytes_reserved_is_set, out.peak_bytes_reserved),
            bytes_reservable_limit: some(out.bytes_reservable_limit_is_set, out.bytes_reservable_limit),
            largest_free_block_bytes: some(out.largest_free_block_bytes_is_set, out.largest_free_block_bytes),
            pool_bytes: some(out.pool_bytes_is_set, out.pool_bytes),
            peak_pool_bytes: some(out.peak_pool_bytes_is_set, out.peak_pool_bytes),
        })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({} {})", self.kind(), self.id())
    }
}

/// A memory of a client. Keeps the client alive. `Send + Sync`; cloning costs one atomic increment.
#[derive(Clone, PartialEq, Eq)]
pub struct Memory {
    client: Client,
    slot: u32,
}

impl Memory {
    pub(super) fn new(client: &Client, slot: u32) -> Memory {
        Memory { client: client.clone(), slot }
    }

    fn entry(&self) -> &MemoryEntry {
        &self.client.memory_entries()[self.slot as usize]
    }

    pub(super) fn raw(&self) -> *mut PJRT_Memory {
        self.entry().raw.as_ptr()
    }

    /// The client of the memory.
    #[must_use]
    #[inline]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Id, unique among the memories of the client.
    #[must_use]
    #[inline]
    pub fn id(&self) -> i64 {
        self.entry().id
    }

    /// Kind, as the platform names it: `device`, `pinned_host`, `unpinned_host`.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> &str {
        &self.entry().kind
    }

    /// The devices that can use the memory.
    ///
    /// # Errors
    /// When the plugin has no such function.
    pub fn devices(&self) -> Result<Vec<Device>, Error> {
        const FUNCTION: &str = "PJRT_Memory_AddressableByDevices";
        let api = self.client.api();
        // SAFETY: holds because the client, and with it the memory, lives.
        let out = unsafe { call!(api, PJRT_Memory_AddressableByDevices_Args { memory: self.raw() }) }?;
        // SAFETY: holds because the list lives as long as the memory.
        let raws = unsafe { list(out.devices, out.num_devices) };
        let slots = raws.iter().map(|raw| self.client.device_slot(*raw, FUNCTION));
        slots.map(|slot| Ok(Device::new(&self.client, slot?))).collect()
    }

    /// A description of the memory in one line, for logs.
    ///
    /// # Errors
    /// When the plugin has no such function.
    pub fn debug_string(&self) -> Result<String, Error> {
        // SAFETY: holds because the client, and with it the memory, lives.
        let out = unsafe { call!(self.client.api(), PJRT_Memory_DebugString_Args { memory: self.raw() }) }?;
        // SAFETY: holds because the text lives as long as the memory.
        Ok(unsafe { text(out.debug_string, out.debug_string_size) })
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} {})", self.kind(), self.id())
    }
}
