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

use fuseline::pjrt::discover::PLUGIN_VARIABLE;
use fuseline::{
    Buckets, Deadlines, DiskCacheConfig, Engine, EngineConfig, Event, EventSink, Numerics, ShapeClasses,
    Stream, Timeline,
};
use parking_lot::Mutex;

use crate::call::{Fault, Result, unsupported};

/// Names the device: `reference` is the interpreter, anything else the path of a plugin. Without it
/// `FUSELINE_PJRT_PLUGIN` counts, then the plugin that is installed as a package, then the first
/// that is found.
const DEVICE: &str = "FUSELINE_TORCH_DEVICE";

static PACKAGED: OnceLock<PathBuf> = OnceLock::new();

/// The plugin to use where nobody says which. The first one counts.
pub(crate) fn set_plugin(path: PathBuf) {
    let _ = PACKAGED.set(path);
}

static ENGINE: OnceLock<std::result::Result<Engine, String>> = OnceLock::new();

/// What was asked for before the engine was opened, by name.
static OPTIONS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// What the engine told of late that a user may want to have explained, oldest first.
static TOLD: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Most events that are kept.
const MAX_TOLD: usize = 200;

/// What the engine has turned off by itself: of each kind the first reason, and those that a user
/// has not been warned of yet.
#[derive(Default)]
struct TurnedOff {
    kinds: BTreeSet<String>,
    untold: Vec<String>,
    /// The latest that is about the disk cache.
    disk: Option<String>,
}

static TURNED_OFF: Mutex<TurnedOff> =
    Mutex::new(TurnedOff { kinds: BTreeSet::new(), untold: Vec::new(), disk: None });

/// Whether there are some that a user has not been warned of.
static HAS_WARNINGS: AtomicBool = AtomicBool::new(false);

/// What kind of thing an event says that the engine does without from now on, if it says so.
fn turned_off(event: &Event) -> Option<&str> {
    match event {
        Event::CacheTrouble { what } if what.starts_with("entry ") => Some("entry"),
        Event::CacheTrouble { what } => what.split(':').next(),
        Event::Compared { difference: Some(_), .. } => Some("different"),
        Event::CompileFailed { .. }
        | Event::CompilesStopped { .. }
        | Event::NotInterpreted { .. }
        | Event::Panicked { .. }
        | Event::Quarantined { .. }
        | Event::Stuck { .. } => Some(event.name()),
        _ => None,
    }
}

/// Notes what the engine has turned off. Nothing is silent, and a warning for each region would be
/// noise: of each kind the first is a warning, and [`explained`] has all.
fn note_turned_off(event: &Event) {
    let Some(kind) = turned_off(event) else { return };
    let text = event.to_string();
    let mut off = TURNED_OFF.lock();
    if let Event::CacheTrouble { .. } = event {
        off.disk = Some(text.clone());
    }
    if off.kinds.insert(kind.to_owned()) {
        off.untold.push(text);
        HAS_WARNINGS.store(true, Ordering::Release);
    }
}

/// Whether [`take_warnings`] has any.
pub(crate) fn has_warnings() -> bool {
    HAS_WARNINGS.load(Ordering::Relaxed)
}

/// What a user is to be warned of, a line each. They are told once.
pub(crate) fn take_warnings() -> String {
    let mut off = TURNED_OFF.lock();
    HAS_WARNINGS.store(false, Ordering::Release);
    off.untold.drain(..).map(|text| format!("{}\n", text.replace('\n', " "))).collect()
}

/// The latest trouble with the caches on the disk.
pub(crate) fn disk_trouble() -> Option<String> {
    TURNED_OFF.lock().disk.clone()
}

/// An option of the engine's, before it is opened.
///
/// # Errors
/// When it is open, or there is no such option or value.
pub(crate) fn configure(name: &str, value: &str) -> Result<()> {
    apply(EngineConfig::new(), name, value)?;
    if ENGINE.get().is_some() {
        return unsupported(format!("{name} is set before the first op: the engine is open already"));
    }
    OPTIONS.lock().insert(name.to_owned(), value.to_owned());
    Ok(())
}

fn apply(config: EngineConfig, name: &str, value: &str) -> Result<EngineConfig> {
    let flag = || match value {
        "True" | "true" | "1" => Ok(true),
        "False" | "false" | "0" => Ok(false),
        _ => unsupported(format!("{name} is True or False, not {value}")),
    };
    Ok(match name {
        "interpret_cold" => config.interpret_cold_regions(flag()?),
        "cache_only" => config.cache_only(flag()?),
        "check_finite" => config.check_finite(flag()?),
        "check_indices" => config.check_indices(flag()?),
        "manifest" => config.manifest(value),
        "cache" if value == "off" => config.without_disk_cache(),
        "cache" => config.disk_cache(DiskCacheConfig::new().folder(value)),
        "replicas" => match value.parse() {
            Ok(count) if count > 0 => config.replicas(count),
            _ => return unsupported(format!("replicas are a number, 1 or more, not {value}")),
        },
        "numerics" => match value {
            "fast" => config.numerics(Numerics::Fast),
            "exact" => config.numerics(Numerics::Exact),
            _ => return unsupported(format!("numerics are fast or exact, not {value}")),
        },
        "shape_classes" => config.shape_classes(match value {
            "off" => ShapeClasses::Off,
            "unmasked" => ShapeClasses::Unmasked,
            "masked" => ShapeClasses::Masked,
            _ => return unsupported(format!("shape_classes are off, unmasked or masked, not {value}")),
        }),
        "size_buckets" => config.size_buckets(match (value, value.parse()) {
            ("halves", _) => Buckets::Halves,
            ("powers", _) => Buckets::Powers,
            (_, Ok(step)) => Buckets::Multiples(step),
            _ => return unsupported(format!("size_buckets are halves, powers or a number, not {value}")),
        }),
        flag if flag.starts_with("xla_") => match (value, value.parse::<i64>()) {
            ("True" | "true", _) => config.compiler_flag(flag, true),
            ("False" | "false", _) => config.compiler_flag(flag, false),
            (_, Ok(number)) => config.compiler_flag(flag, number),
            _ => config.compiler_flag(flag, value),
        },
        _ => {
            return unsupported(format!(
                "there is no option {name}; there are cache, cache_only, check_finite, check_indices, interpret_cold, manifest, numerics, replicas, shape_classes, size_buckets, and flags of the compiler, xla_.."
            ));
        }
    })
}

/// Whether there is a timeline: most programs never have one, and all events pass here.
static IS_TIMED: AtomicBool = AtomicBool::new(false);
static TIMELINE: Mutex<Option<Timeline>> = Mutex::new(None);

/// Keeps events from now on, in a new timeline.
pub(crate) fn begin_timeline() {
    *TIMELINE.lock() = Some(Timeline::new());
    IS_TIMED.store(true, Ordering::Release);
}

/// The timeline that is kept.
pub(crate) fn timeline() -> Option<Timeline> {
    if IS_TIMED.load(Ordering::Acquire) { TIMELINE.lock().clone() } else { None }
}

/// The timeline that was kept until now.
pub(crate) fn end_timeline() -> Option<Timeline> {
    IS_TIMED.store(false, Ordering::Release);
    TIMELINE.lock().take()
}

/// Keeps what explains why something is slow: misses, storms of them, what went wrong.
fn told(event: &Event) {
    if let Some(timeline) = timeline() {
        timeline.event(event);
    }
    note_turned_off(event);
    let is_told = matches!(
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
    );
    if is_told {
        let mut told = TOLD.lock();
        if told.len() == MAX_TOLD {
            told.pop_front();
        }
        told.push_back(event.to_string());
    }
}

/// The latest of what is kept, a line each.
pub(crate) fn explained() -> String {
    TOLD.lock().iter().map(|line| format!("{}\n", line.replace('\n', " "))).collect()
}

/// For how long a program may run ahead of what other ranks send: more than PyTorch's process
/// groups wait.
const PROCESS_GROUP_LIMIT: Duration = Duration::from_secs(3_600);

fn open() -> Result<Engine> {
    let mut config = EngineConfig::new();
    for (name, value) in &*OPTIONS.lock() {
        config = apply(config, name, value)?;
    }
    // What comes from other ranks is promised, and a process group has a time limit of its own.
    let config = config.deadlines(Deadlines::new().promise(PROCESS_GROUP_LIMIT)).event_sink(told);
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

/// Begins no more compiles in the background, if the engine is open.
pub(crate) fn pause_background_compiles() {
    if let (Some(Ok(engine)), false) = (ENGINE.get(), is_forked()) {
        engine.pause_background_compiles();
    }
}

/// Whether this process was forked from one in which the engine was open: it is of no use here.
pub(crate) fn is_forked() -> bool {
    let opener = OPENER.load(Ordering::Relaxed);
    opener != 0 && opener != std::process::id()
}

/// The engine.
///
/// # Errors
/// Why there is none, the same every time.
pub(crate) fn engine() -> Result<&'static Engine> {
    let engine = ENGINE.get_or_init(|| {
        OPENER.store(std::process::id(), Ordering::Relaxed);
        open().map_err(|error| error.to_string())
    });
    engine.as_ref().map_err(|why| Fault::Unsupported(why.clone()))
}

/// How many replicas there are, or will be if the engine is opened now.
pub(crate) fn replicas_asked() -> usize {
    match ENGINE.get() {
        Some(Ok(engine)) => engine.replicas(),
        _ => OPTIONS.lock().get("replicas").and_then(|count| count.parse().ok()).unwrap_or(1),
    }
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
