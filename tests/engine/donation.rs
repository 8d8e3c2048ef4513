//! A parameter update allocates nothing: the new state takes the memory of the old one, as with
//! `jax.jit` and donated arguments.

use std::collections::HashMap;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use fuseline::handler::{self, Config, Handler, HandlerCall};
use fuseline::nn::{self, Adam, AdamState};
use fuseline::{Attrs, Bytes, DType, Engine, Event, MemoryPlan, OpCode, Result, Tensor, TensorType};

use crate::support::{self, Log, block_on, plugin, plugin_for, warm_up};

/// Sides of the square parameters, used in turn.
const SIDES: [usize; 4] = [32, 24, 16, 8];
const PARAMETERS: u64 = 20;

/// The peak memory of a step of `jax.jit` with donation for the same updates of the same parameters
/// (JAX 0.10.2 on its CPU backend, `memory_analysis`: arguments, outputs and scratch minus
/// aliases).
const JAX_ADAM: Bytes = Bytes(154_100);
const JAX_MOMENTUM: Bytes = Bytes(115_532);

/// New memory in each step: the sum that is read, 4 bytes, and XLA's output table, 8 bytes for each
/// output.
const fn fresh(states: u64) -> u64 {
    4 + 8 * (states * PARAMETERS + 1)
}

fn squares(engine: &Engine, value: f32) -> Result<Vec<Tensor>> {
    let sides = (0..PARAMETERS).zip(SIDES.iter().cycle());
    sides.map(|(_, &side)| engine.tensor(&vec![value; side * side], &[side; 2])).collect()
}

/// The memory plans of a steady step's regions, and the bytes of donated inputs.
fn steady(
    engine: &Engine,
    log: &Log,
    mut step: impl FnMut() -> Result<()>,
) -> Result<Vec<(MemoryPlan, Bytes)>> {
    let (mut plans, mut sealed) = (HashMap::new(), HashMap::new());
    let mut steady = Vec::new();
    log.take();
    warm_up(engine, &mut step)?;
    for number in 0..6 {
        let before = engine.counters();
        step()?;
        engine.synchronize()?;
        let did = engine.counters().since(&before);
        steady.clear();
        for event in log.take() {
            match event {
                Event::CompileFinished { region, memory, .. } => {
                    plans.insert(region.key, memory);
                }
                Event::Sealed { region, contents, .. } => {
                    sealed.insert(region.seq, contents);
                }
                Event::Launched { region, donated } => {
                    let types = sealed[&region.seq].canon().graph().params();
                    let bytes = donated.iter().map(|&param| types[param as usize].bytes().0).sum();
                    steady.push((plans[&region.key], Bytes(bytes)));
                }
                _ => {}
            }
        }
        assert_eq!((did.interpreted, did.compiles), (0, 0), "step {number} of a steady loop");
        assert_eq!(before.live_bytes, engine.counters().live_bytes, "step {number} leaves something");
    }
    Ok(steady.into_iter().filter_map(|(memory, donated)| Some((memory?, donated))).collect())
}

fn check(name: &str, states: u64, regions: &[(MemoryPlan, Bytes)], jax: Bytes) {
    let [(plan, donated)] = regions else { panic!("{name}: {} regions a step", regions.len()) };
    println!("{name}: {plan}; {donated} donated; jax {jax}");
    // Every output but the sum is planned into the memory of the old state, and goes there at run
    // time.
    assert!(plan.outputs.0 - plan.aliased.0 <= fresh(states), "{name}: {plan}");
    assert_eq!(*donated, plan.aliased, "{name}");
    assert_eq!(plan.temporaries, Bytes(0), "{name}: {plan}");
    assert!(plan.peak().0 * 10 <= jax.0 * 11, "{name}: {plan}, jax.jit needs {jax}");
}

#[test]
fn a_parameter_update_allocates_nothing() -> Result<()> {
    let log = Log::default();
    let config = support::config().event_sink(log.sink());
    let Some(engine) = plugin_for("what updates allocate", config) else { return Ok(()) };
    let targets = [squares(&engine, -1.0)?, squares(&engine, 1.0)?];

    let mut states: Vec<AdamState> =
        squares(&engine, 0.5)?.into_iter().map(AdamState::new).collect::<Result<_>>()?;
    let mut number = 0;
    let adam = steady(&engine, &log, || {
        number += 1;
        for (state, target) in states.iter_mut().zip(&targets[number as usize % 2]) {
            let gradient = (&state.value - target)?;
            *state = nn::adam(state.clone(), &gradient, number, &Adam::default())?;
        }
        states[0].value.sum(&[0, 1])?.item::<f32>().map(drop)
    })?;
    check("Adam", 3, &adam, JAX_ADAM);

    let mut parameters: Vec<_> = squares(&engine, 0.5)?.into_iter().zip(squares(&engine, 0.0)?).collect();
    let momentum = steady(&engine, &log, || {
        number += 1;
        for ((value, speed), target) in parameters.iter_mut().zip(&targets[number as usize % 2]) {
            let gradient = (&*value - target)?;
            *speed = ((&*speed * 0.9)? + gradient)?;
            *value = (&*value - (&*speed * 0.05)?)?;
        }
        parameters[0].0.sum(&[0, 1])?.item::<f32>().map(drop)
    })?;
    check("momentum", 2, &momentum, JAX_MOMENTUM);
    Ok(())
}

/// A copy to the host in flight does not prevent reuse, and gets the right data.
#[test]
fn what_is_being_read_is_reused() -> Result<()> {
    const ROUNDS: usize = 10;
    let Some(engine) = plugin(support::config()) else { return Ok(()) };
    let size = 1 << 21;
    let mut x = engine.tensor(&vec![0.0f32; size], &[size])?;
    let mut step = || {
        x = (&x + 1.0)?;
        engine.stream().flush();
        Ok(x.read())
    };
    let mut steps = 0;
    warm_up(&engine, || {
        steps += 1;
        step().map(drop)
    })?;
    let before = engine.counters();
    let reads = (0..ROUNDS).map(|_| step()).collect::<Result<Vec<_>>>()?;
    engine.synchronize()?;
    assert_eq!(engine.counters().since(&before).donations, ROUNDS as u64);
    for (round, read) in reads.into_iter().enumerate() {
        let (data, wanted) = (block_on(read)?.to_vec::<f32>()?, (steps + round + 1) as f32);
        assert!(data.iter().all(|&element| element == wanted), "round {round}: {}", data[0]);
    }
    Ok(())
}

/// A handler that returns its operand on request.
struct Gate(Mutex<mpsc::Receiver<()>>);

impl Handler for Gate {
    fn results(&self, operands: &[TensorType], _: &Config) -> std::result::Result<Vec<TensorType>, String> {
        Ok(operands.to_vec())
    }

    fn run(&self, call: HandlerCall<'_>) -> std::result::Result<(), String> {
        self.0.lock().unwrap().recv().map_err(|error| error.to_string())?;
        call.results[0].bytes.copy_from_slice(call.operands[0].bytes);
        Ok(())
    }
}

/// While an execution with donated memory runs, others are launched: no thread waits for the
/// donated memory.
#[test]
fn what_is_given_away_holds_up_nobody() -> Result<()> {
    const SIDE: usize = 64;
    let Some(engine) = plugin(support::config()) else { return Ok(()) };
    let (open, wait) = mpsc::channel();
    let gate = handler::register("test.gate", Gate(Mutex::new(wait))).unwrap();
    let ones = |value| engine.tensor(&vec![value; SIDE * SIDE], &[SIDE; 2]);
    let (mut x, matrix) = (ones(1.0f32)?, ones(0.5)?);
    // Enough work for the plugin to do it on its own thread.
    let step = |x: Tensor| -> Result<Tensor> {
        let product = matrix.matmul(&matrix)?;
        let late = engine.stream().call_handler(gate, &[&product], Config::none())?;
        let next = (&x + &late[0])?;
        drop((x, product, late));
        engine.stream().flush();
        Ok(next)
    };
    let mut steps = 0;
    warm_up(&engine, || {
        steps += 1;
        open.send(()).unwrap();
        x = step(std::mem::replace(&mut x, matrix.clone()))?;
        x.wait()
    })?;
    let before = engine.counters();
    x = step(x)?;
    let later = (&matrix * &matrix)?;
    let (send, launched) = mpsc::channel();
    later.on_ready(move |outcome| {
        let _ = send.send(outcome.is_ok());
    });
    let is_launched = launched.recv_timeout(Duration::from_secs(20));
    let donations = engine.counters().since(&before).donations;
    open.send(()).unwrap();
    assert_eq!(is_launched, Ok(true), "it waits for what runs");
    assert_eq!(donations, 1);
    let wanted = 1.0 + 16.0 * (steps + 1) as f32;
    assert_eq!(x.to_vec::<f32>()?, vec![wanted; SIDE * SIDE]);
    Ok(())
}

/// A sealed step of a loop: the old state dies in it unless another handle holds it.
fn next(engine: &Engine, x: &mut Tensor) -> Result<()> {
    let next = (((&*x * 0.5)? + 1.0)? - 0.25)?;
    *x = next;
    engine.stream().flush();
    Ok(())
}

/// I5: the initial state has another handle, so the executable is compiled to keep it. Later states
/// are not kept, and an executable that reuses them takes over.
#[test]
fn what_lives_on_at_first_is_reused_later() -> Result<()> {
    // New memory for a result of 4 MiB costs 0.2 ms, and a compile of three ops is estimated at 31
    // ms.
    const ROUNDS: u64 = 300;
    let log = Log::default();
    let Some(engine) = plugin(support::config().event_sink(log.sink())) else { return Ok(()) };
    let first = engine.tensor(&vec![1.0f32; 1 << 20], &[1 << 20])?;
    let mut x = first.clone();
    let widened = |log: &Log| {
        let told = |event| match event {
            Event::DonationExtended { inputs, executions, .. } => Some((inputs, executions)),
            _ => None,
        };
        log.take().into_iter().filter_map(told).collect::<Vec<_>>()
    };
    next(&engine, &mut x)?;
    for _ in 0..ROUNDS {
        next(&engine, &mut x)?;
        x.wait()?;
    }
    support::wait_until(&engine, |counters| counters.pending_compiles == 0);
    let told = widened(&log);
    let [(inputs, executions)] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!(inputs.len(), 1);
    assert!((50..ROUNDS).contains(executions), "{executions}");
    assert!(engine.counters().donations <= ROUNDS - executions);

    let before = engine.counters();
    for _ in 0..ROUNDS {
        next(&engine, &mut x)?;
        x.wait()?;
    }
    let did = engine.counters().since(&before);
    assert_eq!((did.donations, did.compiles_asked, did.misses), (ROUNDS, 0, 0));
    // A handle that is kept still has its value.
    let kept = x.clone();
    next(&engine, &mut x)?;
    x.wait()?;
    assert_eq!(engine.counters().since(&before).donations, ROUNDS);
    assert!(widened(&log).is_empty());
    for (tensor, expected) in [(&first, 1.0), (&kept, 1.5), (&x, 1.5)] {
        let data = tensor.to_vec::<f32>()?;
        assert!(data.iter().all(|&element| element == expected), "{} instead of {expected}", data[0]);
    }
    Ok(())
}

/// The cost of allocating a result that could reuse an input's memory.
#[test]
#[ignore = "figures: `cargo test --release --test engine donation:: -- --ignored --nocapture`"]
fn cost_of_what_is_not_reused() -> Result<()> {
    for size in [1, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22] {
        let engines = [plugin(support::config()), plugin(support::config())];
        let [Some(reusing), Some(keeping)] = engines else { return Ok(()) };
        let rounds = ((1 << 22) / size).clamp(5, 2_000) as u32;
        let mut least = [Duration::MAX; 2];
        let mut states = Vec::new();
        for engine in [&reusing, &keeping] {
            states.push(engine.tensor(&vec![1.0f32; size], &[size])?);
        }
        for _ in 0..20 {
            for (place, engine) in [&reusing, &keeping].into_iter().enumerate() {
                let x = &mut states[place];
                let start = Instant::now();
                for _ in 0..rounds {
                    // A handle that lives until the execution prevents the reuse.
                    let kept = (place == 1).then(|| x.clone());
                    next(engine, x)?;
                    x.wait()?;
                    drop(kept);
                }
                least[place] = least[place].min(start.elapsed() / rounds);
            }
        }
        let [reused, kept] = least;
        println!(
            "{size} elements: {reused:.2?} reused, {kept:.2?} not, {:.2?} more",
            kept.saturating_sub(reused)
        );
    }
    Ok(())
}

/// A matrix that was updated in place is read by the next product. XLA's CPU plugin has a library
/// for products, XNNPACK, which keeps a reordered copy of the right operand for as long as the
/// operand has the same address. It is used only for sizes at which it is expected to be faster.
#[test]
fn products_see_what_was_updated_in_place() {
    const ROUNDS: i32 = 8;
    for [rows, depth, columns] in [[256, 512, 512], [512, 1024, 768]] {
        // The products are XLA's.
        let Some(engine) = plugin_for("products in place", support::compiled_first()) else { return };
        let ones = |dims: [usize; 2]| engine.tensor(&vec![1.0f32; dims.iter().product::<usize>()], &dims);
        let (x, mut weights) = (ones([rows, depth]).unwrap(), ones([depth, columns]).unwrap());
        for round in 0..ROUNDS {
            let product = x.matmul(&weights).unwrap();
            // The update depends on the product, so it comes after it and needs no copy of the
            // weights. It doubles them.
            let step = product.slice(&[0, 0], &[1, 1], &[1, 1]).unwrap();
            weights = (step * (1.0 / depth as f64)).and_then(|step| weights.add(&step)).unwrap();
            let expected = depth as f32 * 2f32.powi(round);
            let wrong = product.to_vec::<f32>().unwrap().into_iter().find(|&element| element != expected);
            assert_eq!(wrong, None, "{rows} by {depth} by {columns}, round {round}, for {expected}");
        }
        assert!(engine.counters().donations > 1, "{:?}", engine.counters());
    }
}

/// A value that dies on one stream keeps its memory until another, blocked stream has read it.
#[test]
fn what_another_stream_is_to_read_is_not_reused() -> Result<()> {
    let Some(engine) = plugin(support::config()) else { return Ok(()) };
    let ty = TensorType::of(DType::F32, &[1_024])?;
    let other = engine.new_stream();
    let input = || engine.tensor(&vec![3.0f32; 1_024], &[1_024]);
    // So that it has an executable, which may reuse its input.
    warm_up(&engine, || {
        let x = input()?;
        let next = x.neg()?;
        drop(x);
        next.wait()
    })?;
    for shares in [false, true, true] {
        let x = input()?;
        // Blocked until the promise is kept.
        let (late, promised) = other.promised(ty.clone());
        let sum = other
            .record(OpCode::Add, Attrs::none(), &[], &[&late, if shares { &x } else { &late }])?
            .remove(0);
        other.flush();
        let before = engine.counters();
        let next = x.neg()?;
        drop(x);
        assert_eq!(next.to_vec::<f32>()?, vec![-3.0; 1_024]);
        // Without the reader it is reused; otherwise the test shows nothing.
        let donations = engine.counters().since(&before).donations;
        assert_eq!(donations, u64::from(!shares));
        let ones: Vec<u8> = std::iter::repeat_n(1.0f32.to_le_bytes(), 1_024).flatten().collect();
        promised.keep(&ones)?;
        assert_eq!(sum.to_vec::<f32>()?, vec![if shares { 4.0 } else { 2.0 }; 1_024]);
    }
    Ok(())
}
