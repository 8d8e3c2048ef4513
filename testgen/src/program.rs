//! Random programs that grow op by op, with the data of every value.
//!
//! Input: choices. Output: a [`Sampled`] program: its inputs, its ops and their results in the
//! reference interpreter. Each op has choices of its own, so a test framework that drops the
//! choices of an op drops the op.
//!
//! Portable programs ([`Aim::Portable`]) compare executors that round differently: one fuses a
//! multiply and an add, another sums in another order, a third keeps a `bf16` in 32 bits between
//! two ops. They satisfy:
//!
//! - PROGRAM-1: all floats are finite, at most 10,000, and neither -0 nor tiny, so overflow, signs
//!   of zero and flushed subnormal numbers never decide anything. (Inputs that are the identity
//!   elements of maximum and minimum are infinite.)
//! - PROGRAM-2: an *exact* value is one that every executor computes without rounding. Inputs and
//!   integers are exact. So are values moved or selected from exact ones, and a sum or product of
//!   floats whose bits all fit in the result's type for any order of operations. An op with
//!   discontinuities ([`Rounding::Step`]) takes only exact operands.
//! - PROGRAM-3: each inexact value carries two shadows: possible values in an executor that rounds
//!   differently. The interpreter computes them from the shadows of the operands; then each is
//!   displaced by the rounding error of the op itself. An op whose shadows deviate by more than a
//!   quarter of the [`tolerance`] is rejected. So programs contain no ill-conditioned ops, and the
//!   error of a correct executor stays well within the tolerance for any program length.

use std::sync::Arc;

use fuseline_fusion::element::{Bits, Elements, Store, from_f64, joined, parts, to_f64, to_int};
use fuseline_fusion::op::dims::{DotDims, ScanDims};
use fuseline_fusion::op::{Fusibility, OPS, Rounding, rounding_class, rounds, runs_bodies, tolerance};
use fuseline_fusion::program::{Check, Program, ProgramId, ProgramOp, ProgramValue, Role};
use fuseline_fusion::{Body, DType, DTypeClass, DTypeSet, Literal, OpCode, OpDef, Signature, TensorType};
use fuseline_interp as interp;

use super::{Aim, Entropy, Sample, SampleOperand, Sampler, fill};

/// Largest magnitude of a float in a portable program.
const LARGEST: f64 = 1e4;

/// Smallest non-zero magnitude of a float in a portable program.
const TINIEST: f64 = 1e-30;

/// Largest order of a sum of powers in a portable program. Executors differ in when they treat such
/// a power as zero.
const LARGEST_ORDER: f64 = 32.0;

/// Largest angle in a portable program: reducing it to one turn loses no more than the op's
/// rounding.
const LARGEST_ANGLE: f64 = 100.0;

/// A correct executor's result may be this many times further from the interpreter's than the
/// shadows. An executor that keeps short floats in longer ones skips the roundings of several ops.
const MARGIN: f64 = 8.0;

/// Which programs to generate.
#[derive(Clone, Copy, Debug)]
pub struct ProgramOptions {
    /// Their purpose.
    pub aim: Aim,
    /// The element types of fresh values. Others occur as results (`compare` returns `bool`).
    pub dtypes: DTypeSet,
    /// Which ops to use.
    pub accepts: fn(&OpDef) -> bool,
    /// The size of fresh dimensions that are larger than 2, for programs that differ in it
    /// ([`sample_sizes`](super::sample_sizes)).
    pub varying_size: Option<u64>,
}

impl ProgramOptions {
    /// Programs over all ops and element types.
    #[must_use]
    pub fn new(aim: Aim) -> ProgramOptions {
        ProgramOptions { aim, dtypes: DTypeSet::ANY, accepts: |_| true, varying_size: None }
    }
}

/// A value of a sampled program.
#[derive(Clone, Debug)]
pub struct SampledValue {
    /// Its data in the reference interpreter.
    pub data: Arc<Literal>,
    /// The error limit of a correct executor, relative to `1 + |x|`; 0 for exact values.
    pub tolerance: f64,
    /// Its data in executors that round differently (PROGRAM-3).
    pub(super) shadows: [Arc<Literal>; 2],
}

impl SampledValue {
    pub(super) fn exact(data: Literal) -> SampledValue {
        let data = Arc::new(data);
        SampledValue { shadows: [data.clone(), data.clone()], data, tolerance: 0.0 }
    }

    /// Whether every executor computes it without rounding (PROGRAM-2).
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.tolerance == 0.0
    }

    /// The error limit of a result, relative to `1 + |x|`: [`MARGIN`] times the distance of its
    /// shadows, and at most the tolerance. For longer floats it is at least the [`tolerance`] of
    /// the type, because executors compute sums and functions in different ways.
    fn relative_bound(&self) -> f64 {
        let dtype = self.data.dtype().part();
        let least = if dtype.size() <= 2 { 2.0 * unit(dtype) } else { tolerance(dtype) };
        let off = |shadow: &Arc<Literal>| {
            let pairs = floats(shadow).zip(floats(&self.data));
            pairs.map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f64::max)
        };
        let farthest = self.shadows.iter().map(off).fold(0.0, f64::max);
        self.tolerance.min(least.max(MARGIN * farthest))
    }

    /// Checks an executor's result: exact values must be the same numbers, others must be within
    /// the limit.
    ///
    /// # Errors
    /// Names the first element that is not.
    pub fn check(&self, actual: &Literal) -> Result<(), String> {
        if self.is_exact() {
            return Check::Exact.compare(actual, &self.data).map_err(|mismatch| mismatch.to_string());
        }
        if actual.ty() != self.data.ty() {
            return Err(format!("the output is {}, expected {}", actual.ty(), self.data.ty()));
        }
        let bound = self.relative_bound();
        for (index, (a, b)) in floats(actual).zip(floats(&self.data)).enumerate() {
            let most = bound * (1.0 + b.abs());
            let distance = (a - b).abs();
            if distance > most || distance.is_nan() {
                return Err(format!("element {index} is {a:?}, expected {b:?} give or take {most:e}"));
            }
        }
        Ok(())
    }
}

/// A program with the data of its values.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// The program. Its outputs are the results of all ops, in order. Each has a check as loose as
    /// its loosest element needs. A value's id is its index in `values`.
    pub program: Program,
    /// The values, by id.
    pub values: Vec<SampledValue>,
}

impl Sampled {
    /// The value with an id of the program.
    #[must_use]
    pub fn value(&self, id: ProgramId) -> &SampledValue {
        &self.values[id.0 as usize]
    }
}

/// Generates a program, op by op.
#[derive(Clone, Debug)]
pub struct ProgramSampler {
    options: ProgramOptions,
    values: Vec<SampledValue>,
    inputs: Vec<ProgramId>,
    ops: Vec<ProgramOp>,
}

impl ProgramSampler {
    /// Starts a program without values.
    #[must_use]
    pub fn new(options: ProgramOptions) -> ProgramSampler {
        ProgramSampler { options, values: Vec::new(), inputs: Vec::new(), ops: Vec::new() }
    }

    /// A program of about `ops` ops: one attempt for each, and as many again.
    #[must_use]
    pub fn sample(options: ProgramOptions, entropy: &mut dyn Entropy, ops: usize) -> Sampled {
        let mut sampler = ProgramSampler::new(options);
        for _ in 0..2 * ops {
            if sampler.ops.len() < ops {
                sampler.step(entropy);
            }
        }
        sampler.finish()
    }

    /// Tries to add an op; `None` if the choices do not lead to one, or the op would violate
    /// PROGRAM-1 to PROGRAM-3.
    ///
    /// # Panics
    /// If a row's generator produces a call that the row rejects or the interpreter does not run,
    /// which is a bug of the row.
    pub fn step(&mut self, entropy: &mut dyn Entropy) -> Option<&ProgramOp> {
        let rows: Vec<&'static OpDef> = OPS.iter().filter(|def| (self.options.accepts)(def)).collect();
        let def = *rows.get(entropy.draw(rows.len() as u32) as usize)?;
        // Only permitted operands are offered.
        let offered: Vec<usize> = (0..self.values.len())
            .filter(|&id| !self.needs_exact(def) || self.values[id].is_exact())
            .collect();
        let pool: Vec<TensorType> = offered.iter().map(|&id| self.values[id].data.ty().clone()).collect();
        let sampler = Sampler::new(def, &mut *entropy, &pool, self.options.dtypes, self.options.aim);
        let sample = sampler.varying_size(self.options.varying_size).sample()?;
        let fresh: Vec<Option<SampledValue>> =
            sample.operands.iter().map(|operand| self.fresh(operand, entropy)).collect();
        let operands: Vec<&SampledValue> = sample
            .operands
            .iter()
            .zip(&fresh)
            .map(|(operand, fresh)| match (operand, fresh) {
                (SampleOperand::Pool(place), _) => &self.values[offered[*place]],
                (_, Some(fresh)) => fresh,
                (_, None) => unreachable!("bug: an operand that is neither old nor new"),
            })
            .collect();
        let signature = signature(def, &sample, &pool);
        let results = self.results(&signature, &operands)?;

        let mut ids = Vec::new();
        for (operand, fresh) in sample.operands.iter().zip(fresh) {
            ids.push(match (operand, fresh) {
                (SampleOperand::Pool(place), _) => ProgramId(offered[*place] as u32),
                (_, fresh) => {
                    let id = self.add(fresh?);
                    self.inputs.push(id);
                    id
                }
            });
        }
        let results = results.into_iter().map(|value| self.add(value)).collect();
        self.ops.push(ProgramOp { signature: Arc::new(signature), operands: ids, results });
        self.ops.last()
    }

    /// The ops so far.
    #[must_use]
    pub fn ops(&self) -> &[ProgramOp] {
        &self.ops
    }

    /// The program so far.
    #[must_use]
    pub fn finish(self) -> Sampled {
        let value = |id: &ProgramId| &self.values[id.0 as usize];
        let inputs = self.inputs.iter();
        let inputs =
            inputs.map(|id| ProgramValue { id: *id, role: Role::Input, data: value(id).data.clone() });
        let outputs: Vec<ProgramId> = self.ops.iter().flat_map(|op| op.results.iter().copied()).collect();
        let program = Program {
            name: "sampled".to_owned(),
            values: inputs.collect(),
            expected: outputs.iter().map(|id| Literal::clone(&value(id).data)).collect(),
            checks: outputs.iter().map(|id| loosest_check(value(id))).collect(),
            outputs,
            ops: self.ops,
            ..Program::default()
        };
        Sampled { program, values: self.values }
    }

    fn add(&mut self, value: SampledValue) -> ProgramId {
        self.values.push(value);
        ProgramId(self.values.len() as u32 - 1)
    }

    fn fresh(&self, operand: &SampleOperand, entropy: &mut dyn Entropy) -> Option<SampledValue> {
        match operand {
            SampleOperand::Pool(_) => None,
            SampleOperand::Fresh(ty, domain) => {
                Some(SampledValue::exact(fill(entropy, ty, *domain, self.options.aim)))
            }
            SampleOperand::Given(data) => Some(SampledValue::exact(Literal::clone(data))),
        }
    }

    /// Whether an op takes only exact operands: because it has discontinuities, or because small
    /// errors may grow without bound near the ends of its domain, which the shadows may miss.
    pub(super) fn needs_exact(&self, def: &OpDef) -> bool {
        // A conversion between floats rounds, and has no discontinuities.
        let jumps = def.rounding == Rounding::Step && def.code != OpCode::Convert;
        let steep = matches!(def.code, OpCode::Power | OpCode::Atan2 | OpCode::Polygamma | OpCode::Zeta);
        self.options.aim == Aim::Portable && (jumps || steep)
    }

    /// The results of a call, if the program may contain it.
    pub(super) fn results(
        &self,
        signature: &Signature,
        operands: &[&SampledValue],
    ) -> Option<Vec<SampledValue>> {
        let eval = |pick: &dyn Fn(usize, &SampledValue) -> Arc<Literal>| -> Vec<Literal> {
            let operands: Vec<Arc<Literal>> =
                operands.iter().enumerate().map(|(place, operand)| pick(place, operand)).collect();
            interp::call(signature, &operands)
                .unwrap_or_else(|error| panic!("bug: a sample does not run: {error}"))
        };
        let data = eval(&|_, operand| operand.data.clone());
        if self.options.aim == Aim::Everything {
            return Some(data.into_iter().map(SampledValue::exact).collect());
        }
        if !data.iter().all(is_tame) {
            return None;
        }
        if runs_bodies(signature.op()) {
            return self.flow(signature, operands);
        }
        if matches!(signature.op(), OpCode::Sine | OpCode::Cosine | OpCode::Tan)
            && !floats(&operands[0].data).all(|angle| angle.abs() <= LARGEST_ANGLE)
        {
            return None;
        }
        if matches!(signature.op(), OpCode::Polygamma | OpCode::Zeta) && !converges(operands) {
            return None;
        }
        if signature.op() == OpCode::SelectAndScatter && has_ties(&operands[0].data) {
            return None;
        }
        let class = rounding_class(signature);
        let all_exact = operands.iter().all(|operand| operand.is_exact());
        let exact = all_exact
            && match class {
                Rounding::Exact => true,
                Rounding::Step => !rounds(signature),
                Rounding::Rounded => rounds_nothing(signature, operands, &data),
            };
        if exact {
            return Some(data.into_iter().map(SampledValue::exact).collect());
        }
        if class == Rounding::Step {
            return None;
        }
        let inherited = operands.iter().map(|operand| operand.tolerance).fold(0.0, f64::max);
        let roundings = match class {
            Rounding::Exact => None,
            _ => Some(roundings(signature, &data, &eval)),
        };
        let mut shadows = [0, 1].map(|side| eval(&|_, operand| operand.shadows[side].clone()).into_iter());
        let mut results = Vec::new();
        for (index, data) in data.into_iter().enumerate() {
            let rounding = roundings.as_ref().map(|roundings| roundings[index].as_slice());
            let tolerance =
                if data.dtype().is_float() { tolerance(data.dtype()).max(inherited) } else { 0.0 };
            let [first, second] = &mut shadows;
            let shadows = [first.next()?, second.next()?];
            let shadows = [0, 1].map(|side| displaced(&shadows[side], rounding, side == 1));
            if !shadows.iter().all(|shadow| is_near(shadow, &data, tolerance / 4.0)) {
                return None;
            }
            let [first, second] = shadows;
            let shadows = [Arc::new(first), Arc::new(second)];
            results.push(SampledValue { data: Arc::new(data), tolerance, shadows });
        }
        Some(results)
    }
}

/// The signature of a sample.
fn signature(def: &OpDef, sample: &Sample, pool: &[TensorType]) -> Signature {
    let types: Vec<TensorType> = sample.operands.iter().map(|operand| operand.ty(pool).clone()).collect();
    Signature::infer(def.code, sample.attrs.clone(), &sample.bodies, &types)
        .unwrap_or_else(|error| panic!("bug: a sample is refused: {error}"))
}

/// Number of floats per element: 2 for complex numbers, 0 for integers.
const fn floats_per_element(dtype: DType) -> usize {
    match dtype.class() {
        DTypeClass::Float => 1,
        DTypeClass::Complex => 2,
        _ => 0,
    }
}

/// The elements of a float literal, or the parts of complex ones; none for other types.
fn floats(literal: &Literal) -> impl Iterator<Item = f64> + '_ {
    let elements = Elements::of(literal);
    let (dtype, per_element) = (literal.dtype(), floats_per_element(literal.dtype()));
    (0..elements.len() * per_element).map(move |index| {
        let bits = elements.get(index / per_element);
        match (per_element, index % 2) {
            (1, _) => to_f64(dtype, bits),
            (_, 0) => to_f64(dtype.part(), parts(dtype, bits).0),
            _ => to_f64(dtype.part(), parts(dtype, bits).1),
        }
    })
}

/// A literal of floats or complex numbers, the inverse of [`floats`].
fn of_floats(ty: &TensorType, floats: impl Iterator<Item = f64>) -> Literal {
    let part = ty.dtype().part();
    let mut floats = floats.map(|x| from_f64(part, x));
    if ty.dtype().is_complex() {
        let pair = || Some(joined(ty.dtype(), floats.next()?, floats.next()?));
        return Store::collect(ty.clone(), std::iter::from_fn(pair)).finish();
    }
    Store::collect(ty.clone(), floats).finish()
}

/// PROGRAM-1.
fn is_tame(literal: &Literal) -> bool {
    floats(literal)
        .all(|x| x.abs() <= LARGEST && if x == 0.0 { x.is_sign_positive() } else { x.abs() >= TINIEST })
}

/// Whether the sums of `zeta` and `polygamma` converge: orders up to [`LARGEST_ORDER`], away from
/// the poles.
fn converges(operands: &[&SampledValue]) -> bool {
    let within = |operand: &SampledValue, low, high| floats(&operand.data).all(|x| (low..=high).contains(&x));
    within(operands[0], 0.0, LARGEST_ORDER) && within(operands[1], 0.125, LARGEST)
}

/// Whether two elements are equal. Executors visit windows in different orders, and select
/// different ones of equal elements.
fn has_ties(literal: &Literal) -> bool {
    let elements = Elements::of(literal);
    let mut bits: Vec<Bits> = (0..elements.len()).map(|index| elements.get(index)).collect();
    bits.sort_unstable();
    bits.windows(2).any(|pair| pair[0] == pair[1])
}

fn is_near(shadow: &Literal, data: &Literal, most: f64) -> bool {
    if !data.dtype().part().is_float() {
        return shadow == data;
    }
    floats(shadow).zip(floats(data)).all(|(a, b)| (a - b).abs() <= most * (1.0 + b.abs()))
}

fn loosest_check(value: &SampledValue) -> Check {
    let largest = floats(&value.data).map(f64::abs).fold(0.0, f64::max);
    match Check::almost(value.relative_bound() * (1.0 + largest)) {
        Some(check) if !value.is_exact() => check,
        _ => Check::Exact,
    }
}

/// Exponents of the lowest and the highest bit set in any element; `None` if all elements are zero.
fn span(literal: &Literal) -> Option<(i32, i32)> {
    let bits = floats(literal).filter(|&x| x != 0.0).map(|x| {
        let raw = x.abs().to_bits();
        let exponent = (raw >> 52) as i32 - 1023;
        let zeros = (raw | 1 << 52).trailing_zeros() as i32;
        (exponent - 52 + zeros, exponent)
    });
    bits.reduce(|(low, high), (l, h)| (low.min(l), high.max(h)))
}

/// Number of elements that contribute to one element of the result.
fn terms(signature: &Signature) -> u64 {
    let (operands, results) = (signature.operands(), signature.results());
    let per_result = |elems: u64| elems / results[0].elems().0.max(1);
    let attr = || signature.attrs().view();
    let window = || attr().ints(0).iter().product::<i64>() as u64;
    match signature.op() {
        OpCode::Reduce => 1 + per_result(operands[0].elems().0),
        OpCode::ReduceWindow | OpCode::SelectAndScatter => 1 + window(),
        OpCode::DotGeneral | OpCode::RaggedDot => {
            let contract = DotDims::of(attr()).lhs_contract;
            contract.iter().map(|&axis| operands[0].dims()[axis as usize]).product()
        }
        OpCode::Scan => {
            let dims = ScanDims::of(&signature.call()).expect("bug: a checked scan is refused");
            1 + dims.size
        }
        // All elements of a kernel, or all updates.
        OpCode::Convolution | OpCode::DynamicConv => operands[1].elems().0,
        OpCode::Scatter => 1 + operands[operands.len() - 1].elems().0,
        _ => 1,
    }
}

/// Whether a sum or product of exact floats loses no bits, in any order of operations.
fn rounds_nothing(signature: &Signature, operands: &[&SampledValue], results: &[Literal]) -> bool {
    if results.iter().all(|result| !result.dtype().part().is_float()) {
        return true;
    }
    let spans: Vec<Option<(i32, i32)>> = operands.iter().map(|operand| span(&operand.data)).collect();
    let widest = spans.iter().flatten().copied().reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
    let product = || match (spans.first(), spans.get(1)) {
        // A part of a complex product is the sum of two products.
        (Some(&Some((a, b))), Some(&Some((c, d)))) => {
            Some((a + c, b + d + 1 + i32::from(results[0].dtype().is_complex())))
        }
        _ => None,
    };
    let carries = (terms(signature).max(1)).next_power_of_two().trailing_zeros() as i32;
    let adds = |body: &Body| {
        body.graph().nodes().iter().all(|node| {
            node.signature().op() == OpCode::Add || rounding_class(node.signature()) == Rounding::Exact
        })
    };
    let needed = match signature.op() {
        OpCode::Convert if !operands[0].data.dtype().part().is_float() => {
            // Integers are not in `spans`; converting back shows whether bits were lost.
            span(&results[0]).filter(|_| converts_back(&operands[0].data, &results[0]))
        }
        OpCode::Convert => widest,
        OpCode::Add | OpCode::Subtract => widest.map(|(low, high)| (low, high + 1)),
        OpCode::Multiply => product(),
        OpCode::DotGeneral | OpCode::RaggedDot | OpCode::Convolution | OpCode::DynamicConv => {
            product().map(|(low, high)| (low, high + carries))
        }
        OpCode::Reduce | OpCode::ReduceWindow | OpCode::Scatter
            if signature.bodies().iter().all(|body| adds(body)) =>
        {
            widest.map(|(low, high)| (low, high + carries))
        }
        OpCode::SelectAndScatter if adds(&signature.bodies()[1]) => {
            widest.map(|(low, high)| (low, high + carries))
        }
        _ => return false,
    };
    let Some((low, high)) = needed else {
        // All operands are zero, or an integer lost bits.
        return spans.iter().all(Option::is_none) && operands[0].data.dtype().part().is_float();
    };
    results.iter().filter_map(|result| result.dtype().part().float_format()).all(|format| {
        let mantissa = format.mantissa as i32;
        let greatest = (1 << format.exponent) - 2 - format.bias;
        high - low <= mantissa && high <= greatest && low >= 1 - format.bias - mantissa
    })
}

/// Whether integers that were converted to floats are still the same numbers.
fn converts_back(integers: &Literal, converted: &Literal) -> bool {
    let elements = Elements::of(integers);
    let back = |(index, x): (usize, f64)| to_int(integers.dtype(), elements.get(index)) == x as i128;
    // For complex numbers, the real parts.
    let per_element = floats_per_element(converted.dtype()).max(1);
    floats(converted).step_by(per_element).enumerate().all(back)
}

/// Runs a call on data computed from each operand and its position.
type Eval<'a> = &'a dyn Fn(&dyn Fn(usize, &SampledValue) -> Arc<Literal>) -> Vec<Literal>;

/// Maximum error of a correct executor in the results of a call on exact operands: for each result,
/// a distance for each of its floats, two for a complex number. Empty if nothing rounds.
#[must_use]
pub fn rounding(signature: &Signature, operands: &[Arc<Literal>], results: &[Literal]) -> Vec<Vec<f64>> {
    if rounding_class(signature) != Rounding::Rounded {
        return vec![Vec::new(); results.len()];
    }
    let operands: Vec<SampledValue> =
        operands.iter().map(|data| SampledValue::exact(Literal::clone(data))).collect();
    let eval = |pick: &dyn Fn(usize, &SampledValue) -> Arc<Literal>| -> Vec<Literal> {
        let operands: Vec<Arc<Literal>> =
            operands.iter().enumerate().map(|(place, operand)| pick(place, operand)).collect();
        interp::call(signature, &operands)
            .unwrap_or_else(|error| panic!("bug: a call does not run twice: {error}"))
    };
    roundings(signature, results, &eval)
}

/// Maximum error by which the op itself may round each element of each result, in any executor.
fn roundings(signature: &Signature, data: &[Literal], eval: Eval<'_>) -> Vec<Vec<f64>> {
    let combines = matches!(
        signature.def().fusibility,
        Fusibility::Reduction | Fusibility::Contraction | Fusibility::Indexing
    );
    // A partial sum is at most the sum of the magnitudes, and its rounding error is a fraction of
    // itself.
    let selects = signature.op() == OpCode::SelectAndScatter;
    let magnitudes = combines.then(|| {
        eval(&|place, operand| match place {
            0 if selects => operand.data.clone(),
            _ => Arc::new(absolute(&operand.data)),
        })
    });
    let terms = terms(signature) as f64;
    let inside = grows_roundings(signature.op()).then(|| inner_roundings(data, eval));
    data.iter()
        .enumerate()
        .map(|(index, data)| {
            let part = data.dtype().part();
            let unit = unit(part);
            if let Some(inside) = &inside {
                return lengths(data).map(|x| inside[index] + 8.0 * unit * x).collect();
            }
            match &magnitudes {
                Some(magnitudes) => lengths(&magnitudes[index]).map(|m| (1.0 + terms) * unit * m).collect(),
                // Short floats are computed in longer ones, others by approximations with errors of
                // a few units.
                None => {
                    let (steps, least) = approximation(signature.op());
                    let steps = if part.size() <= 2 { 2.0 } else { steps };
                    lengths(data).map(|x| steps * unit * x.max(least)).collect()
                }
            }
        })
        .collect()
}

/// Accuracy of the worst approximation of an elementwise op: the error in units in the last place,
/// and the smallest magnitude that they apply to. A function that crosses zero as a difference of
/// large terms is accurate relative to 1.
fn approximation(op: OpCode) -> (f64, f64) {
    match op {
        OpCode::Digamma | OpCode::Lgamma => (32.0, 1.0),
        OpCode::Polygamma | OpCode::Zeta | OpCode::Erfc | OpCode::ErfInv | OpCode::Atanh => (256.0, 0.0),
        _ => (8.0, 0.0),
    }
}

/// The largest relative rounding error of a type; 0 for types that are not floats.
fn unit(dtype: DType) -> f64 {
    dtype.float_format().map_or(0.0, |format| f64::from(format.mantissa + 1).exp2().recip())
}

/// Whether an op computes in many steps, and later steps may amplify the rounding errors of earlier
/// ones.
fn grows_roundings(op: OpCode) -> bool {
    use OpCode::{BatchNormGrad, BatchNormInference, BatchNormTraining, Cholesky, Fft, TriangularSolve};
    matches!(op, BatchNormGrad | BatchNormInference | BatchNormTraining | Cholesky | Fft | TriangularSolve)
}

/// Maximum effect of the roundings inside such an op on any element of each result. The effect is
/// estimated by perturbing the operands: each element by a few units of the largest one.
fn inner_roundings(data: &[Literal], eval: Eval<'_>) -> Vec<f64> {
    let stirred = |side: bool| {
        eval(&|_, operand| {
            let data = &operand.data;
            let largest = floats(data).map(f64::abs).fold(0.0, f64::max);
            let part = data.dtype().part();
            let steps = if part.size() <= 2 { 4.0 } else { 16.0 };
            let each = vec![steps * unit(part) * largest; floats(data).count()];
            Arc::new(displaced(data, Some(&each), side))
        })
    };
    let (up, down) = (stirred(true), stirred(false));
    let most = |index: usize, data: &Literal| {
        let sides = floats(&up[index]).zip(floats(&down[index])).zip(floats(data));
        // NaN counts as an infinite distance.
        let off = sides.map(|((a, b), x)| (a - x).abs().max((b - x).abs()));
        off.fold(0.0, |most: f64, off| if off.is_nan() { f64::INFINITY } else { most.max(off) })
    };
    data.iter().enumerate().map(|(index, data)| most(index, data)).collect()
}

/// The magnitude of each of the [`floats`]; for parts of a complex number, a bound of the number's
/// magnitude.
fn lengths(literal: &Literal) -> impl Iterator<Item = f64> + '_ {
    let all: Vec<f64> = floats(literal).collect();
    let per_element = floats_per_element(literal.dtype()).max(1);
    (0..all.len()).map(move |index| {
        let first = index - index % per_element;
        all[first..first + per_element].iter().map(|x| x.abs()).sum()
    })
}

/// The magnitudes of the elements. Products of magnitudes bound products of elements, also for
/// complex numbers if the magnitude is in the real part.
fn absolute(literal: &Literal) -> Literal {
    let complex = literal.dtype().is_complex();
    if !literal.dtype().part().is_float() {
        return literal.clone();
    }
    let lengths = lengths(literal).enumerate();
    of_floats(literal.ty(), lengths.map(|(index, x)| if complex && index % 2 == 1 { 0.0 } else { x }))
}

/// The literal with each element displaced by its rounding error, in a direction that depends on
/// the element and on the side.
fn displaced(literal: &Literal, roundings: Option<&[f64]>, side: bool) -> Literal {
    let Some(roundings) = roundings.filter(|roundings| !roundings.is_empty()) else { return literal.clone() };
    let up = |index: usize| ((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1) == side;
    let moved = floats(literal)
        .zip(roundings)
        .enumerate()
        .map(|(index, (x, rounding))| if up(index) { x + rounding } else { x - rounding });
    of_floats(literal.ty(), moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seeded;

    /// The limit is tight: zeros in place of small numbers fail, in short floats too.
    #[test]
    fn zeros_are_not_close_to_small_numbers() {
        for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
            let options =
                ProgramOptions { dtypes: DTypeSet::of(&[dtype]), ..ProgramOptions::new(Aim::Portable) };
            let (mut small, mut found) = (0, 0);
            for seed in 0..300 {
                let sampled = ProgramSampler::sample(options, &mut Seeded::new(seed), 12);
                for value in sampled.values.iter().filter(|value| !value.is_exact()) {
                    value.check(&value.data).expect("a value is close to itself");
                    let largest = floats(&value.data).map(f64::abs).fold(0.0, f64::max);
                    if (0.1..0.33).contains(&largest) {
                        small += 1;
                        let zeros = Literal::zeros(value.data.ty().clone());
                        found += usize::from(value.check(&zeros).is_err());
                    }
                }
            }
            assert!(small > 20 && 10 * found >= 9 * small, "{dtype}: {found} of {small}");
        }
    }
}
