//! Compiled programs: parsed StableHLO text, and the interpreter that runs it.
//!
//! The serialized form is a header, the compile options and the text; see [`Program::serialize`]. A
//! change of a single bit is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fuseline_fusion::text::TextModule;
use fuseline_fusion::{Literal, TensorType};
use fuseline_interp::{Arithmetic, run_body, run_body_replicated};
use pjrt_sys::PJRT_Buffer_Type;
use pjrt_sys::protos::xla::CompileOptionsProto;
use prost::Message as _;

use crate::buffer::{Buffer, Place, Value, planned};
use crate::client::{Client, number_of};
use crate::defects::defects;
use crate::event::{Promise, words};
use crate::plan::{DATA_LOSS, Failure, INTERNAL, UNIMPLEMENTED};
use crate::points::RUN;
use crate::registry::{Handle, Held};

/// A program, compiled for devices of a client.
pub(crate) struct Program {
    module: TextModule,
    text: String,
    options: Vec<u8>,
    pub(crate) name: String,
    pub(crate) fingerprint: String,
    /// Indices of the devices, one for each replica.
    pub(crate) devices: Vec<usize>,
    /// The devices as a C array.
    pub(crate) device_handles: Vec<Handle>,
    pub(crate) outputs: Vec<TensorType>,
    /// Types of the outputs, as C arrays.
    pub(crate) types: Vec<PJRT_Buffer_Type>,
    pub(crate) ranks: Vec<usize>,
    pub(crate) dims: Vec<i64>,
}

/// The outputs of an execution on one device, and the promise of its end.
type Started = (Vec<Handle>, Arc<Promise>);

/// The first bytes of serialized programs.
const MAGIC: &[u8; 8] = b"FUSEFAKE";
/// The version of the format. Raised with every change.
const FORM: u32 = 1;
/// Magic, version, lengths of options and text, checksum.
const HEADER: usize = 8 + 4 + 8 + 8 + 32;

impl Program {
    /// Compiles the text of a module for the devices with these handles.
    pub(crate) fn compile(handles: &[Handle], code: &[u8], options: &[u8]) -> Result<Program, Failure> {
        let text = std::str::from_utf8(code)
            .map_err(|_| Failure::new(UNIMPLEMENTED, "the module is no text; bytecode is not read here"))?;
        let module = TextModule::parse(text).map_err(|error| Failure::invalid(error.to_string()))?;
        defects().check(module.main())?;
        let devices = devices(handles.len(), options)?;
        let outputs: Vec<TensorType> = module.main().return_types().cloned().collect();
        let sizes = |ty: &TensorType| ty.dims().iter().map(|dim| *dim as i64).collect::<Vec<_>>();
        let mut hash = blake3::Hasher::new();
        hash.update(options).update(text.as_bytes());
        Ok(Program {
            name: module.name().unwrap_or("module").to_owned(),
            fingerprint: hash.finalize().to_hex().to_string(),
            device_handles: devices.iter().map(|index| handles[*index]).collect(),
            devices,
            types: outputs.iter().map(|ty| number_of(ty.dtype())).collect(),
            ranks: outputs.iter().map(TensorType::rank).collect(),
            dims: outputs.iter().flat_map(sizes).collect(),
            outputs,
            text: text.to_owned(),
            options: options.to_vec(),
            module,
        })
    }

    /// The number of ops of the module.
    pub(crate) fn ops(&self) -> u64 {
        self.module.main().graph().nodes().len() as u64
    }

    pub(crate) fn text_len(&self) -> usize {
        self.text.len()
    }

    /// Bytes of arguments, of outputs, and of outputs that alias arguments.
    pub(crate) fn memory(&self) -> [i64; 3] {
        let bytes = |ty: &TensorType| i64::try_from(ty.bytes().0).unwrap_or(i64::MAX);
        let sum = |types: &[TensorType]| types.iter().map(bytes).fold(0, i64::saturating_add);
        let aliased =
            self.module.aliases().iter().flatten().map(|output| bytes(&self.outputs[*output as usize]));
        [sum(self.parameters()), sum(&self.outputs), aliased.fold(0, i64::saturating_add)]
    }

    fn parameters(&self) -> &[TensorType] {
        self.module.main().graph().params()
    }

    pub(crate) fn serialize(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.options.len() + self.text.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORM.to_le_bytes());
        bytes.extend_from_slice(&(self.options.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.text.len() as u64).to_le_bytes());
        let mut hash = blake3::Hasher::new();
        hash.update(&bytes).update(&self.options).update(self.text.as_bytes());
        bytes.extend_from_slice(hash.finalize().as_bytes());
        bytes.extend_from_slice(&self.options);
        bytes.extend_from_slice(self.text.as_bytes());
        bytes
    }

    /// Reads the output of [`Program::serialize`]. `options` replace those in it.
    pub(crate) fn deserialize(
        client: &Client,
        bytes: &[u8],
        options: Option<&[u8]>,
    ) -> Result<Program, Failure> {
        let damaged = |why: &str| Failure::new(DATA_LOSS, format!("the serialised executable {why}"));
        let (header, body) = bytes.split_at_checked(HEADER).ok_or_else(|| damaged("is too short"))?;
        let (head, checksum) = header.split_at(HEADER - 32);
        if !head.starts_with(MAGIC) {
            return Err(damaged("does not begin as one of this plugin's"));
        }
        let form = u32::from_le_bytes(head[8..12].try_into().expect("four bytes"));
        if form != FORM {
            return Err(damaged(&format!("has form {form}, this plugin reads form {FORM}")));
        }
        let mut hash = blake3::Hasher::new();
        hash.update(head).update(body);
        if hash.finalize().as_bytes() != checksum {
            return Err(damaged("is damaged: its checksum is another"));
        }
        let len = u64::from_le_bytes(head[12..20].try_into().expect("eight bytes"));
        let len = usize::try_from(len).map_err(|_| damaged("is damaged: it is too long"))?;
        let (stored, text) =
            body.split_at_checked(len).ok_or_else(|| damaged("is damaged: it is too short"))?;
        Program::compile(client.devices(), text, options.unwrap_or(stored))
    }

    /// Starts an execution. `args` has the arguments for each device. Returns the outputs and the
    /// end of the execution for each.
    ///
    /// `kept` are positions of arguments that must not be donated. On an error, nothing has
    /// happened.
    pub(crate) fn execute(
        self: &Arc<Program>,
        client: &Client,
        handle: Handle,
        args: &[Vec<Held<Buffer>>],
        kept: &[i64],
        event_error: Option<Failure>,
    ) -> Result<Vec<Started>, Failure> {
        if args.len() != self.devices.len() {
            return Err(Failure::invalid(format!(
                "{} lists of arguments for {} devices",
                args.len(),
                self.devices.len()
            )));
        }
        let mut values = Vec::new();
        for (list, device) in args.iter().zip(&self.devices) {
            self.check(list, *device, handle)?;
            values.push(list.iter().map(|buffer| buffer.value()).collect::<Result<Vec<_>, _>>()?);
        }
        let is_kept = |place: usize| kept.iter().any(|kept| usize::try_from(*kept) == Ok(place));
        let donated = |place: &usize| self.module.aliases()[*place].is_some() && !is_kept(*place);
        for list in args {
            for place in (0..list.len()).filter(donated) {
                let is_same = |other: usize| other != place && list[other].handle == list[place].handle;
                if (0..list.len()).any(is_same) {
                    return Err(Failure::invalid(format!(
                        "argument {place} is to be donated and is given twice"
                    )));
                }
            }
        }
        for list in args {
            for place in (0..list.len()).filter(donated).filter(|place| list[*place].may_be_donated()) {
                list[place].delete();
            }
        }
        let outputs = |_: &usize| self.outputs.iter().map(|_| Value::promised()).collect::<Vec<_>>();
        let promised: Vec<Vec<Arc<Value>>> = self.devices.iter().map(outputs).collect();
        let ends: Vec<Arc<Promise>> = self.devices.iter().map(|_| Promise::new()).collect();
        if defects().breaks_donation() {
            for (list, values) in args.iter().zip(&promised) {
                for (place, output) in self.module.aliases().iter().enumerate() {
                    if let Some(output) = output.filter(|_| is_kept(place)) {
                        list[place].overwrite(values[output as usize].clone());
                    }
                }
            }
        }
        let buffer = |device: usize| {
            move |(ty, value): (&TensorType, &Arc<Value>)| {
                Buffer::of(ty.clone(), value.clone(), Place { device, client: handle })
            }
        };
        let started = promised.iter().zip(&self.devices).zip(&ends).map(|((values, device), end)| {
            (self.outputs.iter().zip(values).map(buffer(*device)).collect(), end.clone())
        });
        let started = started.collect();
        let program = self.clone();
        client.work.push(move || {
            let planned = planned(RUN, program.ops(), event_error);
            let inputs: Result<Vec<Vec<_>>, Failure> =
                values.iter().map(|list| list.iter().map(|value| value.wait()).collect()).collect();
            // The memory of donated arguments is free from here on.
            drop(values);
            let results = inputs.and_then(|inputs| planned.and_then(|()| program.run(&inputs)));
            for (index, (values, end)) in promised.iter().zip(&ends).enumerate() {
                for (place, value) in values.iter().enumerate() {
                    value.keep(results.as_ref().map(|all| all[index][place].clone()).map_err(Failure::clone));
                }
                end.keep(results.as_ref().map(|_| ()).map_err(Failure::clone));
            }
        });
        Ok(started)
    }

    /// Checks arguments against the parameters. Real plugins compare sizes at most.
    fn check(&self, args: &[Held<Buffer>], device: usize, client: Handle) -> Result<(), Failure> {
        let parameters = self.parameters();
        if args.len() != parameters.len() {
            return Err(Failure::invalid(format!(
                "{} arguments for {} parameters",
                args.len(),
                parameters.len()
            )));
        }
        for (place, (arg, parameter)) in args.iter().zip(parameters).enumerate() {
            if arg.ty != *parameter {
                return Err(Failure::invalid(format!(
                    "argument {place} is {}, the parameter {parameter}",
                    arg.ty
                )));
            }
            if (arg.device, arg.client) != (device, client) {
                return Err(Failure::invalid(format!("argument {place} is on another device or client")));
            }
        }
        Ok(())
    }

    /// Computes the results for each replica.
    fn run(&self, inputs: &[Vec<Arc<Literal>>]) -> Result<Vec<Vec<Arc<Literal>>>, Failure> {
        let body = self.module.main();
        let run = || match inputs {
            [only] if defects().is_in_ops() => {
                defects().run(Arithmetic::REFERENCE, body, only).map(|results| vec![results])
            }
            [only] => run_body(Arithmetic::REFERENCE, body, only).map(|results| vec![results]),
            several => run_body_replicated(Arithmetic::REFERENCE, body, several),
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(results) => results.map_err(|error| Failure::new(INTERNAL, error.to_string())),
            Err(panic) => {
                Err(Failure::new(INTERNAL, format!("the interpreter panicked: {}", words(&*panic))))
            }
        }
    }
}

/// The devices in the compile options, one for each replica.
fn devices(count: usize, options: &[u8]) -> Result<Vec<usize>, Failure> {
    let options = CompileOptionsProto::decode(options)
        .map_err(|error| Failure::invalid(format!("the compile options: {error}")))?;
    let build = options.executable_build_options.unwrap_or_default();
    if build.num_partitions > 1 || options.compile_portable_executable {
        return Err(Failure::new(UNIMPLEMENTED, "several partitions, and portable executables"));
    }
    let replicas = usize::try_from(build.num_replicas.max(1)).unwrap_or(usize::MAX);
    let assigned = build.device_assignment.and_then(|all| all.computation_devices.into_iter().next());
    let ids = assigned.map_or_else(|| (0..replicas as i64).collect(), |row| row.replica_device_ids);
    let index = |id: &i64| usize::try_from(*id).ok().filter(|index| *index < count);
    let devices: Option<Vec<usize>> = ids.iter().map(index).collect();
    match devices {
        Some(devices) if devices.len() == replicas => Ok(devices),
        _ => Err(Failure::invalid(format!("{replicas} replicas on devices {ids:?} of {count}"))),
    }
}
