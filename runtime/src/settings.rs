//! The settings of an engine. `fuseline::EngineConfig` is the builder and documents each.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use fuseline_cache::Budget;
use fuseline_cache::disk::DiskConfig;
#[cfg(feature = "shared-cache")]
use fuseline_cache::shared::SharedConfig;
use fuseline_fusion::Bytes;
use fuseline_fusion::lower::Numerics;
use fuseline_fusion::op::WorkaroundSet;
use fuseline_fusion::region::{BoundaryRule, Budgets, Mode};
use fuseline_pjrt::{ClientOptions, Flag};

use crate::certificate::Certificate;
use crate::deadlines::Deadlines;
use crate::device::Faults;
use crate::event::EventSink;
use crate::limits::MEMORY_SLACK;
use crate::store::{DiskCacheConfig, StoreConfig};

/// Creates the soft boundary rule of a new stream.
pub(crate) type NewRule = Arc<dyn Fn() -> Box<dyn BoundaryRule> + Send + Sync>;

/// Which regions are padded when a dimension varies; see `EngineConfig::shape_classes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShapeClasses {
    /// None: each size is compiled by itself.
    Off,
    /// Regions in which no float combines several elements along a varying dimension. Each float is
    /// computed from the same numbers, padded or not. A plugin may round depending on the position
    /// of an element (docs/numerics.md), so its last digit may differ, as in any region under
    /// [`Numerics::Fast`].
    #[default]
    Unmasked,
    /// Also regions that sum or multiply floats along such a dimension. The part beyond the true
    /// size is masked. Sums may be taken in another order, and so differ in their last digits.
    Masked,
}

/// The padded sizes of a varying dimension; see `EngineConfig::size_buckets`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Buckets {
    /// 8, 12, 16, 24, 32, 48 and so on: each power of two and one and a half times it. At most half
    /// is wasted, and a size that grows to `n` has `2 log2(n)` executables.
    #[default]
    Halves,
    /// 8, 16, 32 and so on.
    Powers,
    /// Multiples of a number. With 0, sizes are not padded.
    Multiples(u64),
}

impl Buckets {
    /// The padded size.
    #[must_use]
    pub fn of(self, size: u64) -> u64 {
        match self {
            Buckets::Halves => fuseline_fusion::shape_class::bucket(size),
            Buckets::Powers => size.max(8).checked_next_power_of_two().unwrap_or(size),
            Buckets::Multiples(step) => size.checked_next_multiple_of(step).unwrap_or(size),
        }
    }
}

/// Whether an engine needs a certificate for its plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QualificationPolicy {
    /// Uses a certificate if there is one. Without one, an event says so once.
    Use,
    /// As [`QualificationPolicy::Use`]. In addition, a CPU plugin without a certificate is
    /// qualified in the background, if there is a disk cache that keeps the certificate.
    #[default]
    Background,
    /// Without a certificate, no engine starts.
    Require,
}

/// The settings of an engine, as `fuseline::EngineConfig` builds them.
#[derive(Clone)]
pub struct Settings {
    /// The path of the PJRT plugin. `None` for the first that is found.
    pub plugin: Option<PathBuf>,
    /// Options of the plugin's client.
    pub client_options: ClientOptions,
    /// Index of the first device among the client's addressable devices.
    pub device: usize,
    /// Number of replicas, at least 1.
    pub replicas: usize,
    /// The initial mode.
    pub mode: Mode,
    /// The numeric contract.
    pub numerics: Numerics,
    /// Whether regions are compared with their ops. `None` if the numeric contract decides.
    pub compare_regions: Option<bool>,
    /// Whether the interpreter runs new regions.
    pub interpret_cold: bool,
    /// Whether what runs follows from the program alone.
    pub reproducible: bool,
    /// Whether constant scalars are compiled in.
    pub specialise_scalars: bool,
    /// Whether there is a baseline tier.
    pub baseline_tier: bool,
    /// Which regions are padded.
    pub shape_classes: ShapeClasses,
    /// The padded sizes.
    pub buckets: Buckets,
    /// Whether Debug mode rejects NaN and infinity.
    pub check_finite: bool,
    /// Whether all modes report indices that are out of range.
    pub check_indices: bool,
    /// Limits of a region.
    pub budgets: Budgets,
    /// Limits of the memory cache.
    pub cache_budget: Budget,
    /// Number of memory mappings at which executables are evicted. `None` for half of the limit.
    pub max_mappings: Option<u64>,
    /// Maximum number of regions in flight per stream.
    pub max_regions_in_flight: usize,
    /// Maximum number of bytes of their results.
    pub max_bytes_in_flight: Bytes,
    /// Number of threads for compiles that a stream waits for.
    pub compile_threads: usize,
    /// Number of threads that drive streams.
    pub drive_threads: usize,
    /// Additional compiler flags.
    pub flags: Vec<(String, Flag)>,
    /// Creates the boundary rule of a stream. `None` for the default.
    pub boundary_rule: Option<NewRule>,
    /// The event sink.
    pub sink: Option<Arc<dyn EventSink>>,
    /// The faults to inject.
    pub faults: Option<Faults>,
    /// Whether recorded calls are compared with a cached trace.
    pub replays: bool,
    /// How many bytes more than its ops a region may need.
    pub memory_slack: Bytes,
    /// How long to wait for the plugin.
    pub deadlines: Deadlines,
    /// The disk cache.
    pub disk_cache: DiskCacheSetting,
    /// Whether only stored executables may run.
    pub cache_only: bool,
    /// Whether the plugin needs a certificate.
    pub qualification: QualificationPolicy,
    /// The certificate of the plugin, if it is given.
    pub certificate: Option<Arc<Certificate>>,
    /// The workarounds to leave out. `None` for those that a qualification has found unnecessary.
    pub left_out: Option<WorkaroundSet>,
    /// The program that qualifies plugins, and its first arguments. `None` for `fuseline`.
    pub qualifier: Option<Vec<OsString>>,
    /// The file of the manifest.
    pub manifest: Option<PathBuf>,
    /// The shared tier. `None` if environment variables decide.
    #[cfg(feature = "shared-cache")]
    pub shared_cache: Option<SharedConfig>,
}
/// The setting of the disk cache.
#[derive(Clone, Debug)]
pub enum DiskCacheSetting {
    /// Environment variables decide.
    Unset,
    /// No disk cache.
    Off,
    /// This one.
    At(DiskCacheConfig),
}

impl Default for Settings {
    fn default() -> Settings {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Settings {
            plugin: None,
            client_options: ClientOptions::new(),
            device: 0,
            replicas: 1,
            mode: Mode::Fused,
            numerics: Numerics::Fast,
            compare_regions: None,
            interpret_cold: true,
            reproducible: false,
            specialise_scalars: true,
            baseline_tier: true,
            shape_classes: ShapeClasses::default(),
            buckets: Buckets::default(),
            check_finite: false,
            check_indices: true,
            budgets: Budgets::default(),
            cache_budget: Budget::default(),
            max_mappings: None,
            max_regions_in_flight: 32,
            max_bytes_in_flight: Bytes(4 << 30),
            compile_threads: cores.saturating_sub(1).clamp(2, 4),
            drive_threads: 1,
            flags: Vec::new(),
            boundary_rule: None,
            sink: None,
            faults: None,
            replays: true,
            memory_slack: MEMORY_SLACK,
            disk_cache: DiskCacheSetting::Unset,
            cache_only: false,
            qualification: QualificationPolicy::default(),
            certificate: None,
            left_out: None,
            qualifier: None,
            manifest: None,
            #[cfg(feature = "shared-cache")]
            shared_cache: None,
            deadlines: Deadlines::new(),
        }
    }
}

impl Settings {
    /// Whether regions are compared with their ops.
    #[must_use]
    pub fn compares_regions(&self) -> bool {
        self.compare_regions.unwrap_or(self.numerics == Numerics::Exact)
    }

    /// Whether executables may be compiled that the record does not ask for.
    #[must_use]
    pub fn is_free_to_compile(&self) -> bool {
        !self.reproducible && !self.cache_only
    }

    /// Whether the numeric contract allows executors that round differently.
    fn is_fast(&self) -> bool {
        self.numerics == Numerics::Fast && !self.compares_regions()
    }

    /// Applies the environment variables for a device that loads executables (`loads`), or does
    /// not.
    #[must_use]
    pub fn on_device(mut self, loads: bool) -> Settings {
        let is_unset = matches!(self.disk_cache, DiskCacheSetting::Unset);
        let by_variable = || DiskCacheConfig::is_only(|name| std::env::var_os(name));
        self.cache_only = loads && (self.cache_only || is_unset && by_variable());
        self
    }

    /// Whether constant scalars are compiled in.
    #[must_use]
    pub fn specialises_scalars(&self) -> bool {
        self.specialise_scalars && self.is_free_to_compile() && self.is_fast()
    }

    /// Whether there is a baseline tier.
    #[must_use]
    pub fn compiles_quickly(&self) -> bool {
        self.baseline_tier && self.is_free_to_compile() && self.is_fast()
    }

    /// Whether the interpreter runs new regions.
    #[must_use]
    pub fn interprets_cold_regions(&self) -> bool {
        self.interpret_cold && !self.cache_only && self.is_fast()
    }

    /// Which regions are padded.
    #[must_use]
    pub fn padded_classes(&self) -> ShapeClasses {
        let is_free = self.is_fast() && self.is_free_to_compile() && self.replicas == 1;
        if is_free { self.shape_classes } else { ShapeClasses::Off }
    }

    /// The stores of executables to use.
    #[must_use]
    pub fn store(&self) -> StoreConfig {
        StoreConfig {
            disk: self.disk_cache_place(),
            #[cfg(feature = "shared-cache")]
            shared: match &self.shared_cache {
                Some(config) => Ok(Some(config.clone())),
                None => crate::store::shared_of_variables(|name| std::env::var_os(name)),
            },
        }
    }

    /// The disk cache to use, if any.
    fn disk_cache_place(&self) -> Result<Option<DiskConfig>, String> {
        let variable = |name: &str| std::env::var_os(name);
        let config = match &self.disk_cache {
            DiskCacheSetting::Off => None,
            DiskCacheSetting::At(config) => Some(config.clone()),
            DiskCacheSetting::Unset => DiskCacheConfig::of_variables(variable)?,
        };
        config.map(|config| config.resolve(variable)).transpose()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("plugin", &self.plugin)
            .field("device", &self.device)
            .field("replicas", &self.replicas)
            .field("mode", &self.mode)
            .field("numerics", &self.numerics)
            .field("check_finite", &self.check_finite)
            .field("check_indices", &self.check_indices)
            .field("budgets", &self.budgets)
            .field("cache_budget", &self.cache_budget)
            .field("compile_threads", &self.compile_threads)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
