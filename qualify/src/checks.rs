//! Checks that are not about a single op: random programs, updates in place, quotients, subnormal
//! numbers, collectives, conformance cases.
//!
//! Input: an engine. Output: a finding. Every check compares with the interpreter, or with results
//! that no executor rounds.

use std::sync::Arc;

use fuseline::fusion::op::{OPS, Signature, rounds};
use fuseline::fusion::program::{Check, Program};
use fuseline::fusion::{DTypeSet, OpDef};
use fuseline::interp::{self, Arithmetic};
use fuseline::qualification::{Finding, OperandKind};
use fuseline::{Attrs, DType, Engine, Literal, OpCode, PreparedProgram, Result, Tensor, TensorType};
use fuseline_testgen::{Aim, ProgramOptions, ProgramSampler, SampleOperand, Sampled, Sampler, Seeded, fill};

use crate::calls::Call;
use crate::compare::{Outcome, cause, run};
use crate::conformance;
use crate::judge::Float;
use crate::special::of_bits;

/// The number of ops of a random program.
const PROGRAM_OPS: usize = 12;

/// The number of steps of an update loop.
const STEPS: usize = 12;

/// The step whose result keeps a second handle.
const KEPT: usize = 6;

/// The number of elements that are updated.
const UPDATED: usize = 1024;

/// The number of calls of a collective.
const COLLECTIVE_CALLS: usize = 4;

/// The finding on an error of the engine.
fn refused(call: &str, error: &fuseline::Error) -> Finding {
    Finding::Refused { message: cut(&cause(error)), call: call.to_owned() }
}

fn wrong(call: &str, example: &str) -> Finding {
    Finding::Wrong { example: cut(example), call: call.to_owned() }
}

/// A text on one line, of at most 400 characters.
pub(crate) fn cut(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(400).collect()
}

/// A vector of numbers that the type has.
fn vector(dtype: DType, numbers: impl Iterator<Item = f64>) -> Literal {
    let elements: Vec<Literal> = numbers.map(|number| Literal::of_f64(dtype, number)).collect();
    let ty = TensorType::of(dtype, &[elements.len() as u64]).expect("small");
    let bytes = elements.iter().flat_map(|element| element.bytes().iter().copied()).collect();
    Literal::from_bytes(ty, bytes).expect("as many bytes")
}

// ----- random programs -----

/// The random program of a seed. One in four has elements of 2 and 4 bits.
fn program(seed: u64) -> Sampled {
    let dtypes = if seed % 4 == 3 { DTypeSet::NARROW } else { DTypeSet::ANY };
    let options = ProgramOptions { dtypes, ..ProgramOptions::new(Aim::Portable) };
    ProgramSampler::sample(options, &mut Seeded::new(seed), PROGRAM_OPS)
}

/// The findings on the random programs of some seeds, first together in one region.
pub(crate) fn programs(engine: &Engine, seeds: &[u64]) -> Vec<Finding> {
    let sampled: Vec<Sampled> = seeds.iter().map(|&seed| program(seed)).collect();
    let findings = programs_together(engine, &sampled, seeds);
    engine.clear_cache();
    if seeds.len() == 1 || findings.iter().all(|finding| *finding == Finding::Right) {
        return findings;
    }
    let alone = |(sampled, &seed)| programs_together(engine, std::slice::from_ref(sampled), &[seed]);
    sampled.iter().zip(seeds).flat_map(alone).collect()
}

fn programs_together(engine: &Engine, sampled: &[Sampled], seeds: &[u64]) -> Vec<Finding> {
    let started: Vec<Result<Vec<Tensor>>> = sampled
        .iter()
        .map(|one| engine.prepare(Arc::new(one.program.clone())).and_then(|ready| ready.run()))
        .collect();
    let judge = |((started, sampled), seed): ((Result<Vec<Tensor>>, &Sampled), &u64)| {
        let call = format!("random program {seed}");
        let tensors = match started {
            Ok(tensors) => tensors,
            Err(error) => return refused(&call, &error),
        };
        for (id, tensor) in sampled.program.outputs.iter().zip(&tensors) {
            let checked = match tensor.to_literal() {
                Ok(data) => sampled.value(*id).check(&data),
                Err(error) => return refused(&call, &error),
            };
            if let Err(mismatch) = checked {
                let maker = sampled.program.ops.iter().find(|op| op.results.contains(id));
                let maker = maker.map(|op| format!("{:?} {:?}: ", op.signature, op.signature.attrs()));
                return wrong(&call, &format!("{}{mismatch}", maker.unwrap_or_default()));
            }
        }
        Finding::Right
    };
    started.into_iter().zip(sampled).zip(seeds).map(judge).collect()
}

// ----- updates in place -----

/// A loop that adds 1 to a value. The memory of each old value may be donated, except that of one
/// with a second handle, which is read at the end. All numbers are small integers.
pub(crate) fn update(engine: &Engine, dtype: DType) -> Finding {
    let call =
        format!("{STEPS} updates in place of {UPDATED} elements of {dtype}, with a second handle on one");
    match updates(engine, dtype) {
        Ok(None) => Finding::Right,
        Ok(Some(example)) => wrong(&call, &example),
        Err(error) => refused(&call, &error),
    }
}

fn updates(engine: &Engine, dtype: DType) -> Result<Option<String>> {
    let stream = engine.stream();
    let numbers = |plus: usize| {
        let numbers = (0..UPDATED).map(move |place| (place % 16 + plus) as f64);
        vector(dtype, numbers)
    };
    let one = stream.from_literal(&vector(dtype, (0..UPDATED).map(|_| 1.0)))?;
    let mut kept = None;
    let mut value = stream.from_literal(&numbers(0))?;
    for step in 1..=STEPS {
        // The old value has no handle any more when its region ends, so its memory is donated.
        value = (&value + &one)?;
        stream.flush();
        if step == KEPT {
            kept = Some(value.clone());
        }
    }
    let mut read = vec![(STEPS, value.to_literal()?)];
    if let Some(kept) = kept {
        read.push((KEPT, kept.to_literal()?));
    }
    for (step, found) in read {
        let right = numbers(step);
        let size = dtype.size();
        let pairs = found.bytes().chunks(size).zip(right.bytes().chunks(size));
        if let Some((place, (found, right))) = pairs.enumerate().find(|(_, (found, right))| found != right) {
            let kind = if step == KEPT { "the value with a second handle" } else { "the last value" };
            return Ok(Some(format!("element {place} of {kind} is {found:02x?} in place of {right:02x?}")));
        }
    }
    Ok(None)
}

// ----- quotients -----

/// The number of quotients.
const QUOTIENTS: usize = 256;

/// Quotients of many numbers by one are rounded as IEEE 754 says. A compiler may multiply by the
/// inverse of the one number instead, which rounds twice.
pub(crate) fn quotients(engine: &Engine, dtype: DType) -> Finding {
    const DIVISOR: f64 = 0.7;
    let call = format!("divide of {QUOTIENTS} elements of {dtype} by {DIVISOR}");
    let numbers = |place: usize| 0.5 + 0.37 * place as f64;
    let quotient = |place: usize| match dtype {
        DType::F32 => f64::from(numbers(place) as f32 / DIVISOR as f32),
        _ => numbers(place) / DIVISOR,
    };
    let found = || -> Result<Literal> {
        let stream = engine.stream();
        let divisor = stream.from_literal(&Literal::of_f64(dtype, DIVISOR))?;
        let numbers = stream.from_literal(&vector(dtype, (0..QUOTIENTS).map(numbers)))?;
        (&numbers / &divisor.broadcast_to(&[QUOTIENTS])?)?.to_literal()
    };
    match found() {
        Ok(found) if found.bytes() == vector(dtype, (0..QUOTIENTS).map(quotient)).bytes() => Finding::Right,
        Ok(_) => Finding::RoundsDifferently { steps: 1, call },
        Err(error) => refused(&call, &error),
    }
}

// ----- subnormal numbers -----

/// The float types of which the device flushes subnormal numbers to zero, as it does in a product
/// with 1.
pub(crate) fn flushed(engine: &Engine) -> Result<DTypeSet> {
    let stream = engine.stream();
    let mut products = Vec::new();
    for dtype in DTypeSet::WIDE_FLOAT.iter() {
        let one = stream.from_literal(&numbers(dtype, 1.0))?;
        products.push((dtype, (&stream.from_literal(&subnormal(dtype))? * &one)?));
    }
    let mut flushed = DTypeSet::NONE;
    for (dtype, product) in products {
        if product.to_literal()?.bytes().iter().all(|byte| *byte == 0) {
            flushed = flushed.or(DTypeSet::of(&[dtype]));
        }
    }
    Ok(flushed)
}

fn numbers(dtype: DType, number: f64) -> Literal {
    vector(dtype, [number; 4].into_iter())
}

/// The smallest, a middle and the two largest subnormal numbers.
fn subnormal(dtype: DType) -> Literal {
    let least_normal = dtype.float_format().map_or(1, |format| 1u128 << format.mantissa);
    let ty = TensorType::of(dtype, &[4]).expect("small");
    of_bits(ty, [1, least_normal / 3, least_normal - 2, least_normal - 1].into_iter())
}

/// Ops that move, compare and convert subnormal numbers follow one rule for the type (invariant
/// SUB-1), for operands that are uploaded and constant.
pub(crate) fn subnormals(engine: &Engine, dtype: DType, arithmetic: Arithmetic) -> Finding {
    let unary = [OpCode::Negate, OpCode::Abs, OpCode::Sign, OpCode::Ceil, OpCode::Floor];
    let binary = [OpCode::Maximum, OpCode::Minimum, OpCode::Add, OpCode::Subtract, OpCode::Multiply];
    let (tiny, one) = (Arc::new(subnormal(dtype)), Arc::new(numbers(dtype, 1.0)));
    let calls = unary.iter().map(|op| (*op, vec![tiny.clone()]));
    let calls = calls.chain(binary.iter().map(|op| (*op, vec![tiny.clone(), one.clone()])));
    let call = |(op, operands): (OpCode, Vec<Arc<Literal>>)| {
        let types: Vec<TensorType> = operands.iter().map(|data| data.ty().clone()).collect();
        let signature = Signature::infer(op, Attrs::none(), &[], &types).ok()?;
        Some(Call { signature: Arc::new(signature), operands })
    };
    let calls: Vec<Call> = calls.filter_map(call).collect();
    for operand_kind in [OperandKind::Uploaded, OperandKind::Constant] {
        let all: Vec<&Call> = calls.iter().collect();
        for (call, outcome) in calls.iter().zip(run(engine, &all, operand_kind, arithmetic)) {
            let call = format!("{call}, {}", operand_kind.name());
            match outcome {
                Outcome::Ran(cases) => {
                    if let Some(case) = cases.first() {
                        return wrong(&call, case.element());
                    }
                }
                Outcome::Refused(message) | Outcome::Failed(message) => {
                    return Finding::Refused { message: cut(&message), call };
                }
            }
        }
    }
    Finding::Right
}

// ----- collectives -----

/// Calls of a collective on an engine of two replicas.
pub(crate) fn collective(engine: &Engine, op: OpCode, dtype: DType) -> Finding {
    let Some(def) = OPS.iter().find(|def| def.code == op) else { return Finding::Right };
    let mut made = 0;
    for seed in 0..200 {
        let Some((signature, operands)) = sampled_collective(def, dtype, seed, engine.replicas()) else {
            continue;
        };
        let call = format!("{signature:?} {:?} on {} replicas", signature.attrs(), engine.replicas());
        match exchange(engine, &signature, &operands) {
            Ok(None) => {}
            Ok(Some(example)) => return wrong(&call, &example),
            Err(error) => return refused(&call, &error),
        }
        made += 1;
        if made == COLLECTIVE_CALLS {
            break;
        }
    }
    engine.clear_cache();
    Finding::Right
}

/// A call, and the data of each operand on each replica.
type Exchange = (Signature, Vec<Vec<Arc<Literal>>>);

fn sampled_collective(def: &'static OpDef, dtype: DType, seed: u64, replicas: usize) -> Option<Exchange> {
    let mut entropy = Seeded::new(seed);
    let sample = Sampler::new(def, &mut entropy, &[], DTypeSet::of(&[dtype]), Aim::Portable);
    let sample = sample.replicas(replicas).sample()?;
    let types: Vec<TensorType> = sample.operands.iter().map(|operand| operand.ty(&[]).clone()).collect();
    let data = |operand: &SampleOperand| match operand {
        SampleOperand::Given(data) => vec![data.clone(); replicas],
        operand => {
            let domain = if let SampleOperand::Fresh(_, domain) = operand {
                *domain
            } else {
                fuseline_testgen::Domain::Any
            };
            (0..replicas)
                .map(|_| Arc::new(fill(&mut entropy, operand.ty(&[]), domain, Aim::Portable)))
                .collect()
        }
    };
    let operands: Vec<Vec<Arc<Literal>>> = sample.operands.iter().map(data).collect();
    let signature = Signature::infer(def.code, sample.attrs, &sample.bodies, &types).ok()?;
    let is_first = types.first().is_none_or(|ty| ty.dtype() == dtype);
    is_first.then_some((signature, operands))
}

/// Runs a collective. Returns the first wrong element, if there is one.
fn exchange(
    engine: &Engine,
    signature: &Signature,
    operands: &[Vec<Arc<Literal>>],
) -> Result<Option<String>> {
    let replicas = engine.replicas();
    let of = |replica: usize| operands.iter().map(|each| each[replica].clone()).collect();
    let each: Vec<Vec<Arc<Literal>>> = (0..replicas).map(of).collect();
    let wanted = interp::call_replicated(Arithmetic::REFERENCE, signature, &each);
    let Ok(wanted) = wanted else { return Ok(None) };
    let stream = engine.stream();
    let bring = |each: &Vec<Arc<Literal>>| {
        let data: Vec<Literal> = each.iter().map(|data| Literal::clone(data)).collect();
        stream.from_literals(&data)
    };
    let tensors = operands.iter().map(bring).collect::<Result<Vec<Tensor>>>()?;
    let tensors: Vec<&Tensor> = tensors.iter().collect();
    let attrs = Attrs::clone(signature.attrs());
    let results = stream.record(signature.op(), attrs, signature.bodies(), &tensors)?;
    let is_rounded = rounds(signature);
    for (place, result) in results.iter().enumerate() {
        for (replica, found) in result.read_replicas()?.iter().enumerate() {
            let right = &wanted[replica][place];
            if !is_equal(found, right, is_rounded) {
                let data = format!("result {place} on replica {replica} is {found:?} in place of {right:?}");
                return Ok(Some(data));
            }
        }
    }
    Ok(None)
}

/// Whether two results are equal, up to the rounding of a sum of few numbers if the op rounds.
fn is_equal(found: &Literal, right: &Literal, is_rounded: bool) -> bool {
    if !is_rounded || found.ty() != right.ty() {
        return found == right;
    }
    let [a, b] = [found, right].map(|data| Float::all(data.dtype(), data.bytes()));
    if a.is_empty() {
        return found == right;
    }
    let is_near = |(a, b): (&Float, &Float)| {
        let (a, b) = (a.value(), b.value());
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * (1.0 + b.abs())
    };
    a.iter().zip(&b).all(is_near)
}

// ----- conformance cases -----

/// Runs a case in the program format. A case that the op table cannot express is right.
pub(crate) fn case(engine: &Engine, path: &str) -> Finding {
    let call = path.rsplit('/').next().unwrap_or(path).to_owned();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return wrong(&call, &format!("the case cannot be read: {error}")),
    };
    let program = match Program::parse(&text) {
        Ok(program) => Arc::new(program),
        Err(error) if error.unsupported().is_some() => return Finding::Right,
        Err(error) => return wrong(&call, &format!("the case is not valid: {error}")),
    };
    let name = call.strip_suffix(".json").unwrap_or(&call);
    let outcome = mismatch(engine, name, program);
    engine.clear_cache();
    match outcome {
        Ok(None) => Finding::Right,
        Ok(Some(mismatch)) => wrong(&call, &mismatch),
        Err(error) => refused(&call, &error),
    }
}

/// The first output of a case that is not as expected, unless the difference is accepted.
fn mismatch(engine: &Engine, name: &str, program: Arc<Program>) -> Result<Option<String>> {
    let found = compared(&engine.prepare(program.clone())?)?;
    let Some(difference) = &found else { return Ok(None) };
    if conformance::subnormal_difference(name) == Some(difference) {
        return Ok(None);
    }
    let Some(reordered) = conformance::reordered(engine, name) else { return Ok(found) };
    let mut program = Program::clone(&program);
    program.checks.fill(Check::almost(reordered.largest).expect("it is a distance"));
    compared(&engine.prepare(Arc::new(program))?)
}

/// The first output that is not as expected.
fn compared(ready: &PreparedProgram) -> Result<Option<String>> {
    let results = ready.results()?;
    let mismatches = ready.compare(&results).unwrap_or_default();
    Ok(mismatches.into_iter().next().map(|(output, mismatch)| format!("output {output}: {mismatch}")))
}
