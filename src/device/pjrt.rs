//! Regions on a PJRT device.

use std::borrow::Cow;
use std::sync::Arc;

use fuseline_cache::Record;
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::encode::Writer;
use fuseline_fusion::lower::{self, Aliases, Numerics, Target};
use fuseline_fusion::op::Rounding;
use fuseline_fusion::{Body, DType, OpCode, Ref, Signature, TensorType};
use smallvec::SmallVec;

use super::buffer::Data;
use super::memory::{Holdings, MemoryPlan};
use super::packed::Words;
use super::{Buffer, DeviceError, Done, Each, Executed, How, Result};
use crate::error::Stage;
use crate::pjrt::{self, Client, CompileOptions};
use crate::sync::{Mutex, Rank};

/// A device of a PJRT client, or one for each replica, and how to compile for it.
#[derive(Debug)]
pub(crate) struct PjrtDevice {
    /// At least one.
    devices: Each<pjrt::Device>,
    /// Held while an execution is handed to several devices: they all get executions in one order, whatever stream they are
    /// of, or two collectives could wait for each other. The number of the latest, by which a plugin can see that they do.
    launch: Mutex<i32>,
    numerics: Numerics,
    target: Target,
    /// Options by the kind of region; see [`PjrtDevice::options`].
    options: [CompileOptions; 4],
    /// Whether the plugin takes what [`quickly`] adds to them.
    has_quick: bool,
}

/// Multiplications of the largest product above which it pays to split its work over threads. At 32x128x128 (0.5
/// million) handing over to another thread costs as much as the product; at 128x512x512 (34 million) it does not matter
/// (pjrt.md).
const HEAVY_PRODUCT: u128 = 4_000_000;

/// Kind of region: some op has a product large enough for several threads, or solves triangular systems. What XLA does
/// with one thread sums the products inside a solve in another order, which costs up to 13 units in the last place where terms
/// cancel (conformance case `triangular_solve_float32_2_8_8_float32_2_10_8`).
const HEAVY: usize = 1;

/// Kind of region: it has a `reduce_window` that sums floats. XLA's fusion emitters (API 0.81) sum a window in another order
/// than its elements have, which costs up to 8 units in the last place where terms cancel (conformance case
/// `reduce_window_add_float64_4_6`); its older emitters do not.
const WINDOW_SUM: usize = 2;

/// A flag and what it is set to.
type FlagOf = (&'static str, fn() -> pjrt::Flag);

/// Flags of XLA's CPU compiler that order ops for memory, by age of the plugin, newest first. XLA's default order can need 34
/// times the memory of this one (pjrt.md). A plugin refuses names it does not know: API 0.81 has the second.
const MEMORY_ORDER: [FlagOf; 2] = [
    ("xla_cpu_scheduler_type", || "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED".into()),
    ("xla_cpu_enable_concurrency_optimized_scheduler", || false.into()),
];

/// Flags of XLA's CPU compiler under which it computes what each op says: no algebra across ops (without this one the steps of the
/// benchmark's `nbody` differ), no kernels of a library that has an exponential of its own, no intermediate values of more
/// precision than their type, no emitters with other approximations for an op in a fusion than for the op alone. Contraction is stopped by
/// fences (`fusion/src/lower/exact`): `xla_cpu_max_isa`, which would do it too, is accepted for one compile and not looked at (pjrt.md). The
/// emitters would be faster (black_scholes 3.5 times, norms twice), but 2 of about 700 random programs differ with them (`tan`, 2026-11-22),
/// and a check on the first inputs is no proof for all. A plugin refuses names it does not know; the check is what finds
/// out whether it needed them.
const EXACT: [FlagOf; 4] = [
    ("xla_disable_hlo_passes", || "algsimp".into()),
    ("xla_cpu_experimental_ynn_fusion_type", || "".into()),
    ("xla_allow_excess_precision", || false.into()),
    ("xla_cpu_use_fusion_emitters", || false.into()),
];

/// Flags of XLA's CPU compiler without which numbers are wrong, whatever the contract.
///
/// - XNNPACK keeps a packed copy of a product's right operand as long as that has the same address (API 0.81, `XnnFusionThunk::UpdateXnnExecutable`,
///   where the operand is a parameter). An operand that was updated where it lies, by donation, is then read as it was before. Which sizes it
///   is asked for depends on the processor; `tests/donation.rs` has one, and `gpt2/width 768` of the benchmark was wrong from its fourth step on.
const SOUND: [FlagOf; 1] = [("xla_cpu_use_xnnpack", || false.into())];

/// Flags of XLA's CPU compiler that make faster code. With exact numerics they stay as they were checked.
///
/// - It takes reductions apart into windows, which makes sums of rows 3 to 5 times as slow and maxima 11 times; what is gained by it for
///   columns the lowering does (`fusion/src/lower/columns.rs`, where the figures are).
/// - LLVM makes vectors of 256 bits by default where it could make them of 512; see [`has_wide_vectors`]. With 512, in turns with 256
///   (2 cores of an AMD EPYC of family 26, 2026-11-23, best of 800 runs of the executables of `fuseline bench`): `norms/64x256` 0.63,
///   `chain/50 ops on 1k` 0.64, `black_scholes/64k` 0.68, `gpt2/width 64` 0.78, `nbody/64` 0.83, six others from 0.90 to 1.09, within
///   what they vary by.
const FAST: [FlagOf; 2] = [
    ("xla_disable_hlo_passes", || "tree_reduction_rewriter".into()),
    ("xla_cpu_prefer_vector_width", || 512i64.into()),
];

/// Whether vectors of 512 bits are worth it. The first processors that had them slowed down for it; those that have both of these
/// extensions (AMD from Zen 4, Intel from Sapphire Rapids on) do not.
fn has_wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512vbmi2")
        && std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// How much LLVM does for XLA's CPU compiler, from 0 to 3. At 0 a compile takes 0.5 to 0.7 of the time, and what it makes is
/// 2 to 11 times as slow, the more of it is elementwise (ten programs of `fuseline bench`, 2026-11-23). 1 saves nothing.
const OPTIMIZATION: &str = "xla_backend_optimization_level";

/// The options with which a compile takes least.
fn quickly(options: &CompileOptions) -> CompileOptions {
    options.clone().flag(OPTIMIZATION, 0i64)
}

/// What the compiler has made of a region.
pub(super) struct Compiled {
    pub(super) executable: pjrt::Executable,
    /// Memory that it holds.
    pub(super) bytes: u64,
    /// Memory that an execution needs, if the plugin says so.
    pub(super) memory: Option<MemoryPlan>,
}

impl Compiled {
    /// What is known of an executable whose text, or serialised form, has so many bytes.
    fn of(executable: pjrt::Executable, text: usize) -> Compiled {
        // XLA:CPU reports the size of the code it made, other plugins may not; a kernel is not smaller than its text.
        let code = executable.generated_code_size().ok().and_then(|size| u64::try_from(size).ok());
        let bytes = code.unwrap_or(0).max(text as u64);
        // A plugin that does not say is believed to need what the ops need.
        let memory = executable.memory_stats().ok().and_then(|stats| MemoryPlan::of(&stats));
        Compiled { executable, bytes, memory }
    }
}

/// The smallest module there is, to ask a compiler about its flags.
const IDENTITY: &str =
    "module { func.func public @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }";

impl PjrtDevice {
    /// Compiles for `devices`, of which there is at least one; `flags` are set on top of the platform's defaults.
    ///
    /// # Errors
    /// When the compiler refuses one of `flags`.
    pub(crate) fn new(
        devices: Each<pjrt::Device>,
        flags: &[(String, pjrt::Flag)],
        numerics: Numerics,
    ) -> std::result::Result<PjrtDevice, pjrt::Error> {
        let ids: Vec<i64> = devices.iter().map(pjrt::Device::id).collect();
        let device = &devices[0];
        let mut base = CompileOptions::new().devices(ids.len() as u32, 1, &ids)?;
        for (name, value) in flags {
            base = base.flag(name.clone(), value.clone());
        }
        if !flags.is_empty() {
            device.client().compile(IDENTITY, &base)?;
        }
        let named = |name: &str| flags.iter().any(|(given, _)| given == name);
        let cpu = device.client().platform_name() == "cpu";
        // What the user sets goes before what we would choose.
        let with = |options: &CompileOptions, name: &str, value: pjrt::Flag| match cpu && !named(name) {
            true => options.clone().flag(name, value),
            false => options.clone(),
        };
        for (name, value) in MEMORY_ORDER {
            let ordered = with(&base, name, value());
            if ordered == base || device.client().compile(IDENTITY, &ordered).is_ok() {
                base = ordered;
                break;
            }
        }
        // On by default in API 0.81, and then the maximum of NaN and a number is the number.
        base = with(&base, "xla_cpu_enable_fast_min_max", false.into());
        let exact = if numerics == Numerics::Exact { &EXACT[..] } else { &[] };
        for (name, value) in SOUND.iter().chain(exact) {
            let flagged = with(&base, name, value());
            if flagged != base && device.client().compile(IDENTITY, &flagged).is_ok() {
                base = flagged;
            }
        }
        if numerics == Numerics::Fast {
            let wide = if has_wide_vectors() { &FAST[..] } else { &FAST[..1] };
            // Both at once, as long as a plugin knows both.
            for flags in [wide, &FAST[..1], &wide[1..]] {
                let fast = flags.iter().fold(base.clone(), |base, (name, value)| with(&base, name, value()));
                if fast != base && device.client().compile(IDENTITY, &fast).is_ok() {
                    base = fast;
                    break;
                }
            }
        }
        let options = [0, 1, 2, 3].map(|kind| {
            let mut options = base.clone();
            // On several threads a product is cut into other blocks, whose sums are rounded otherwise, and alone an op may not be worth them.
            if kind & HEAVY == 0 || numerics == Numerics::Exact {
                options = with(&options, "xla_cpu_multi_thread_eigen", false.into());
            }
            if kind & WINDOW_SUM != 0 {
                options = with(&options, "xla_cpu_use_fusion_emitters", false.into());
            }
            options
        });
        let client = devices[0].client();
        let has_quick = cpu && !named(OPTIMIZATION) && client.compile(IDENTITY, &quickly(&base)).is_ok();
        let target = if cpu { Target::Cpu } else { Target::Any };
        Ok(PjrtDevice { devices, launch: Mutex::new(Rank::Launch, 0), numerics, target, options, has_quick })
    }

    /// The device of the first replica.
    pub(crate) fn device(&self) -> &pjrt::Device {
        &self.devices[0]
    }

    pub(crate) fn replicas(&self) -> usize {
        self.devices.len()
    }

    pub(super) fn has_quick_compiles(&self) -> bool {
        self.has_quick
    }

    pub(super) fn is_near_host(&self) -> bool {
        self.devices.len() == 1 && self.client().platform_name() == "cpu"
    }

    pub(super) fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// Whom modules are written for.
    pub(super) fn target(&self) -> Target {
        self.target
    }

    fn client(&self) -> &Client {
        self.device().client()
    }

    /// An injective description of everything that executables depend on.
    pub(super) fn describe(&self) -> Vec<u8> {
        let client = self.client();
        let mut out = Writer::new();
        out.bytes(client.platform_name().as_bytes());
        out.bytes(client.platform_version().as_bytes());
        let version = client.plugin().api_version();
        out.bytes(format!("{version:?}").as_bytes());
        let attributes = client.plugin().attributes();
        out.len(attributes.len());
        for (name, value) in attributes {
            out.bytes(name.as_bytes());
            out.bytes(format!("{value:?}").as_bytes());
        }
        out.bytes(self.numerics.to_string().as_bytes());
        out.len(self.devices.len());
        for device in &self.devices {
            out.bytes(device.kind().as_bytes());
            out.int(device.id());
        }
        for options in &self.options {
            out.bytes(&options.to_bytes());
        }
        out.into_vec()
    }

    /// What of this device executables depend on, by name, for those who look at what differs. A part that is longer than a line is told by its hash.
    pub(crate) fn parts(&self) -> Vec<(String, String)> {
        let client = self.client();
        let mut parts = vec![
            ("platform".to_owned(), client.platform_name().to_owned()),
            ("platform version".to_owned(), client.platform_version().to_owned()),
            ("PJRT version".to_owned(), client.plugin().api_version().to_string()),
            ("numerics".to_owned(), self.numerics.to_string()),
        ];
        for (name, value) in client.plugin().attributes() {
            parts.push((format!("plugin's {name}"), format!("{value:?}")));
        }
        for device in &self.devices {
            parts.push(("device".to_owned(), format!("{} {}", device.id(), device.kind())));
        }
        for (kind, options) in self.options.iter().enumerate() {
            let hash = blake3::hash(&options.to_bytes()).to_hex();
            parts.push((format!("compile options {kind}"), hash.to_string()));
        }
        parts
    }

    /// The options for a region: a function of the region, so that they need not stand in its key.
    fn options(&self, region: &CanonRegion, quick: bool) -> Cow<'_, CompileOptions> {
        // Inside bodies too: a loop may hold a product of matrices.
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
        if quick && self.has_quick { Cow::Owned(quickly(&options)) } else { options }
    }

    /// What the module of a region takes.
    fn parameters(&self, region: &CanonRegion) -> pjrt::Parameters {
        let pack = lower::ScalarPack::of(self.target, region, self.numerics);
        pjrt::Parameters::Known(pack.parameters(region).into())
    }

    /// Makes the handlers that a region calls known to the plugin.
    fn allow_handlers(&self, region: &CanonRegion) -> std::result::Result<(), pjrt::Error> {
        let mut outcome = Ok(());
        let _found = region.graph().any_op(&mut |signature| {
            if let Some(target) = signature.handler() {
                outcome = self.client().allow_handler(target.name());
            }
            outcome.is_err()
        });
        outcome
    }

    pub(super) fn compile(
        &self,
        region: &CanonRegion,
        outputs: &[u32],
        aliases: &Aliases,
        how: &How,
    ) -> Result<Compiled> {
        let unsteady = if self.numerics == Numerics::Exact { lower::unsteady_op(region) } else { None };
        if let Some(op) = unsteady {
            let message =
                format!("`{}` may be computed otherwise together with other ops than alone", op.name());
            return Err(DeviceError::new(Stage::Compile, message));
        }
        let module =
            lower::lower_for(self.target, region, outputs, aliases, self.numerics, &how.fixed).verify();
        let module = module.map_err(|error| DeviceError::new(Stage::Compile, error.to_string()))?;
        self.allow_handlers(region).map_err(|error| DeviceError::pjrt(Stage::Compile, &error))?;
        let executable = self
            .client()
            .compile_as(module.text().as_bytes(), &self.options(region, how.quick), self.parameters(region))
            .map_err(|error| DeviceError::pjrt(Stage::Compile, &error))?;
        Ok(Compiled::of(executable, module.text().len()))
    }

    /// Loads what was compiled for the same region, results and aliases, and serialised.
    pub(super) fn load(&self, region: &CanonRegion, outputs: &[u32], record: &Record) -> Result<Compiled> {
        let failed = |error: &pjrt::Error| DeviceError::pjrt(Stage::Compile, error);
        self.allow_handlers(region).map_err(|error| failed(&error))?;
        let executable =
            self.client().load_record(record, self.parameters(region)).map_err(|error| failed(&error))?;
        let graph = region.graph();
        let expected = outputs.iter().map(|&output| graph.type_of(Ref::Result(output)));
        if !expected.eq(executable.outputs().iter().map(Some)) {
            return Err(DeviceError::new(
                Stage::Compile,
                "what was loaded returns other types than the region",
            ));
        }
        Ok(Compiled::of(executable, record.artifact.len()))
    }

    pub(super) fn execute(
        &self,
        executable: &pjrt::Executable,
        args: &[&Buffer],
        packed: &[Words],
        veto: &[i64],
        live: &Arc<Holdings>,
    ) -> Result<Executed> {
        let fail = |error: pjrt::Error| DeviceError::pjrt(Stage::Execute, &error);
        let mut options = pjrt::ExecuteOptions {
            non_donatable: veto,
            want_completion_event: true,
            ..pjrt::ExecuteOptions::default()
        };
        if self.devices.len() == 1 {
            let execution = executable.execute(&arguments(args, packed, 0)?, &options).map_err(fail)?;
            let output = |output| Buffer::of(Data::Pjrt(Each::from([output])), live);
            let done = execution.done.map(|event| Done::Plugin(Each::from([event])));
            return Ok(Executed {
                outputs: execution.outputs.into_iter().map(output).collect(),
                done,
                mark: None,
            });
        }
        let lists = (0..self.devices.len()).map(|replica| arguments(args, packed, replica));
        let lists = lists.collect::<Result<Vec<_>>>()?;
        let lists: Vec<&[&pjrt::Buffer]> = lists.iter().map(SmallVec::as_slice).collect();
        let mut launch = self.launch.lock();
        *launch = launch.checked_add(1).unwrap_or(1);
        options.launch_id = *launch;
        let executions = executable.execute_on_all(&lists, &options).map_err(fail)?;
        drop(launch);
        let mut outputs: SmallVec<[Each<pjrt::Buffer>; 4]> =
            executable.outputs().iter().map(|_| Each::with_capacity(executions.len())).collect();
        let mut done = Each::new();
        for execution in executions {
            done.extend(execution.done);
            outputs.iter_mut().zip(execution.outputs).for_each(|(each, output)| each.push(output));
        }
        let done = (!done.is_empty()).then_some(Done::Plugin(done));
        let output = |each| Buffer::of(Data::Pjrt(each), live);
        Ok(Executed { outputs: outputs.into_iter().map(output).collect(), done, mark: None })
    }

    /// Words of scalars on each device.
    pub(super) fn upload_words(&self, words: &[u32]) -> Result<Each<pjrt::Buffer>> {
        let ty = TensorType::of(DType::U32, &[words.len() as u64]).expect("a few words");
        let upload = |device| self.client().buffer_from_host(&ty, pjrt::bytes_of(words), device);
        let each: std::result::Result<_, _> = self.devices.iter().map(upload).collect();
        each.map_err(|error| DeviceError::pjrt(Stage::Execute, &error))
    }

    /// Data that the device may use in place; several devices get copies.
    pub(super) fn upload_owned(&self, ty: &TensorType, data: pjrt::HostData) -> Result<Data> {
        let [device] = self.devices.as_slice() else {
            return self.upload(ty, &mut std::iter::repeat_n(data.as_bytes(), self.devices.len()));
        };
        self.client()
            .buffer_from_owned(ty, data, device)
            .map(|buffer| Data::Pjrt(SmallVec::from([buffer])))
            .map_err(|error| DeviceError::pjrt(Stage::Transfer, &error))
    }

    /// Host data of each replica.
    pub(super) fn upload(&self, ty: &TensorType, parts: &mut dyn Iterator<Item = &[u8]>) -> Result<Data> {
        let each = self.devices.iter().zip(parts);
        let each = each.map(|(device, part)| self.client().buffer_from_host(ty, part, device));
        let each: std::result::Result<Each<_>, _> = each.collect();
        each.map(Data::Pjrt).map_err(|error| DeviceError::pjrt(Stage::Transfer, &error))
    }
}

/// The arguments of one replica.
fn arguments<'a>(
    args: &[&'a Buffer],
    packed: &'a [Words],
    replica: usize,
) -> Result<SmallVec<[&'a pjrt::Buffer; 32]>> {
    let mut buffers = SmallVec::with_capacity(args.len() + packed.len());
    for arg in args {
        match arg.pjrt() {
            Some(each) => buffers.push(&each[replica]),
            None => {
                return Err(DeviceError::new(Stage::Execute, "an argument is on the reference device"));
            }
        }
    }
    buffers.extend(packed.iter().map(|each| &each[replica]));
    Ok(buffers)
}
