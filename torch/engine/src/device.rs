//! The engine behind the device, opened at its first use.
#![allow(
    clippy::disallowed_types,
    reason = "no model checker drives this crate, and the engine's shim is not public"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fuseline::pjrt::Value;
use fuseline::pjrt::discover::PLUGIN_VARIABLE;
use fuseline::{
    Buckets, Deadlines, DiskCacheConfig, Engine, EngineConfig, Event, EventSink, Numerics, ShapeClasses,
    Stream, Timeline,
};
use parking_lot::Mutex;

use crate::call::{Fault, Result, unsupported};

/// Selects the device: `reference` is the interpreter, anything else the path of a plugin. If
/// unset, these count in turn: `FUSELINE_PJRT_PLUGIN`, the plugin installed as a package, the first
/// plugin that is found.
const DEVICE: &str = "FUSELINE_TORCH_DEVICE";

static PACKAGED: OnceLock<PathBuf> = OnceLock::new();

/// Sets the default plugin. The first call counts.
pub(crate) fn set_plugin(path: PathBuf) {
    let _ = PACKAGED.set(path);
}

static ENGINE: OnceLock<std::result::Result<Engine, String>> = OnceLock::new();

/// Options that were set before the engine was opened, by name.
static OPTIONS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The engine's recent diagnostics for [`explained`], oldest first.
static DIAGNOSTICS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// The maximum length of `DIAGNOSTICS`.
const MAX_DIAGNOSTICS: usize = 200;

/// What the engine has turned off by itself: the kinds seen so far, and the warnings that the user
/// has not got yet.
#[derive(Default)]
struct DisabledFeatures {
    kinds: BTreeSet<String>,
    unreported: Vec<String>,
    /// The latest reason that concerns the disk cache.
    disk: Option<String>,
}

static DISABLED: Mutex<DisabledFeatures> =
    Mutex::new(DisabledFeatures { kinds: BTreeSet::new(), unreported: Vec::new(), disk: None });

/// Whether there are unreported warnings.
static HAS_WARNINGS: AtomicBool = AtomicBool::new(false);

/// The kind of feature that an event turns off from now on, if it does.
fn disabled_feature(event: &Event) -> Option<&str> {
    match event {
        Event::CacheTrouble { what } if what.starts_with("entry ") => Some("entry"),
        Event::CacheTrouble { what } => what.split(':').next(),
        Event::Compared { difference: Some(_), .. } => Some("different"),
        Event::CompileFailed { .. }
        | Event::CompilesStopped { .. }
        | Event::Fallback { .. }
        | Event::NotInterpreted { .. }
        | Event::Panicked { .. }
        | Event::Quarantined { .. }
        | Event::Stuck { .. } => Some(event.name()),
        _ => None,
    }
}

/// Notes what the engine turned off. A warning for each region would be noise, so only the first of
/// each kind is a warning; [`explained`] has all.
fn note_disabled_feature(event: &Event) {
    let Some(kind) = disabled_feature(event) else { return };
    let text = event.to_string();
    let mut off = DISABLED.lock();
    if let Event::CacheTrouble { .. } = event {
        off.disk = Some(text.clone());
    }
    if off.kinds.insert(kind.to_owned()) {
        off.unreported.push(text);
        HAS_WARNINGS.store(true, Ordering::Release);
    }
}

/// Whether [`take_warnings`] has any.
pub(crate) fn has_warnings() -> bool {
    HAS_WARNINGS.load(Ordering::Relaxed)
}

/// Takes the unreported warnings, one per line.
pub(crate) fn take_warnings() -> String {
    let mut off = DISABLED.lock();
    HAS_WARNINGS.store(false, Ordering::Release);
    off.unreported.drain(..).map(|text| format!("{}\n", text.replace('\n', " "))).collect()
}

/// Returns the latest problem of the disk cache.
pub(crate) fn disk_trouble() -> Option<String> {
    DISABLED.lock().disk.clone()
}

/// Sets an option of the engine before it is opened.
///
/// # Errors
/// If the engine is open, or there is no such option or value.
pub(crate) fn configure(name: &str, value: &str) -> Result<()> {
    apply(EngineConfig::new(), name, value)?;
    if ENGINE.get().is_some() {
        return unsupported(format!("{name} must be set before the first op: the engine is open already"));
    }
    OPTIONS.lock().insert(name.to_owned(), value.to_owned());
    Ok(())
}

/// Prefix of the names of options of the plugin's client. Their values are a type, a space and the
/// value: `client.NAME` is `int 3`.
const CLIENT: &str = "client.";

/// Parses the value of an option of the client.
fn client_value(text: &str) -> Option<Value> {
    let (kind, value) = text.split_once(' ')?;
    Some(match kind {
        "str" => value.into(),
        "bool" => (value == "True").into(),
        "int" => value.parse::<i64>().ok()?.into(),
        "float" => value.parse::<f32>().ok()?.into(),
        "list" => {
            let numbers = value.split_whitespace().map(str::parse);
            numbers.collect::<std::result::Result<Vec<i64>, _>>().ok()?.into()
        }
        _ => return None,
    })
}

fn apply(config: EngineConfig, name: &str, value: &str) -> Result<EngineConfig> {
    let flag = || match value {
        "True" | "true" | "1" => Ok(true),
        "False" | "false" | "0" => Ok(false),
        _ => unsupported(format!("{name} must be True or False, not {value}")),
    };
    if let Some(option) = name.strip_prefix(CLIENT) {
        return match client_value(value) {
            Some(value) => Ok(config.client_option(option, value)),
            None => unsupported(format!("the client option {option} cannot have the value `{value}`")),
        };
    }
    Ok(match name {
        "interpret_cold" => config.interpret_cold_regions(flag()?),
        "cache_only" => config.cache_only(flag()?),
        "check_finite" => config.check_finite(flag()?),
        "check_indices" => config.check_indices(flag()?),
        "manifest" => config.manifest(value),
        "qualifier" => config.qualifier([value]),
        "cache" if value == "off" => config.without_disk_cache(),
        "cache" => config.disk_cache(DiskCacheConfig::new().folder(value)),
        "replicas" => match value.parse() {
            Ok(count) if count > 0 => config.replicas(count),
            _ => return unsupported(format!("replicas must be an integer, 1 or more, not {value}")),
        },
        "numerics" => match value {
            "fast" => config.numerics(Numerics::Fast),
            "exact" => config.numerics(Numerics::Exact),
            _ => return unsupported(format!("numerics must be fast or exact, not {value}")),
        },
        "shape_classes" => config.shape_classes(match value {
            "off" => ShapeClasses::Off,
            "unmasked" => ShapeClasses::Unmasked,
            "masked" => ShapeClasses::Masked,
            _ => return unsupported(format!("shape_classes must be off, unmasked or masked, not {value}")),
        }),
        "size_buckets" => config.size_buckets(match (value, value.parse()) {
            ("halves", _) => Buckets::Halves,
            ("powers", _) => Buckets::Powers,
            (_, Ok(step)) => Buckets::Multiples(step),
            _ => return unsupported(format!("size_buckets must be halves, powers or a number, not {value}")),
        }),
        flag if flag.starts_with("xla_") => match (value, value.parse::<i64>()) {
            ("True" | "true", _) => config.compiler_flag(flag, true),
            ("False" | "false", _) => config.compiler_flag(flag, false),
            (_, Ok(number)) => config.compiler_flag(flag, number),
            _ => config.compiler_flag(flag, value),
        },
        _ => {
            return unsupported(format!(
                "there is no option {name}; the options are cache, cache_only, check_finite, \
                 check_indices, client_options, interpret_cold, manifest, numerics, \
                 qualifier, replicas, shape_classes, size_buckets, and compiler flags (xla_...)"
            ));
        }
    })
}

/// Whether there is a timeline. Most programs have none, and every event checks this.
static IS_TIMED: AtomicBool = AtomicBool::new(false);
static TIMELINE: Mutex<Option<Timeline>> = Mutex::new(None);

/// Starts a new timeline.
pub(crate) fn begin_timeline() {
    *TIMELINE.lock() = Some(Timeline::new());
    IS_TIMED.store(true, Ordering::Release);
}

/// Returns the active timeline.
pub(crate) fn timeline() -> Option<Timeline> {
    if IS_TIMED.load(Ordering::Acquire) { TIMELINE.lock().clone() } else { None }
}

/// Ends and returns the active timeline.
pub(crate) fn end_timeline() -> Option<Timeline> {
    IS_TIMED.store(false, Ordering::Release);
    TIMELINE.lock().take()
}

/// Keeps events that explain slowness: cache misses, recompile storms, failures.
fn on_event(event: &Event) {
    if let Some(timeline) = timeline() {
        timeline.event(event);
    }
    note_disabled_feature(event);
    let is_diagnostic = matches!(
        event,
        Event::Miss { .. }
            | Event::RecompileStorm { .. }
            | Event::CompileFinished { .. }
            | Event::Loaded { .. }
            | Event::CacheTrouble { .. }
            | Event::CompileFailed { .. }
            | Event::Fallback { .. }
            | Event::OutOfMemory { .. }
            | Event::Oversized { .. }
            | Event::Quarantined { .. }
            | Event::Poisoned { .. }
            | Event::Panicked { .. }
            | Event::Stuck { .. }
            | Event::CompilesStopped { .. }
            | Event::NotInterpreted { .. }
            | Event::Compared { difference: Some(_), .. }
            | Event::HotReads { .. }
            | Event::Growth { .. }
            | Event::FlagsRefused { .. }
            | Event::Unqualified { .. }
    );
    if is_diagnostic {
        let mut on_event = DIAGNOSTICS.lock();
        if on_event.len() == MAX_DIAGNOSTICS {
            on_event.pop_front();
        }
        on_event.push_back(event.to_string());
    }
}

/// Returns the recent diagnostics, one per line.
pub(crate) fn explained() -> String {
    DIAGNOSTICS.lock().iter().map(|line| format!("{}\n", line.replace('\n', " "))).collect()
}

/// How long a program may run ahead of data from other ranks. This exceeds the timeouts of
/// PyTorch's process groups.
const PROCESS_GROUP_LIMIT: Duration = Duration::from_secs(3_600);

fn open() -> Result<Engine> {
    let mut config = EngineConfig::new();
    for (name, value) in &*OPTIONS.lock() {
        config = apply(config, name, value)?;
    }
    // Data from other ranks is promised, and process groups have their own timeout.
    let config = config.deadlines(Deadlines::new().promise(PROCESS_GROUP_LIMIT)).event_sink(on_event);
    Ok(match std::env::var(DEVICE) {
        Ok(name) if name == "reference" => config.build_reference()?,
        Ok(path) => config.plugin(path).build()?,
        Err(_) => match PACKAGED.get() {
            Some(path) if std::env::var_os(PLUGIN_VARIABLE).is_none() => config.plugin(path).build()?,
            _ => config.build()?,
        },
    })
}

/// The process that opened the engine, or 0.
static OPENER: AtomicU32 = AtomicU32::new(0);

/// Whether the engine is open in this process.
pub(crate) fn is_open() -> bool {
    matches!(ENGINE.get(), Some(Ok(_))) && !is_forked()
}

/// Stops new background compiles, if the engine is open.
pub(crate) fn pause_background_compiles() {
    if let (Some(Ok(engine)), false) = (ENGINE.get(), is_forked()) {
        engine.pause_background_compiles();
    }
}

/// Whether this process was forked from one whose engine was open. It cannot use the engine.
pub(crate) fn is_forked() -> bool {
    let opener = OPENER.load(Ordering::Relaxed);
    opener != 0 && opener != std::process::id()
}

/// Returns the engine.
///
/// # Errors
/// If the engine cannot be opened; every call then returns the same reason.
pub(crate) fn engine() -> Result<&'static Engine> {
    let engine = ENGINE.get_or_init(|| {
        OPENER.store(std::process::id(), Ordering::Relaxed);
        open().map_err(|error| error.to_string())
    });
    engine.as_ref().map_err(|why| Fault::Unsupported(why.clone()))
}

/// Returns the number of replicas, or what it would be if the engine were opened now.
pub(crate) fn replicas_asked() -> usize {
    match ENGINE.get() {
        Some(Ok(engine)) => engine.replicas(),
        _ => OPTIONS.lock().get("replicas").and_then(|count| count.parse().ok()).unwrap_or(1),
    }
}

/// Returns the stream of all ops.
///
/// # Errors
/// As [`engine`].
pub(crate) fn stream() -> Result<&'static Stream> {
    engine().map(Engine::stream)
}

/// Formats counters, one line of name and number each.
pub(crate) fn counters_text(counters: &fuseline::Counters) -> String {
    let line = |(name, value): (&std::ffi::CStr, u64)| format!("{} {value}\n", name.to_string_lossy());
    counters.entries().into_iter().map(line).collect()
}
