//! The builder of an engine's configuration.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use fuseline_cache::Budget;
#[cfg(feature = "shared-cache")]
use fuseline_cache::shared::SharedConfig;
use fuseline_fusion::Bytes;
use fuseline_fusion::lower::Numerics;
use fuseline_fusion::op::WorkaroundSet;
use fuseline_fusion::region::{BoundaryRule, Budgets, Mode};
use fuseline_pjrt::{Flag, Value};
use fuseline_runtime::Deadlines;
use fuseline_runtime::DiskCacheConfig;
use fuseline_runtime::EventSink;
use fuseline_runtime::certificate::Certificate;
use fuseline_runtime::internals::Guest;
use fuseline_runtime::internals::{DiskCacheSetting, Settings};
use fuseline_runtime::{Buckets, QualificationPolicy, ShapeClasses};
use fuseline_runtime::{Fault, FaultPoint};

/// The configuration of an engine. Every setting has a reasonable default.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// use fuseline::{EngineConfig, Mode};
///
/// let engine = EngineConfig::new().mode(Mode::Strict).compile_threads(1).build_reference()?;
/// let x = engine.tensor(&[1.0f32, 2.0, 3.0], &[3])?;
/// assert_eq!((&x * &x)?.to_vec::<f32>()?, [1.0, 4.0, 9.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct EngineConfig {
    settings: Settings,
}

impl EngineConfig {
    /// The defaults.
    #[must_use]
    pub fn new() -> EngineConfig {
        EngineConfig { settings: Settings::default() }
    }

    /// Sets the path of the PJRT plugin. Default: the first that is found, in the order of
    /// [`crate::pjrt::discover`].
    #[must_use]
    pub fn plugin(mut self, path: impl Into<PathBuf>) -> EngineConfig {
        self.settings.plugin = Some(path.into());
        self
    }

    /// Sets an option of the plugin's client, such as `cpu_device_count`. Default: on XLA's plugins
    /// for CPUs and GPUs the devices that are needed, elsewhere the plugin's own choice.
    #[must_use]
    pub fn client_option(mut self, name: impl Into<String>, value: impl Into<Value>) -> EngineConfig {
        self.settings.client_options = self.settings.client_options.set(name, value);
        self
    }

    /// Sets the index of the device to run on, among the client's addressable devices. Default: 0.
    ///
    /// On XLA's plugins for GPUs it counts the visible GPUs, or those of the option
    /// `visible_devices`. Without this option the client has the engine's devices only, so their
    /// ids count from 0.
    #[must_use]
    pub fn device(mut self, index: usize) -> EngineConfig {
        self.settings.device = index;
        self
    }

    /// Number of replicas, at least 1, at most [`fuseline_fusion::limits::MAX_REPLICAS`]. Default:
    /// 1.
    ///
    /// An engine with several replicas runs the recorded program on that many devices of the
    /// plugin's client at once, from [`EngineConfig::device`] on. Every value has data on each of
    /// them: the same if it comes from [`Engine::tensor`](crate::Engine::tensor), its own if it
    /// comes from [`Engine::tensor_per_replica`](crate::Engine::tensor_per_replica). Ops compute on
    /// each replica separately, collectives such as [`crate::Tensor::all_reduce`] exchange data
    /// between them, and [`crate::Tensor::read_replicas`] reads all. A value that fails on one
    /// replica has failed.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// use fuseline::{EngineConfig, OpCode};
    ///
    /// let engine = EngineConfig::new().replicas(2).build_reference()?;
    /// let x = engine.tensor_per_replica(&[&[1.0f32, 2.0], &[10.0, 20.0]], &[2])?;
    /// assert_eq!((&x * &x)?.all_reduce(OpCode::Add, None)?.to_vec::<f32>()?, [101.0, 404.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> EngineConfig {
        self.settings.replicas = replicas.max(1);
        self
    }

    /// Sets the mode of ops for which neither the stream nor [`crate::with_mode`] sets one.
    /// Default: Fused. [`Engine::set_mode`](crate::Engine::set_mode) can change it later.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> EngineConfig {
        self.settings.mode = mode;
        self
    }

    /// Sets the numeric contract: how far the results of regions may differ from those of single
    /// ops. Default: [`Numerics::Fast`].
    #[must_use]
    pub fn numerics(mut self, numerics: Numerics) -> EngineConfig {
        self.settings.numerics = numerics;
        self
    }

    /// Whether the executable of each new region is compared once with its ops one by one: bit for
    /// bit with [`Numerics::Exact`], by tolerance with [`Numerics::Fast`]. Default: yes with
    /// `Exact`, no with `Fast`.
    ///
    /// The first time, the region runs both ways, and the program gets the results of the ops. If
    /// they differ, [`crate::Event::Compared`] reports how, and the region is not fused. This costs
    /// a compile for each distinct op, and a copy of the results to the host.
    #[must_use]
    pub fn compare_regions(mut self, compare: bool) -> EngineConfig {
        self.settings.compare_regions = Some(compare);
        self
    }

    /// Whether the interpreter runs small regions the first times: up to 10, or more if they come
    /// at many sizes, and after that for as long as their compile takes. Default: yes.
    ///
    /// This applies to XLA's CPU backend in Fused mode, with one replica, [`Numerics::Fast`] and no
    /// comparison of regions. A small region that runs once is then not compiled. The interpreter
    /// rounds each op separately, so the first results of a region may differ from later ones as
    /// [`Numerics::Fast`] allows.
    ///
    /// On any device, and for new and known regions, the interpreter also computes values that the
    /// host reads if that takes a few ops on integers and `bool` from lifted scalars alone, such as
    /// whether a mask that was made from a length is full. Such a read does not wait for the
    /// region. `counters().host_evaluated` counts these values.
    #[must_use]
    pub fn interpret_cold_regions(mut self, interpret: bool) -> EngineConfig {
        self.settings.interpret_cold = interpret;
        self
    }

    /// Whether a program computes the same bits in each run, on the same machine with the same
    /// plugin. Default: no. While the best executable of a region is being compiled, another one or
    /// the interpreter runs it. So the last digits of a result may depend on when a compile ends,
    /// as far as [`Numerics::Fast`] allows.
    ///
    /// If set, what runs follows from the program alone, as long as memory does not run out. New
    /// regions are interpreted a fixed number of times, later compiles are waited for, and no
    /// executable replaces another one: no [baseline compiles](EngineConfig::quick_compiles),
    /// [scalar specialization](EngineConfig::specialise_scalars) or [shape
    /// classes](EngineConfig::shape_classes). Except for these, full speed is the same; the first
    /// steps take longer. With [`Numerics::Exact`] results have the same bits anyway.
    #[must_use]
    pub fn reproducible(mut self, reproducible: bool) -> EngineConfig {
        self.settings.reproducible = reproducible;
        self
    }

    /// Whether lifted scalars that had the same value in a thousand executions are compiled in, in
    /// the background, where that makes the region faster (an exponent, a bound, some divisors and
    /// factors). Default: yes, with [`Numerics::Fast`] and no comparison of regions.
    ///
    /// A different value later compiles nothing: the executable that takes any value runs at once.
    /// Each such compile is an [`Event::Specialised`](crate::Event::Specialised), at most three per
    /// region.
    #[must_use]
    pub fn specialise_scalars(mut self, specialise: bool) -> EngineConfig {
        self.settings.specialise_scalars = specialise;
        self
    }

    /// Whether regions that take long to compile and little time to run are compiled twice: first
    /// in about 0.6 of the time to code that is several times as slow, and again in the background
    /// if they run a second time. Which of the two an execution uses depends on time, and so may
    /// its last digits. Default: yes, on XLA's CPU backend, with [`Numerics::Fast`] and no
    /// comparison of regions.
    #[must_use]
    pub fn quick_compiles(mut self, quick: bool) -> EngineConfig {
        self.settings.baseline_tier = quick;
        self
    }

    /// Which regions are padded to a few sizes when a dimension varies. Default:
    /// [`ShapeClasses::Unmasked`].
    ///
    /// From the third size on at which the same ops are new, all sizes of a *bucket* share one
    /// executable: the region's inputs are copied into larger ones, and the part within the true
    /// sizes is copied out of the results. A size that comes ten times also gets its own
    /// executable, in the background. [`Event::Padded`](crate::Event::Padded) reports the sizes,
    /// and [`Event::NotPadded`](crate::Event::NotPadded) why there are none. This applies to XLA's
    /// CPU backend in Fused mode, with one replica, [`Numerics::Fast`] and no comparison of
    /// regions.
    #[must_use]
    pub fn shape_classes(mut self, which: ShapeClasses) -> EngineConfig {
        self.settings.shape_classes = which;
        self
    }

    /// Sets the sizes that varying sizes are padded to. Default: [`Buckets::Halves`].
    #[must_use]
    pub fn size_buckets(mut self, buckets: Buckets) -> EngineConfig {
        self.settings.buckets = buckets;
        self
    }

    /// Whether ops in Debug mode fail when a float result has a NaN or infinite element. Costs a
    /// copy to the host of every result. Default: no.
    #[must_use]
    pub fn check_finite(mut self, check: bool) -> EngineConfig {
        self.settings.check_finite = check;
        self
    }

    /// Whether indices, labels and other values that are out of range are reported in all modes. In
    /// Debug mode they always are. Default: yes.
    ///
    /// The effect of such an index is defined, and the same with and without this setting: a read
    /// clamps it, a write ignores it, one-hot rows are zeros. With this setting the region also
    /// computes a flag for each tensor of indices. The next read, wait or
    /// [`synchronize`](crate::Stream::synchronize) of later results returns an error with the op,
    /// its call site and the index ([`Error::is_failed_check`](crate::Error::is_failed_check)). It
    /// is reported once, and another read returns the value. docs/numerics.md describes what is
    /// checked and what that costs.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// let engine = fuseline::EngineConfig::new().build_reference()?;
    /// let table = engine.tensor(&[1.0f32, 2.0], &[2])?;
    /// let rows = table.take(&engine.tensor(&[0i32, 5], &[2])?, 0)?;
    /// assert!(rows.to_vec::<f32>().is_err_and(|error| error.is_failed_check()));
    /// assert_eq!(rows.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn check_indices(mut self, check: bool) -> EngineConfig {
        self.settings.check_indices = check;
        self
    }

    /// Sets whether the plugin needs a certificate, which states for each op and element type
    /// whether the plugin computes it correctly (docs/qualify.md). Default:
    /// [`QualificationPolicy::Background`].
    ///
    /// An op that a certificate calls wrong or crashing is not compiled. The interpreter computes
    /// it.
    #[must_use]
    pub fn qualification(mut self, policy: QualificationPolicy) -> EngineConfig {
        self.settings.qualification = policy;
        self
    }

    /// Gives the certificate of the plugin, as `fuseline qualify --output` writes it. By default,
    /// the engine looks for one in the disk cache and among those that come with this crate.
    ///
    /// The engine does not start if the certificate is for another plugin file.
    #[must_use]
    pub fn certificate(mut self, certificate: Certificate) -> EngineConfig {
        self.settings.certificate = Some(Arc::new(certificate));
        self
    }

    /// Sets the workarounds to leave out: the ops that they replace are given to the plugin as they
    /// are. Default: those that a qualification has found unnecessary on this plugin. A workaround
    /// that is left out on a plugin with the defect makes results wrong, so this setting is for
    /// qualifications.
    #[must_use]
    pub fn leave_out_workarounds(mut self, workarounds: WorkaroundSet) -> EngineConfig {
        self.settings.left_out = Some(workarounds);
        self
    }

    /// Sets the program that qualifies plugins in the background, and its first arguments. It is
    /// called with the arguments of `fuseline`: `qualify --quick --background --plugin PATH`.
    /// Default: `fuseline`, as the variable `PATH` finds it.
    #[must_use]
    pub fn qualifier<W: Into<OsString>>(mut self, words: impl IntoIterator<Item = W>) -> EngineConfig {
        self.settings.qualifier = Some(words.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the maximum number of ops, inputs and bytes of a region. Default: [`Budgets::default`].
    #[must_use]
    pub fn region_budgets(mut self, budgets: Budgets) -> EngineConfig {
        self.settings.budgets = budgets;
        self
    }

    /// Sets the maximum number and size of regions in the memory cache. Default:
    /// [`Budget::default`].
    #[must_use]
    pub fn cache_budget(mut self, budget: Budget) -> EngineConfig {
        self.settings.cache_budget = budget;
        self
    }

    /// Sets the number of memory mappings of the process from which executables leave the memory
    /// cache, least recently used first, even if the cache has room. Default: half of the system's
    /// limit (`vm.max_map_count` on Linux, usually 65,530). XLA's CPU backend takes 6 to 9 mappings
    /// for an executable of a few ops, and about one for each further ten ops.
    /// `counters().mappings` is the number at the latest count.
    #[must_use]
    pub fn max_mappings(mut self, mappings: u64) -> EngineConfig {
        self.settings.max_mappings = Some(mappings);
        self
    }

    /// Sets where executables are kept between processes. Default: a folder of the user, see
    /// [`DiskCacheConfig`], unless environment variables say otherwise:
    ///
    /// | variable | values |
    /// |---|---|
    /// | `FUSELINE_CACHE` | `on`, `off`, `read-only`, `only` (see [`EngineConfig::cache_only`]) |
    /// | `FUSELINE_CACHE_DIR` | the folder |
    /// | `FUSELINE_CACHE_KEY_FILE` | the file with the key that entries are sealed with |
    /// | `FUSELINE_CACHE_MAX_BYTES` | maximum size of all entries |
    ///
    /// The next process that runs the same region with the same plugin on a similar processor loads
    /// its executable in a few milliseconds. [`Event::CacheTrouble`](crate::Event::CacheTrouble)
    /// reports problems, which cost the time that the cache would save. The reference device does
    /// not use it.
    #[must_use]
    pub fn disk_cache(mut self, config: DiskCacheConfig) -> EngineConfig {
        self.settings.disk_cache = DiskCacheSetting::At(config);
        self
    }

    /// Sets an object store through which a fleet of machines shares executables.
    /// [docs/shared-cache.md](https://docs.rs/fuseline) describes its set-up. An executable that is
    /// not on the disk is requested there while its compile starts, and compiled executables are
    /// uploaded in the background. Default: as the variables `FUSELINE_SHARED_CACHE` (its URL),
    /// `FUSELINE_SHARED_CACHE_KEY_FILE` (a file with the 32 bytes of the fleet's key) and
    /// `FUSELINE_SHARED_CACHE_READ_ONLY` (`1`) say; none without them.
    #[cfg(feature = "shared-cache")]
    #[must_use]
    pub fn shared_cache(mut self, config: SharedConfig) -> EngineConfig {
        self.settings.shared_cache = Some(config);
        self
    }

    /// Disables the disk cache, whatever the environment variables say.
    #[must_use]
    pub fn without_disk_cache(mut self) -> EngineConfig {
        self.settings.disk_cache = DiskCacheSetting::Off;
        self
    }

    /// Whether regions are only loaded from the disk cache: none is compiled, interpreted, or
    /// padded to other sizes. Default: no, unless the variable `FUSELINE_CACHE` is `only` and
    /// [`EngineConfig::disk_cache`] was not called.
    ///
    /// The results of a region that is not stored fail, with an error that says what the cache has
    /// instead and where the ops were recorded. [`EngineConfig::manifest`] and `fuseline cache
    /// warm` prepare such a run. Building the engine fails without a usable disk cache. The
    /// reference device ignores this.
    #[must_use]
    pub fn cache_only(mut self, only: bool) -> EngineConfig {
        self.settings.cache_only = only;
        self
    }

    /// Appends the requested regions to a file, one line each, with what another process or machine
    /// needs to compile them ahead of time, by `fuseline cache warm` or
    /// [`Engine::warm_cache`](crate::Engine::warm_cache). See [`crate::aot::Manifest`]. Default: no
    /// file.
    #[must_use]
    pub fn manifest(mut self, file: impl Into<PathBuf>) -> EngineConfig {
        self.settings.manifest = Some(file.into());
        self
    }

    /// Sets the maximum number of regions of one stream, and of bytes of their results, on the
    /// device at once. Beyond that the stream waits. Default: 32 regions, 4 GiB.
    #[must_use]
    pub fn in_flight_limits(mut self, regions: usize, bytes: Bytes) -> EngineConfig {
        self.settings.max_regions_in_flight = regions.max(1);
        self.settings.max_bytes_in_flight = bytes;
        self
    }

    /// Sets how many bytes more than its ops one by one a region may need as a whole, whatever the
    /// ratio. A region that needs more, and more than 1.25 times as much, runs in halves
    /// ([`crate::Event::Oversized`]). Default: 16 MiB.
    #[must_use]
    pub fn memory_slack(mut self, bytes: Bytes) -> EngineConfig {
        self.settings.memory_slack = bytes;
        self
    }

    /// Sets the number of threads for compiles that a stream waits for, at least 1. Half as many,
    /// at low priority (a nice value 10 higher, on Linux), run background compiles. Default: the
    /// number of cores minus one, but at least 2 and at most 4.
    #[must_use]
    pub fn compile_threads(mut self, threads: usize) -> EngineConfig {
        self.settings.compile_threads = threads.max(1);
        self
    }

    /// Sets the number of threads that drive streams for which nobody waits, at least 1. Default:
    /// 1; more pay off with several busy streams.
    #[must_use]
    pub fn drive_threads(mut self, threads: usize) -> EngineConfig {
        self.settings.drive_threads = threads.max(1);
        self
    }

    /// Sets how long to wait for a plugin that may not answer. Default: [`Deadlines::new`].
    #[must_use]
    pub fn deadlines(mut self, deadlines: Deadlines) -> EngineConfig {
        self.settings.deadlines = deadlines;
        self
    }

    /// Adds a compiler flag for every region, with a value of the type that XLA expects.
    #[must_use]
    pub fn compiler_flag(mut self, name: impl Into<String>, value: impl Into<Flag>) -> EngineConfig {
        self.settings.flags.push((name.into(), value.into()));
        self
    }

    /// Sets the soft boundary rule. `rule` is called once for each stream. A rule that panics is
    /// not asked again. Default: [`ContentChunking`](crate::ContentChunking). With
    /// [`crate::HardOnly`] regions end where the program requests it and at budgets.
    #[must_use]
    pub fn boundary_rule(
        mut self,
        rule: impl Fn() -> Box<dyn BoundaryRule> + Send + Sync + 'static,
    ) -> EngineConfig {
        let rule = Guest::new(rule);
        self.settings.boundary_rule = Some(Arc::new(move || rule.get()()));
        self
    }

    /// Whether a call is compared with the call that the program recorded before in its place, and
    /// then not recorded again. This changes the cost of recording, not what runs. Default: true.
    #[must_use]
    pub fn replay(mut self, replay: bool) -> EngineConfig {
        self.settings.replays = replay;
        self
    }

    /// Sets the event sink. Default: none.
    #[must_use]
    pub fn event_sink(mut self, sink: impl EventSink + 'static) -> EngineConfig {
        self.settings.sink = Some(Arc::new(Guest::new(sink)));
        self
    }

    /// Injects faults, for tests of programs that must survive them. `plan` is called before each
    /// compile, execution and transfer, which then fails with the fault that it returns. Default:
    /// none.
    #[must_use]
    pub fn inject_faults(
        mut self,
        plan: impl Fn(FaultPoint) -> Option<Fault> + Send + Sync + 'static,
    ) -> EngineConfig {
        let plan = Guest::new(plan);
        self.settings.faults = Some(Arc::new(move |point| plan.get()(point)));
        self
    }

    /// The settings.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The settings, for a new engine.
    pub(crate) fn into_settings(self) -> Settings {
        self.settings
    }
}

impl fmt::Debug for EngineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}
