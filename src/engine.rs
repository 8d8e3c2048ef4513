//! The engine: one device, or one for each replica, its caches and threads.

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::limits::MAX_REPLICAS;
use fuseline_fusion::region::Mode;
use fuseline_fusion::{Bytes, Site};
use fuseline_runtime::internals::{
    Device, EngineSetup, EngineShared, MIN_WEAK_SET, PjrtDevice, StreamShared, here, is_driving, new_stream,
};
use fuseline_runtime::{Capabilities, Counters, Error, Features, Result};
use fuseline_sync::fork::is_forked;
use fuseline_sync::{Mutex, Rank, WeakSet};

use crate::client::start_devices;
use crate::config::EngineConfig;
use crate::pjrt::{self, Plugin, discover};
use crate::stream::Stream;

struct Handle {
    shared: Arc<EngineShared>,
    stream: Stream,
    /// The open streams, for [`Engine::synchronize`].
    streams: Mutex<WeakSet<StreamShared>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Not on threads that must not wait.
        if let Some(store) = self.shared.stores().store().filter(|_| !is_driving() && !is_forked()) {
            store.wait();
        }
    }
}

/// One device, or one for each replica, with everything that runs on it. This is the root of the
/// library.
///
/// An engine is cheap to clone and `Send + Sync`. Tensors and streams keep what they need of it
/// alive, so it may be dropped before them.
#[derive(Clone)]
pub struct Engine(Arc<Handle>);

impl Engine {
    /// An engine on the first usable plugin, with the default configuration.
    ///
    /// # Errors
    /// When there is no usable plugin. The message lists what was tried.
    pub fn new() -> Result<Engine> {
        EngineConfig::new().build()
    }

    /// An engine on the reference interpreter, which needs no plugin.
    ///
    /// # Panics
    /// When threads cannot be started. [`EngineConfig::build_reference`] returns that as an error.
    #[must_use]
    pub fn reference() -> Engine {
        EngineConfig::new().build_reference().unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn with_config(config: EngineConfig) -> Result<Engine> {
        Error::unless_forked(&Site::Unknown)?;
        check_replicas(&config)?;
        let plugin = open_plugin(&config)?;
        let devices = start_devices(plugin, config.settings())?;
        let settings = config.settings().clone().on_device(true);
        let setup = EngineSetup::on_plugin(&settings);
        let device = PjrtDevice::new(
            devices,
            &settings.client_options,
            &settings.flags,
            settings.numerics,
            settings.left_out,
            &setup,
        )?;
        Engine::on(config, Device::on_pjrt(device, settings.faults), setup)
    }

    pub(crate) fn reference_with_config(config: EngineConfig) -> Result<Engine> {
        check_replicas(&config)?;
        let device = Device::reference(config.settings().replicas, config.settings().faults.clone());
        let setup = EngineSetup::on_reference(config.settings());
        Engine::on(config, device, setup)
    }

    pub(crate) fn on(config: EngineConfig, device: Device, setup: EngineSetup) -> Result<Engine> {
        Error::unless_forked(&Site::Unknown)?;
        let shared = EngineShared::new(config.into_settings(), device, setup)?;
        let stream = Engine::open_stream(&shared);
        let mut streams = WeakSet::new(MIN_WEAK_SET);
        streams.push(Arc::downgrade(stream.shared()));
        let streams = Mutex::new(Rank::Streams, streams);
        Ok(Engine(Arc::new(Handle { shared, stream, streams })))
    }

    fn open_stream(shared: &Arc<EngineShared>) -> Stream {
        Stream::of(new_stream(shared))
    }

    pub(crate) fn shared(&self) -> &Arc<EngineShared> {
        &self.0.shared
    }

    // ----- streams and modes -----

    /// The default stream for new tensors.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.0.stream
    }

    /// Opens another stream.
    #[must_use]
    pub fn new_stream(&self) -> Stream {
        let stream = Engine::open_stream(&self.0.shared);
        if is_forked() {
            return stream;
        }
        self.0.streams.lock().push(Arc::downgrade(stream.shared()));
        stream
    }

    /// Sets the mode of ops recorded from now on, where neither [`Stream::set_mode`] nor
    /// [`crate::with_mode`] sets another.
    pub fn set_mode(&self, mode: Mode) {
        self.0.shared.set_mode(mode);
    }

    /// The engine's mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.shared.mode()
    }

    /// Waits until everything recorded so far on any stream has been computed.
    ///
    /// # Errors
    /// When called from an event sink or callback, which must not wait; when it takes longer than
    /// [`Deadlines::wait`](crate::Deadlines::wait), for each stream, if that is set; when a check
    /// has failed ([`EngineConfig::check_indices`]).
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.synchronize_at(&here())
    }

    pub(crate) fn synchronize_at(&self, site: &Site) -> Result<()> {
        Error::unless_forked(site)?;
        let streams: Vec<_> = self.0.streams.lock().iter().collect();
        streams.iter().for_each(|stream| stream.flush(fuseline_fusion::region::Boundary::Flush));
        // Wait for all streams, even if one returns an error.
        let ends: Vec<_> = streams.iter().map(|stream| stream.synchronize(None, site)).collect();
        ends.into_iter().collect()
    }

    // ----- making tensors -----

    /// Starts no more background compiles. A process that is about to end calls this, because such
    /// compiles would delay its end.
    ///
    /// A running compile continues, and one that a read needs still runs. The pause cannot be
    /// undone.
    pub fn pause_background_compiles(&self) {
        self.0.shared.threads().compile().pause_background();
    }

    // ----- looking at the engine -----

    /// Counters of what the engine has done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.0.shared.counters().read();
        let cache = self.0.shared.cache().stats();
        counters.panics += self.0.shared.events().panics();
        counters.cached_executables = cache.entries;
        counters.cached_bytes = Bytes(cache.bytes);
        counters.cached_mappings = cache.mappings;
        counters.mappings = self.0.shared.counted_mappings();
        (counters.live_values, counters.live_bytes) = self.0.shared.device().live().read();
        counters
    }

    /// What the plugin was found to do. `None` for a reference engine.
    #[must_use]
    pub fn capabilities(&self) -> Option<&Capabilities> {
        self.0.shared.device().pjrt().map(PjrtDevice::capabilities)
    }

    /// Asks the plugin for its optional features, by small computations. `None` for a reference
    /// engine.
    ///
    /// # Errors
    /// When the plugin does not compile or run the smallest programs.
    pub fn features(&self) -> Result<Option<Features>> {
        Ok(self.0.shared.device().pjrt().map(PjrtDevice::features).transpose()?)
    }

    /// Removes every executable from the memory cache.
    pub fn clear_cache(&self) {
        if is_forked() {
            return;
        }
        self.0.shared.cache().clear();
    }

    /// Number of replicas.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.0.shared.device().replicas()
    }

    /// The PJRT device, or that of the first replica. `None` for a reference engine.
    #[must_use]
    pub fn pjrt_device(&self) -> Option<&pjrt::Device> {
        self.0.shared.device().pjrt().map(PjrtDevice::device)
    }
}

impl EngineConfig {
    /// Builds the engine on a PJRT device.
    ///
    /// # Errors
    /// When no plugin is found or it cannot be used, or the device does not exist.
    pub fn build(self) -> Result<Engine> {
        Engine::with_config(self)
    }

    /// Builds the engine on the reference interpreter, which needs no plugin: every op in plain
    /// Rust, one at a time. For tests and for judging results, not for speed.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn build_reference(self) -> Result<Engine> {
        Engine::reference_with_config(self)
    }
}

fn check_replicas(config: &EngineConfig) -> Result<()> {
    match config.settings().replicas {
        0..=MAX_REPLICAS => Ok(()),
        count => Err(Error::setup(format!(
            "{count} replicas were asked for, an engine has at most {MAX_REPLICAS}"
        ))),
    }
}

/// The configured plugin, or the first usable one.
pub(crate) fn open_plugin(config: &EngineConfig) -> Result<Plugin> {
    match &config.settings().plugin {
        Some(path) => Ok(Plugin::open(path)?),
        None => find_plugin(),
    }
}

/// The first usable plugin.
fn find_plugin() -> Result<Plugin> {
    let mut sources = discover::Sources::of_process();
    if sources.plugin_variable.is_some() {
        // The variable excludes all other sources, and asking Python takes a tenth of a second.
        sources.python = None;
    }
    discover::Discovery::look(&sources).first_usable().map_err(|none| Error::no_plugin(none.to_string()))
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({:?}, {} mode)", self.0.shared.device(), self.mode().name())
    }
}
