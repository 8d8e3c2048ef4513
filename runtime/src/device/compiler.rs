//! Compiles regions for a kind of device, present or not: the options, and what they and the code
//! depend on.
//!
//! Input: a [`Machine`], and a function that asks its compiler whether it accepts options. Output:
//! a [`Compiler`]: modules, options for each region, and descriptions for keys.
//!
//! Invariant:
//! - COMPILER-1: a device that is present and the same device as a target
//!   ([`fuseline_pjrt::Topology`]) have the same description, as far as the plugin reports the same
//!   of both, unless a qualification of the device has left out workarounds. So what is compiled
//!   for one is found by the other. Devices in topologies of other shapes have other descriptions,
//!   where code depends on the shape.

use std::borrow::Cow;
use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::encode::Writer;
use fuseline_fusion::limits::MAX_GRAPH_OPS;
use fuseline_fusion::lower::{self, Aliases, Numerics, Target, Verified};
use fuseline_fusion::op::{Rounding, WorkaroundSet};
use fuseline_fusion::{Body, DTypeSet, OpCode, Signature};
use fuseline_pjrt::{CompileOptions, Plugin};

use super::capabilities::{Capabilities, base_options, check_user_flags};
use super::compiler_flags::{COMPILER_FLAGS, CompilerFlag, FlagUsage};
use super::machine::Machine;
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
/// cancel (conformance case `reduce_window_add_float64_4_6`). Its older emitters do not. Builds
/// from October 2026 on (API 0.115) have no older emitters.
const WINDOW_SUM: usize = 2;

/// A compiler for a machine.
#[derive(Debug)]
pub struct Compiler {
    machine: Machine,
    numerics: Numerics,
    target: Target,
    capabilities: Capabilities,
    /// Options by the kind of region; see [`Compiler::options`].
    options: [CompileOptions; 4],
    /// The flags of a baseline compile. `None` if the plugin refuses them.
    baseline: Option<Vec<&'static CompilerFlag>>,
}

impl Compiler {
    /// The compiler for a machine that need not be present. `flags` are set on top of the
    /// platform's defaults. `ask` compiles a module, only to find out whether the options are
    /// accepted.
    ///
    /// # Errors
    /// When the compiler refuses one of `flags`.
    pub fn new(
        machine: Machine,
        flags: &[(String, fuseline_pjrt::Flag)],
        numerics: Numerics,
        ask: impl Fn(&str, &CompileOptions) -> std::result::Result<(), fuseline_pjrt::Error>,
    ) -> std::result::Result<Compiler, fuseline_pjrt::Error> {
        let base = base_options(&machine.ids(), flags)?;
        check_user_flags(&base, &ask)?;
        let capabilities = Capabilities::probe(machine.platform(), &base, &ask);
        Ok(Compiler::with_capabilities(machine, base, numerics, capabilities))
    }

    /// The compiler for a machine with known capabilities. `base` has the flags of the user, which
    /// take precedence over those of the engine.
    pub(super) fn with_capabilities(
        machine: Machine,
        base: CompileOptions,
        numerics: Numerics,
        capabilities: Capabilities,
    ) -> Compiler {
        let is_free = |row: &&CompilerFlag| {
            let is_replaced = |name: &str| {
                COMPILER_FLAGS.iter().any(|other| other.name == name && capabilities.accepts(other))
            };
            row.platform == machine.platform()
                && capabilities.accepts(row)
                && !row.successor.is_some_and(is_replaced)
                && !base.flags().any(|(given, _)| given == row.name)
        };
        let rows: Vec<&'static CompilerFlag> = COMPILER_FLAGS.iter().filter(is_free).collect();
        let with = |options: CompileOptions, is_used: &dyn Fn(FlagUsage) -> bool| {
            let used = rows.iter().filter(|row| is_used(row.usage));
            used.fold(options, |options, row| options.flag(row.name, row.value()))
        };
        let options = [0, 1, 2, 3].map(|kind| {
            // With several threads a product is cut into other blocks, whose sums round
            // differently. Also, threads may not pay for an op that runs alone.
            let one_thread = kind & HEAVY == 0 || numerics == Numerics::Exact;
            with(base.clone(), &|usage| match usage {
                FlagUsage::OneThread => one_thread,
                FlagUsage::WindowSum => kind & WINDOW_SUM != 0,
                usage => usage.is_for_all(numerics),
            })
        });
        let baseline: Vec<_> = rows.iter().copied().filter(|row| row.usage == FlagUsage::Baseline).collect();
        let is_cpu = machine.platform() == "cpu";
        let target = match capabilities.flushed() {
            Some(flushed) if is_cpu => Target::Cpu { flushed, left_out: WorkaroundSet::NONE },
            _ if is_cpu => Target::CPU,
            _ => Target::ACCELERATOR,
        };
        let baseline = (!baseline.is_empty()).then_some(baseline);
        Compiler { machine, numerics, target, capabilities, options, baseline }
    }

    /// What the plugin was found to do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
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
        self.capabilities.set_flushed(flushed);
        if let Target::Cpu { flushed: known, .. } = &mut self.target {
            *known = flushed;
        }
    }

    /// Leaves out workarounds that the plugin does not need.
    pub(super) fn leave_out(&mut self, workarounds: WorkaroundSet) {
        self.target = self.target.leaving_out(workarounds);
    }

    pub(super) fn has_quick_compiles(&self) -> bool {
        self.baseline.is_some()
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
        let Machine { plugin, platform, version, topology, devices, .. } = &self.machine;
        let mut out = Writer::new();
        out.bytes(platform.as_bytes());
        // The platform decides whether there is one.
        for part in [version, topology] {
            out.bytes(part.as_deref().unwrap_or_default().as_bytes());
        }
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
        out.bytes(self.target.left_out().to_string().as_bytes());
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
        let Machine { plugin, platform, version, topology, devices, .. } = &self.machine;
        let mut parts = vec![("platform".to_owned(), platform.clone())];
        for (name, value) in [("platform version", version), ("topology", topology)] {
            parts.extend(value.iter().map(|value| (name.to_owned(), value.clone())));
        }
        parts.extend([
            ("PJRT version".to_owned(), plugin.api_version().to_string()),
            ("numerics".to_owned(), self.numerics.to_string()),
            ("subnormal numbers are zero in".to_owned(), self.target.flushed().to_string()),
            ("workarounds left out".to_owned(), self.target.left_out().to_string()),
        ]);
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
        let options = &self.options[kind];
        match &self.baseline {
            Some(rows) if tier == Tier::Baseline => {
                let flagged =
                    |options: CompileOptions, row: &&CompilerFlag| options.flag(row.name, row.value());
                Cow::Owned(rows.iter().fold(options.clone(), flagged))
            }
            _ => Cow::Borrowed(options),
        }
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
