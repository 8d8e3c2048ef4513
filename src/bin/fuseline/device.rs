//! The engine that a command runs on.

use std::sync::mpsc;

use fuseline::{Engine, EngineConfig, Event, Mode};
use serde_json::{Value, json};

use crate::cli::{Contract, DeviceChoice, Place};
use crate::failure::Failure;

/// An engine, and what it tells about itself.
pub(crate) struct Watched {
    pub(crate) engine: Engine,
    events: Option<mpsc::Receiver<Event>>,
}

impl Watched {
    /// Sets up an engine that compiles every region when it first comes; `watch` says whether its events are kept.
    pub(crate) fn new(
        place: &Place,
        contract: Contract,
        mode: Mode,
        watch: bool,
    ) -> Result<Watched, Failure> {
        Watched::with(
            EngineConfig::new().interpret_cold_regions(false).quick_compiles(false),
            place,
            contract,
            mode,
            watch,
        )
    }

    /// As [`Watched::new`], but as programs have it who ask for nothing.
    pub(crate) fn as_usual(
        place: &Place,
        contract: Contract,
        mode: Mode,
        watch: bool,
    ) -> Result<Watched, Failure> {
        Watched::with(EngineConfig::new(), place, contract, mode, watch)
    }

    fn with(
        config: EngineConfig,
        place: &Place,
        contract: Contract,
        mode: Mode,
        watch: bool,
    ) -> Result<Watched, Failure> {
        let mut config = config.mode(mode).numerics(contract.numerics.into());
        if contract.compare {
            config = config.compare_regions(true);
        }
        for (name, value) in &place.options {
            config = config.client_option(name, value.clone());
        }
        let mut events = None;
        if watch {
            let (send, receive) = mpsc::channel();
            // The receiver goes last; an event that nobody waits for may be lost.
            config = config.event_sink(move |event: &Event| drop(send.send(event.clone())));
            events = Some(receive);
        }
        let engine = match &place.device {
            Some(DeviceChoice::Reference) => config.build_reference(),
            Some(DeviceChoice::Plugin(path)) => config.plugin(path).build(),
            None => config.build(),
        };
        match engine {
            Ok(engine) => Ok(Watched { engine, events }),
            Err(error) => {
                let hint = match place.device {
                    None => "\n`fuseline doctor` tells more; `--device reference` needs no plugin",
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

    /// Where it runs, for people.
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

    /// Where it runs, for programs.
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
