//! The engine behind the device, opened at its first use.

use std::path::PathBuf;
use std::sync::OnceLock;

use fuseline::pjrt::discover::PLUGIN_VARIABLE;
use fuseline::{Engine, EngineConfig, Stream};

use crate::call::{Fault, Result};

/// Names the device: `reference` is the interpreter, anything else the path of a plugin. Without it `FUSELINE_PJRT_PLUGIN` counts, then the plugin
/// that is installed as a package, then the first that is found.
const DEVICE: &str = "FUSELINE_TORCH_DEVICE";

static PACKAGED: OnceLock<PathBuf> = OnceLock::new();

/// The plugin to use where nobody says which. The first one counts.
pub(crate) fn set_plugin(path: PathBuf) {
    let _ = PACKAGED.set(path);
}

static ENGINE: OnceLock<std::result::Result<Engine, String>> = OnceLock::new();

fn open() -> fuseline::Result<Engine> {
    let config = EngineConfig::new();
    match std::env::var(DEVICE) {
        Ok(name) if name == "reference" => config.build_reference(),
        Ok(path) => config.plugin(path).build(),
        Err(_) => match PACKAGED.get() {
            Some(path) if std::env::var_os(PLUGIN_VARIABLE).is_none() => config.plugin(path).build(),
            _ => config.build(),
        },
    }
}

/// The engine.
///
/// # Errors
/// Why there is none, the same every time.
pub(crate) fn engine() -> Result<&'static Engine> {
    let engine = ENGINE.get_or_init(|| open().map_err(|error| error.to_string()));
    engine.as_ref().map_err(|why| Fault::Unsupported(why.clone()))
}

/// The stream that all ops go to.
///
/// # Errors
/// As [`engine`].
pub(crate) fn stream() -> Result<&'static Stream> {
    engine().map(Engine::stream)
}

/// Counters as lines of a name and a number.
pub(crate) fn counters_text(counters: &fuseline::Counters) -> String {
    let line = |(name, value): (&std::ffi::CStr, u64)| format!("{} {value}\n", name.to_string_lossy());
    counters.entries().into_iter().map(line).collect()
}
