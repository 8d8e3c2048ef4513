//! A running instance of a plugin: its devices, its memories, and everything made with it.
//!
//! Invariants:
//! - CLIENT-1. The plugin's client object is destroyed after everything made with it: devices,
//!   memories, buffers, executables and events each hold the client.
//! - CLIENT-2. It is destroyed once, and never inside a callback (`callback::inside`). With a limit
//!   ([`Client::set_shutdown_timeout`]) nobody waits for that longer than the limit
//!   (`shutdown.rs`).

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use fuseline_sync::thread;
use pjrt_sys::*;

use super::api::{Api, call, list, text};
use super::callback;
use super::entry::{DeviceEntry, MemoryEntry};
use super::error::{Error, count_destroy, leak, optional};
use super::kv::{KeyValueStore, Store};
use super::plugin::Plugin;
use super::plugin_scope::PluginScope;
use super::shutdown::ShutdownTimeout;
use super::spin::WaitHistory;
use super::value::Value;

/// Options for [`Plugin::client`]. Names and types are defined by the plugin.
///
/// XLA:CPU takes `cpu_device_count` (an integer).
#[derive(Clone, Default)]
pub struct ClientOptions {
    values: Vec<(String, Value)>,
    store: Option<Arc<dyn KeyValueStore>>,
}

impl ClientOptions {
    /// No options.
    #[must_use]
    pub fn new() -> ClientOptions {
        ClientOptions::default()
    }

    /// Sets a named value. The last value of a name counts.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<Value>) -> ClientOptions {
        let name = name.into();
        self.values.retain(|row| row.0 != name);
        self.values.push((name, value.into()));
        self
    }

    /// Sets a store that the clients of several processes share, for multi-process clients.
    #[must_use]
    pub fn key_value_store(mut self, store: Arc<dyn KeyValueStore>) -> ClientOptions {
        self.store = Some(store);
        self
    }

    /// The named values.
    #[must_use]
    pub fn values(&self) -> &[(String, Value)] {
        &self.values
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.store.is_some();
        f.debug_struct("ClientOptions").field("values", &self.values).field("store", &store).finish()
    }
}

/// A client of a plugin. Clones are the same client, which is shut down when the last handle on
/// anything of it is dropped.
///
/// `Send + Sync`.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    raw: RawClient,
    platform_name: String,
    platform_version: String,
    process_index: i64,
    devices: Box<[DeviceEntry]>,
    memories: Box<[MemoryEntry]>,
    waits: WaitHistory,
}

// SAFETY: holds because the raw pointers inside are the client's own objects, which may be used
// from any thread (see the thread-safety section of the module `pjrt`), and are freed only with the
// client, by the last owner.
unsafe impl Send for Inner {}
// SAFETY: holds for the same reason.
unsafe impl Sync for Inner {}

/// Destroys the client when dropped.
struct RawClient {
    plugin: Plugin,
    raw: NonNull<PJRT_Client>,
    /// The argument of the plugin's key-value callbacks, kept until the client is destroyed.
    store: Option<Arc<Store>>,
    /// How long to wait for its destruction.
    patience: OnceLock<ShutdownTimeout>,
}

/// A client that is passed to the thread that destroys it.
struct Destroy {
    plugin: Plugin,
    raw: NonNull<PJRT_Client>,
    /// Kept until the client is destroyed.
    _store: Option<Arc<Store>>,
}

// SAFETY: holds because a client may be destroyed on any thread, and nobody else has this one.
unsafe impl Send for Destroy {}

impl Destroy {
    fn run(self) {
        // SAFETY: holds because the last handle is gone (CLIENT-1), so nothing made with the client
        // exists any more.
        let outcome =
            unsafe { call!(self.plugin.api(), PJRT_Client_Destroy_Args { client: self.raw.as_ptr() }) };
        count_destroy(outcome.map(drop));
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        let destroy = Destroy { plugin: self.plugin, raw: self.raw, _store: self.store.take() };
        if !callback::inside() {
            return match self.patience.take() {
                Some(patience) => patience.wait_for(move || destroy.run()),
                None => destroy.run(),
            };
        }
        // CLIENT-2: this may be a thread that the client would join.
        let inside = PluginScope::enter();
        let run = move || {
            destroy.run();
            drop(inside);
        };
        if let Err(error) = thread::spawn("pjrt-client-destroy".into(), run) {
            // Without a thread the client stays alive, which is harmless and counted.
            leak(error);
        }
    }
}

impl Plugin {
    /// Starts a client of this plugin.
    ///
    /// # Errors
    /// Any error of the plugin: no such device, an unknown option, a device in use.
    pub fn client(self, options: &ClientOptions) -> Result<Client, Error> {
        Client::create(self, options)
    }
}

impl Client {
    fn create(plugin: Plugin, options: &ClientOptions) -> Result<Client, Error> {
        let api = plugin.api();
        let store = options.store.as_ref().map(|store| Arc::new(Store(Arc::clone(store))));
        let values: Vec<_> = options.values.iter().map(|(name, value)| value.to_raw(name)).collect();
        let mut args = api.block::<PJRT_Client_Create_Args>();
        args.create_options = values.as_ptr();
        args.num_options = values.len();
        if let Some(store) = &store {
            store.fill(&mut args);
        }
        plugin.origin().note_call();
        // SAFETY: holds because the options borrow from `options` and live through the call, and
        // the store lives until the client is destroyed.
        let made = unsafe { api.call(&mut args) };
        plugin.origin().note_call();
        made?;
        let Some(raw) = NonNull::new(args.client) else {
            return Err(Error::layer(
                super::Code::Internal,
                "PJRT_Client_Create",
                "the plugin returned no client",
            ));
        };
        // From here on the client is destroyed on every path.
        let raw = RawClient { plugin, raw, store, patience: OnceLock::new() };
        let describe = Describe { api, client: raw.raw.as_ptr() };
        let platform_name = describe.platform_name()?;
        let platform_version = optional(describe.platform_version())?.unwrap_or_default();
        let process_index = optional(describe.process_index())?.unwrap_or_default();
        let memories = optional(describe.memories())?.unwrap_or_default();
        let devices = describe.devices(&memories)?;
        let waits = WaitHistory::default();
        let inner = Inner { raw, platform_name, platform_version, process_index, devices, memories, waits };
        Ok(Client(Arc::new(inner)))
    }

    #[inline]
    pub(super) fn api(&self) -> &'static Api {
        self.0.raw.plugin.api()
    }

    /// The durations of earlier waits for its executions.
    pub(super) fn waits(&self) -> &WaitHistory {
        &self.0.waits
    }

    pub(super) fn raw(&self) -> *mut PJRT_Client {
        self.0.raw.raw.as_ptr()
    }

    pub(super) fn device_entries(&self) -> &[DeviceEntry] {
        &self.0.devices
    }

    pub(super) fn memory_entries(&self) -> &[MemoryEntry] {
        &self.0.memories
    }

    /// Limits how long its shutdown is waited for. The first limit counts.
    #[doc(hidden)]
    pub fn set_shutdown_timeout(&self, patience: ShutdownTimeout) {
        let _ = self.0.raw.patience.set(patience);
    }

    /// Slot of the device at `raw`.
    pub(super) fn device_slot(&self, raw: *const PJRT_Device, function: &'static str) -> Result<u32, Error> {
        let slot = self.0.devices.iter().position(|entry| std::ptr::eq(entry.raw.as_ptr(), raw));
        slot.and_then(|slot| u32::try_from(slot).ok()).ok_or_else(|| {
            Error::layer(super::Code::Internal, function, "the plugin named a device that it did not list")
        })
    }

    /// The plugin of the client.
    #[must_use]
    #[inline]
    pub fn plugin(&self) -> Plugin {
        self.0.raw.plugin
    }

    /// Name of the platform: `cpu`, `cuda`, `tpu`.
    #[must_use]
    #[inline]
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// Version of the platform, as the plugin reports it; empty if it has none.
    #[must_use]
    #[inline]
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// Index of this process among those that share the devices; 0 when there is one.
    #[must_use]
    #[inline]
    pub fn process_index(&self) -> i64 {
        self.0.process_index
    }

    /// Registers a handler ([`fuseline_fusion::handler`]) with the plugin, so that modules compiled
    /// for this client may call it.
    ///
    /// # Errors
    /// When the plugin cannot call handlers, or the platform's memory is not that of the host.
    pub fn allow_handler(&self, target: &str) -> Result<(), Error> {
        self.plugin().allow_handler(target, self.platform_name())
    }
}

impl PartialEq for Client {
    fn eq(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {} devices)", self.0.platform_name, self.0.devices.len())
    }
}

/// Queries at the start of a client.
struct Describe {
    api: &'static Api,
    client: *mut PJRT_Client,
}

impl Describe {
    fn platform_name(&self) -> Result<String, Error> {
        // SAFETY: holds because the client lives.
        let out = unsafe { call!(self.api, PJRT_Client_PlatformName_Args { client: self.client }) }?;
        // SAFETY: holds because the name lives as long as the client.
        Ok(unsafe { text(out.platform_name, out.platform_name_size) })
    }

    fn platform_version(&self) -> Result<String, Error> {
        // SAFETY: holds because the client lives.
        let out = unsafe { call!(self.api, PJRT_Client_PlatformVersion_Args { client: self.client }) }?;
        // SAFETY: holds because the text lives as long as the client.
        Ok(unsafe { text(out.platform_version, out.platform_version_size) })
    }

    fn process_index(&self) -> Result<i64, Error> {
        // SAFETY: holds because the client lives.
        let out = unsafe { call!(self.api, PJRT_Client_ProcessIndex_Args { client: self.client }) }?;
        Ok(super::api::id(out.process_index))
    }

    fn memories(&self) -> Result<Box<[MemoryEntry]>, Error> {
        // SAFETY: holds because the client lives.
        let out = unsafe { call!(self.api, PJRT_Client_AddressableMemories_Args { client: self.client }) }?;
        // SAFETY: holds because the list lives as long as the client.
        let raws = unsafe { list(out.addressable_memories, out.num_addressable_memories) };
        raws.iter().filter_map(|raw| NonNull::new(*raw)).map(|raw| MemoryEntry::read(self.api, raw)).collect()
    }

    fn devices(&self, memories: &[MemoryEntry]) -> Result<Box<[DeviceEntry]>, Error> {
        // SAFETY: holds because the client lives.
        let out = unsafe { call!(self.api, PJRT_Client_Devices_Args { client: self.client }) }?;
        // SAFETY: holds because the list lives as long as the client.
        let raws = unsafe { list(out.devices, out.num_devices) };
        let raws = raws.iter().filter_map(|raw| NonNull::new(*raw));
        raws.map(|raw| DeviceEntry::read(self.api, raw, memories)).collect()
    }
}
