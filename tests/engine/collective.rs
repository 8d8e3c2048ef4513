//! Engines with several replicas: collectives, and everything else with data per replica, compared
//! with the interpreter.

use std::collections::BTreeMap;
use std::sync::Arc;

use fuseline::embed::{Call, Session};
use fuseline::fusion::op::{Dialect, OPS, OpDef, Replicas, attrs, rounds};
use fuseline::fusion::program::Check;
use fuseline::fusion::{DTypeSet, Node, Signature};
use fuseline::interp;
use fuseline::{
    Attrs, Body, DType, Engine, EngineConfig, Event, Fault, FaultPoint, Groups, Literal, Mode, OpCode,
    Result, Stage, Stream, Tensor, TensorType, with_mode,
};
use fuseline_qualify::judge::Float;
use fuseline_testgen::{Aim, SampleOperand, Sampler, Seeded, fill};

use crate::support;
use crate::support::{Log, close, engines, on_all_tiers, on_engines, plugin};

const MODES: [Mode; 3] = [Mode::Fused, Mode::Strict, Mode::Debug];

fn config(replicas: usize) -> EngineConfig {
    support::config().replicas(replicas)
}

/// The elements on each replica.
fn each(tensor: &Tensor) -> Vec<Vec<f32>> {
    tensor.read_replicas().unwrap().iter().map(|data| data.to_vec().unwrap()).collect()
}

/// A tensor with the given data on each replica.
fn upload(stream: &Stream, replicas: &[Arc<Literal>]) -> Tensor {
    let data: Vec<Literal> = replicas.iter().map(|data| Literal::clone(data)).collect();
    stream.from_literals(&data).unwrap()
}

// ----- against the interpreter -----

/// A sampled call with the data of each operand on each replica.
struct Sampled {
    signature: Signature,
    operands: Vec<Vec<Arc<Literal>>>,
}

/// Operands that are values of the pool are given by their index; the others are new.
type Places = Vec<Option<usize>>;

fn sample(
    def: &'static OpDef,
    entropy: &mut Seeded,
    pool: &[TensorType],
    (dtypes, aim): (DTypeSet, Aim),
    replicas: usize,
) -> Option<(Sampled, Places)> {
    let sample = Sampler::new(def, entropy, pool, dtypes, aim).replicas(replicas).sample()?;
    let mut places = Vec::new();
    let mut operands = Vec::new();
    let mut types = Vec::new();
    for operand in &sample.operands {
        types.push(operand.ty(pool).clone());
        places.push(match operand {
            SampleOperand::Pool(place) => Some(*place),
            _ => None,
        });
        operands.push(match operand {
            SampleOperand::Pool(_) => Vec::new(),
            SampleOperand::Fresh(ty, domain) => {
                (0..replicas).map(|_| Arc::new(fill(entropy, ty, *domain, aim))).collect()
            }
            SampleOperand::Given(data) => vec![data.clone(); replicas],
        });
    }
    let signature = Signature::infer(def.code, sample.attrs, &sample.bodies, &types).expect("a sample fits");
    Some((Sampled { signature, operands }, places))
}

/// The expected results on each replica.
fn wanted(signature: &Signature, operands: &[Vec<Arc<Literal>>], replicas: usize) -> Vec<Vec<Literal>> {
    let of = |replica: usize| operands.iter().map(|each| each[replica].clone()).collect();
    let operands: Vec<Vec<Arc<Literal>>> = (0..replicas).map(of).collect();
    interp::call_replicated(interp::Arithmetic::REFERENCE, signature, &operands).expect("runs")
}

/// The op that combines the elements of the replicas, if it rounds.
fn rounding_op(signature: &Signature) -> Option<OpCode> {
    let [body] = signature.bodies() else { return None };
    match body.graph().nodes() {
        [only] => Some(only.signature().op()).filter(|op| matches!(op, OpCode::Add | OpCode::Multiply)),
        nodes if nodes.iter().any(|node| node.signature().op() == OpCode::Reduce) => Some(OpCode::Add),
        nodes => {
            let is_exact = |node: &Node| !rounds(node.signature());
            assert!(nodes.iter().all(is_exact), "unknown body: {signature:?}");
            None
        }
    }
}

/// The allowed difference from the interpreter, which rounds after each combination.
#[derive(Clone, Copy)]
enum Tolerance<'a> {
    /// All bits must be equal.
    Exact,
    /// Long floats combined in the same order may use fused multiply-adds.
    Fused,
    /// Another executor may round short floats only at the end. This is its result before that.
    Unrounded(&'a Literal),
}

impl Tolerance<'_> {
    fn mismatch(self, found: &Literal, wanted: &Literal) -> Option<String> {
        match self {
            Tolerance::Exact => {
                Check::Exact.compare(found, wanted).err().map(|mismatch| mismatch.to_string())
            }
            Tolerance::Fused => {
                Check::Close { ulp: 2 }.compare(found, wanted).err().map(|mismatch| mismatch.to_string())
            }
            Tolerance::Unrounded(unrounded) => {
                if found.ty() != wanted.ty() {
                    return Some(format!("the type is {:?}", found.ty()));
                }
                let [found, wanted, unrounded] =
                    [found, wanted, unrounded].map(|data| Float::all(data.dtype(), data.bytes()));
                (0..wanted.len()).find_map(|place| {
                    let (found, stepwise) = (found[place], wanted[place]);
                    let format = stepwise.dtype.float_format().expect("a float");
                    let once = Float { bits: format.encode(unrounded[place].value()), ..stepwise };
                    let (a, b) = (stepwise.value(), once.value());
                    let is_between = (a.min(b)..=a.max(b)).contains(&found.value());
                    let is_near = |other| found.steps(other).is_some_and(|steps| steps <= 1);
                    (!is_between && !is_near(stepwise) && !is_near(once)).then(|| {
                        format!("element {place} is {}, between {a} and {b} is right", found.value())
                    })
                })
            }
        }
    }
}

/// The results of a call that combines short floats, computed in `f64`.
fn unrounded(call: &Sampled, op: OpCode, replicas: usize) -> Option<Vec<Vec<Literal>>> {
    let signature = &call.signature;
    let is_short = |dtype: DType| dtype.is_float() && !matches!(dtype, DType::F32 | DType::F64);
    if !signature.results().iter().all(|ty| is_short(ty.dtype())) {
        return None;
    }
    let wide = Arc::new(Body::binary(op, TensorType::scalar(DType::F64)).expect("an op of floats"));
    let attrs = Attrs::clone(signature.attrs());
    let wide = Signature::infer(signature.op(), attrs, &[wide], signature.operands()).expect("fits as well");
    Some(wanted(&wide, &call.operands, replicas))
}

/// The first mismatch of the results of the replicas.
fn difference(
    engine: &Engine,
    call: &Sampled,
    found: &Result<Vec<Literal>>,
    wanted: &[Vec<Literal>],
    index: usize,
) -> Option<String> {
    let found = match found {
        Ok(found) if found.len() == wanted.len() => found,
        Ok(found) => return Some(format!("{} replicas", found.len())),
        Err(error) => return Some(error.to_string()),
    };
    // The reference device is the interpreter.
    let op = rounding_op(&call.signature).filter(|_| engine.pjrt_device().is_some());
    let unrounded = op.and_then(|op| unrounded(call, op, wanted.len()));
    found.iter().zip(wanted).enumerate().find_map(|(replica, (found, wanted))| {
        let wanted = &wanted[index];
        let tolerance = match (&unrounded, op) {
            (Some(unrounded), _) => Tolerance::Unrounded(&unrounded[replica][index]),
            (None, Some(_)) if wanted.dtype().part().is_float() => Tolerance::Fused,
            _ => Tolerance::Exact,
        };
        let mismatch = tolerance.mismatch(found, wanted)?;
        Some(format!("replica {replica}: {mismatch}; {found:?}, expected {wanted:?}"))
    })
}

/// The comparison rejects zeros in place of results, for every op and element type.
#[test]
fn zeros_are_told_from_the_results_of_collectives() {
    let replicas = 4;
    let Some(engine) = plugin(config(replicas)) else { return };
    for def in OPS.iter().filter(|def| matches!(def.replicas, Replicas::Together)) {
        let mut entropy = Seeded::new(5);
        let mut told = BTreeMap::new();
        for _ in 0..200 {
            let kind = (DTypeSet::FLOAT, Aim::Portable);
            let Some((call, _)) = sample(def, &mut entropy, &[], kind, replicas) else { continue };
            let wanted = wanted(&call.signature, &call.operands, replicas);
            for (index, ty) in call.signature.results().iter().enumerate() {
                let zeros = Ok(vec![Literal::zeros(ty.clone()); replicas]);
                let is_told = difference(&engine, &call, &zeros, &wanted, index).is_some();
                *told.entry(ty.dtype()).or_insert(false) |= is_told;
            }
        }
        // `replica_id` has one element type.
        assert!(told.len() > 8 || def.code == OpCode::ReplicaId, "{}: {told:?}", def.name);
        let blind: Vec<DType> =
            told.into_iter().filter_map(|(dtype, told)| (!told).then_some(dtype)).collect();
        assert!(blind.is_empty(), "{}: zeros pass for {blind:?}", def.name);
    }
}

#[test]
fn every_collective_agrees_with_the_interpreter() {
    for replicas in [1, 2, 4] {
        for engine in engines(|| config(replicas)) {
            let stream = engine.stream();
            let mut failures = Vec::new();
            for def in OPS.iter().filter(|def| matches!(def.replicas, Replicas::Together)) {
                let mut entropy = Seeded::new(replicas as u64);
                for _ in 0..9 {
                    let kind = (DTypeSet::ANY, Aim::Portable);
                    let Some((call, _)) = sample(def, &mut entropy, &[], kind, replicas) else { continue };
                    let signature = &call.signature;
                    let wanted = wanted(signature, &call.operands, replicas);
                    let operands: Vec<Tensor> =
                        call.operands.iter().map(|each| upload(stream, each)).collect();
                    let operands: Vec<&Tensor> = operands.iter().collect();
                    for mode in MODES {
                        let attrs = Attrs::clone(signature.attrs());
                        let record = || stream.record(def.code, attrs, signature.bodies(), &operands);
                        let results = match with_mode(mode, record) {
                            Ok(results) => results,
                            Err(error) => {
                                failures.push(format!("{signature:?}: {error}"));
                                continue;
                            }
                        };
                        for (index, result) in results.iter().enumerate() {
                            let attrs = signature.attrs();
                            failures.extend(
                                difference(&engine, &call, &result.read_replicas(), &wanted, index)
                                    .map(|found| format!("{mode:?}: {signature:?} {attrs:?}: {found}")),
                            );
                        }
                    }
                }
            }
            assert!(failures.is_empty(), "{engine:?}: {} calls:\n{}", failures.len(), failures.join("\n"));
        }
    }
}

/// Ops of all kinds on integers, whose results are exact, with collectives between them.
#[test]
fn random_programs_agree_with_the_interpreter() {
    for replicas in [2, 3] {
        for engine in engines(|| config(replicas)) {
            let stream = engine.stream();
            for seed in 0..8 {
                let mut entropy = Seeded::new(seed);
                let mut values: Vec<(Vec<Arc<Literal>>, Tensor)> = Vec::new();
                let rows: Vec<&'static OpDef> =
                    OPS.iter().filter(|def| def.dialect == Dialect::Stablehlo).collect();
                let mut collectives = 0;
                for _ in 0..40 {
                    let def = rows[(entropy.next_u64() % rows.len() as u64) as usize];
                    let pool: Vec<TensorType> = values.iter().map(|(data, _)| data[0].ty().clone()).collect();
                    let kind = (DTypeSet::INT_BOOL, Aim::Portable);
                    let Some((mut call, places)) = sample(def, &mut entropy, &pool, kind, replicas) else {
                        continue;
                    };
                    let types = call.signature.operands().iter().chain(call.signature.results());
                    if types.clone().any(|ty| ty.dtype().is_float() || ty.elems().0 > 2_000) {
                        continue;
                    }
                    let mut operands = Vec::new();
                    for (data, place) in call.operands.iter_mut().zip(&places) {
                        operands.push(match place {
                            Some(place) => {
                                data.clone_from(&values[*place].0);
                                values[*place].1.clone()
                            }
                            None => upload(stream, data),
                        });
                    }
                    let operands: Vec<&Tensor> = operands.iter().collect();
                    let attrs = Attrs::clone(call.signature.attrs());
                    let made = stream.record(def.code, attrs, call.signature.bodies(), &operands).unwrap();
                    let wanted = wanted(&call.signature, &call.operands, replicas);
                    for (index, tensor) in made.into_iter().enumerate() {
                        let data = wanted.iter().map(|each| Arc::new(each[index].clone())).collect();
                        values.push((data, tensor));
                    }
                    collectives += usize::from(call.signature.is_joint());
                }
                assert!(values.len() > 10, "seed {seed}: the choices lead nowhere");
                for (data, tensor) in &values {
                    let found = tensor.read_replicas().unwrap();
                    let same = found.iter().zip(data).all(|(found, wanted)| *found == **wanted);
                    assert!(same, "{engine:?}, seed {seed}: {tensor:?} is {found:?}, expected {data:?}");
                }
                println!("seed {seed}: {} values, {collectives} collectives", values.len());
            }
        }
    }
}

/// Cases that XLA computes differently or refuses: other bodies, wider bodies, NaN, groups of
/// several sizes.
#[test]
fn bodies_that_the_plugin_does_not_combine_by() {
    on_engines(
        || config(4),
        |engine| {
            let x = engine.tensor_per_replica(&[&[1i32, 12], &[2, 10], &[4, 6], &[8, 3]], &[2])?;
            let uneven = Groups::new(&[vec![3, 0, 1], vec![2]]);
            let found = x.all_reduce(OpCode::Xor, None)?.read_replicas()?;
            assert!(found.iter().all(|data| data.to_vec::<i32>().unwrap() == [15, 3]));
            let found = x.all_reduce(OpCode::Or, Some(&uneven))?.read_replicas()?;
            let found: Vec<Vec<i32>> = found.iter().map(|data| data.to_vec().unwrap()).collect();
            assert_eq!(found, [vec![11, 15], vec![11, 15], vec![4, 6], vec![11, 15]]);
            let found = x.reduce_scatter(OpCode::And, 0, Some(&Groups::new(&[[3, 2], [1, 0]])))?;
            let found: Vec<i32> =
                found.read_replicas()?.iter().map(|data| data.to_vec().unwrap()[0]).collect();
            assert_eq!(found, [12 & 10, 1 & 2, 6 & 3, 8 & 4]);
            let nan = f32::NAN;
            let y = engine.tensor_per_replica(&[&[nan, 1.0], &[1.0, nan], &[2.0, 3.0], &[4.0, 0.5]], &[2])?;
            for op in [OpCode::Maximum, OpCode::Minimum] {
                let found = each(&y.all_reduce(op, None)?);
                assert!(found.iter().flatten().all(|x| x.is_nan()), "{op}: {found:?}");
                let found = each(&y.reduce_scatter(op, 0, Some(&Groups::new(&[[0, 2], [1, 3]])))?);
                let wanted = if op == OpCode::Maximum { [nan, 4.0, 3.0, nan] } else { [nan, 1.0, 1.0, nan] };
                let same = |(f, w): (&Vec<f32>, f32)| f[0] == w || (f[0].is_nan() && w.is_nan());
                assert!(found.iter().zip(wanted).all(same), "{op}: {found:?}, expected {wanted:?}");
            }
            let short = engine.tensor_per_replica(&[&[100i8], &[100], &[100], &[27]], &[1])?;
            let sum = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::I32)).unwrap());
            let sums = Tensor::all_reduce_many(&[&short], sum, None)?;
            assert_eq!(sums[0].to_vec::<i32>()?, [327]);
            let flags = engine
                .tensor_per_replica(&[&[true, false], &[true, false], &[false; 2], &[true, false]], &[2])?;
            assert_eq!(flags.all_reduce(OpCode::Add, None)?.to_vec::<bool>()?, [true, false]);
            assert_eq!(flags.all_reduce(OpCode::Multiply, None)?.to_vec::<bool>()?, [false, false]);
            Ok(())
        },
    );
}

#[test]
fn an_engine_of_one_replica_exchanges_nothing() {
    on_all_tiers(support::config, |engine| {
        assert_eq!(engine.replicas(), 1);
        let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
        for same in [
            x.all_reduce(OpCode::Maximum, None)?,
            x.all_gather(-1, None)?,
            x.reduce_scatter(OpCode::Add, 0, None)?,
            x.all_to_all(0, 1, None)?,
            x.collective_broadcast(None)?,
            x.collective_permute(&[(0, 0)])?,
        ] {
            assert_eq!(each(&same), [[1.0, 2.0, 3.0, 4.0]]);
        }
        assert_eq!(x.collective_permute(&[])?.to_vec::<f32>()?, [0.0; 4]);
        assert_eq!(engine.stream().replica_id()?.item::<u32>()?, 0);
        Ok(())
    });
}

// ----- data on each replica -----

#[test]
fn values_have_data_on_each_replica() {
    on_engines(
        || config(3),
        |engine| {
            assert_eq!(engine.replicas(), 3);
            let same = engine.tensor(&[1.0f32, 2.0], &[2])?;
            assert_eq!(each(&same), [[1.0, 2.0]; 3]);
            let own = engine.tensor_per_replica(&[&[1.0f32, 2.0], &[3.0, 4.0], &[5.0, 6.0]], &[2])?;
            // A lifted scalar, a constant, and an op that depends on the replica.
            let half = (&own * 0.5)?;
            assert_eq!(each(&half), [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]);
            let place = engine.stream().replica_id()?.convert(DType::F32)?;
            assert_eq!(each(&place.add(&own)?), [[1.0, 2.0], [4.0, 5.0], [7.0, 8.0]]);
            // Reads that name no replica return data of the first.
            assert_eq!(half.to_vec::<f32>()?, [0.5, 1.0]);
            let scalar = engine.scalar(7.0f32);
            assert_eq!(each(&scalar), [[7.0]; 3]);
            let mut read = std::pin::pin!(own.add(&same)?.read());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let data = loop {
                match Future::poll(read.as_mut(), &mut context) {
                    std::task::Poll::Ready(data) => break data?,
                    std::task::Poll::Pending => std::thread::yield_now(),
                }
            };
            assert_eq!(data.to_vec::<f32>()?, [2.0, 4.0]);
            let (send, receive) = std::sync::mpsc::channel();
            own.mul(&same)?.on_ready(move |outcome| send.send(outcome.is_ok()).unwrap());
            assert!(receive.recv_timeout(std::time::Duration::from_secs(60)).unwrap());
            Ok(())
        },
    );
}

#[test]
fn dying_inputs_are_reused_on_every_replica() {
    let Some(engine) = plugin(config(2)) else { return };
    let mut x = engine.tensor_per_replica(&[&[1024.0f32; 4096][..], &[2048.0; 4096]], &[4096]).unwrap();
    for _ in 0..5 {
        x = (&x * 0.5).unwrap();
        x.wait().unwrap();
    }
    assert_eq!(engine.counters().donations, 5, "each step reuses the memory of the one before");
    let kept = (&x + 1.0).unwrap();
    let found = each(&kept);
    assert_eq!((found[0][0], found[1][4095]), (33.0, 65.0));
    let found = each(&x);
    assert_eq!((found[0][0], found[1][4095]), (32.0, 64.0), "a value with a handle is not overwritten");
}

#[test]
fn another_number_of_replicas_is_another_key() {
    let mut keys = Vec::new();
    for replicas in [1, 2] {
        let log = Log::default();
        for engine in engines(|| config(replicas).event_sink(log.sink())) {
            let x = engine.tensor(&[1.0f32], &[1]).unwrap();
            assert_eq!((&x + &x).unwrap().to_vec::<f32>().unwrap(), [2.0]);
        }
        keys.extend(log.take().into_iter().filter_map(|event| match event {
            Event::Sealed { region, .. } => Some(region.key),
            _ => None,
        }));
    }
    assert!(keys.len() >= 2);
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
}

// ----- regions -----

/// The ops before a collective, the collective, and the ops on its result are one region.
#[test]
fn a_collective_is_in_the_region_of_its_neighbours() {
    let log = Log::default();
    on_engines(
        || config(2).event_sink(log.sink()),
        |engine| {
            log.take();
            let x = engine.tensor_per_replica(&[&[1.0f32], &[2.0]], &[1])?;
            let place = engine.stream().replica_id()?.convert(DType::F32)?;
            let own = (&(&x * &x)? + &place)?;
            let sum = own.all_reduce(OpCode::Add, None)?;
            let result = (&(&sum + &x)? * 0.5)?;
            assert_eq!(each(&result), [[3.5], [4.0]]);
            let regions = log.regions();
            let regions: Vec<(&str, usize)> = regions.iter().map(|(why, ops)| (why.as_str(), *ops)).collect();
            // Lifting 0.5 to the shape of the product is an op too.
            assert_eq!(regions, [("host_read", 9)]);
            Ok(())
        },
    );
}

/// Several collectives in one executable, some of them independent, with matrix products between
/// them. All replicas reach them in one order, even if there are more replicas than cores.
#[test]
fn a_region_has_several_exchanges() {
    let log = Log::default();
    for replicas in [2, 4] {
        on_engines(
            || config(replicas).event_sink(log.sink()),
            |engine| {
                let size = 32;
                let ones = vec![1.0f32; size * size];
                let start = engine.tensor(&ones, &[size, size])?;
                let place = engine.stream().replica_id()?.convert(DType::F32)?;
                engine.synchronize()?;
                log.take();
                for _ in 0..20 {
                    // Each replica has a different number in all positions.
                    let own = start.mul(&place.broadcast_to(&[size, size])?)?;
                    let parts: Vec<Tensor> = (1..=6)
                        .map(|factor| {
                            let part = (&own * f64::from(factor))?;
                            (&part.matmul(&start)?.all_reduce(OpCode::Add, None)? / size as f64)?
                                .matmul(&start)
                        })
                        .collect::<Result<_>>()?;
                    let refs: Vec<&Tensor> = parts.iter().collect();
                    let all = Tensor::concatenate(&refs, 0)?
                        .all_gather(0, None)?
                        .all_reduce(OpCode::Maximum, None)?;
                    let sum: usize = (0..replicas).sum();
                    let data = all.to_vec::<f32>()?;
                    assert_eq!(data.len(), 6 * size * size * replicas);
                    for (place, value) in data.iter().enumerate() {
                        let factor = place / (size * size) % 6 + 1;
                        assert_eq!(*value, (factor * sum * size) as f32, "{place}");
                    }
                }
                let regions = log.regions();
                assert_eq!(regions.len(), 20, "{regions:?}");
                Ok(())
            },
        );
    }
}

/// A collective whose results nobody uses is removed on all replicas.
#[test]
fn a_collective_whose_results_nobody_uses_is_left_out() {
    on_engines(
        || config(2),
        |engine| {
            let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
            drop(x.all_reduce(OpCode::Add, None)?);
            drop(x.neg()?);
            engine.synchronize()?;
            let counters = engine.counters();
            assert_eq!((counters.executions, counters.skipped, counters.poisoned), (0, 1, 0));
            Ok(())
        },
    );
}

/// One step of gradient descent of a linear model on a part of the data; `average` makes the
/// gradients those of all data.
fn step(
    (x, y): (&Tensor, &Tensor),
    (w, b): (&Tensor, &Tensor),
    average: impl Fn(&[&Tensor]) -> Result<Vec<Tensor>>,
) -> Result<(Tensor, Tensor)> {
    let error = (&(&x.matmul(w)? + b)? - y)?;
    let scale = 2.0 / y.dims()[0] as f64;
    let grad_w = (&x.transpose(&[1, 0])?.matmul(&error)? * scale)?;
    let grad_b = (&error.sum(&[0])? * scale)?;
    let grads = average(&[&grad_w, &grad_b])?;
    Ok(((w - &(&grads[0] * 0.05)?)?, (b - &(&grads[1] * 0.05)?)?))
}

/// Training on parts of the data with averaged gradients equals training on all of it, and compiles
/// nothing after the start.
#[test]
fn data_parallel_training_is_training_on_all_data() {
    const STEPS: usize = 30;
    let (rows, width, replicas) = (16usize, 5usize, 4usize);
    let x: Vec<f32> = (0..rows * width).map(|i| ((i * 37 % 23) as f32 - 11.0) / 11.0).collect();
    let y: Vec<f32> = x.chunks(width).map(|row| row.iter().sum::<f32>() * 0.5 + 0.25).collect();
    let whole = Engine::reference();
    let train =
        |engine: &Engine, x: &Tensor, y: &Tensor, average: &dyn Fn(&[&Tensor]) -> Result<Vec<Tensor>>| {
            let mut w = engine.tensor(&vec![0.0f32; width], &[width, 1])?;
            let mut b = engine.tensor(&[0.0f32], &[1])?;
            let mut warm = 0;
            for round in 0..STEPS {
                (w, b) = step((x, y), (&w, &b), average)?;
                w.wait()?;
                if round == 2 {
                    warm = engine.counters().compiles;
                }
            }
            assert_eq!(engine.counters().compiles, warm, "a steady loop compiles nothing");
            Ok::<_, fuseline::Error>((w, b))
        };
    let all_x = whole.tensor(&x, &[rows, width]).unwrap();
    let all_y = whole.tensor(&y, &[rows, 1]).unwrap();
    let unchanged = |grads: &[&Tensor]| Ok(grads.iter().map(|&grad| grad.clone()).collect());
    let (w, b) = train(&whole, &all_x, &all_y, &unchanged).unwrap();
    let (w, b) = (w.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    assert!(w.iter().all(|w| w.abs() > 1e-3) && b[0].abs() > 1e-3, "it learns: {w:?} {b:?}");
    on_engines(
        || config(replicas),
        |engine| {
            let part = rows / replicas;
            let xs: Vec<&[f32]> = x.chunks(part * width).collect();
            let ys: Vec<&[f32]> = y.chunks(part).collect();
            let xs = engine.tensor_per_replica(&xs, &[part, width])?;
            let ys = engine.tensor_per_replica(&ys, &[part, 1])?;
            let sum = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).unwrap());
            let average = |grads: &[&Tensor]| {
                let sums = Tensor::all_reduce_many(grads, sum.clone(), None)?;
                sums.iter().map(|sum| sum * (1.0 / replicas as f64)).collect()
            };
            let (own_w, own_b) = train(engine, &xs, &ys, &average)?;
            for replica in 0..replicas {
                close(&each(&own_w)[replica], &w, 1e-4);
                close(&each(&own_b)[replica], &b, 1e-4);
            }
            Ok(())
        },
    );
}

/// Two streams launch collectives on the same devices. All devices get them in one order, so none
/// deadlocks.
#[test]
fn streams_exchange_at_the_same_time() {
    on_engines(
        || config(4).drive_threads(2),
        |engine| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let engine = engine.clone();
                    std::thread::spawn(move || -> Result<()> {
                        let stream = engine.new_stream();
                        let start = thread as f32;
                        let mut x = stream.tensor_per_replica(&[&[start], &[1.0], &[2.0], &[3.0]], &[1])?;
                        let quarter = stream.scalar(0.25f32);
                        for _ in 0..60 {
                            x = x.all_reduce(OpCode::Add, None)?.mul(&quarter)?;
                        }
                        let mean = (start + 6.0) / 4.0;
                        assert_eq!(each(&x), vec![vec![mean]; 4]);
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        },
    );
}

/// Loops and branches whose bodies exchange data, and others that only depend on the replica and
/// diverge.
#[test]
fn replicas_exchange_inside_loops_and_branches() {
    let log = Log::default();
    on_engines(
        || config(2).event_sink(log.sink()),
        |engine| {
            let stream = engine.stream();
            let x = engine.tensor_per_replica(&[&[1.0f32], &[3.0]], &[1])?;
            log.take();
            let (_, y) = stream.while_loop(
                (engine.scalar(0i32), x.clone()),
                |(i, _)| i.less(&engine.scalar(3i32)),
                |(i, x)| {
                    let mean = (&x.all_reduce(OpCode::Add, None)? * 0.5)?;
                    let place = x.on_stream().replica_id()?.convert(DType::F32)?;
                    Ok(((&i + 1)?, (&mean + &place)?))
                },
            )?;
            assert_eq!(each(&y), [[3.0], [4.0]]);
            let regions = log.regions();
            assert_eq!(
                regions.len(),
                1,
                "a loop that exchanges is in the region of its neighbours: {regions:?}"
            );
            // As many rounds as the replica's index, and a branch that only one replica takes.
            let place = stream.replica_id()?.convert(DType::I32)?;
            let (_, z) = stream.while_loop(
                (engine.scalar(0i32), x.clone()),
                |(i, _)| i.less_equal(&place),
                |(i, x)| Ok(((&i + 1)?, (&x * 2.0)?)),
            )?;
            assert_eq!(each(&z), [[2.0], [12.0]]);
            let first = place.equal(&engine.scalar(0i32))?;
            let w = stream.cond(&first, x.clone(), |x| x.neg(), |x| &x * 10.0)?;
            assert_eq!(each(&w), [[-1.0], [30.0]]);
            // With the index inside, replicas diverge within one op.
            let (_, v) = stream.while_loop(
                (engine.scalar(0i32), x.clone()),
                |(i, _)| i.less_equal(&i.on_stream().replica_id()?.convert(DType::I32)?),
                |(i, x)| Ok(((&i + 1)?, (&x * 2.0)?)),
            )?;
            assert_eq!(each(&v), [[2.0], [12.0]]);
            Ok(())
        },
    );
    // If diverging replicas wait for each other, the op would never end. The reference device
    // reports it.
    let engine = config(2).build_reference().unwrap();
    let place = engine.stream().replica_id().unwrap().convert(DType::I32).unwrap();
    let first = place.equal(&engine.scalar(0i32)).unwrap();
    let x = engine.tensor(&[1.0f32], &[1]).unwrap();
    let sum = |x: Tensor| x.all_reduce(OpCode::Add, None);
    let apart = engine.stream().cond(&first, x, sum, |x| x.neg()).unwrap();
    let error = apart.to_vec::<f32>().unwrap_err().to_string();
    assert!(error.contains("replicas take different branches"), "{error}");
}

// ----- errors -----

#[test]
fn what_does_not_fit_the_replicas_is_refused_where_it_is_recorded() {
    on_engines(
        || config(2),
        |engine| {
            let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
            let error = x.all_gather(0, Some(&Groups::all(4))).unwrap_err();
            let line = line!() - 1;
            let text = error.to_string();
            assert!(text.contains("its groups name 4 replicas, but the program runs on 2"), "{text}");
            assert!(text.ends_with(&format!("(at tests/engine/collective.rs:{line})")), "{text}");
            assert_eq!(error.stage(), Stage::Record);
            let text = x.collective_permute(&[(0, 2)]).unwrap_err().to_string();
            assert!(text.contains("it names replica 2, but the program runs on 2"), "{text}");
            let text = engine.tensor_per_replica(&[&[1.0f32]], &[1]).unwrap_err().to_string();
            assert!(text.contains("data for 1 replicas was given, but the engine has 2"), "{text}");
            assert!(engine.tensor_per_replica(&[&[1.0f32], &[1.0, 2.0]], &[1]).is_err());
            let text = x.all_to_all(0, 1, None).unwrap_err().to_string();
            assert!(text.contains("dimension 1 of a tensor of rank 1"), "{text}");
            // A program has only one set of data.
            let own = engine.tensor_per_replica(&[&[1.0f32], &[2.0]], &[1])?;
            let error = engine.capture("differs", || Ok(vec![own.neg()?])).unwrap_err();
            assert!(error.to_string().contains("differs between the replicas"), "{error}");
            let (_, program) = engine.capture("same", || Ok(vec![x.all_reduce(OpCode::Add, None)?]))?;
            assert_eq!(engine.prepare(Arc::new(program.clone()))?.results()?[0].to_vec::<f32>()?, [2.0, 4.0]);
            let error = Engine::reference().prepare(Arc::new(program))?.results().unwrap_err();
            assert!(error.to_string().contains("the program runs on 1"), "{error}");
            Ok(())
        },
    );
    let error = config(3_000).build_reference().unwrap_err();
    assert!(error.to_string().contains("an engine has at most 2048"), "{error}");
    if let Err(error) = config(3).client_option("cpu_device_count", 2).build()
        && error.to_string().contains("asked for")
    {
        let wanted = "3 replicas from device 0 on were asked for, but the plugin has 2 devices here";
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

#[test]
fn a_failure_is_that_of_all_replicas() {
    let config = || {
        config(2).mode(Mode::Strict).inject_faults(|point| match point {
            FaultPoint::Download { bytes: 4 } => Some(Fault::new("the line is cut")),
            FaultPoint::Execute { ops: 2 } => Some(Fault::new("the device is on fire")),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
        // The whole region fails, but its ops run one by one, the collective among them.
        let y = with_mode(Mode::Fused, || x.neg()?.abs())?.all_reduce(OpCode::Add, None)?;
        assert_eq!(each(&y), [[2.0, 4.0]; 2]);
        assert_eq!(engine.counters().fallbacks, 1);
        let scalar = y.sum(&[0])?;
        assert!(scalar.read_replicas().unwrap_err().to_string().contains("the line is cut"));
        assert_eq!(each(&y), [[2.0, 4.0]; 2]);
        Ok(())
    });
    // A NaN on the second replica only.
    on_engines(
        || support::config().replicas(2).mode(Mode::Debug).check_finite(true),
        |engine| {
            let x = engine.tensor_per_replica(&[&[1.0f32], &[-1.0]], &[1])?;
            let error = x.sqrt().unwrap_err();
            assert!(error.is_non_finite() && error.to_string().contains("1 NaN"), "{error}");
            Ok(())
        },
    );
}

// ----- the interface for frameworks -----

#[test]
fn a_framework_reaches_every_replica() {
    let sessions = [Session::reference(config(2)).ok(), Session::new(config(2)).ok()];
    for session in sessions.into_iter().flatten() {
        let stream = session.open_stream().unwrap();
        let ty = TensorType::of(DType::F32, &[1]).unwrap();
        let (one, two) = (1.0f32.to_le_bytes(), 2.0f32.to_le_bytes());
        let x = session.upload_per_replica(stream, &ty, &[&one, &two]).unwrap();
        assert!(session.upload_per_replica(stream, &ty, &[&one]).is_err());
        let body = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).unwrap());
        let sum = |groups| Call {
            bodies: std::slice::from_ref(&body),
            ..Call::new(OpCode::AllReduce, std::slice::from_ref(&x)).with(attrs::all_reduce(groups))
        };
        let made = session.record(stream, sum(Groups::all(2))).unwrap();
        let found = session.read_replicas(made[0].id).unwrap();
        assert!(found.iter().all(|data| data.to_vec::<f32>().unwrap() == [3.0]) && found.len() == 2);
        assert_eq!(session.read_replicas(x).unwrap()[1].to_vec::<f32>().unwrap(), [2.0]);
        let error = session.record(stream, sum(Groups::all(3))).unwrap_err().to_string();
        assert!(error.contains("the program runs on 2"), "{error}");
        // A replicated value has no single buffer.
        assert!(session.lend(made[0].id).is_err());
        // A trace belongs to the same engine.
        let trace = session.begin_trace().unwrap();
        let input = session.placeholder(trace, &ty).unwrap();
        let call = |groups| Call {
            bodies: std::slice::from_ref(&body),
            ..Call::new(OpCode::AllReduce, std::slice::from_ref(&input)).with(attrs::all_reduce(groups))
        };
        assert!(session.record(trace, call(Groups::all(4))).is_err());
        let traced = session.record(trace, call(Groups::all(2))).unwrap();
        let function = session.end_trace(trace, "sum", &[traced[0].id]).unwrap();
        let made = session.call(stream, function, &[x], fuseline::Site::Unknown).unwrap();
        assert_eq!(session.read(made[0].id).unwrap().to_vec::<f32>().unwrap(), [3.0]);
    }
}
