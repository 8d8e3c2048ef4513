//! The actions of a random program at the public API: the streams and modes in which its ops are
//! recorded, and when its values are uploaded, copied, read and dropped. Every value read is the
//! one that the reference interpreter computed.
//!
//! Input: a sampled program and choices. `tests/ops/programs.rs` and the fuzz targets share it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use fuseline::fusion::program::{ProgramId, ProgramValue};
use fuseline::{Attrs, Engine, Error, Literal, Mode, Stage, Stream, Tensor, with_mode};
use fuseline_testgen::{Entropy, Sampled};

/// The number of streams that a program records on.
pub(crate) const STREAMS: usize = 3;

/// The streams of an engine that a program records on, the default one first.
pub(crate) fn streams(engine: &Engine) -> Vec<Stream> {
    std::iter::once(engine.stream().clone()).chain((1..STREAMS).map(|_| engine.new_stream())).collect()
}

/// How a program's value gets to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Upload,
    Constant,
    Lifted,
}

impl Origin {
    pub(crate) fn drawn(value: &ProgramValue, entropy: &mut dyn Entropy) -> Origin {
        match entropy.draw(8) {
            6 => Origin::Constant,
            7 if fuseline::fusion::Scalar::of(&value.data).is_some() => Origin::Lifted,
            _ => Origin::Upload,
        }
    }
}

/// An action of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Uploads an input.
    Bring(ProgramId, Origin, usize),
    /// Records an op on a stream, in its own mode if there is one.
    Op(usize, usize, Option<Mode>),
    /// Makes another handle on a value and drops the first.
    Swap(ProgramId),
    /// Reads a value and keeps it.
    Read(ProgramId),
    /// Drops a value's handle.
    Drop(ProgramId),
    Flush(usize),
}

/// The actions of a program, in order. Every value is uploaded or made, and read or dropped, some
/// of them both.
pub(crate) fn script(sampled: &Sampled, entropy: &mut dyn Entropy) -> Vec<Step> {
    let program = &sampled.program;
    let mut steps = Vec::new();
    let mut live: Vec<ProgramId> = Vec::new();
    let streams = 1 + entropy.draw(STREAMS as u32);
    let waiting: HashMap<ProgramId, &ProgramValue> =
        program.values.iter().map(|value| (value.id, value)).collect();
    for (index, op) in program.ops.iter().enumerate() {
        for id in &op.operands {
            let Some(value) = waiting.get(id).filter(|_| !live.contains(id)) else { continue };
            let origin = Origin::drawn(value, entropy);
            live.push(*id);
            steps.push(Step::Bring(*id, origin, entropy.draw(streams) as usize));
        }
        let mode = match entropy.draw(16) {
            13 => Some(Mode::Strict),
            14 => Some(Mode::Debug),
            15 => Some(Mode::Fused),
            _ => None,
        };
        let stream = if entropy.draw(4) == 3 { entropy.draw(streams) as usize } else { 0 };
        steps.push(Step::Op(index, stream, mode));
        live.extend(&op.results);
        let later = &program.ops[index + 1..];
        live.retain(|&id| {
            let used = later.iter().any(|op| op.operands.contains(&id));
            let dropped = !used && entropy.draw(3) == 2;
            if dropped {
                steps.push(Step::Drop(id));
            }
            !dropped
        });
        let any = |entropy: &mut dyn Entropy, live: &[ProgramId]| {
            live.get(entropy.draw(live.len() as u32) as usize).copied()
        };
        if entropy.draw(12) == 11 {
            steps.extend(any(entropy, &live).map(Step::Read));
        }
        if entropy.draw(12) == 11 {
            steps.extend(any(entropy, &live).map(Step::Swap));
        }
        if entropy.draw(24) == 23 {
            steps.push(Step::Flush(entropy.draw(streams) as usize));
        }
    }
    // The remaining values are read in some order, or dropped unread.
    while !live.is_empty() {
        let id = live.swap_remove(entropy.draw(live.len() as u32) as usize);
        if entropy.draw(4) < 3 {
            steps.push(Step::Read(id));
        }
        steps.push(Step::Drop(id));
    }
    steps
}

/// A read that the plugin refused because it does not compile an op.
#[derive(Debug, Default)]
pub(crate) struct Refused(pub(crate) BTreeMap<String, usize>);

/// The result of running a script.
pub(crate) struct Outcome {
    /// The data read, in order.
    pub(crate) data: Vec<(ProgramId, Literal)>,
    pub(crate) reads: u64,
    pub(crate) ops: u64,
    pub(crate) refused: bool,
}

/// Runs a script and checks every value read. An op that the plugin does not compile is a located
/// error, and does not count as wrong; any other error does.
pub(crate) fn run(
    sampled: &Sampled,
    steps: &[Step],
    streams: &[Stream],
    refused: &mut Refused,
) -> Result<Outcome, String> {
    let mut has_refused = false;
    let mut refuse = |error: Error| {
        if error.stage() != Stage::Compile {
            return Err(error.to_string());
        }
        let mut text: String = error.to_string().chars().take(300).collect();
        // The message names the op, and a program may contain it several times.
        let ops = sampled.program.ops.iter().filter(|op| text.contains(op.signature.op().name()));
        let ops: Vec<String> =
            ops.map(|op| format!("{:?} {:?}", op.signature, op.signature.attrs())).collect();
        text += &format!(" ({})", ops.join("; "));
        *refused.0.entry(text).or_default() += 1;
        has_refused = true;
        Ok(())
    };
    let outcome = run_failing(sampled, steps, streams, &mut refuse)?;
    Ok(Outcome { refused: has_refused, ..outcome })
}

/// Like [`run`], where `failed` judges errors. Values that an error leaves unset are skipped from
/// then on.
pub(crate) fn run_failing(
    sampled: &Sampled,
    steps: &[Step],
    streams: &[Stream],
    failed: &mut dyn FnMut(Error) -> Result<(), String>,
) -> Result<Outcome, String> {
    let mut values: HashMap<ProgramId, Tensor> = HashMap::new();
    let mut outcome = Outcome { data: Vec::new(), reads: 0, ops: 0, refused: false };
    for step in steps {
        match *step {
            Step::Bring(id, origin, stream) => {
                let (stream, data) = (&streams[stream], &sampled.value(id).data);
                let tensor = match origin {
                    Origin::Upload => stream.from_literal(data),
                    Origin::Constant => {
                        outcome.ops += 1;
                        stream.constant(Literal::clone(data))
                    }
                    Origin::Lifted => {
                        let scalar = fuseline::fusion::Scalar::of(data).expect("a real scalar");
                        Ok(stream.lift(scalar))
                    }
                };
                match tensor {
                    Ok(tensor) => drop(values.insert(id, tensor)),
                    Err(error) => failed(error)?,
                }
            }
            Step::Op(index, stream, mode) => {
                let op = &sampled.program.ops[index];
                let mut operands = Vec::new();
                for id in &op.operands {
                    match values.get(id) {
                        Some(tensor) => operands.push(tensor),
                        None => break,
                    }
                }
                if operands.len() < op.operands.len() {
                    // Debug mode refused the op that makes it, or its upload failed.
                    continue;
                }
                let signature = &op.signature;
                let record = || {
                    let attrs = Attrs::clone(signature.attrs());
                    streams[stream].record(signature.op(), attrs, signature.bodies(), &operands)
                };
                outcome.ops += 1;
                let results = match mode {
                    Some(mode) => with_mode(mode, record),
                    None => record(),
                };
                match results {
                    Ok(results) => values.extend(op.results.iter().copied().zip(results)),
                    Err(error) => failed(error)?,
                }
            }
            Step::Swap(id) => {
                if let Some(tensor) = values.remove(&id) {
                    values.insert(id, tensor.clone());
                }
            }
            Step::Read(id) => {
                let Some(tensor) = values.get(&id) else { continue };
                outcome.reads += 1;
                match tensor.to_literal() {
                    Ok(data) => {
                        sampled.value(id).check(&data).map_err(|error| format!("value {id}: {error}"))?;
                        outcome.data.push((id, data));
                    }
                    Err(error) => failed(error)?,
                }
            }
            Step::Drop(id) => drop(values.remove(&id)),
            Step::Flush(stream) => streams[stream].flush(),
        }
    }
    Ok(outcome)
}

/// The program, its actions, and the program as a file.
pub(crate) fn describe(sampled: &Sampled, steps: &[Step]) -> String {
    let mut text = String::new();
    for op in &sampled.program.ops {
        let _ = writeln!(
            text,
            "{:?} = {:?} {:?} {:?}",
            op.results,
            op.signature,
            op.operands,
            op.signature.attrs()
        );
    }
    let _ = writeln!(text, "{steps:?}\n{}", sampled.program.to_json());
    text
}
