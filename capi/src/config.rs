//! Configuration of an engine: settings by name, so that a new setting needs no new function.
//!
//! Input: names and texts. Output: an [`EngineConfig`]. Every setting is a row of [`SETTINGS`], and
//! [`fuseline_config_settings`] lists them.

use std::ffi::{CString, c_char, c_void};
use std::fmt::Write as _;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::Duration;

use engine::fusion::lower::Numerics;
use engine::pjrt::{Flag, Value};
use engine::{
    Buckets, Budget, Budgets, Bytes, Deadlines, DiskCacheConfig, EngineConfig, Event, Fault as Planned,
    FaultPoint, Mode, ShapeClasses,
};

use crate::attrs::{Given, Looking, fuseline_attr};
use crate::callback::{User, fuseline_free_fn};
use crate::error::{Fault, Result, c_text, fuseline_error, guard, guarded};
use crate::raw::{given, put, text};

/// The configuration of an engine. Not thread-safe.
#[derive(Clone)]
pub struct fuseline_config {
    pub(crate) engine: EngineConfig,
    pub(crate) is_reference: bool,
    budgets: Budgets,
    cache: Budget,
    regions: usize,
    bytes: Bytes,
    deadlines: Deadlines,
    disk: Option<DiskCacheConfig>,
}

impl fuseline_config {
    fn new() -> fuseline_config {
        fuseline_config {
            engine: EngineConfig::new(),
            is_reference: false,
            budgets: Budgets::default(),
            cache: Budget::default(),
            regions: 32,
            bytes: Bytes(4 << 30),
            deadlines: Deadlines::new(),
            disk: None,
        }
    }

    /// Changes the settings of the engine's crate.
    fn change(&mut self, change: impl FnOnce(EngineConfig) -> EngineConfig) {
        self.engine = change(std::mem::take(&mut self.engine));
    }

    fn change_disk(&mut self, change: impl FnOnce(DiskCacheConfig) -> DiskCacheConfig) {
        self.disk = Some(change(self.disk.take().unwrap_or_default()));
    }

    /// The complete configuration.
    pub(crate) fn finished(&self) -> EngineConfig {
        let engine = self.engine.clone();
        let engine = engine.region_budgets(self.budgets).cache_budget(self.cache).deadlines(self.deadlines);
        let engine = engine.in_flight_limits(self.regions, self.bytes);
        match &self.disk {
            Some(disk) => engine.disk_cache(disk.clone()),
            None => engine,
        }
    }
}

/// A setting: its name, its values and its effect.
struct Setting {
    name: &'static str,
    values: &'static str,
    what: &'static str,
    set: fn(&mut fuseline_config, &str) -> Result<(), String>,
}

macro_rules! settings {
    ($($name:literal, $values:literal, $what:literal, |$config:ident, $text:ident| $set:expr;)*) => {
        const SETTINGS: &[Setting] = &[$(Setting {
            name: $name,
            values: $values,
            what: $what,
            set: |$config, $text| {
                $set;
                Ok(())
            },
        }),*];
    };
}

settings! {
    "device", "reference, or the path of a PJRT plugin",
    "device that runs the ops; the default is the first plugin found",
    |config, text| match text {
        "reference" => config.is_reference = true,
        path => {
            config.is_reference = false;
            config.change(|engine| engine.plugin(path));
        }
    };
    "device_index", "a number from 0", "index of the device among the plugin's devices",
    |config, text| {
        let index = number(text)?;
        config.change(|engine| engine.device(index));
    };
    "replicas", "a number from 1", "number of devices that run each op, each on its own data",
    |config, text| {
        let count = number(text)?;
        config.change(|engine| engine.replicas(count));
    };
    "mode", "fused, strict, debug", "mode of ops, unless their stream or thread has its own",
    |config, text| {
        let mode = Mode::from_name(text).ok_or("it must be fused, strict or debug")?;
        config.change(|engine| engine.mode(mode));
    };
    "numerics", "fast, exact", "whether a region must return the same bits as its ops one by one",
    |config, text| {
        let numerics = one_of(text, &[("fast", Numerics::Fast), ("exact", Numerics::Exact)])?;
        config.change(|engine| engine.numerics(numerics));
    };
    "compare_regions", "true, false", "whether each new region is compared once with its ops",
    |config, text| {
        let compare = flag(text)?;
        config.change(|engine| engine.compare_regions(compare));
    };
    "interpret_cold_regions", "true, false",
    "whether new small regions are interpreted while they are compiled",
    |config, text| {
        let interpret = flag(text)?;
        config.change(|engine| engine.interpret_cold_regions(interpret));
    };
    "reproducible", "true, false", "whether a program returns the same bits in each run",
    |config, text| {
        let reproducible = flag(text)?;
        config.change(|engine| engine.reproducible(reproducible));
    };
    "specialise_scalars", "true, false",
    "whether scalars that stay the same are compiled in as constants",
    |config, text| {
        let specialise = flag(text)?;
        config.change(|engine| engine.specialise_scalars(specialise));
    };
    "quick_compiles", "true, false",
    "whether a region that is waited for is compiled without optimizations first",
    |config, text| {
        let quick = flag(text)?;
        config.change(|engine| engine.quick_compiles(quick));
    };
    "shape_classes", "off, unmasked, masked", "which regions of varying sizes run padded",
    |config, text| {
        let all = [("off", ShapeClasses::Off), ("unmasked", ShapeClasses::Unmasked), ("masked", ShapeClasses::Masked)];
        let classes = one_of(text, &all)?;
        config.change(|engine| engine.shape_classes(classes));
    };
    "size_buckets", "halves, powers, or a number",
    "sizes that varying sizes are padded to; a number means its multiples",
    |config, text| {
        let buckets = match text {
            "halves" => Buckets::Halves,
            "powers" => Buckets::Powers,
            step => Buckets::Multiples(number(step)?),
        };
        config.change(|engine| engine.size_buckets(buckets));
    };
    "check_finite", "true, false", "whether NaN and infinities are errors in Debug mode",
    |config, text| {
        let check = flag(text)?;
        config.change(|engine| engine.check_finite(check));
    };
    "check_indices", "true, false",
    "whether an index out of range is an error at the next read (default: true); in Debug mode it always is",
    |config, text| {
        let check = flag(text)?;
        config.change(|engine| engine.check_indices(check));
    };
    "replay", "true, false", "whether the trace cache recognizes ops that were recorded before",
    |config, text| {
        let replay = flag(text)?;
        config.change(|engine| engine.replay(replay));
    };
    "region_ops", "a number", "maximum number of ops in a region",
    |config, text| config.budgets.ops = number(text)?;
    "region_inputs", "a number", "maximum number of inputs of a region",
    |config, text| config.budgets.inputs = number(text)?;
    "region_bytes", "bytes", "maximum size of the results of a region",
    |config, text| config.budgets.bytes = Bytes(number(text)?);
    "joined_ops", "a number", "maximum number of ops in a merged region",
    |config, text| config.budgets.joined_ops = number(text)?;
    "joined_inputs", "a number", "maximum number of inputs of a merged region",
    |config, text| config.budgets.joined_inputs = number(text)?;
    "cache_entries", "a number", "maximum number of regions in the memory cache",
    |config, text| config.cache.entries = number(text)?;
    "cache_bytes", "bytes", "maximum size of the memory cache",
    |config, text| config.cache.bytes = number(text)?;
    "disk_cache", "off, or a folder",
    "folder of the disk cache; the default comes from the environment",
    |config, text| match text {
        "off" => {
            config.disk = None;
            config.change(EngineConfig::without_disk_cache);
        }
        folder => config.change_disk(|disk| disk.folder(folder)),
    };
    "disk_cache_key_file", "a path", "key file of the disk cache",
    |config, text| config.change_disk(|disk| disk.key_file(text));
    "disk_cache_bytes", "bytes", "maximum size of the disk cache",
    |config, text| {
        let size = Bytes(number(text)?);
        config.change_disk(|disk| disk.max_size(size));
    };
    "disk_cache_read_only", "true, false", "whether the disk cache is only read, never written",
    |config, text| {
        let only = flag(text)?;
        config.change_disk(|disk| disk.read_only(only));
    };
    "cache_only", "true, false",
    "whether compiles are forbidden; a miss of the disk cache is then an error that says what differs",
    |config, text| {
        let only = flag(text)?;
        config.change(|engine| engine.cache_only(only));
    };
    "manifest", "a path",
    "file to which the run writes its regions, to compile them before another run",
    |config, text| config.change(|engine| engine.manifest(text));
    "regions_in_flight", "a number", "maximum number of regions in flight",
    |config, text| config.regions = number(text)?;
    "bytes_in_flight", "bytes", "maximum size of the results of regions in flight",
    |config, text| config.bytes = Bytes(number(text)?);
    "memory_slack", "bytes", "how much more memory than its ops a region may need",
    |config, text| {
        let slack = Bytes(number(text)?);
        config.change(|engine| engine.memory_slack(slack));
    };
    "compile_threads", "a number", "number of threads that compile",
    |config, text| {
        let threads = number(text)?;
        config.change(|engine| engine.compile_threads(threads));
    };
    "drive_threads", "a number", "number of threads that run streams",
    |config, text| {
        let threads = number(text)?;
        config.change(|engine| engine.drive_threads(threads));
    };
    "wait_deadline", "seconds", "maximum time that a call waits for the device",
    |config, text| config.deadlines = config.deadlines.wait(seconds(text)?);
    "compile_deadline", "seconds", "maximum time of a compile",
    |config, text| config.deadlines = config.deadlines.compile(seconds(text)?);
    "promise_deadline", "seconds",
    "maximum time that recording waits for a placeholder to be filled",
    |config, text| config.deadlines = config.deadlines.promise(seconds(text)?);
    "call_deadline", "seconds", "maximum time of a call into the plugin",
    |config, text| config.deadlines = config.deadlines.call(seconds(text)?);
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "it must be an integer from 0".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "it must be a number of seconds".to_owned())
}

fn flag(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "it must be true or false".to_owned())
}

fn one_of<T: Copy>(text: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        format!("it must be one of {}", names.join(", "))
    })
}

/// Makes a config with the defaults.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_config_new(
    config: Option<&mut MaybeUninit<*mut fuseline_config>>,
) -> *mut fuseline_error {
    guard("fuseline_config_new", || {
        put(config, "config", || Ok(Box::into_raw(Box::new(fuseline_config::new()))))
    })
}

/// Frees a config; null is a no-op. Sessions that were opened with it are not affected.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_config_free(config: Option<Box<fuseline_config>>) {
    guarded((), || drop(config));
}

/// Sets a setting; fuseline_config_settings() lists them. The last value counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_config_set(
    config: Option<&mut fuseline_config>,
    name: *const c_char,
    value: *const c_char,
) -> *mut fuseline_error {
    guard("fuseline_config_set", || {
        let config = given(config, "config")?;
        // SAFETY: the caller passes null or a zero-terminated text (see the header).
        let (name, value) = unsafe { (text(name, "name")?, text(value, "value")?) };
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
            let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
            return Err(Fault::invalid(format!(
                "there is no setting {name:?}; the settings are {}",
                names.join(", ")
            )));
        };
        (setting.set)(config, value)
            .map_err(|why| Fault::invalid(format!("{name} cannot be {value:?}: {why}")))
    })
}

/// The settings, one per line: name, values, meaning. Never freed.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_config_settings() -> *const c_char {
    static TEXT: OnceLock<CString> = OnceLock::new();
    guarded(std::ptr::null(), || {
        let text = || {
            let mut text = String::new();
            for Setting { name, values, what, .. } in SETTINGS {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{name}: {values}: {what}");
            }
            c_text(text)
        };
        TEXT.get_or_init(text).as_ptr()
    })
}

/// Sets an option of the plugin's client, such as cpu_device_count. Its kind is INTEGER, REAL,
/// FLAG, TEXT or INTEGERS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_config_client_option(
    config: Option<&mut fuseline_config>,
    option: Option<&fuseline_attr>,
) -> *mut fuseline_error {
    guard("fuseline_config_client_option", || {
        let config = given(config, "config")?;
        // SAFETY: the caller passes attributes as the header describes them.
        let (name, option) = unsafe { Looking::new().look_at(given(option, "option")?, "option") }?;
        let value = match option {
            Given::Integer(number) => Value::Int(number),
            Given::Real(number) => Value::Float(number as f32),
            Given::Flag(flag) => Value::Bool(flag),
            Given::Text(text) => Value::String(text.to_owned()),
            Given::Integers(numbers) => Value::IntList(numbers.to_vec()),
            _ => {
                return Err(Fault::invalid(format!(
                    "the option {name} must be INTEGER, REAL, FLAG, TEXT or INTEGERS"
                )));
            }
        };
        config.change(|engine| engine.client_option(name, value));
        Ok(())
    })
}

/// Sets a flag of XLA for every compile. Its kind is INTEGER, REAL, FLAG or TEXT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_config_compiler_flag(
    config: Option<&mut fuseline_config>,
    flag: Option<&fuseline_attr>,
) -> *mut fuseline_error {
    guard("fuseline_config_compiler_flag", || {
        let config = given(config, "config")?;
        // SAFETY: the caller passes attributes as the header describes them.
        let (name, flag) = unsafe { Looking::new().look_at(given(flag, "flag")?, "flag") }?;
        let value = match flag {
            Given::Integer(number) => Flag::Int(number),
            Given::Real(number) => Flag::Float(number),
            Given::Flag(flag) => Flag::Bool(flag),
            Given::Text(text) => Flag::String(text.to_owned()),
            _ => return Err(Fault::invalid(format!("the flag {name} must be INTEGER, REAL, FLAG or TEXT"))),
        };
        config.change(|engine| engine.compiler_flag(name, value));
        Ok(())
    })
}

/// Receives the name of an event and a sentence. The texts live through the call.
pub type fuseline_log_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, name: *const c_char, text: *const c_char)>;

/// Calls `callback` for every boundary, miss, compile, fallback and failure, with the reason. Calls
/// come from any thread, possibly concurrently, and must not wait for the engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_config_on_log(
    config: Option<&mut fuseline_config>,
    callback: fuseline_log_fn,
    user: *mut c_void,
    free: fuseline_free_fn,
) -> *mut fuseline_error {
    guard("fuseline_config_on_log", || {
        let user = User::new(user, free);
        let (config, callback) = (given(config, "config")?, given(callback, "callback")?);
        config.change(|engine| {
            engine.event_sink(move |event: &Event| {
                let (name, text) = (c_text(event.name()), c_text(event.to_string()));
                // SAFETY: the caller passed a function that accepts `user`, which is alive (CANON-3).
                unsafe { callback(user.data(), name.as_ptr(), text.as_ptr()) };
            })
        });
        Ok(())
    })
}

/// A point at which a fault may be injected.
pub type fuseline_fault_point = u32;

/// A compile; the size is its ops.
pub const FUSELINE_AT_COMPILE: fuseline_fault_point = 0;
/// An execution; the size is its ops.
pub const FUSELINE_AT_EXECUTE: fuseline_fault_point = 1;
/// A transfer to the device; the size is its bytes.
pub const FUSELINE_AT_UPLOAD: fuseline_fault_point = 2;
/// A transfer from the device; the size is its bytes.
pub const FUSELINE_AT_DOWNLOAD: fuseline_fault_point = 3;

/// The fault at a point: FUSELINE_OK for none, FUSELINE_DEVICE or FUSELINE_OUT_OF_MEMORY.
pub type fuseline_fault_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, point: fuseline_fault_point, size: u64) -> u32>;

/// Injects faults, for tests of programs that must survive them. `plan` is called from any thread,
/// possibly concurrently.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_config_inject_faults(
    config: Option<&mut fuseline_config>,
    plan: fuseline_fault_fn,
    user: *mut c_void,
    free: fuseline_free_fn,
) -> *mut fuseline_error {
    guard("fuseline_config_inject_faults", || {
        let user = User::new(user, free);
        let (config, plan) = (given(config, "config")?, given(plan, "plan")?);
        config.change(|engine| {
            engine.inject_faults(move |point| {
                let (point, size) = match point {
                    FaultPoint::Compile { ops } => (FUSELINE_AT_COMPILE, ops as u64),
                    FaultPoint::Execute { ops } => (FUSELINE_AT_EXECUTE, ops as u64),
                    FaultPoint::Upload { bytes } => (FUSELINE_AT_UPLOAD, bytes),
                    FaultPoint::Download { bytes } => (FUSELINE_AT_DOWNLOAD, bytes),
                    _ => return None,
                };
                // SAFETY: the caller passed a function that accepts `user`, which is alive (CANON-3).
                match unsafe { plan(user.data(), point, size) } {
                    crate::error::FUSELINE_OK => None,
                    crate::error::FUSELINE_OUT_OF_MEMORY => Some(Planned::out_of_memory("planned")),
                    _ => Some(Planned::new("planned")),
                }
            })
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each deadline is set by its own name. A mix-up would go unnoticed until something hangs.
    #[test]
    fn deadlines_are_set_by_name() {
        let (seconds, none) = (Duration::from_secs(7), Deadlines::new());
        for (name, expected) in [
            ("wait_deadline", none.wait(seconds)),
            ("compile_deadline", none.compile(seconds)),
            ("call_deadline", none.call(seconds)),
        ] {
            let mut config = fuseline_config::new();
            let setting = SETTINGS.iter().find(|setting| setting.name == name).expect("it is a setting");
            (setting.set)(&mut config, "7").expect("a number of seconds");
            assert_eq!(config.deadlines, expected, "{name}");
        }
    }
}
