//! The engine that a command runs on.

use std::sync::mpsc;

use fuseline::{Engine, EngineConfig, Event, EventSink as _, Mode, Timeline};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::options::{Contract, DeviceChoice, DeviceOptions};
use crate::text::note;

/// An engine and the events that it reports.
pub(crate) struct Watched {
    pub(crate) engine: Engine,
    events: Option<mpsc::Receiver<Event>>,
    timeline: Option<Timeline>,
}

/// Which events of an engine are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watch {
    /// The events themselves.
    pub(crate) events: bool,
    /// Their times.
    pub(crate) times: bool,
}

impl Watched {
    /// Opens an engine that compiles or loads every region when it first occurs. `watch` selects
    /// the events to keep.
    pub(crate) fn new(
        place: &DeviceOptions,
        contract: Contract,
        mode: Mode,
        watch: Watch,
    ) -> Result<Watched, Failure> {
        let config = EngineConfig::new().interpret_cold_regions(false).quick_compiles(false);
        Watched::with(config, place, contract, mode, watch)
    }

    /// Like [`Watched::new`], without the disk cache.
    pub(crate) fn afresh(
        place: &DeviceOptions,
        contract: Contract,
        mode: Mode,
        watch: Watch,
    ) -> Result<Watched, Failure> {
        let config = EngineConfig::new().interpret_cold_regions(false).quick_compiles(false);
        Watched::with(config.without_disk_cache(), place, contract, mode, watch)
    }

    /// Opens an engine with the default configuration, as in a first process: the disk cache is
    /// used only if its folder is set. With `compile_first`, each region is compiled when it first
    /// occurs.
    pub(crate) fn with_tiers(
        place: &DeviceOptions,
        contract: Contract,
        mode: Mode,
        compile_first: bool,
    ) -> Result<Watched, Failure> {
        let mut config = EngineConfig::new();
        if std::env::var_os("FUSELINE_CACHE_DIR").is_none() {
            config = config.without_disk_cache();
        }
        if compile_first {
            config = config.interpret_cold_regions(false).quick_compiles(false);
        }
        Watched::with(config, place, contract, mode, Watch::default())
    }

    fn with(
        config: EngineConfig,
        place: &DeviceOptions,
        contract: Contract,
        mode: Mode,
        watch: Watch,
    ) -> Result<Watched, Failure> {
        let mut config = config.mode(mode).numerics(contract.numerics.into());
        if let Some(check) = contract.check_indices {
            config = config.check_indices(check);
        }
        if contract.compare {
            config = config.compare_regions(true);
        }
        for (name, value) in &place.options {
            config = config.client_option(name, value.clone());
        }
        let (mut events, mut sender) = (None, None);
        if watch.events {
            let (send, receive) = mpsc::channel();
            (events, sender) = (Some(receive), Some(send));
        }
        let timeline = watch.times.then(Timeline::new);
        if sender.is_some() || timeline.is_some() {
            let times = timeline.clone();
            config = config.event_sink(move |event: &Event| {
                if let Some(timeline) = &times {
                    timeline.event(event);
                }
                // The receiver is dropped last; an event after that may be lost.
                if let Some(send) = &sender {
                    drop(send.send(event.clone()));
                }
            });
        }
        let engine = match &place.device {
            Some(DeviceChoice::Reference) => config.build_reference(),
            Some(DeviceChoice::Plugin(path)) => config.plugin(path).build(),
            None => config.build(),
        };
        match engine {
            Ok(engine) => {
                if let Some(why) = engine.why_no_disk_cache() {
                    note(format_args!("fuseline: the disk cache is off: {why}"));
                }
                Ok(Watched { engine, events, timeline })
            }
            Err(error) => {
                let hint = match place.device {
                    None => "\n`fuseline doctor` shows the reasons; `--device reference` needs no plugin",
                    Some(_) => "",
                };
                Err(Failure::Run(format!("{}{hint}", error.to_string().trim_end())))
            }
        }
    }

    /// The events since the last call.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.iter().flat_map(mpsc::Receiver::try_iter).collect()
    }

    /// The timeline, if times are kept.
    pub(crate) fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    /// The device, for people.
    pub(crate) fn place(&self) -> String {
        match self.engine.pjrt_device() {
            None => "the reference interpreter".to_owned(),
            Some(device) => {
                let plugin = device.client().plugin();
                let file = plugin.path().file_name().unwrap_or_default().to_string_lossy();
                format!(
                    "{} {} ({file}, API {})",
                    device.client().platform_name(),
                    device.id(),
                    plugin.api_version()
                )
            }
        }
    }

    /// The device, for programs.
    pub(crate) fn place_json(&self) -> Value {
        match self.engine.pjrt_device() {
            None => json!({"platform": "reference"}),
            Some(device) => {
                let client = device.client();
                json!({
                    "platform": client.platform_name(),
                    "platform_version": client.platform_version(),
                    "kind": device.kind(),
                    "id": device.id(),
                    "plugin": client.plugin().path(),
                    "api_version": client.plugin().api_version().to_string(),
                })
            }
        }
    }
}
