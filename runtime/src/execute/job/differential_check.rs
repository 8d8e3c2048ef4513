//! The differential check compares a region's executable once with its ops one by one.
//!
//! Input: a region about to be launched for the first time with an executable. Output: a
//! [`Verdict`] on that executable.
//!
//! The region runs twice on the same inputs: as a whole, and op by op. The program gets the results
//! of the ops. When both runs have ended, a background task compares them on the host and decides
//! whether the executable may be used. Until then the region runs op by op. If a difference was
//! found, it does so for as long as the executable lives. An executable may return more than the
//! compared execution needs. The first execution that needs another result has that compared too.
//!
//! Invariants:
//! - DIFF-1: a program gets a result of an executable of several ops only after a comparison has
//!   found that result to be the same as that of the ops.
//! - DIFF-2: a check fails no value. If the check itself fails, the verdict stays open, and the
//!   next execution starts another.
//!
//! "The same" means what the contract of the engine says ([`Numerics`]): the same bits, or close
//! enough. All NaNs are equal.

use std::fmt;
use std::sync::Arc;

use fuseline_cache::Hit;
use fuseline_fusion::lower::Numerics;
use fuseline_fusion::op::{Rounding, rounding_class, tolerance};
use fuseline_fusion::{DType, Graph, Ref, Signature, TensorType};

use super::{BoundArguments, Job, Progress};
use crate::device::{Buffer, Device, DeviceError, Executable, Verdict, after};
use crate::engine::queue_item::QueueItem;
use crate::engine::stream::StreamShared;
use crate::engine::value::{Outcome, ValueCell};
use crate::event::Event;
use crate::region::RegionInfo;

/// How close a result of a region has to be to that of its ops.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tolerance {
    /// Every bit is the same.
    Bits,
    /// Each element differs by at most this part of the largest magnitude in the result.
    Within(f64),
    /// The result may be anything, because a discontinuous op has amplified rounding.
    None,
}

/// One result to compare.
struct ComparedOutput {
    result: u32,
    bar: Tolerance,
    /// From the region.
    fused: Buffer,
    /// From its ops.
    single: Arc<ValueCell>,
}

/// A comparison that waits for the ops to end.
struct Comparison {
    info: Arc<RegionInfo>,
    question: PendingCheck,
    subjects: Vec<ComparedOutput>,
}

/// A check of an executable. If it is dropped without a verdict, the question is open again.
struct PendingCheck {
    executable: Arc<Executable>,
    /// The results to compare.
    results: Vec<u32>,
    verdict: Verdict,
}

impl Drop for PendingCheck {
    fn drop(&mut self) {
        self.executable.trial().end(std::mem::take(&mut self.verdict), &self.results);
    }
}

impl Job {
    /// Whether the job may be launched with an executable. If not, returns how it proceeds instead.
    /// Its inputs have data.
    pub(super) fn trusts(
        self: Box<Self>,
        hit: &Hit<Executable>,
        stream: &Arc<StreamShared>,
    ) -> Result<Box<Job>, Progress> {
        let engine = stream.engine();
        if self.is_single() || !engine.config().compares_regions() {
            return Ok(self);
        }
        let region = self.info.reference;
        let needed = || self.outputs.iter().map(|&(result, _)| result);
        match hit.artifact.trial().begin(needed()) {
            Verdict::Same => return Ok(self),
            Verdict::Different(why) => {
                return Err(self.split(format!("it was found to differ from its ops: {why}"), stream));
            }
            Verdict::Pending => {}
            Verdict::Open => {
                let results = needed().collect();
                let question =
                    PendingCheck { executable: hit.artifact.clone(), results, verdict: Verdict::Open };
                if let Err(error) = self.run_in_shadow(question, stream) {
                    let why = format!("it could not be compared with its ops: {}", error.message);
                    return Err(self.split(why, stream));
                }
            }
        }
        engine.emit(|| Event::CheckRunning { region });
        Err(self.run_ops())
    }

    /// Runs the region as a whole without publishing its results, and starts a comparison with the
    /// results of its ops.
    fn run_in_shadow(&self, question: PendingCheck, stream: &Arc<StreamShared>) -> Result<(), DeviceError> {
        let (engine, executable) = (stream.engine(), &question.executable);
        let BoundArguments { args, scalars, .. } = self.bind(executable)?;
        // Donate nothing: the ops have yet to read the inputs.
        let all: Vec<i64> = executable.reusable().iter().map(|&(place, _)| place).collect();
        let executed = engine.device().execute(executable, &args, scalars.into_iter(), &all)?;
        self.track_in_flight(executed.done, executed.mark, None, stream);
        let bars = bars(self.info.canon.graph(), engine.device().numerics());
        let mut needed = self.outputs.iter().peekable();
        let mut subjects = Vec::with_capacity(self.outputs.len());
        for (&result, fused) in executable.outputs().iter().zip(executed.outputs) {
            if let Some((_, value)) = needed.next_if(|(needed, _)| *needed == result) {
                let (bar, single) = (bars[result as usize], value.holder().clone());
                subjects.push(ComparedOutput { result, bar, fused, single });
            }
        }
        Comparison { info: self.info.clone(), question, subjects }.when_all_are_there(stream);
        Ok(())
    }
}

impl Comparison {
    /// Starts the task once the ops have been launched.
    fn when_all_are_there(self, stream: &Arc<StreamShared>) {
        let cells: Vec<Arc<ValueCell>> = self.subjects.iter().map(|subject| subject.single.clone()).collect();
        let owner = Arc::downgrade(stream);
        let launched = after(cells.len(), move |_| {
            // Without a stream nobody is left to run the region.
            let Some(stream) = owner.upgrade() else { return };
            let engine = stream.clone();
            let task = (move || self.compare(&stream)).into();
            engine.engine().threads().compile().push_background(None, QueueItem::new(task));
        });
        for cell in cells {
            let launched = launched.clone();
            // The comparison detects failures.
            cell.outcome().subscribe(move || launched(Ok(())));
        }
    }

    fn compare(mut self, stream: &StreamShared) {
        let engine = stream.engine();
        let region = self.info.reference;
        let Ok(difference) = self.difference(engine.device()) else { return };
        engine.counters().compared.add(1);
        self.question.verdict = match &difference {
            None => Verdict::Same,
            Some(difference) => {
                engine.counters().different.add(1);
                Verdict::Different(difference.as_str().into())
            }
        };
        // Before the event: whoever hears of the verdict may use the executable.
        drop(self);
        engine.emit(|| Event::Compared { region, difference });
    }

    /// The first difference. An error if something to be compared failed.
    fn difference(&self, device: &Device) -> Result<Option<String>, ()> {
        for ComparedOutput { result, bar, fused, single } in &self.subjects {
            let Some(Outcome::Data { buffer, .. }) = single.outcome().get() else { return Err(()) };
            let dtype = fused.ty().dtype();
            for replica in 0..device.replicas() {
                let get = |buffer| device.download(buffer, replica).map_err(drop);
                let (fused, single) = (get(fused)?, get(buffer)?);
                if let Some(difference) = difference(dtype, *bar, &fused, &single) {
                    let node = self.info.canon.graph().maker(Ref::Result(*result)).unwrap_or_default();
                    let (op, site) = self.info.address(node);
                    let op = op.map_or("an op", |op| op.name());
                    return Ok(Some(format!("{difference} in the result of {op}, recorded at {site}")));
                }
            }
        }
        Ok(None)
    }
}

/// The tolerance of each result of a graph.
fn bars(graph: &Graph, numerics: Numerics) -> Vec<Tolerance> {
    if numerics == Numerics::Exact {
        return vec![Tolerance::Bits; graph.result_count()];
    }
    // The effect of rounding on each value: on its last digits, how often on the longest path to
    // it, or, after a discontinuous op, on everything.
    let mut done: Vec<(Rounding, u32)> = Vec::with_capacity(graph.result_count());
    let mut bars = Vec::with_capacity(graph.result_count());
    for node in graph.nodes() {
        let signature = node.signature();
        let operands = node.operands().iter().map(|operand| match *operand {
            Ref::Param(_) => (Rounding::Exact, 0),
            Ref::Result(index) => done[index as usize],
        });
        let none = (Rounding::Exact, 0);
        let worse = |(a, n): (Rounding, u32), (b, m): (Rounding, u32)| (a.worse(b), n.max(m));
        let (before, roundings) = operands.fold(none, worse);
        let after = match (before, rounding_class(signature)) {
            (Rounding::Step, _) | (Rounding::Rounded, Rounding::Step) => Rounding::Step,
            (Rounding::Rounded, _) | (_, Rounding::Rounded) => Rounding::Rounded,
            _ => Rounding::Exact,
        };
        let own = if rounding_class(signature) == Rounding::Exact { 0 } else { roundings_of(signature) };
        for ty in signature.results() {
            done.push((after, roundings + own));
            bars.push(match after {
                Rounding::Exact => Tolerance::Bits,
                Rounding::Rounded => Tolerance::Within(share(ty.dtype().part(), roundings + own)),
                Rounding::Step => Tolerance::None,
            });
        }
    }
    bars
}

/// How often an op rounds: once, and if it combines many elements as often as a pairwise sum of
/// them.
fn roundings_of(signature: &Signature) -> u32 {
    let count = |types: &[TensorType]| types.iter().map(|ty| ty.elems().get()).max().unwrap_or(0).max(1);
    1 + (count(signature.operands()) / count(signature.results())).max(1).ilog2()
}

/// The relative error of a result after this number of roundings. A region may round between its
/// ops and at its end, or only there. A short float is off by half a unit in the last place each
/// time, and later ops may double that. Longer floats also have other sums and functions, which
/// [`tolerance`] covers.
fn share(dtype: DType, roundings: u32) -> f64 {
    let most = tolerance(dtype);
    match dtype.float_format() {
        Some(format) if dtype.size() <= 2 => {
            let half = f64::from(format.mantissa + 1).exp2().recip();
            most.min(2.0 * half * f64::from(roundings + 1))
        }
        _ => most,
    }
}

/// An element that differs too much.
struct Mismatch {
    element: usize,
    fused: f64,
    single: f64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} is {:e}, and {:e} op by op,", self.element, self.fused, self.single)
    }
}

/// The first element that differs by more than the tolerance.
fn difference(dtype: DType, bar: Tolerance, fused: &[u8], single: &[u8]) -> Option<String> {
    if bar == Tolerance::None || fused == single {
        return None;
    }
    let part = dtype.part();
    let pairs = fused.chunks(part.size()).zip(single.chunks(part.size()));
    let Some(format) = part.float_format() else {
        let element = pairs.clone().position(|(fused, single)| fused != single)?;
        return Some(format!("element {element} is not what it is op by op"));
    };
    let number = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        format.decode(u64::from_le_bytes(word))
    };
    let most = match bar {
        Tolerance::Within(share) => {
            let finite =
                single.chunks(part.size()).map(|bytes| number(bytes).abs()).filter(|x| x.is_finite());
            share * finite.fold(0.0, f64::max)
        }
        _ => 0.0,
    };
    let parts = dtype.size() / part.size();
    let mismatch = pairs.enumerate().find_map(|(index, (fused, single))| {
        if fused == single {
            return None;
        }
        let mismatch = Mismatch { element: index / parts, fused: number(fused), single: number(single) };
        let (a, b) = (mismatch.fused, mismatch.single);
        let is_near = matches!(bar, Tolerance::Within(_)) && (a - b).abs() <= most;
        let is_same = is_near || (a.is_nan() && b.is_nan());
        (!is_same).then_some(mismatch)
    });
    mismatch.map(|mismatch| mismatch.to_string())
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::{Attrs, OpCode};

    use super::*;

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn found(bar: Tolerance, fused: &[f32], single: &[f32]) -> bool {
        difference(DType::F32, bar, &bytes(fused), &bytes(single)).is_some()
    }

    #[test]
    fn bits_are_bits() {
        let next = f32::from_bits(1f32.to_bits() + 1);
        assert!(!found(Tolerance::Bits, &[1.0, f32::NAN], &[1.0, -f32::NAN]));
        assert!(found(Tolerance::Bits, &[1.0, next], &[1.0, 1.0]));
        assert!(found(Tolerance::Bits, &[0.0], &[-0.0]));
        assert!(found(Tolerance::Bits, &[f32::NAN], &[1.0]));
        assert!(difference(DType::I8, Tolerance::Bits, &[1, 2], &[1, 3]).is_some());
        let complex = difference(
            DType::C64,
            Tolerance::Bits,
            &bytes(&[1.0, 2.0, 3.0, 4.0]),
            &bytes(&[1.0, 2.0, 3.0, 5.0]),
        );
        assert!(complex.unwrap().starts_with("element 1 is"));
    }

    #[test]
    fn near_is_a_share_of_the_largest() {
        let bar = Tolerance::Within(1e-4);
        assert!(!found(bar, &[100.0, 1e-3], &[100.0, 2e-3]));
        assert!(found(bar, &[100.0, 1e-3], &[100.0, 0.1]));
        assert!(found(bar, &[1e-9], &[2e-9]));
        assert!(found(bar, &[1e-9], &[0.0]));
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(found(bar, &[1.0, odd], &[1.0, 2.0]) && found(bar, &[1.0, 2.0], &[1.0, odd]));
            assert!(!found(bar, &[1.0, odd], &[1.0, odd]));
        }
        assert!(found(bar, &[f32::INFINITY], &[f32::NEG_INFINITY]));
        assert!(!found(Tolerance::None, &[1.0], &[2.0]));
    }

    /// Of one op two halves of a step each way, of many ops more, and never a quarter.
    #[test]
    fn short_floats_may_differ_by_their_roundings() {
        let bars_of = |ops: usize| {
            let mut graph = Graph::new();
            let mut x = graph.param(TensorType::of(DType::BF16, &[4]).unwrap());
            for _ in 0..ops {
                x = graph.push(OpCode::Exponential, Attrs::none(), &[], &[x]).unwrap()[0];
            }
            bars(&graph, Numerics::Fast).pop().unwrap()
        };
        let off = |bar: Tolerance, numbers: [u16; 2]| {
            let [fused, single] = numbers.map(u16::to_le_bytes);
            difference(DType::BF16, bar, &fused, &single).is_some()
        };
        // 1, the number two steps further, and those 5 and 20 % away.
        let one = 0x3f80;
        for (ops, other, is_found) in [
            (1, one + 2, false),
            (1, 0x3f86, true),
            (8, 0x3f86, false),
            (8, 0x3f9a, true),
            (200, 0x3fa8, true),
        ] {
            assert_eq!(off(bars_of(ops), [other, one]), is_found, "{ops} ops, {other:x}");
        }
        assert_eq!(bars_of(1_000), Tolerance::Within(tolerance(DType::BF16)));
    }

    #[test]
    fn what_a_jump_makes_of_rounded_numbers_is_not_compared() {
        let ty = TensorType::of(DType::F32, &[4]).unwrap();
        let mut graph = Graph::new();
        let x = graph.param(ty);
        let mut op = |op, operands: &[Ref]| graph.push(op, Attrs::none(), &[], operands).unwrap()[0];
        let whole = op(OpCode::Floor, &[x]);
        let negative = op(OpCode::Negate, &[whole]);
        let exponential = op(OpCode::Exponential, &[negative]);
        let jumped = op(OpCode::Floor, &[exponential]);
        op(OpCode::Add, &[jumped, x]);
        let share = Tolerance::Within(tolerance(DType::F32));
        assert_eq!(
            bars(&graph, Numerics::Fast),
            [Tolerance::Bits, Tolerance::Bits, share, Tolerance::None, Tolerance::None]
        );
        assert_eq!(bars(&graph, Numerics::Exact), [Tolerance::Bits; 5]);
    }
}
