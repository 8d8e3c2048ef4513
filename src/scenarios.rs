//! Tests of the whole engine under many threads, on the reference device.
//!
//! Each scenario is a program with the same result under every schedule. Under shuttle (tests
//! `shuttle_*`) a small one runs under many random schedules. On real threads (tests `stress_*`,
//! which the thread sanitizer checks) a large one runs once.
//!
//! Shuttle explores every access to the engine's own atomics, locks, condition variables and
//! parking, which all come from `fuseline_sync`. That covers the log, the actor, the pools, single
//! flight as the engine uses it, back-pressure, and dropping everything. Under shuttle the log is
//! small (16 entries), so that producers reach its end, and few executions are interpreted.
//!
//! Shuttle does not explore the insides of third-party crates and of the cache, which use `std` and
//! `parking_lot` (their critical sections call nothing of ours, so each is one step); memory
//! orderings, because shuttle is sequentially consistent (the loom models cover them); the plugin;
//! and time, so deadlines never pass.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use fuseline_cache::Budget;
use fuseline_fusion::region::{Budgets, Mode};
use fuseline_fusion::{Bytes, DType, OpCode, Site, TensorType};
use fuseline_record::mode::with_mode;
use fuseline_runtime::internals::{Device, EngineSetup};
use fuseline_runtime::{Counters, Event, Fault, FaultPoint, Result};
use fuseline_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use fuseline_sync::{Condvar, Mutex, Rank, thread};

use crate::config::EngineConfig;
use crate::embed::{Call, Session, ValueHandle};
use crate::engine::Engine;
use crate::handle::Tensor;

/// The size of a scenario.
#[derive(Clone, Copy)]
struct Size {
    threads: usize,
    /// Iterations of each thread.
    rounds: usize,
}

fn small(config: EngineConfig) -> Engine {
    config.compile_threads(1).drive_threads(1).build_reference().unwrap()
}

fn vector(engine: &Engine, first: f32) -> Tensor {
    engine.tensor(&[first, 2.0], &[2]).unwrap()
}

fn first(tensor: &Tensor) -> f32 {
    tensor.to_vec::<f32>().unwrap()[0]
}

/// Runs `f` on this many threads, each with its number, and waits for them.
fn on_threads(threads: usize, f: impl Fn(usize) + Send + Sync + 'static) {
    let f = Arc::new(f);
    let started: Vec<_> = (0..threads)
        .map(|me| {
            let f = f.clone();
            thread::spawn(format!("recorder-{me}"), move || f(me)).unwrap()
        })
        .collect();
    started.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Threads record on one stream, drop values that they do not need, and read their results.
fn one_stream(size: Size) {
    let engine = small(EngineConfig::new());
    let x = vector(&engine, 1.0);
    on_threads(size.threads, move |me| {
        let mut y = x.clone();
        for _ in 0..size.rounds {
            y = (&y + me as f64).unwrap();
            drop(y.neg().unwrap());
        }
        assert_eq!(first(&y), 1.0 + (me * size.rounds) as f32);
    });
    engine.synchronize().unwrap();
    let counters = engine.counters();
    // A broadcast, a sum, a negation.
    assert_eq!(counters.ops, (size.threads * size.rounds * 3) as u64, "every op left the log once");
    assert_eq!(counters.poisoned, 0);
}

/// Each thread has a stream, uses a value of the previous thread, and another thread reads it. Each
/// value follows from its operands, whatever the order of the threads.
fn streams_that_use_each_other(size: Size) {
    let engine = small(EngineConfig::new());
    let start = |me: usize| Mutex::new(Rank::Test, (vector(&engine, -(me as f32)), [-(me as f32), 2.0]));
    let ring: Arc<Vec<_>> = Arc::new((0..size.threads).map(start).collect());
    let (held, used) = (engine.clone(), ring.clone());
    on_threads(size.threads, move |me| {
        let stream = held.new_stream();
        let mine = stream.tensor(&[1.0f32, 3.0], &[2]).unwrap();
        for round in 0..size.rounds {
            let (theirs, [first, second]) = used[(me + round) % used.len()].lock().clone();
            let next = mine.add(&theirs.abs().unwrap()).unwrap();
            let wanted = [1.0 + first.abs(), 3.0 + second.abs()];
            // The old value is dropped while others may be using it.
            let old = std::mem::replace(&mut *used[me].lock(), (next, wanted));
            drop(old);
        }
        let (value, wanted) = used[me].lock().clone();
        assert_eq!(value.to_vec::<f32>().unwrap(), wanted);
    });
    for value in ring.iter() {
        let (value, wanted) = value.lock().clone();
        assert_eq!(value.to_vec::<f32>().unwrap(), wanted);
    }
}

/// Threads with their own streams need the same key, which has not been compiled.
fn one_compile_per_key(size: Size) {
    let compiles = Arc::new(AtomicU32::new(0));
    let counted = compiles.clone();
    let engine = EngineConfig::new()
        .compile_threads(2)
        .inject_faults(move |point| {
            if let FaultPoint::Compile { .. } = point {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            None
        })
        .build_reference()
        .unwrap();
    let held = engine.clone();
    on_threads(size.threads, move |_| {
        let stream = held.new_stream();
        for _ in 0..size.rounds {
            let x = stream.tensor(&[3.0f32], &[1]).unwrap();
            let y = x.mul(&x).unwrap().neg().unwrap();
            drop(x);
            assert_eq!(first(&y), -9.0);
        }
    });
    assert_eq!(compiles.load(Ordering::Relaxed), 1);
    assert_eq!(engine.counters().executions, (size.threads * size.rounds) as u64);
}

/// Threads with their own streams run a region until it has been interpreted often enough, and then
/// its executable. The interpreter fails once, reads come at any time, and some threads end without
/// reading. The data is the same in every tier.
fn cold_regions(size: Size) {
    let counters = interpreted_at_first(size, EngineConfig::new().reproducible(true));
    assert!(counters.executions > 0, "{counters:?}");
}

/// As [`cold_regions`], but the interpreter goes on while the executable is compiled. The compile
/// may come too late.
fn cold_regions_that_wait_for_nothing(size: Size) {
    interpreted_at_first(size, EngineConfig::new());
}

fn interpreted_at_first(size: Size, config: EngineConfig) -> Counters {
    let failed = AtomicBool::new(false);
    let config = config.compile_threads(1).drive_threads(1).inject_faults(move |point| match point {
        FaultPoint::Execute { ops: 2.. } if !failed.swap(true, Ordering::Relaxed) => {
            Some(Fault::new("not today"))
        }
        _ => None,
    });
    let device = Device::near(config.settings().faults.clone());
    let setup = EngineSetup::on_reference(config.settings());
    let engine = Engine::on(config, device, setup).unwrap();
    let held = engine.clone();
    on_threads(size.threads, move |me| {
        let stream = held.new_stream();
        let width = 2 + me;
        for round in 0..size.rounds {
            // A region that all threads share.
            let shared = stream.tensor(&[round as f32, 1.0], &[2]).unwrap().abs().unwrap().neg().unwrap();
            if (me + round) % 2 == 0 {
                assert_eq!(first(&shared), -(round as f32));
            } else {
                // Nobody reads it here, but the next region needs it.
                stream.flush();
            }
            // A region of this thread, of which one part is kept and another is not.
            let x = stream.tensor(&vec![3.0f32; width], &[width]).unwrap();
            let square = x.mul(&x).unwrap();
            drop(x);
            let sum = shared.sum(&[0]).unwrap().broadcast_to(&[width]).unwrap();
            let both = square.neg().unwrap().add(&sum).unwrap();
            assert_eq!(both.to_vec::<f32>().unwrap(), vec![-10.0 - round as f32; width]);
            drop((me % 2 == 0).then_some(square));
        }
    });
    engine.synchronize().unwrap();
    let counters = engine.counters();
    assert!(counters.interpreted > 0 && counters.poisoned == 0, "{counters:?}");
    counters
}

/// Called at the end of an execution.
type Landing = Box<dyn FnOnce() + Send>;

/// A device that finishes executions on a thread of its own.
struct SlowDevice {
    /// Executions in progress, and whether there will be no more.
    state: Mutex<(Vec<Landing>, bool)>,
    changed: Condvar,
    in_flight: AtomicU32,
    most: AtomicU32,
}

impl SlowDevice {
    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            while state.0.is_empty() && !state.1 {
                state = self.changed.wait(state);
            }
            let Some(done) = state.0.pop() else { return };
            drop(state);
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            done();
        }
    }
}

/// At most this many regions are on the device at once, and everything still completes.
fn back_pressure(size: Size) {
    const LIMIT: u32 = 2;
    let slow = Arc::new(SlowDevice {
        state: Mutex::new(Rank::Test, (Vec::new(), false)),
        changed: Condvar::new(),
        in_flight: AtomicU32::new(0),
        most: AtomicU32::new(0),
    });
    let device = slow.clone();
    let later = Arc::new(move |done: Landing| {
        let now = device.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        device.most.fetch_max(now, Ordering::Relaxed);
        device.state.lock().0.push(done);
        device.changed.notify_all();
    });
    let config = EngineConfig::new()
        .compile_threads(1)
        .region_budgets(Budgets { ops: 2, ..Budgets::default() })
        // Two regions of 8 bytes.
        .in_flight_limits(LIMIT as usize, Bytes(16));
    let setup = EngineSetup::on_reference(config.settings());
    let engine = Engine::on(config, Device::slow(None, later), setup).unwrap();
    let worker = {
        let slow = slow.clone();
        thread::spawn("device".to_owned(), move || slow.work()).unwrap()
    };
    let x = vector(&engine, 0.0);
    on_threads(size.threads, move |_| {
        let mut y = x.clone();
        for _ in 0..size.rounds {
            y = (&y + 1.0).unwrap();
        }
        assert_eq!(first(&y), size.rounds as f32);
    });
    engine.synchronize().unwrap();
    assert_eq!(slow.in_flight.load(Ordering::Relaxed), 0, "a fence waits for what is in flight");
    assert!(slow.most.load(Ordering::Relaxed) <= LIMIT);
    drop(engine);
    slow.state.lock().1 = true;
    slow.changed.notify_all();
    worker.join().unwrap();
}

/// The cache has room for one region while threads use several.
fn eviction_during_use(size: Size) {
    let engine = small(EngineConfig::new().cache_budget(Budget { entries: 1, bytes: 1 << 20 }));
    let held = engine.clone();
    on_threads(size.threads, move |me| {
        let stream = held.new_stream();
        for round in 0..size.rounds {
            let width = 1 + (me + round) % 3;
            let x = stream.tensor(&vec![2.0f32; width], &[width]).unwrap();
            assert_eq!(x.mul(&x).unwrap().to_vec::<f32>().unwrap(), vec![4.0; width]);
            if me == 0 && round % 3 == 2 {
                held.clear_cache();
            }
        }
    });
    assert!(engine.counters().cached_executables <= 1);
}

/// Regions of several ops do not compile. All threads get results anyway. An op that does not
/// compile by itself fails only the values that use it.
fn compiles_that_fail(size: Size) {
    let engine = small(EngineConfig::new().inject_faults(|point| match point {
        FaultPoint::Compile { ops } if ops > 1 => Some(Fault::new("too many")),
        _ => None,
    }));
    let held = engine.clone();
    on_threads(size.threads, move |me| {
        let stream = held.new_stream();
        for _ in 0..size.rounds {
            let x = stream.tensor(&[me as f32, 1.0], &[2]).unwrap();
            let y = (&x.neg().unwrap() + 1.0).unwrap();
            assert_eq!(first(&y), 1.0 - me as f32);
        }
    });
    let counters = engine.counters();
    assert_eq!(counters.fallbacks, (size.threads * size.rounds) as u64);
    assert_eq!(counters.poisoned, 0);
}

/// One thread uses a value that is never computed. Exactly what depends on it fails.
fn poisoning(size: Size) {
    let engine = small(EngineConfig::new().mode(Mode::Strict));
    let poisoned = Arc::new(AtomicU32::new(0));
    let (held, count) = (engine.clone(), poisoned.clone());
    let x = vector(&engine, 1.0);
    on_threads(size.threads, move |me| {
        for _ in 0..size.rounds {
            let bad = me == 0;
            let stream = held.new_stream();
            let base = if bad { abandoned(&stream, x.ty()) } else { x.neg().unwrap() };
            let next = base.abs().unwrap();
            let both = next.add(&x).unwrap();
            match both.to_vec::<f32>() {
                Ok(values) => {
                    assert!(!bad);
                    assert_eq!(values[0], 2.0);
                }
                Err(error) => {
                    assert!(bad, "{error}");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    assert_eq!(poisoned.load(Ordering::Relaxed), size.rounds as u32);
    // Two ops of each iteration of one thread.
    assert_eq!(engine.counters().poisoned, 2 * size.rounds as u64);
}

/// A value whose promise has been dropped.
fn abandoned(stream: &crate::stream::Stream, ty: &TensorType) -> Tensor {
    let (cell, promise) = fuseline_runtime::internals::ValueCell::promised(ty.clone());
    drop(promise);
    Tensor::new(cell, stream.shared().clone())
}

/// The engine is dropped first; then, on several threads at once, streams and values, read or
/// unread.
fn the_engine_goes_first(size: Size) {
    let engine = small(EngineConfig::new());
    let x = vector(&engine, 1.0);
    let stream = engine.new_stream();
    let made: Vec<Tensor> = (0..size.threads).map(|me| (&x + me as f64).unwrap().neg().unwrap()).collect();
    let other = stream.tensor(&[5.0f32, 5.0], &[2]).unwrap().add(&made[0]).unwrap();
    drop(stream);
    let made = Arc::new(Mutex::new(Rank::Test, made.into_iter().map(Some).collect::<Vec<_>>()));
    let other = Mutex::new(Rank::Test, Some(other));
    let held = Mutex::new(Rank::Test, Some((engine, x)));
    on_threads(size.threads, move |me| {
        if me == 0 {
            drop(held.lock().take());
        }
        let mine = made.lock()[me].take().unwrap();
        if me % 2 == 1 {
            assert_eq!(first(&mine), -1.0 - me as f32);
        }
        drop(mine);
        if me == size.threads - 1 {
            let other = other.lock().take().unwrap();
            assert_eq!(first(&other), 4.0);
        }
    });
}

/// Callbacks and sinks record, drop and panic, on any thread, while the log is full.
fn callbacks_that_record(size: Size) {
    let kept: Arc<Mutex<Vec<Tensor>>> = Arc::new(Mutex::new(Rank::Test, Vec::new()));
    let sink = kept.clone();
    let engine = small(EngineConfig::new().event_sink(move |event: &Event| {
        // A sink may drop values and record.
        if let Event::Launched { .. } = event {
            let last = sink.lock().pop();
            drop(last.map(|tensor| tensor.neg().unwrap()));
        }
    }));
    let x = vector(&engine, 1.0);
    let called = Arc::new(AtomicU32::new(0));
    let (held, count) = (kept.clone(), called.clone());
    on_threads(size.threads, move |me| {
        for round in 0..size.rounds {
            let y = (&x + me as f64).unwrap();
            let (kept, called, captured) = (held.clone(), count.clone(), y.clone());
            y.on_ready(move |outcome| {
                outcome.unwrap();
                kept.lock().push(captured.abs().unwrap());
                assert!(captured.synchronize_stream().is_err(), "a callback must not wait");
                called.fetch_add(1, Ordering::Relaxed);
                assert!(round % 2 == 0, "every other callback panics");
            });
            assert_eq!(first(&y), 1.0 + me as f32);
        }
    });
    engine.synchronize().unwrap();
    assert_eq!(called.load(Ordering::Relaxed), (size.threads * size.rounds) as u32);
    assert_eq!(engine.counters().panics, (size.threads * (size.rounds / 2)) as u64);
    let rest = std::mem::take(&mut *kept.lock());
    drop(rest);
}

impl Tensor {
    fn synchronize_stream(&self) -> Result<()> {
        self.on_stream().synchronize()
    }
}

/// Threads retain, replace and release the same ids. Each reference is released once, and every
/// write takes effect.
fn ids_that_threads_share(size: Size) {
    let session = Session::reference(EngineConfig::new().compile_threads(1)).unwrap();
    let stream = session.open_stream().unwrap();
    let bytes = |number: f32| number.to_le_bytes();
    let ty = TensorType::of(DType::F32, &[1]).unwrap();
    let x = session.upload(stream, &ty, &bytes(1.0)).unwrap();
    let hole = session.placeholder(stream, &ty).unwrap();
    let contested = session.upload(stream, &ty, &bytes(1.0)).unwrap();
    let (filled, given_back) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (held, fills, releases) = (session.clone(), filled.clone(), given_back.clone());
    on_threads(size.threads, move |me| {
        let op = |op, operands: &[ValueHandle]| {
            held.record(stream, Call::new(op, operands)).map(|made| made[0].id)
        };
        for _ in 0..size.rounds {
            held.retain(x).unwrap();
            let y = op(OpCode::Abs, &[x]).unwrap();
            held.replace(x, y).unwrap();
            held.release(y).unwrap();
            assert!(held.release(y).is_err(), "an id that was given back");
            held.release(x).unwrap();
        }
        // One thread fills the placeholder. Everybody who reads a dependent value gets it.
        let z = op(OpCode::Negate, &[hole]).unwrap();
        if held.fill(hole, &bytes(me as f32 + 5.0)).is_ok() {
            fills.fetch_add(1, Ordering::Relaxed);
        }
        assert!(held.read(z).unwrap().to_vec::<f32>().unwrap()[0] <= -5.0);
        held.release(z).unwrap();
        // All threads try to release the only reference.
        if held.release(contested).is_ok() {
            releases.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!((filled.load(Ordering::Relaxed), given_back.load(Ordering::Relaxed)), (1, 1));
    assert_eq!(session.read(x).unwrap().to_vec::<f32>().unwrap(), [1.0]);
    assert_eq!(session.version(x).unwrap(), (size.threads * size.rounds) as u64);
    session.release(x).unwrap();
    session.release(hole).unwrap();
    assert_eq!(session.live_values(), 0);
}

/// All modes at once on one stream.
fn modes(size: Size) {
    let engine = small(EngineConfig::new());
    let x = vector(&engine, 1.0);
    on_threads(size.threads, move |me| {
        let mode = [Mode::Fused, Mode::Strict, Mode::Debug][me % 3];
        for _ in 0..size.rounds {
            let y = with_mode(mode, || &(&x + 1.0)? * &x).unwrap();
            assert_eq!(first(&y), 2.0);
        }
    });
}

/// One thread repeats a step. The others do something else meanwhile, each in its own turn.
fn beside(
    size: Size,
    step: impl Fn(usize) + Send + Sync + 'static,
    other: impl Fn(usize) + Send + Sync + 'static,
) {
    on_threads(size.threads, move |me| {
        for round in 0..size.rounds {
            if me == 0 { step(round) } else { other(me + round) }
        }
    });
}

/// One thread repeats a step, which is replayed. The others drop its results, read them, flush, and
/// record on the same stream.
fn others_meddle_with_a_steady_loop(size: Size) {
    let engine = small(EngineConfig::new());
    let x = vector(&engine, 1.0);
    let shared: Arc<Mutex<Vec<Tensor>>> = Arc::new(Mutex::new(Rank::Test, Vec::new()));
    let (held, stream) = (shared.clone(), x.on_stream());
    let step = move |round: usize| {
        let y = (&x * 2.0).unwrap();
        held.lock().push(y.clone());
        let z = (&y + round as f64).unwrap();
        held.lock().push(z.clone());
        let w = z.neg().unwrap();
        drop((y, z));
        assert_eq!(first(&w), -2.0 - round as f32);
    };
    // It is expected after two iterations.
    (0..3).for_each(&step);
    assert!(engine.counters().replayed > 0, "the third is replayed");
    let found = shared.clone();
    beside(size, step, move |turn| {
        let found = found.lock().pop();
        match turn % 4 {
            0 => drop(found),
            1 => stream.flush(),
            2 => assert!(found.is_none_or(|found| first(&found) >= 2.0)),
            _ => drop(found.map(|found| found.abs().unwrap())),
        }
    });
    for rest in std::mem::take(&mut *shared.lock()) {
        assert!(first(&rest) >= 2.0);
    }
    engine.synchronize().unwrap();
    assert_eq!(engine.counters().poisoned, 0);
}

/// One thread repeats a step, which is replayed. The others read its results, or record ops on
/// them, and drop them before that is handled.
fn results_are_let_go_as_they_are_asked_for(size: Size) {
    let engine = small(EngineConfig::new());
    let x = vector(&engine, 1.0);
    let shared: Arc<Mutex<Vec<Tensor>>> = Arc::new(Mutex::new(Rank::Test, Vec::new()));
    let held = shared.clone();
    let step = move |round: usize| {
        let y = (&x * 2.0).unwrap();
        held.lock().push(y);
        let z = (&x + round as f64).unwrap();
        held.lock().push((&z + 1.0).unwrap());
        assert_eq!(first(&z.neg().unwrap()), -1.0 - round as f32);
    };
    (0..3).for_each(&step);
    assert!(engine.counters().replayed > 0, "the third is replayed");
    shared.lock().clear();
    let found = shared.clone();
    beside(size, step, move |turn| {
        let Some(value) = found.lock().pop() else { return };
        match turn % 2 {
            0 => {
                let slot = Arc::new((Mutex::new(Rank::Test, None), Condvar::new()));
                let filled = slot.clone();
                value.handle().deliver(Site::Unknown, move |data| {
                    *filled.0.lock() = Some(data);
                    filled.1.notify_all();
                });
                drop(value);
                let mut data = slot.0.lock();
                while data.is_none() {
                    data = slot.1.wait(data);
                }
                data.take().unwrap().unwrap();
            }
            _ => {
                let other = value.abs().unwrap();
                drop(value);
                assert!(first(&other) >= 1.0);
            }
        }
    });
    engine.synchronize().unwrap();
    assert_eq!(engine.counters().poisoned, 0);
}

/// Every scenario with its name; `shuttle_NAME` and `stress_NAME` are its tests.
macro_rules! scenarios {
    ($($name:ident: $shuttle:ident / $stress:ident, $iterations:literal);* $(;)?) => {
        $(
            #[cfg(shuttle)]
            #[test]
            fn $shuttle() {
                shuttle::check_random(|| $name(Size { threads: 2, rounds: 2 }), $iterations);
                shuttle::check_pct(|| $name(Size { threads: 3, rounds: 2 }), $iterations / 2, 3);
            }

            #[cfg(not(shuttle))]
            #[test]
            fn $stress() {
                $name(Size { threads: 4, rounds: if cfg!(debug_assertions) { 40 } else { 200 } });
            }
        )*
    };
}

scenarios! {
    others_meddle_with_a_steady_loop:
        shuttle_others_meddle_with_a_steady_loop / stress_others_meddle_with_a_steady_loop, 1_000;
    results_are_let_go_as_they_are_asked_for:
        shuttle_results_are_let_go_as_they_are_asked_for / stress_results_are_let_go_as_they_are_asked_for, 2_000;
    one_stream: shuttle_one_stream / stress_one_stream, 2_000;
    streams_that_use_each_other:
        shuttle_streams_that_use_each_other / stress_streams_that_use_each_other, 2_000;
    one_compile_per_key: shuttle_one_compile_per_key / stress_one_compile_per_key, 2_000;
    cold_regions: shuttle_cold_regions / stress_cold_regions, 1_000;
    cold_regions_that_wait_for_nothing: shuttle_cold_regions_that_wait_for_nothing / stress_cold_regions_that_wait_for_nothing, 1_000;
    back_pressure: shuttle_back_pressure / stress_back_pressure, 2_000;
    eviction_during_use: shuttle_eviction_during_use / stress_eviction_during_use, 2_000;
    compiles_that_fail: shuttle_compiles_that_fail / stress_compiles_that_fail, 2_000;
    poisoning: shuttle_poisoning / stress_poisoning, 2_000;
    the_engine_goes_first: shuttle_the_engine_goes_first / stress_the_engine_goes_first, 2_000;
    callbacks_that_record: shuttle_callbacks_that_record / stress_callbacks_that_record, 600;
    ids_that_threads_share: shuttle_ids_that_threads_share / stress_ids_that_threads_share, 1_000;
    modes: shuttle_modes / stress_modes, 2_000;
}
