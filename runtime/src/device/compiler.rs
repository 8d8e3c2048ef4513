//! Compiles regions for a kind of device, present or not: the options, and what they and the code
//! depend on.
//!
//! Input: a [`Machine`], and a function that asks its compiler whether it accepts options. Output:
//! a [`Compiler`]: modules, options for each region, and descriptions for keys.
//!
//! Invariant:
//! - COMPILER-1: a device that is present and the same device as a target
//!   ([`fuseline_pjrt::Topology`]) have
//!   the same description, as far as the plugin reports the same of both. So what is compiled for
//!   one is found by the other.

use std::borrow::Cow;
use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::encode::Writer;
use fuseline_fusion::limits::MAX_GRAPH_OPS;
use fuseline_fusion::lower::{self, Aliases, Numerics, Target, Verified};
use fuseline_fusion::op::Rounding;
use fuseline_fusion::{Body, DTypeSet, OpCode, Signature};
use fuseline_pjrt::{Client, CompileOptions, Plugin, Topology};

use super::{Cause, DeviceError, Result, SpecializedScalars, Tier};
use crate::error::Stage;

/// Number of multiplications of a region's largest product above which threads pay. At 32x128x128
/// (0.5 million) handing over to another thread costs as much as the product; at 128x512x512 (34
/// million) the cost does not matter (pjrt.md).
const HEAVY_PRODUCT: u128 = 4_000_000;

/// Kind of region: an op has a product large enough for several threads, or solves triangular
/// systems. With one thread XLA sums the products inside a solve in another order, which costs up
/// to 13 units in the last place where terms cancel (conformance case
/// `triangular_solve_float32_2_8_8_float32_2_10_8`).
const HEAVY: usize = 1;

/// Kind of region: a `reduce_window` sums floats. XLA's fusion emitters (API 0.81) sum a window in
/// another order than that of its elements, which costs up to 8 units in the last place where terms
/// cancel (conformance case `reduce_window_add_float64_4_6`). Its older emitters do not.
const WINDOW_SUM: usize = 2;

/// A flag and its value.
type FlagOf = (&'static str, fn() -> fuseline_pjrt::Flag);

/// Flags of XLA's CPU compiler that order ops for memory, those of the newest plugins first. XLA's
/// default order can need 34 times the memory of this one (pjrt.md). A plugin refuses names that it
/// does not know: API 0.81 has the second.
const MEMORY_ORDER: [FlagOf; 2] = [
    ("xla_cpu_scheduler_type", || "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED".into()),
    ("xla_cpu_enable_concurrency_optimized_scheduler", || false.into()),
];

/// Flags with which XLA's CPU compiler computes what each op says. They disable algebra across ops
/// (otherwise the steps of the benchmark's `nbody` differ), kernels of a library with its own
/// exponential, intermediate values of excess precision, and emitters that approximate an op in a
/// fusion in another way than alone.
///
/// Fences stop contraction (`fusion/src/lower/exact`): `xla_cpu_max_isa`, which could do so too, is
/// accepted for one compile and ignored (pjrt.md). The emitters would be faster (black_scholes 3.5
/// times, norms twice), but 2 of about 700 random programs differ with them (`tan`, 2026-11-22),
/// and a check on the first inputs proves nothing for others. A plugin refuses names that it does
/// not know. The differential check finds out whether it needed them.
const EXACT: [FlagOf; 4] = [
    ("xla_disable_hlo_passes", || "algsimp".into()),
    ("xla_cpu_experimental_ynn_fusion_type", || "".into()),
    ("xla_allow_excess_precision", || false.into()),
    ("xla_cpu_use_fusion_emitters", || false.into()),
];

/// Flags of XLA's CPU compiler without which results are wrong under any contract.
///
/// - XNNPACK keeps a packed copy of a product's right operand as long as that has the same address
///   (API 0.81, `XnnFusionThunk::UpdateXnnExecutable`, where the operand is a parameter). It then
///   reads the old data of an operand that was updated in place, by donation. The sizes for which
///   XLA uses XNNPACK depend on the processor. `tests/engine/donation.rs` has one, and `gpt2/width
///   768` of the benchmark was wrong from its fourth step on.
const SOUND: [FlagOf; 1] = [("xla_cpu_use_xnnpack", || false.into())];

/// Flags of XLA's CPU compiler for faster code. With exact numerics they keep their checked values.
///
/// - The compiler splits reductions into windows, which makes sums of rows 3 to 5 times as slow and
///   maxima 11 times. The lowering does what columns gain by it
///   (`fusion/src/lower/column_reduction.rs`, with the figures).
/// - LLVM uses vectors of 256 bits by default where it could use 512; see [`has_wide_vectors`].
///   Relative times with 512, in turns with 256 (2 cores of an AMD EPYC of family 26, 2026-11-23,
///   best of 800 runs of the executables of `fuseline bench`): `norms/64x256` 0.63, `chain/50 ops
///   on 1k` 0.64, `black_scholes/64k` 0.68, `gpt2/width 64` 0.78, `nbody/64` 0.83, six others from
///   0.90 to 1.09, within their variation.
const FAST: [FlagOf; 2] = [
    ("xla_disable_hlo_passes", || "tree_reduction_rewriter".into()),
    ("xla_cpu_prefer_vector_width", || 512i64.into()),
];

/// Whether vectors of 512 bits pay. The first processors that had them lowered their clock for
/// them. Processors with both of these extensions (AMD from Zen 4, Intel from Sapphire Rapids on)
/// do not.
fn has_wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512vbmi2")
        && std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// LLVM's optimization level in XLA's CPU compiler, from 0 to 3. At 0 a compile takes 0.5 to 0.7 of
/// the time, and its code is 2 to 11 times as slow, the more of it is elementwise (ten programs of
/// `fuseline bench`, 2026-11-23). Level 1 saves nothing.
const OPTIMIZATION: &str = "xla_backend_optimization_level";

/// The options of a baseline compile.
fn quickly(options: &CompileOptions) -> CompileOptions {
    options.clone().flag(OPTIMIZATION, 0i64)
}

/// The smallest module, to ask a compiler about its flags.
const IDENTITY: &str =
    "module { func.func public @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }";

/// The devices that code is made for, as far as code depends on them.
#[derive(Clone, Debug)]
pub struct Machine {
    plugin: Plugin,
    platform: String,
    version: String,
    /// Id and kind of the device of each replica; at least one.
    devices: Vec<(i64, String)>,
    /// The number of threads that the plugin found when its client was created.
    threads: String,
}

impl Machine {
    /// Devices that are present.
    pub(super) fn here(client: &Client, devices: &[fuseline_pjrt::Device]) -> Machine {
        Machine {
            plugin: client.plugin(),
            platform: client.platform_name().to_owned(),
            version: client.platform_version().to_owned(),
            devices: devices.iter().map(|device| (device.id(), device.kind().to_owned())).collect(),
            threads: threads(),
        }
    }

    /// `replicas` devices of a topology, from `first` on. `None` if it has too few.
    pub fn of(topology: &Topology, first: usize, replicas: usize) -> Option<Machine> {
        let devices = topology.devices().get(first..first.checked_add(replicas)?)?;
        Some(Machine {
            plugin: topology.plugin(),
            platform: topology.platform_name().to_owned(),
            version: topology.platform_version().to_owned(),
            devices: devices.iter().map(|device| (device.id, device.kind.clone())).collect(),
            threads: threads(),
        })
    }

    /// Whether the host's processor computes, as far as is known. Code for other devices does not
    /// depend on the host.
    fn is_host(&self) -> bool {
        !matches!(self.platform.as_str(), "cuda" | "rocm" | "sycl" | "tpu")
    }
}

/// How many threads can compute: the processors that the scheduler allows this thread, which XLA
/// asks for, and what a limit of its control group leaves of them.
fn threads() -> String {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"));
    let digits = mask.into_iter().flat_map(str::chars).filter_map(|digit| digit.to_digit(16));
    match digits.map(u32::count_ones).sum::<u32>() {
        0 => available.to_string(),
        processors => format!("{available} on {processors} processors"),
    }
}

/// A compiler for a machine.
#[derive(Debug)]
pub struct Compiler {
    machine: Machine,
    numerics: Numerics,
    target: Target,
    /// Options by the kind of region; see [`Compiler::options`].
    options: [CompileOptions; 4],
    /// Whether the plugin accepts the options of a baseline compile.
    has_quick: bool,
}

impl Compiler {
    /// `flags` are set on top of the platform's defaults. `asked` compiles a module, only to find
    /// out whether the options are accepted.
    ///
    /// # Errors
    /// When the compiler refuses one of `flags`.
    pub fn new(
        machine: Machine,
        flags: &[(String, fuseline_pjrt::Flag)],
        numerics: Numerics,
        asked: impl Fn(&str, &CompileOptions) -> std::result::Result<(), fuseline_pjrt::Error>,
    ) -> std::result::Result<Compiler, fuseline_pjrt::Error> {
        let takes = |options: &CompileOptions| asked(IDENTITY, options);
        let ids: Vec<i64> = machine.devices.iter().map(|device| device.0).collect();
        let mut base = CompileOptions::new().devices(ids.len() as u32, 1, &ids)?;
        for (name, value) in flags {
            base = base.flag(name.clone(), value.clone());
        }
        if !flags.is_empty() {
            takes(&base)?;
        }
        let named = |name: &str| flags.iter().any(|(given, _)| given == name);
        let cpu = machine.platform == "cpu";
        // The user's flags take precedence over ours.
        let with =
            |options: &CompileOptions, name: &str, value: fuseline_pjrt::Flag| match cpu && !named(name) {
                true => options.clone().flag(name, value),
                false => options.clone(),
            };
        for (name, value) in MEMORY_ORDER {
            let ordered = with(&base, name, value());
            if ordered == base || takes(&ordered).is_ok() {
                base = ordered;
                break;
            }
        }
        // On by default in API 0.81. The maximum of NaN and a number is then the number.
        base = with(&base, "xla_cpu_enable_fast_min_max", false.into());
        let exact = if numerics == Numerics::Exact { &EXACT[..] } else { &[] };
        for (name, value) in SOUND.iter().chain(exact) {
            let flagged = with(&base, name, value());
            if flagged != base && takes(&flagged).is_ok() {
                base = flagged;
            }
        }
        if numerics == Numerics::Fast {
            let wide = if has_wide_vectors() { &FAST[..] } else { &FAST[..1] };
            // Both together, if the plugin knows both.
            for flags in [wide, &FAST[..1], &wide[1..]] {
                let fast = flags.iter().fold(base.clone(), |base, (name, value)| with(&base, name, value()));
                if fast != base && takes(&fast).is_ok() {
                    base = fast;
                    break;
                }
            }
        }
        let options = [0, 1, 2, 3].map(|kind| {
            let mut options = base.clone();
            // With several threads a product is cut into other blocks, whose sums round
            // differently. Also, threads may not pay for an op that runs alone.
            if kind & HEAVY == 0 || numerics == Numerics::Exact {
                options = with(&options, "xla_cpu_multi_thread_eigen", false.into());
            }
            if kind & WINDOW_SUM != 0 {
                options = with(&options, "xla_cpu_use_fusion_emitters", false.into());
            }
            options
        });
        let has_quick = cpu && !named(OPTIMIZATION) && takes(&quickly(&base)).is_ok();
        let target = if cpu { Target::CPU } else { Target::Accelerator };
        Ok(Compiler { machine, numerics, target, options, has_quick })
    }

    /// The compiler flags of a region without special needs.
    pub(crate) fn flags(&self) -> impl Iterator<Item = (&str, &fuseline_pjrt::Flag)> {
        self.options[0].flags()
    }

    pub(crate) fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// The target that modules are written for.
    pub(super) fn target(&self) -> Target {
        self.target
    }

    /// The options of a small region.
    pub(super) fn plain_options(&self) -> &CompileOptions {
        &self.options[0]
    }

    /// Sets the float types whose subnormal numbers a present device flushes to zero.
    pub(super) fn set_flushed(&mut self, flushed: DTypeSet) {
        if let Target::Cpu { flushed: known } = &mut self.target {
            *known = flushed;
        }
    }

    pub(super) fn has_quick_compiles(&self) -> bool {
        self.has_quick
    }

    pub(crate) fn plugin(&self) -> Plugin {
        self.machine.plugin
    }

    /// How many threads can compute.
    pub(crate) fn threads(&self) -> &str {
        &self.machine.threads
    }

    /// Whether code depends on the host's processor.
    pub(crate) fn is_for_host(&self) -> bool {
        self.machine.is_host()
    }

    /// An injective description of everything that executables depend on.
    pub fn describe(&self) -> Vec<u8> {
        let Machine { plugin, platform, version, devices, .. } = &self.machine;
        let mut out = Writer::new();
        out.bytes(platform.as_bytes());
        out.bytes(version.as_bytes());
        let version = plugin.api_version();
        out.bytes(format!("{version:?}").as_bytes());
        let attributes = plugin.attributes();
        out.len(attributes.len());
        for (name, value) in attributes {
            out.bytes(name.as_bytes());
            out.bytes(format!("{value:?}").as_bytes());
        }
        out.bytes(self.numerics.to_string().as_bytes());
        out.bytes(self.target.flushed().to_string().as_bytes());
        out.len(devices.len());
        for (id, kind) in devices {
            out.bytes(kind.as_bytes());
            out.int(*id);
        }
        for options in &self.options {
            out.bytes(&options.to_bytes());
        }
        out.into_vec()
    }

    /// The same by name, for reports of what differs. A part that is longer than a line is replaced
    /// by its hash.
    pub(crate) fn parts(&self) -> Vec<(String, String)> {
        let Machine { plugin, platform, version, devices, .. } = &self.machine;
        let mut parts = vec![
            ("platform".to_owned(), platform.clone()),
            ("platform version".to_owned(), version.clone()),
            ("PJRT version".to_owned(), plugin.api_version().to_string()),
            ("numerics".to_owned(), self.numerics.to_string()),
            ("subnormal numbers are zero in".to_owned(), self.target.flushed().to_string()),
        ];
        for (name, value) in plugin.attributes() {
            parts.push((format!("plugin's {name}"), format!("{value:?}")));
        }
        for (id, kind) in devices {
            parts.push(("device".to_owned(), format!("{id} {kind}")));
        }
        for (kind, options) in self.options.iter().enumerate() {
            let hash = blake3::hash(&options.to_bytes()).to_hex();
            parts.push((format!("compile options {kind}"), hash.to_string()));
        }
        parts
    }

    /// The options for a region. They are a function of the region, so its key need not contain
    /// them.
    pub fn options(&self, region: &CanonRegion, tier: Tier) -> Cow<'_, CompileOptions> {
        // Inside bodies too: a loop may contain a matrix product.
        let any = |test: &mut dyn FnMut(&Signature) -> bool| region.graph().any_op(test);
        let heavy = any(&mut |signature| {
            signature.products() >= HEAVY_PRODUCT || signature.op() == OpCode::TriangularSolve
        });
        let window_sum = any(&mut |signature| {
            let rounds = |body: &Arc<Body>| {
                body.graph().nodes().iter().any(|node| {
                    node.signature().def().rounding == Rounding::Rounded
                        && node.signature().results().iter().any(|ty| ty.dtype().is_float())
                })
            };
            signature.op() == OpCode::ReduceWindow && signature.bodies().iter().any(rounds)
        });
        let kind = if heavy { HEAVY } else { 0 } | if window_sum { WINDOW_SUM } else { 0 };
        let options = Cow::Borrowed(&self.options[kind]);
        if tier == Tier::Baseline && self.has_quick { Cow::Owned(quickly(&options)) } else { options }
    }

    /// The module of a region, as the plugin gets it.
    ///
    /// # Errors
    /// When an op of it cannot be computed as the contract requires, or our own verifier rejects
    /// the text.
    pub fn module(
        &self,
        region: &CanonRegion,
        outputs: &[u32],
        aliases: &Aliases,
        constants: &SpecializedScalars,
    ) -> Result<Verified> {
        let unsteady =
            if self.numerics == Numerics::Exact { lower::context_dependent_op(region) } else { None };
        if let Some(op) = unsteady {
            let message =
                format!("`{}` may be computed otherwise together with other ops than alone", op.name());
            return Err(DeviceError::new(Stage::Compile, message));
        }
        let module =
            lower::lower_for(self.target, region, outputs, aliases, self.numerics, constants).verify();
        module.map_err(|error| DeviceError::new(Stage::Compile, error.to_string()))
    }

    /// The parameters of a region's module.
    pub(super) fn parameters(&self, region: &CanonRegion) -> fuseline_pjrt::Parameters {
        let pack = lower::ScalarPack::of(self.target, region, self.numerics);
        fuseline_pjrt::Parameters::Known(pack.parameters(region).into())
    }
}

/// Checks that a region can be compiled as a whole.
///
/// # Errors
/// When its module would have too many ops.
pub fn check_module_size(region: &CanonRegion) -> Result<()> {
    if lower::fits_module(region.graph()) {
        return Ok(());
    }
    let message =
        format!("its ops are lowered to more than {MAX_GRAPH_OPS} ops, which is the most of a module");
    Err(DeviceError { cause: Cause::TooManyOps, ..DeviceError::new(Stage::Compile, message) })
}
