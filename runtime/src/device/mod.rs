//! Devices that run regions.
//!
//! Input: a canonical region, or host data. Output: executables and buffers. A device is a PJRT
//! device or the reference device. The reference device runs the same regions by the reference
//! interpreter and needs no plugin. It serves for tests, for trials and as the reference when a
//! plugin is in doubt.
//!
//! A device may stand for several. An engine with several replicas runs every region on as many
//! devices of one client at once, each with its own data. Regions, keys and outcomes are those of
//! one device; only the data of a [`Buffer`] exists once per replica.
//!
//! The set of devices is closed, so a device is an enumeration and not a trait object. This module
//! has what they share (the layout of an executable's outputs, the packing of scalars, injected
//! faults); `pjrt` and `reference` have the rest.

mod buffer;
mod capabilities;
mod compile_spec;
mod compiler;
mod compiler_flags;
mod defects;
mod equivalence;
mod features;
mod machine;
mod memory;
mod pjrt;
mod probe;
mod reference;
mod scalar_args;
mod variants;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use fuseline_cache::disk::Mark;
use fuseline_cache::{Artifact, Record};
use fuseline_fusion::canon::{CanonRegion, EnvFingerprint};
use fuseline_fusion::lower::{self, Aliases, LOWERING, Numerics, ScalarPack, Target};
use fuseline_fusion::{Bytes, Graph, Literal, OpCode, Scalar, TensorType, canon};
use fuseline_interp::{self as interp, SumOrder};
use fuseline_pjrt::PluginScope;
use fuseline_sync::atomic::{AtomicBool, Ordering};
use smallvec::SmallVec;

use self::buffer::Data;
pub use self::buffer::{Buffer, PerReplica};
pub(crate) use self::buffer::{DonatedBuffer, after};
pub use self::capabilities::Capabilities;
pub use self::compile_spec::Tier;
pub(crate) use self::compile_spec::{CompileSpec, SpecializedScalars};
pub use self::compiler::{Compiler, check_module_size};
pub use self::compiler_flags::{COMPILER_FLAGS, CompilerFlag, FlagUsage};
pub(crate) use self::defects::Defects;
pub(crate) use self::equivalence::{Equivalence, Verdict};
pub use self::features::Features;
pub use self::machine::Machine;
pub(crate) use self::memory::LiveMemory;
pub use self::memory::MemoryPlan;
use self::pjrt::Compiled;
pub use self::pjrt::{NoteStore, PjrtDevice};
use self::scalar_args::ScalarArgs;
pub(crate) use self::variants::{Observation, Placement, Proposal, Reason, Subject, VariantSet};
use fuseline_pjrt as sys;

use crate::error::Stage;
use crate::mappings;
use crate::user_code::call_user;

/// A point at which a fault can be injected; see `EngineConfig::inject_faults`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultPoint {
    /// A compile.
    Compile {
        /// Ops of the region.
        ops: usize,
    },
    /// An execution.
    Execute {
        /// Ops of the region.
        ops: usize,
    },
    /// A transfer from the host.
    Upload {
        /// Size of the data.
        bytes: u64,
    },
    /// A transfer to the host.
    Download {
        /// Size of the data.
        bytes: u64,
    },
}

/// An injected fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    planned: Planned,
    /// If set, only regions with one of these ops fail.
    only: Option<Arc<[OpCode]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Planned {
    Failure { message: String, cause: Cause },
    Scratch(Bytes),
}

impl Fault {
    /// A failure other than running out of memory.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Fault {
        Planned::Failure { message: message.into(), cause: Cause::Other }.into()
    }

    /// A failure because memory runs out.
    #[must_use]
    pub fn out_of_memory(message: impl Into<String>) -> Fault {
        Planned::Failure { message: message.into(), cause: Cause::Memory }.into()
    }

    /// The compile succeeds, and the memory plan of its executable has this much additional
    /// scratch. No effect at other points.
    #[must_use]
    pub fn oversized(scratch: Bytes) -> Fault {
        Planned::Scratch(scratch).into()
    }

    /// Restricts the fault to regions with one of these ops, so that an op fails by itself and in
    /// every region. Ops in bodies do not count, and transfers have no ops.
    #[must_use]
    pub fn only_with(self, ops: impl IntoIterator<Item = OpCode>) -> Fault {
        Fault { only: Some(ops.into_iter().collect()), ..self }
    }

    fn is_for(&self, graph: Option<&Graph>) -> bool {
        let Some(only) = &self.only else { return true };
        let nodes = graph.map_or(&[][..], Graph::nodes);
        nodes.iter().any(|node| only.contains(&node.signature().op()))
    }
}

impl From<Planned> for Fault {
    fn from(planned: Planned) -> Fault {
        Fault { planned, only: None }
    }
}

/// A fault plan: returns the fault to raise at a point, if any.
pub(crate) type Faults = Arc<dyn Fn(FaultPoint) -> Option<Fault> + Send + Sync>;

/// The cause of a failure, which decides the fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Memory ran out. What needs less may work, now or later.
    Memory,
    /// The executable would allocate more memory than the host has. Nothing failed.
    ExceedsHost,
    /// The executable would need this much memory, much more than its ops one by one. Nothing
    /// failed.
    Oversized(Bytes),
    /// The module would have too many ops for a compiler. Nothing failed.
    TooManyOps,
    /// The plugin computes an op of the region wrongly, or crashes. It was not called.
    Defective,
    /// Nothing may be compiled, and the executable is not stored. Its ops would have to be compiled
    /// too.
    Uncached,
    /// The region crashed an earlier process and is not tried again for a time.
    Quarantined,
    /// The plugin does not answer.
    Stuck,
    /// The plugin was not called, because too many threads are stuck in it.
    Closed,
    /// Anything else.
    Other,
}

/// An error of a device.
#[derive(Clone, Debug)]
pub struct DeviceError {
    /// The stage that failed.
    pub stage: Stage,
    /// What happened.
    pub message: String,
    /// The kind of failure, as far as the runtime handles it.
    pub cause: Cause,
    /// The error of the plugin's call, if one failed.
    pub plugin: Option<sys::Error>,
}

impl DeviceError {
    /// An error other than running out of memory.
    pub fn new(stage: Stage, message: impl Into<String>) -> DeviceError {
        DeviceError { stage, message: message.into(), cause: Cause::Other, plugin: None }
    }

    /// There is no memory to compile in.
    pub(crate) fn out_of_memory(message: impl Into<String>) -> DeviceError {
        DeviceError { cause: Cause::Memory, ..DeviceError::new(Stage::Compile, message) }
    }

    /// Nothing may be compiled, and the executable cannot be loaded.
    pub(crate) fn uncached(why: impl Into<String>) -> DeviceError {
        DeviceError { cause: Cause::Uncached, ..DeviceError::new(Stage::Compile, why) }
    }

    fn pjrt(stage: Stage, error: &sys::Error) -> DeviceError {
        let cause = if error.is_resource_exhausted() { Cause::Memory } else { Cause::Other };
        DeviceError { stage, message: error.to_string(), cause, plugin: Some(error.clone()) }
    }

    /// The host never has the memory that the executable allocates.
    pub(crate) fn exceeds_host(message: impl Into<String>) -> DeviceError {
        DeviceError { cause: Cause::ExceedsHost, ..DeviceError::new(Stage::Compile, message) }
    }

    /// Whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.cause, Cause::Memory | Cause::ExceedsHost)
    }
}

type Result<T> = std::result::Result<T, DeviceError>;

enum DeviceKind {
    Pjrt(Box<PjrtDevice>),
    /// With this number of replicas.
    Reference(usize),
}

/// A device that runs regions.
pub struct Device {
    kind: DeviceKind,
    faults: Option<Faults>,
    environment: EnvFingerprint,
    live: Arc<LiveMemory>,
    #[cfg(any(test, feature = "testing"))]
    later: Option<Later>,
    /// Test setting: a reference device that uses the interpreter tier.
    #[cfg(any(test, feature = "testing"))]
    is_near: bool,
}

enum Loaded {
    Pjrt(sys::Executable),
    Reference,
}

/// A region compiled for a set of outputs.
pub struct Executable {
    loaded: Loaded,
    region: Arc<CanonRegion>,
    /// Numbers of the returned results, ascending.
    outputs: Vec<u32>,
    /// The arguments that may be donated: the number of the argument and of its parameter.
    reusable: Vec<(i64, u32)>,
    pack: ScalarPack,
    packed: ScalarArgs,
    /// The lifted scalars that are compiled in. It runs only where the scalars have these values.
    constants: SpecializedScalars,
    variants: VariantSet,
    bytes: u64,
    /// Estimated number of memory mappings of its code.
    mappings: u64,
    memory: Option<MemoryPlan>,
    trial: Equivalence,
    /// Marks its first execution, in case that crashes the process.
    probation: Option<FirstRunMark>,
}

/// Marks the first execution of an executable. The mark has to live until the execution is done.
pub(crate) struct FirstRunMark {
    begun: AtomicBool,
    mark: Box<dyn Fn() -> Option<Mark> + Send + Sync>,
}

impl FirstRunMark {
    pub(crate) fn new(mark: impl Fn() -> Option<Mark> + Send + Sync + 'static) -> FirstRunMark {
        FirstRunMark { begun: AtomicBool::new(false), mark: Box::new(mark) }
    }

    fn begin(&self) -> Option<Mark> {
        // Most executions are later ones, which only load.
        let is_first = !self.begun.load(Ordering::Relaxed) && !self.begun.swap(true, Ordering::Relaxed);
        if is_first { (self.mark)() } else { None }
    }
}

/// One execution.
pub(crate) struct Executed {
    /// The outputs, in the order of [`Executable::outputs`].
    pub(crate) outputs: SmallVec<[Buffer; 4]>,
    /// Fires when the device is done. `None` if it is done already.
    pub(crate) done: Option<Done>,
    /// The crash mark of the first execution.
    pub(crate) mark: Option<Mark>,
}

/// The end of an execution.
pub(crate) enum Done {
    Plugin(PerReplica<sys::Event>),
    /// A test decides when.
    #[cfg(any(test, feature = "testing"))]
    Later(Later),
}

/// Receives the completion callback of an execution of the reference device, so that a test can act
/// as a slow device.
#[cfg(any(test, feature = "testing"))]
pub type Later = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

impl Done {
    /// Waits until the device is done.
    pub(crate) fn wait(self) {
        match self {
            // Readers of the results find out whether it failed.
            Done::Plugin(each) => each.iter().for_each(|event| drop(event.wait())),
            #[cfg(any(test, feature = "testing"))]
            Done::Later(later) => {
                let (send, receive) = fuseline_sync::oneshot::channel();
                later(Box::new(move || send.send(())));
                let _ = receive.recv(None);
            }
        }
    }

    /// Calls `callback` when the device is done, on any thread.
    pub(crate) fn on_ready(self, callback: impl FnOnce() + Send + 'static) {
        match self {
            // Readers of the results find out whether it failed.
            Done::Plugin(mut each) => match (each.len(), each.pop()) {
                (1, Some(event)) => event.into_on_ready(move |_| callback()),
                (several, last) => {
                    let arrived = after(several, move |_| callback());
                    for event in each.into_iter().chain(last) {
                        let arrived = arrived.clone();
                        event.into_on_ready(move |_| arrived(Ok(())));
                    }
                }
            },
            #[cfg(any(test, feature = "testing"))]
            Done::Later(later) => later(Box::new(callback)),
        }
    }
}

impl Device {
    /// Creates a device on PJRT.
    pub fn on_pjrt(device: PjrtDevice, faults: Option<Faults>) -> Device {
        let environment = fingerprint(&device.compiler().describe());
        Device {
            kind: DeviceKind::Pjrt(Box::new(device)),
            faults,
            environment,
            live: LiveMemory::new(),
            #[cfg(any(test, feature = "testing"))]
            later: None,
            #[cfg(any(test, feature = "testing"))]
            is_near: false,
        }
    }

    /// Creates the reference device with this number of replicas.
    pub fn reference(replicas: usize, faults: Option<Faults>) -> Device {
        let mut description = b"reference interpreter".to_vec();
        description.extend_from_slice(&replicas.to_le_bytes());
        Device {
            kind: DeviceKind::Reference(replicas),
            faults,
            environment: fingerprint(&description),
            live: LiveMemory::new(),
            #[cfg(any(test, feature = "testing"))]
            later: None,
            #[cfg(any(test, feature = "testing"))]
            is_near: false,
        }
    }

    /// Creates a reference device whose executions end when a test says so.
    #[cfg(any(test, feature = "testing"))]
    pub fn slow(faults: Option<Faults>, later: Later) -> Device {
        Device { later: Some(later), ..Device::reference(1, faults) }
    }

    /// Creates a reference device with the interpreter tier, as on a plugin for the host.
    #[cfg(any(test, feature = "testing"))]
    pub fn near(faults: Option<Faults>) -> Device {
        Device { is_near: true, ..Device::reference(1, faults) }
    }

    /// Fingerprint of everything outside a region that its executables depend on.
    pub(crate) fn environment(&self) -> &EnvFingerprint {
        &self.environment
    }

    /// Number of replicas.
    pub fn replicas(&self) -> usize {
        match &self.kind {
            DeviceKind::Pjrt(device) => device.replicas(),
            DeviceKind::Reference(replicas) => *replicas,
        }
    }

    /// The numeric contract. The reference device runs the ops one by one, so it has nothing to
    /// preserve.
    pub fn numerics(&self) -> Numerics {
        self.pjrt().map_or(Numerics::Fast, |device| device.compiler().numerics())
    }

    /// The target that modules are written for.
    pub(crate) fn target(&self) -> Target {
        self.pjrt().map_or(Target::Any, |device| device.compiler().target())
    }

    /// The PJRT device, if it is one.
    pub fn pjrt(&self) -> Option<&PjrtDevice> {
        match &self.kind {
            DeviceKind::Pjrt(device) => Some(device),
            DeviceKind::Reference(_) => None,
        }
    }

    /// The fault of a transfer.
    fn transfer_fault(&self, point: FaultPoint) -> Result<()> {
        self.fault_or_scratch(Stage::Transfer, point, None).map(drop)
    }

    /// The fault of an execution.
    fn execute_fault(&self, graph: &Graph) -> Result<()> {
        let point = FaultPoint::Execute { ops: graph.nodes().len() };
        self.fault_or_scratch(Stage::Execute, point, Some(graph)).map(drop)
    }

    /// The injected fault at a point, or the additional scratch if that is the fault.
    fn fault_or_scratch(
        &self,
        stage: Stage,
        point: FaultPoint,
        graph: Option<&Graph>,
    ) -> Result<Option<Bytes>> {
        let Some(faults) = &self.faults else { return Ok(None) };
        let planned = match stage {
            // A panic of the plan is caught with those of the compile.
            Stage::Compile => faults(point),
            _ => call_user(|| faults(point)).map_err(|message| {
                DeviceError::new(stage, format!("the plan of faults panicked: {message}"))
            })?,
        };
        match planned.filter(|fault| fault.is_for(graph)).map(|fault| fault.planned) {
            Some(Planned::Failure { message, cause }) => {
                Err(DeviceError { cause, ..DeviceError::new(stage, message) })
            }
            Some(Planned::Scratch(bytes)) => Ok(Some(bytes)),
            None => Ok(None),
        }
    }

    /// Compiles a region.
    pub(crate) fn compile(&self, region: &Arc<CanonRegion>, spec: &CompileSpec) -> Result<Executable> {
        let point = FaultPoint::Compile { ops: region.graph().nodes().len() };
        let scratch = self.fault_or_scratch(Stage::Compile, point, Some(region.graph()))?;
        let (outputs, aliases) = spec.aliases(region);
        let (loaded, bytes, memory) = match &self.kind {
            DeviceKind::Pjrt(device) => {
                let compiled = device.compile(region, &outputs, &aliases, spec)?;
                (Loaded::Pjrt(compiled.executable), compiled.bytes, compiled.memory)
            }
            DeviceKind::Reference(_) => (Loaded::Reference, region.bytes().len() as u64, None),
        };
        let memory = match scratch {
            Some(scratch) => Some(memory.unwrap_or_default().with_scratch(scratch)),
            None => memory,
        };
        Ok(self.executable(region, (loaded, bytes, memory), (outputs, &aliases), spec))
    }

    /// Loads a serialized executable that was compiled for the same region and request.
    pub(crate) fn load(
        &self,
        region: &Arc<CanonRegion>,
        spec: &CompileSpec,
        record: &Record,
    ) -> Result<Executable> {
        let (outputs, aliases) = spec.aliases(region);
        let DeviceKind::Pjrt(device) = &self.kind else {
            return Err(DeviceError::new(Stage::Compile, "the reference device loads nothing"));
        };
        let Compiled { executable, bytes, memory } = device.load(region, &outputs, record)?;
        Ok(self.executable(region, (Loaded::Pjrt(executable), bytes, memory), (outputs, &aliases), spec))
    }

    fn executable(
        &self,
        region: &Arc<CanonRegion>,
        (loaded, bytes, memory): (Loaded, u64, Option<MemoryPlan>),
        (outputs, aliases): (Vec<u32>, &Aliases),
        spec: &CompileSpec,
    ) -> Executable {
        let is_plugins = matches!(loaded, Loaded::Pjrt(_));
        let reusable: Vec<(i64, u32)> = match loaded {
            // The arguments are the parameters without the lifted ones, in order.
            Loaded::Pjrt(_) => {
                let place = |param: u32| {
                    region.lifted()[..param as usize].iter().filter(|lifted| !**lifted).count() as i64
                };
                aliases.params().map(|param| (place(param), param)).collect()
            }
            Loaded::Reference => Vec::new(),
        };
        let variants = match spec.tier {
            Tier::Baseline => VariantSet::baseline(),
            Tier::Optimized => {
                // The executable with constants gets the same donations as the general one.
                let is_general = is_plugins && spec.constants.is_empty();
                let specializable = match is_general && self.numerics() != Numerics::Exact {
                    true => lower::fixable(region),
                    false => Vec::new(),
                };
                let reused = reusable.iter().map(|&(_, param)| param);
                VariantSet::optimized(region, &outputs, reused, is_general, specializable)
            }
        };
        let is_code_here = self.has_code_here();
        Executable {
            mappings: if is_code_here { mappings::estimate(region.graph().nodes().len()) } else { 0 },
            loaded,
            region: region.clone(),
            outputs,
            reusable,
            pack: ScalarPack::of(self.target(), region, self.numerics()),
            packed: ScalarArgs::new(),
            constants: spec.constants.clone(),
            variants,
            bytes,
            memory,
            trial: Equivalence::new(),
            probation: None,
        }
    }

    /// Runs an executable. `args` are the tensor parameters in order, `scalars` the lifted ones.
    /// `veto` are the numbers of arguments that must not be donated.
    pub(crate) fn execute(
        &self,
        executable: &Executable,
        args: &[&Buffer],
        scalars: impl Iterator<Item = Scalar>,
        veto: &[i64],
    ) -> Result<Executed> {
        self.execute_fault(executable.region.graph())?;
        match (&self.kind, &executable.loaded) {
            (DeviceKind::Pjrt(device), Loaded::Pjrt(loaded)) => {
                let words = executable.pack.pack(scalars);
                let upload = |words: &[u32]| device.upload_words(words);
                let packed = executable.packed.arguments(words, executable.pack.arguments(), upload)?;
                let mark = executable.probation.as_ref().and_then(FirstRunMark::begin);
                let executed = device.execute(loaded, args, &packed, veto, &self.live)?;
                Ok(Executed { mark, ..executed })
            }
            _ => {
                let (region, outputs) = (&executable.region, &executable.outputs);
                let ran = reference::execute(region, outputs, args, scalars, self.replicas(), &self.live)?;
                #[cfg(any(test, feature = "testing"))]
                let ran = Executed { done: self.later.clone().map(Done::Later), ..ran };
                Ok(ran)
            }
        }
    }

    /// The memory that values hold.
    pub fn live(&self) -> &LiveMemory {
        &self.live
    }

    /// Takes over a buffer that the plugin gave to somebody else.
    pub fn adopt(&self, buffer: sys::Buffer) -> Buffer {
        Buffer::of(Data::Pjrt(PerReplica::from([buffer])), &self.live)
    }

    /// Whether the device supports baseline compiles.
    pub(crate) fn has_quick_compiles(&self) -> bool {
        self.pjrt().is_some_and(|device| device.compiler().has_quick_compiles())
    }

    /// Whether a plugin computes on a single replica in the host's memory, so that the interpreter
    /// can use the data.
    pub(crate) fn is_near_host(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if self.is_near {
            return true;
        }
        self.pjrt().is_some_and(PjrtDevice::is_near_host)
    }

    /// Whether the code of executables lies in the memory of this process.
    pub(crate) fn has_code_here(&self) -> bool {
        self.pjrt().is_some_and(PjrtDevice::is_on_cpu)
    }

    /// Runs a graph in the interpreter on this thread, as fast as it can.
    pub(crate) fn interpret(
        &self,
        graph: &Graph,
        operands: &[Arc<Literal>],
        outputs: &[u32],
    ) -> Result<Vec<Arc<Literal>>> {
        self.execute_fault(graph)?;
        interp::run_for(graph, operands, outputs, self.target().arithmetic(SumOrder::AnyOrder))
            .map_err(|error| DeviceError::new(Stage::Execute, error.to_string()))
    }

    /// As [`Device::interpret`] for each replica. `operands` are those of each replica. Returns the
    /// requested results, each with its data on each replica.
    pub(crate) fn interpret_each(
        &self,
        graph: &Graph,
        operands: &[Vec<Arc<Literal>>],
        outputs: &[u32],
    ) -> Result<Vec<PerReplica<Arc<Literal>>>> {
        if let ([operands], Numerics::Fast) = (operands, self.numerics()) {
            let results = self.interpret(graph, operands, outputs)?;
            return Ok(results.into_iter().map(|result| PerReplica::from_iter([result])).collect());
        }
        self.execute_fault(graph)?;
        let results = interp::run_replicated(self.target().arithmetic(SumOrder::InOrder), graph, operands)
            .map_err(|error| DeviceError::new(Stage::Execute, error.to_string()))?;
        let each = |&output: &u32| results.iter().map(|all| all[output as usize].clone()).collect();
        Ok(outputs.iter().map(each).collect())
    }

    /// Copies host data to the device, the same to each replica.
    pub fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<Buffer> {
        self.upload_each(ty, &mut std::iter::repeat_n(bytes, self.replicas()))
    }

    /// Copies host data to the device; `parts` has the data of each replica.
    pub fn upload_each(&self, ty: &TensorType, parts: &mut dyn Iterator<Item = &[u8]>) -> Result<Buffer> {
        self.transfer_fault(FaultPoint::Upload { bytes: ty.bytes().0 })?;
        let _inside = PluginScope::enter();
        let data = match &self.kind {
            DeviceKind::Pjrt(device) => device.upload(ty, parts),
            DeviceKind::Reference(_) => reference::upload(ty, parts),
        };
        Ok(Buffer::of(data?, &self.live))
    }

    /// As [`Device::upload`], for data that the device may use in place.
    pub fn upload_owned(&self, ty: &TensorType, data: sys::HostData) -> Result<Buffer> {
        self.transfer_fault(FaultPoint::Upload { bytes: ty.bytes().0 })?;
        let _inside = PluginScope::enter();
        let data = match &self.kind {
            DeviceKind::Pjrt(device) => device.upload_owned(ty, data),
            DeviceKind::Reference(replicas) => {
                reference::upload(ty, &mut std::iter::repeat_n(data.as_bytes(), *replicas))
            }
        };
        Ok(Buffer::of(data?, &self.live))
    }

    /// Waits for data and copies that of one replica to the host: dense, row-major.
    pub(crate) fn download(&self, buffer: &Buffer, replica: usize) -> Result<Vec<u8>> {
        self.transfer_fault(FaultPoint::Download { bytes: buffer.ty().bytes().0 })?;
        let _inside = PluginScope::enter();
        buffer.to_host(replica)
    }

    /// Waits for data and calls `read` with that of the first replica: dense, row-major. The data
    /// is borrowed if the device shares its memory.
    pub(crate) fn read<R>(&self, buffer: &Buffer, read: impl FnOnce(Cow<'_, [u8]>) -> R) -> Result<R> {
        self.transfer_fault(FaultPoint::Download { bytes: buffer.ty().bytes().0 })?;
        let _inside = PluginScope::enter();
        buffer.read(read)
    }

    /// As [`Device::download`] of the first replica, without waiting. `callback` gets the data on
    /// any thread, possibly before this returns.
    pub(crate) fn download_async(
        &self,
        buffer: &Buffer,
        callback: impl FnOnce(Result<Vec<u8>>) + Send + 'static,
    ) {
        if let Err(error) = self.transfer_fault(FaultPoint::Download { bytes: buffer.ty().bytes().0 }) {
            return callback(Err(error));
        }
        let inside = PluginScope::enter();
        buffer.to_host_async(move |bytes| {
            callback(bytes);
            drop(inside);
        });
    }
}

/// Fingerprint of the description by [`Compiler::describe`] and of our own formats.
pub fn fingerprint(description: &[u8]) -> EnvFingerprint {
    let mut all = Vec::from([canon::FORMAT]);
    all.extend_from_slice(&LOWERING.to_le_bytes());
    all.extend_from_slice(description);
    EnvFingerprint::of(&all)
}

impl Executable {
    /// Numbers of the returned results, ascending.
    pub(crate) fn outputs(&self) -> &[u32] {
        &self.outputs
    }

    /// Arguments that may be donated: the number of the argument, and of the parameter of the
    /// region.
    pub(crate) fn reusable(&self) -> &[(i64, u32)] {
        &self.reusable
    }

    /// Lifted scalars that are compiled in.
    pub(crate) fn constants(&self) -> &SpecializedScalars {
        &self.constants
    }

    /// The policies that propose other executables of the region.
    #[inline]
    pub(crate) fn variants(&self) -> &VariantSet {
        &self.variants
    }

    /// The request for an optimized executable with the same results, which may reuse `donated`
    /// besides what this one reuses.
    pub(crate) fn spec_with(&self, mut donated: Vec<u32>) -> CompileSpec {
        donated.extend(self.reusable.iter().map(|&(_, param)| param));
        donated.sort_unstable();
        donated.dedup();
        CompileSpec { outputs: self.outputs.iter().copied().collect(), donated, ..CompileSpec::default() }
    }

    /// The memory that an execution needs, if the plugin reports it.
    pub(crate) fn memory(&self) -> Option<MemoryPlan> {
        self.memory
    }

    /// Sets the mark of the first execution.
    pub(crate) fn set_probation(&mut self, probation: FirstRunMark) {
        self.probation = Some(probation);
    }

    /// The state of its differential check.
    pub(crate) fn trial(&self) -> &Equivalence {
        &self.trial
    }

    /// The PJRT executable, if it has one.
    pub(crate) fn pjrt(&self) -> Option<&sys::Executable> {
        match &self.loaded {
            Loaded::Pjrt(executable) => Some(executable),
            Loaded::Reference => None,
        }
    }
}

impl Artifact for Executable {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn mappings(&self) -> u64 {
        self.mappings
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executable({:?}, outputs {:?})", self.region, self.outputs)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            DeviceKind::Pjrt(device) => device.fmt(f),
            DeviceKind::Reference(1) => f.write_str("Device(reference interpreter)"),
            DeviceKind::Reference(replicas) => {
                write!(f, "Device(reference interpreter, {replicas} replicas)")
            }
        }
    }
}
