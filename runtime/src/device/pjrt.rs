//! Runs regions on a PJRT device.

use std::sync::Arc;

use fuseline_cache::Record;
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::lower::{Aliases, LOWERING, Numerics, Target};
use fuseline_fusion::op::{Evidence, Workaround, WorkaroundSet};
use fuseline_fusion::{DType, Ref, TensorType};
use fuseline_pjrt::{Client, ClientOptions, CompileOptions};
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::buffer::Data;
use super::capabilities::{Capabilities, base_options, check_user_flags};
use super::compiler::Compiler;
use super::features::Features;
use super::machine::Machine;
use super::memory::{LiveMemory, MemoryPlan};
use super::scalar_args::ScalarBuffer;
use super::{Buffer, CompileSpec, DeviceError, Done, Executed, PerReplica, Result, probe};
use crate::error::Stage;

/// A device of a PJRT client, or one for each replica, and the compiler for it.
#[derive(Debug)]
pub struct PjrtDevice {
    /// At least one.
    devices: PerReplica<fuseline_pjrt::Device>,
    /// The id of the latest launch on several devices. The lock is held while an execution is
    /// handed to all of them, so that they get the executions of all streams in one order.
    /// Otherwise two collectives could wait for each other. The id lets a plugin detect that.
    launch: Mutex<i32>,
    compiler: Compiler,
    /// The name of the note with the capabilities, if they can be kept.
    note: Option<Vec<u8>>,
}

/// Keeps notes for other processes and later runs.
pub trait NoteStore {
    /// The note with this name, if there is one.
    fn load(&self, name: &[u8]) -> Option<Vec<u8>>;

    /// Keeps a note. A note that cannot be kept is dropped.
    fn keep(&self, name: &[u8], note: &[u8]);
}

/// The result of a compile.
pub(super) struct Compiled {
    pub(super) executable: fuseline_pjrt::Executable,
    /// Memory that the executable occupies.
    pub(super) bytes: u64,
    /// Memory that an execution needs, if the plugin reports it.
    pub(super) memory: Option<MemoryPlan>,
}

impl Compiled {
    /// Describes an executable whose text or serialized form has `text` bytes.
    fn of(executable: fuseline_pjrt::Executable, text: usize) -> Compiled {
        // XLA:CPU reports the size of its code; other plugins may not. Code is assumed to be no
        // smaller than its text.
        let code = executable.generated_code_size().ok().and_then(|size| u64::try_from(size).ok());
        let bytes = code.unwrap_or(0).max(text as u64);
        // A plugin that reports nothing is assumed to need what the ops need.
        let memory = executable.memory_stats().ok().and_then(|stats| MemoryPlan::of(&stats));
        Compiled { executable, bytes, memory }
    }
}

impl PjrtDevice {
    /// Creates the device. `devices` has at least one element, of a client with `client_options`;
    /// `flags` are set on top of the platform's defaults. `notes` keeps what probes find out.
    /// `left_out` are workarounds to leave out instead of those that a qualification has found
    /// unnecessary.
    ///
    /// # Errors
    /// When the compiler refuses one of `flags`.
    pub fn new(
        devices: PerReplica<fuseline_pjrt::Device>,
        client_options: &ClientOptions,
        flags: &[(String, fuseline_pjrt::Flag)],
        numerics: Numerics,
        left_out: Option<WorkaroundSet>,
        notes: &dyn NoteStore,
    ) -> std::result::Result<PjrtDevice, fuseline_pjrt::Error> {
        let client = devices[0].client();
        let machine = Machine::here(client, &devices);
        let base = base_options(&machine.ids(), flags)?;
        let request = Capabilities::request(&machine, client_options, &base, numerics);
        let noted = request.as_ref().and_then(|request| notes.load(request));
        let mut compiler = match noted.and_then(|note| Capabilities::decode(machine.platform(), &note)) {
            Some(known) => Compiler::with_capabilities(machine, base, numerics, known),
            None => {
                let compiler = probed(client, &devices, machine, base, numerics)?;
                if let Some(request) = request.as_ref().filter(|_| compiler.capabilities().is_complete()) {
                    notes.keep(request, &compiler.capabilities().encode());
                }
                compiler
            }
        };
        let noted = || notes.load(&workaround_note(request.as_ref()?));
        let unneeded = || noted().map(|note| workarounds_of(&note)).unwrap_or_default();
        compiler.leave_out(left_out.unwrap_or_else(unneeded));
        Ok(PjrtDevice { devices, launch: Mutex::new(Rank::Launch, 0), compiler, note: request })
    }

    /// The device of the first replica.
    pub fn device(&self) -> &fuseline_pjrt::Device {
        &self.devices[0]
    }

    /// Number of replicas.
    pub fn replicas(&self) -> usize {
        self.devices.len()
    }

    /// The name and the text of the note that has later engines leave out these workarounds. `None`
    /// if it is unknown what that depends on.
    pub(crate) fn note_of_workarounds(&self, unneeded: WorkaroundSet) -> Option<(Vec<u8>, Vec<u8>)> {
        let names: Vec<&str> = unneeded.iter().map(Workaround::name).collect();
        Some((workaround_note(self.note.as_ref()?), names.join("\n").into_bytes()))
    }

    /// The plugin.
    pub(crate) fn plugin(&self) -> fuseline_pjrt::Plugin {
        self.client().plugin()
    }

    /// What the plugin was found to do.
    pub fn capabilities(&self) -> &Capabilities {
        self.compiler.capabilities()
    }

    /// Asks the device of the first replica for its optional features.
    ///
    /// # Errors
    /// When the plugin does not compile or run the smallest programs.
    pub fn features(&self) -> std::result::Result<Features, fuseline_pjrt::Error> {
        let options = CompileOptions::new().device(self.device().id());
        Features::of(self.client(), self.device(), &options)
    }

    /// The compiler for the device.
    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    pub(crate) fn is_near_host(&self) -> bool {
        self.devices.len() == 1 && self.is_on_cpu()
    }

    /// Whether the code of executables lies in the memory of this process.
    pub(super) fn is_on_cpu(&self) -> bool {
        self.client().platform_name() == "cpu"
    }

    fn client(&self) -> &Client {
        self.device().client()
    }

    /// Registers the handlers that a region calls with the plugin.
    fn allow_handlers(&self, region: &CanonRegion) -> std::result::Result<(), fuseline_pjrt::Error> {
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
        spec: &CompileSpec,
    ) -> Result<Compiled> {
        let module = self.compiler.module(region, outputs, aliases, &spec.constants)?;
        self.allow_handlers(region).map_err(|error| DeviceError::pjrt(Stage::Compile, &error))?;
        let executable = self
            .client()
            .compile_as(
                module.text().as_bytes(),
                &self.compiler.options(region, spec.tier),
                self.compiler.parameters(region),
            )
            .map_err(|error| DeviceError::pjrt(Stage::Compile, &error))?;
        Ok(Compiled::of(executable, module.text().len()))
    }

    /// Loads a serialized executable of the same region, results and aliases.
    pub(super) fn load(&self, region: &CanonRegion, outputs: &[u32], record: &Record) -> Result<Compiled> {
        let failed = |error: &fuseline_pjrt::Error| DeviceError::pjrt(Stage::Compile, error);
        self.allow_handlers(region).map_err(|error| failed(&error))?;
        let parameters = self.compiler.parameters(region);
        // SAFETY: holds because records come from our caches only. These return what was sealed
        // with the user's key, for the same environment: the same plugin file, device and options
        // (STORE-1 in `runtime/src/store/mod.rs`). What they seal was returned by
        // `Executable::serialize`.
        let loaded = unsafe { self.client().deserialize_as(&record.artifact, None, parameters) };
        let executable = loaded.map_err(|error| failed(&error))?;
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
        executable: &fuseline_pjrt::Executable,
        args: &[&Buffer],
        packed: &[ScalarBuffer],
        veto: &[i64],
        live: &Arc<LiveMemory>,
    ) -> Result<Executed> {
        let fail = |error: fuseline_pjrt::Error| DeviceError::pjrt(Stage::Execute, &error);
        let mut options = fuseline_pjrt::ExecuteOptions {
            non_donatable: veto,
            want_completion_event: true,
            ..fuseline_pjrt::ExecuteOptions::default()
        };
        if self.devices.len() == 1 {
            let execution = executable.execute(&arguments(args, packed, 0)?, &options).map_err(fail)?;
            let output = |output| Buffer::of(Data::Pjrt(PerReplica::from([output])), live);
            let done = execution.done.map(|event| Done::Plugin(PerReplica::from([event])));
            return Ok(Executed {
                outputs: execution.outputs.into_iter().map(output).collect(),
                done,
                mark: None,
            });
        }
        let lists = (0..self.devices.len()).map(|replica| arguments(args, packed, replica));
        let lists = lists.collect::<Result<Vec<_>>>()?;
        let lists: Vec<&[&fuseline_pjrt::Buffer]> = lists.iter().map(SmallVec::as_slice).collect();
        let mut launch = self.launch.lock();
        *launch = launch.checked_add(1).unwrap_or(1);
        options.launch_id = *launch;
        let executions = executable.execute_on_all(&lists, &options).map_err(fail)?;
        drop(launch);
        let mut outputs: SmallVec<[PerReplica<fuseline_pjrt::Buffer>; 4]> =
            executable.outputs().iter().map(|_| PerReplica::with_capacity(executions.len())).collect();
        let mut done = PerReplica::new();
        for execution in executions {
            done.extend(execution.done);
            outputs.iter_mut().zip(execution.outputs).for_each(|(each, output)| each.push(output));
        }
        let done = (!done.is_empty()).then_some(Done::Plugin(done));
        let output = |each| Buffer::of(Data::Pjrt(each), live);
        Ok(Executed { outputs: outputs.into_iter().map(output).collect(), done, mark: None })
    }

    /// Uploads the words of scalars to each device.
    pub(super) fn upload_words(&self, words: &[u32]) -> Result<PerReplica<fuseline_pjrt::Buffer>> {
        let ty = TensorType::of(DType::U32, &[words.len() as u64]).expect("a few words");
        let upload = |device| self.client().buffer_from_host(&ty, fuseline_pjrt::bytes_of(words), device);
        let each: std::result::Result<_, _> = self.devices.iter().map(upload).collect();
        each.map_err(|error| DeviceError::pjrt(Stage::Execute, &error))
    }

    /// Uploads data that the device may use in place. Several devices get copies.
    pub(super) fn upload_owned(&self, ty: &TensorType, data: fuseline_pjrt::HostData) -> Result<Data> {
        let [device] = self.devices.as_slice() else {
            return self.upload(ty, &mut std::iter::repeat_n(data.as_bytes(), self.devices.len()));
        };
        self.client()
            .buffer_from_owned(ty, data, device)
            .map(|buffer| Data::Pjrt(SmallVec::from([buffer])))
            .map_err(|error| DeviceError::pjrt(Stage::Transfer, &error))
    }

    /// Uploads host data for each replica.
    pub(super) fn upload(&self, ty: &TensorType, parts: &mut dyn Iterator<Item = &[u8]>) -> Result<Data> {
        let each = self.devices.iter().zip(parts);
        let each = each.map(|(device, part)| self.client().buffer_from_host(ty, part, device));
        let each: std::result::Result<PerReplica<_>, _> = each.collect();
        each.map(Data::Pjrt).map_err(|error| DeviceError::pjrt(Stage::Transfer, &error))
    }
}

/// The name of the note with the workarounds that a plugin does not need, given that of the note
/// with its capabilities.
fn workaround_note(capabilities: &[u8]) -> Vec<u8> {
    [b"workarounds", &LOWERING.to_le_bytes()[..], capabilities].concat()
}

/// The workarounds that a note names. Names of other versions of this crate are ignored. So are
/// workarounds whose need does not show in calls, which an earlier version may have written.
fn workarounds_of(note: &[u8]) -> WorkaroundSet {
    let text = String::from_utf8_lossy(note);
    let known = text.lines().filter_map(Workaround::from_name);
    let known = known.filter(|workaround| workaround.evidence() == Evidence::Calls);
    known.fold(WorkaroundSet::NONE, WorkaroundSet::with)
}

/// The compiler for a machine whose capabilities are not known yet.
fn probed(
    client: &Client,
    devices: &[fuseline_pjrt::Device],
    machine: Machine,
    base: CompileOptions,
    numerics: Numerics,
) -> std::result::Result<Compiler, fuseline_pjrt::Error> {
    let ask = |module: &str, options: &CompileOptions| client.compile(module, options).map(drop);
    check_user_flags(&base, &ask)?;
    let capabilities = Capabilities::probe(machine.platform(), &base, &ask);
    let mut compiler = Compiler::with_capabilities(machine, base, numerics, capabilities);
    if matches!(compiler.target(), Target::Cpu { .. }) && devices.len() == 1 {
        // If the plugin cannot run the probe, the platform's defaults apply.
        if let Ok(flushed) = probe::flushed(client, &devices[0], compiler.plain_options()) {
            compiler.set_flushed(flushed);
        }
    }
    Ok(compiler)
}

/// The arguments of one replica.
fn arguments<'a>(
    args: &[&'a Buffer],
    packed: &'a [ScalarBuffer],
    replica: usize,
) -> Result<SmallVec<[&'a fuseline_pjrt::Buffer; 32]>> {
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
