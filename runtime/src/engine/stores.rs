//! The executables of other processes: the store, and the manifest of what is requested of it.

use std::fmt;
use std::sync::Arc;

use super::EngineShared;
use super::queue_item::QueueItem;
use crate::device::{Device, NoteStore};
use crate::error::{Error, Result};
use crate::event::{Event, Telemetry};
use crate::settings::Settings;
use crate::store::{ManifestWriter, Store};

/// The store of an engine and its manifest.
pub struct Stores {
    /// The store of executables from other processes, if one is configured.
    store: Option<Arc<Store>>,
    /// Why there is no disk cache, if one was requested.
    no_disk: Option<String>,
    /// Writes the manifest of requested executables, if one is configured.
    manifest: Option<ManifestWriter>,
}

/// What an engine has before it has a device.
pub struct EngineSetup {
    pub(crate) telemetry: Telemetry,
    store: Option<Arc<Store>>,
    no_disk: Option<String>,
}

impl EngineSetup {
    /// Opens the stores for an engine on a plugin. The settings are those of
    /// [`Settings::on_device`].
    #[must_use]
    pub fn on_plugin(config: &Settings) -> EngineSetup {
        let telemetry = Telemetry::to(config.sink.clone());
        let (store, no_disk) = Store::open(&config.store(), telemetry.events());
        EngineSetup { telemetry, store, no_disk }
    }

    /// For an engine on the reference interpreter, which stores nothing.
    #[must_use]
    pub fn on_reference(config: &Settings) -> EngineSetup {
        EngineSetup { telemetry: Telemetry::to(config.sink.clone()), store: None, no_disk: None }
    }
}

impl NoteStore for EngineSetup {
    fn load(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.store.as_ref()?.load_note(name)
    }

    fn keep(&self, name: &[u8], note: &[u8]) {
        if let Some(store) = &self.store {
            store.keep_note(name, note);
        }
    }
}

impl fmt::Debug for EngineSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineSetup({:?})", self.no_disk)
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stores({:?})", self.no_disk)
    }
}

impl Stores {
    /// Takes what was opened before the device was known, and opens the rest.
    ///
    /// # Errors
    /// When only stored executables may run and there is no disk cache; when the manifest cannot be
    /// written.
    pub(crate) fn open(config: &Settings, device: &Device, setup: EngineSetup) -> Result<Stores> {
        let EngineSetup { telemetry, store, no_disk } = setup;
        let events = telemetry.events();
        if config.cache_only && store.as_ref().is_none_or(|store| !store.has_disk()) {
            return Err(Error::cache_only(no_disk.as_deref().unwrap_or("there is none for this engine")));
        }
        if let Some(why) = &no_disk {
            events.emit(|| Event::CacheTrouble { what: format!("the disk cache is off: {why}") });
        }
        let manifest = config
            .manifest
            .as_ref()
            .map(|path| ManifestWriter::open(path, device.numerics(), device.replicas(), events.clone()));
        Ok(Stores { store, no_disk, manifest: manifest.transpose().map_err(Error::setup)? })
    }

    /// Determines the environment before the first compile, then removes what dead processes left
    /// behind.
    ///
    /// # Errors
    /// When only stored executables may run and the environment is unknown.
    pub(crate) fn prepare(engine: &Arc<EngineShared>) -> Result<()> {
        if engine.config().cache_only
            && engine.settled_store().is_none_or(|store| store.environment().is_none())
        {
            let why = engine.stores().no_disk().unwrap_or("the plugin's file cannot be read");
            return Err(Error::cache_only(why));
        }
        let (Some(store), Some(device)) = (engine.stores().store(), engine.device().pjrt()) else {
            return Ok(());
        };
        let compile = engine.threads().compile();
        store.settle_quickly(device.compiler(), &engine.config().client_options);
        if store.environment().is_none() {
            let engine = Arc::downgrade(engine);
            let settle = move || {
                if let Some(engine) = engine.upgrade() {
                    engine.settled_store();
                }
            };
            compile.push(QueueItem::new(settle.into()));
        }
        let (store, owner) = (store.clone(), Arc::downgrade(engine));
        let tidy = move || {
            store.sweep(true);
            if let Some(engine) = owner.upgrade() {
                engine.qualify_unknown_plugin();
            }
        };
        compile.push_background(None, QueueItem::new(tidy.into()));
        Ok(())
    }

    /// The store, for callers that must not wait for its environment.
    #[inline]
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// Why there is no disk cache, if one was requested.
    pub fn no_disk(&self) -> Option<&str> {
        let unknown = || self.store.as_ref().filter(|store| store.has_disk())?.why_unknown();
        self.no_disk.as_deref().or_else(unknown)
    }

    /// The writer of the manifest, if one is configured.
    pub(crate) fn manifest(&self) -> Option<&ManifestWriter> {
        self.manifest.as_ref()
    }
}
