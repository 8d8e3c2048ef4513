//! Special values through every tier of one process: an op means the same to the interpreter, to
//! baseline, optimized, padded and specialized executables, and in every mode.
//!
//! Programs consist of ops whose results have one right bit pattern: moves, comparisons, selections
//! and conversions, integers, and single products and roots of `f32` and `f64`. Their inputs are
//! NaN, infinities, zeros of both signs and subnormal numbers. Each execution is compared bit by
//! bit with the interpreter under the device's arithmetic. Elementwise ops that round run next to
//! them, on inputs of their own: their results are within the documented tolerance, and special
//! values are preserved.

use std::collections::HashMap;
use std::sync::Arc;

use fuseline::fusion::lower::Target;
use fuseline::fusion::op::{ComparisonType, Fusibility, Rounding, rounds, tolerance};
use fuseline::fusion::program::ProgramId;
use fuseline::fusion::{DTypeSet, OpDef, Signature};
use fuseline::interp::{self, SumOrder};
use fuseline::{
    Attrs, DType, Engine, EngineConfig, Literal, Mode, OpCode, Result, ShapeClasses, Tensor, with_mode,
};
use fuseline_qualify::judge::{Float, Rule, Verdict, steps};
use fuseline_testgen::{Aim, ProgramOptions, ProgramSampler, Seeded};

use super::{different, number, programs};

use crate::support::{plugin, wait_until};

/// The number of programs in one region: most of a small compile is a fixed cost.
const TOGETHER: u64 = 20;

/// The number of executions of a region: enough for the interpreter's ten and for the baseline.
const ROUNDS: usize = 12;

/// A call of a program; operands are indices of its values.
struct Call {
    signature: Arc<Signature>,
    operands: Vec<usize>,
    /// Whether executors may round its results differently.
    rounds: bool,
}

/// Calls, their inputs, and the right data of all results.
#[derive(Default)]
struct Calls {
    inputs: Vec<(usize, Arc<Literal>)>,
    calls: Vec<Call>,
    values: Vec<Option<Arc<Literal>>>,
}

/// Whether a result has one right bit pattern, whatever else the region computes.
/// [`fuseline::Numerics::Fast`] allows to fuse a product with a sum, or to keep a short float in a
/// longer one.
fn is_determined(signature: &Signature) -> bool {
    let wide = |dtype: DType| matches!(dtype, DType::F32 | DType::F64);
    match signature.op() {
        OpCode::Multiply | OpCode::Sqrt => wide(signature.results()[0].dtype()),
        // XLA does not define the bits of random numbers.
        OpCode::Rng | OpCode::RngBitGenerator => false,
        _ => !rounds(signature),
    }
}

/// Whether the sign of a NaN makes a difference to an op.
fn reads_sign_of_nan(signature: &Signature) -> bool {
    let attrs = signature.attrs().view();
    match signature.op() {
        OpCode::BitcastConvert => true,
        OpCode::Compare => attrs.member(1) == ComparisonType::TotalOrder as u8,
        _ => false,
    }
}

/// Whether an op that rounds is within the tolerance for all operands.
fn is_accurate(signature: &Signature) -> bool {
    // Their errors grow with their operands or near their zeros.
    let is_inaccurate = matches!(
        signature.op(),
        OpCode::Cbrt | OpCode::Digamma | OpCode::Lgamma | OpCode::Polygamma | OpCode::Zeta
    );
    let is_random = matches!(signature.op(), OpCode::Rng | OpCode::RngBitGenerator);
    signature.def().fusibility == Fusibility::Elementwise && !is_inaccurate && !is_random
}

/// The first element of a result that is out of tolerance, or is another kind of number.
fn mismatch(found: &Literal, wanted: &Literal) -> Option<String> {
    let dtype = wanted.dtype().part();
    let rule = Rule { rounding: Rounding::Rounded, steps: steps(dtype), absolute: 0.0 };
    // Approximations of long floats have larger errors between the special numbers.
    let share = if dtype.size() <= 2 { 0.0 } else { tolerance(dtype) };
    let [found, wanted] = [found, wanted].map(|data| Float::all(data.dtype(), data.bytes()));
    found
        .iter()
        .zip(&wanted)
        .position(|(&found, &wanted)| {
            let zeros = found.magnitude() == 0 && wanted.magnitude() == 0;
            let off = (found.value() - wanted.value()).abs();
            let is_right = rule.judge(found, wanted) != Verdict::Wrong || off <= share * wanted.value().abs();
            !is_right || (zeros && found.is_negative() != wanted.is_negative())
        })
        .map(|at| format!("element {at} is {:e}, not {:e}", found[at].value(), wanted[at].value()))
}

impl Calls {
    fn add(&mut self, seed: u64) {
        let dtypes = DTypeSet::WHOLE_BYTES.and(DTypeSet::of(&[
            DType::Bool,
            DType::I32,
            DType::U8,
            DType::U32,
            DType::I64,
            DType::BF16,
            DType::F16,
            DType::F32,
            DType::F64,
        ]));
        let accepts = |def: &OpDef| {
            // If an op has no cost estimate, its region is compiled at once.
            let is_estimated = match def.fusibility {
                Fusibility::Elementwise | Fusibility::Movement => true,
                Fusibility::Indexing => {
                    matches!(def.code, OpCode::Gather | OpCode::DynamicSlice | OpCode::DynamicUpdateSlice)
                }
                _ => false,
            };
            is_estimated && def.bodies.is_empty()
        };
        let options = ProgramOptions { dtypes, accepts, ..ProgramOptions::new(Aim::Everything) };
        let sampled = ProgramSampler::sample(options, &mut Seeded::new(seed), 8);
        let arithmetic = Target::CPU.arithmetic(SumOrder::InOrder);
        let mut places: HashMap<ProgramId, usize> = HashMap::new();
        for op in &sampled.program.ops {
            let rounds = !is_determined(&op.signature);
            if rounds && !(seed.is_multiple_of(10) && is_accurate(&op.signature)) {
                continue;
            }
            if op.signature.operands().iter().chain(op.signature.results()).any(|ty| ty.dtype().is_complex())
            {
                continue;
            }
            let operands: Vec<usize> = op
                .operands
                .iter()
                .map(|id| {
                    let mut bring = || {
                        let data = sampled.value(*id).data.clone();
                        self.inputs.push((self.values.len(), data.clone()));
                        self.values.push(Some(data));
                        self.values.len() - 1
                    };
                    // A product that is fused with a sum is not rounded, so no operand is shared.
                    if rounds { bring() } else { *places.entry(*id).or_insert_with(bring) }
                })
                .collect();
            let data: Vec<Arc<Literal>> =
                operands.iter().map(|&place| self.values[place].clone().expect("made before")).collect();
            if reads_sign_of_nan(&op.signature) && operands.iter().any(|&place| self.is_computed_nan(place)) {
                continue;
            }
            let Ok(results) = interp::call_by(arithmetic, &op.signature, &data) else { continue };
            for (id, data) in op.results.iter().zip(results) {
                if !rounds {
                    places.insert(*id, self.values.len());
                }
                self.values.push(Some(Arc::new(data)));
            }
            self.calls.push(Call { signature: op.signature.clone(), operands, rounds });
        }
    }

    /// Whether a value is a result with a NaN. No rule fixes the sign of a NaN that an op computes.
    fn is_computed_nan(&self, place: usize) -> bool {
        let is_input = self.inputs.iter().any(|(input, _)| *input == place);
        let data = self.values[place].as_ref().expect("made before");
        let is_float = data.dtype().is_float();
        let has_nan = || Float::all(data.dtype(), data.bytes()).iter().any(|part| part.value().is_nan());
        !is_input && is_float && has_nan()
    }

    /// Records all calls once. Returns all results, by index.
    fn record(&self, engine: &Engine) -> Result<Vec<(usize, Tensor)>> {
        let stream = engine.stream();
        let mut values: HashMap<usize, Tensor> = HashMap::new();
        for (place, data) in &self.inputs {
            values.insert(*place, stream.from_literal(data)?);
        }
        let mut results = Vec::new();
        // Results have the indices that no input has, in order.
        let mut next = 0;
        for call in &self.calls {
            let operands: Vec<&Tensor> = call.operands.iter().map(|place| &values[place]).collect();
            let signature = &call.signature;
            let made = stream.record(
                signature.op(),
                Attrs::clone(signature.attrs()),
                signature.bodies(),
                &operands,
            )?;
            for tensor in made {
                while self.inputs.iter().any(|(place, _)| *place == next) {
                    next += 1;
                }
                results.push((next, tensor.clone()));
                values.insert(next, tensor);
                next += 1;
            }
        }
        Ok(results)
    }

    /// Runs the calls and compares all results.
    fn check(&self, engine: &Engine, what: &str) {
        let results = self.record(engine).expect("the calls are accepted");
        for (call, (place, result)) in self.results().zip(&results) {
            let found = result.to_literal().unwrap_or_else(|error| panic!("{what}: {error}"));
            let wanted = self.values[*place].as_ref().expect("evaluated");
            let mistake = match call.rounds {
                true => mismatch(&found, wanted),
                false => (different(&found, wanted) > 0).then(|| "some bits differ".to_owned()),
            };
            assert!(
                mistake.is_none(),
                "{what}: {mistake:?}: {:?} {:?} of {:?} is {found:?}, not {wanted:?}",
                call.signature,
                call.signature.attrs(),
                call.operands.iter().map(|&place| self.values[place].clone()).collect::<Vec<_>>(),
            );
        }
    }

    /// The call of each result.
    fn results(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().flat_map(|call| std::iter::repeat_n(call, call.signature.results().len()))
    }
}

/// The number of programs. `FUSELINE_PROGRAMS` multiplies it.
const PROGRAMS: u64 = 2_000;

#[test]
fn special_values_mean_the_same_in_every_tier() {
    check_every_tier();
}

#[test]
#[ignore = "soak: `cargo xtask soak tiers`"]
fn soak_special_values_in_every_tier() {
    check_every_tier();
}

fn check_every_tier() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let range = programs(PROGRAMS);
    let mut seeds = range.clone().peekable();
    let mut batches = 0;
    while seeds.peek().is_some() {
        let mut calls = Calls::default();
        let first = seeds.peek().copied().unwrap_or_default();
        seeds.by_ref().take(TOGETHER as usize).for_each(|seed| calls.add(seed));
        for round in 0..ROUNDS {
            calls.check(&engine, &format!("programs from {first} on, round {round}"));
        }
        wait_until(&engine, |counters| counters.pending_compiles == 0);
        for _ in 0..2 {
            calls.check(&engine, &format!("programs from {first} on, compiled"));
        }
        if batches % 25 == 0 {
            for mode in [Mode::Strict, Mode::Debug] {
                with_mode(mode, || calls.check(&engine, &format!("programs from {first} on, {mode:?}")));
            }
        }
        batches += 1;
        engine.clear_cache();
    }
    let counters = engine.counters();
    println!("figures: {} programs: {counters:?}", range.end - range.start);
    if number::<u64>("FUSELINE_PROGRAM").is_none() {
        assert!(counters.interpreted > 5 * batches && counters.executions > batches, "{counters:?}");
        assert_eq!(counters.fallbacks, 0, "{counters:?}");
    }
}

/// Special numbers of arithmetic, as an array of this length.
fn odd(len: usize) -> Vec<f32> {
    let odd = [1e-40f32, -1e-40, 0.0, -0.0, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN, 1.0, -2.0, f32::MAX];
    (0..len).map(|index| odd[index % 10]).collect()
}

/// The result of `step` for [`odd`] numbers, under the device's arithmetic.
fn wanted(len: usize, scale: f32) -> Vec<u32> {
    let flush = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    let step = |x: f32| {
        let scaled = flush(flush(x) * scale);
        if flush(x) == 0.0 { -x } else { scaled }
    };
    odd(len).into_iter().map(|x| step(x).to_bits()).collect()
}

/// The scaled numbers, and the negated number where the scaled one counts as zero.
fn step(engine: &Engine, x: &Tensor, scaled: &Tensor) -> Result<Vec<f32>> {
    let zero = engine.full(0f32, &[])?;
    let is_zero = x.equal(&zero)?;
    is_zero.select(&x.neg()?, scaled)?.to_vec::<f32>()
}

fn check(found: &[f32], wanted: &[u32], what: &str) {
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let both_nan = found.is_nan() && f32::from_bits(*wanted).is_nan();
        assert!(
            both_nan || found.to_bits() == *wanted,
            "{what}: element {index} is {found:e}, not {:e}",
            f32::from_bits(*wanted)
        );
    }
}

/// A result just below the smallest normal number is zero, although rounding it to a subnormal
/// number would give the smallest normal one.
#[test]
fn results_just_below_the_least_normal_number_are_zero_in_every_tier() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    macro_rules! check {
        ($ty:ident) => {
            let (least, step) = ($ty::MIN_POSITIVE, $ty::EPSILON / 2.0);
            let lhs = [least, -least, least, least * 2.0, least, least];
            let rhs = [1.0 - step, 1.0 - step, 1.0, 0.5, 1.0 - 2.0 * step, 1.0 + 2.0 * step];
            let inverse = [1.0 + 2.0 * step, 1.0 + 2.0 * step, 1.0, 2.0, 1.0 + 4.0 * step, 1.0 - step];
            for round in 0..16 {
                let of = |data: &[$ty; 6]| engine.tensor(data, &[6]).unwrap();
                let product = of(&lhs).mul(&of(&rhs)).unwrap();
                let quotient = of(&lhs).div(&of(&inverse)).unwrap();
                let is_zero = product.equal(&of(&[0.0; 6])).unwrap().to_vec::<bool>().unwrap();
                assert_eq!(is_zero, [true, true, false, false, true, false], "products, round {round}");
                assert!(product.to_vec::<$ty>().unwrap()[1].is_sign_negative(), "round {round}");
                let is_zero = quotient.equal(&of(&[0.0; 6])).unwrap().to_vec::<bool>().unwrap();
                assert_eq!(is_zero, [true, true, false, false, true, false], "quotients, round {round}");
                if round == 11 {
                    wait_until(&engine, |counters| counters.pending_compiles == 0);
                }
            }
        };
    }
    check!(f32);
    check!(f64);
    // Values that are below it in f32 too.
    let wide = engine.tensor(&[f64::from(f32::MIN_POSITIVE) * (1.0 - 1e-9)], &[1]).unwrap();
    let below = engine.tensor(&[f64::from(f32::MIN_POSITIVE) * (1.0 - 5e-8)], &[1]).unwrap();
    for _ in 0..16 {
        for (x, wanted) in [(&wide, f32::MIN_POSITIVE), (&below, 0.0)] {
            for dtype in [DType::F32, DType::BF16] {
                let short = x.convert(dtype).unwrap().convert(DType::F32).unwrap();
                assert_eq!(short.to_vec::<f32>().unwrap(), [wanted], "{dtype}");
            }
        }
    }
    assert!(engine.counters().interpreted > 0 && engine.counters().executions > 0);
}

/// Varying sizes are padded, with masks and without.
#[test]
fn special_values_mean_the_same_in_padded_regions() {
    for classes in [ShapeClasses::Off, ShapeClasses::Unmasked, ShapeClasses::Masked] {
        let Some(engine) = plugin(EngineConfig::new().shape_classes(classes)) else { return };
        for round in 0..3 {
            for len in 1..24 {
                let x = engine.tensor(&odd(len), &[len]).unwrap();
                let found = step(&engine, &x, &(&x * 0.5).unwrap()).unwrap();
                check(&found, &wanted(len, 0.5), &format!("{classes:?}, {len} elements, round {round}"));
            }
            wait_until(&engine, |counters| counters.pending_compiles == 0);
        }
    }
}

/// A steady number is compiled in, and a neutral factor must not turn the product into a copy.
#[test]
fn special_values_mean_the_same_where_a_scalar_is_compiled_in() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    // A shorter one would not be faster.
    let x = engine.tensor(&odd(5_000), &[5_000]).unwrap();
    let wanted = wanted(5_000, 1.0);
    for divides in [false, true] {
        let before = engine.counters().specialised;
        for round in 0..1_200 {
            let scaled = if divides { &x / 1.0 } else { &x * 1.0 }.unwrap();
            check(&step(&engine, &x, &scaled).unwrap(), &wanted, &format!("{divides}, round {round}"));
            if round % 100 == 99 {
                wait_until(&engine, |counters| counters.pending_compiles == 0);
            }
        }
        assert!(engine.counters().specialised > before, "{:?}", engine.counters());
    }
}
