//! A plugin that does not answer. Waiters with a deadline get an error that says what they waited
//! for, others continue, stuck threads are replaced and counted, and dropping an engine never
//! waits.
//!
//! The plugin is the reference device with a fault plan that waits at a gate: in a compile, an
//! execution or a transfer. Deadlines are short where something certainly hangs; other calls are
//! retried until they succeed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fuseline::{
    Attrs, DType, Deadlines, Engine, EngineConfig, Error, Event, Fault, FaultPoint, Mode, OpCode, Result,
    Stage, Tensor, TensorType, with_mode,
};

use crate::support::{self, Gate, Log, vector, wait_until};

/// A deadline that expires.
const SHORT: Duration = Duration::from_millis(30);

/// A limit that calls which do not hang meet on a busy machine.
const LIMIT: Duration = Duration::from_millis(700);

/// A point at which the plugin hangs while the gate is shut.
#[derive(Clone)]
struct Hang {
    gate: Gate,
    is_on: Arc<AtomicBool>,
    /// The number of threads that have reached it.
    entered: Arc<AtomicUsize>,
}

impl Hang {
    fn new() -> Hang {
        let (is_on, entered) = (Arc::default(), Arc::default());
        Hang { gate: Gate::new(), is_on, entered }
    }

    fn at<M: Fn(FaultPoint) -> bool>(&self, meant: M) -> impl Fn(FaultPoint) -> Option<Fault> + use<M> {
        let hang = self.clone();
        move |point| {
            if meant(point) && hang.is_on.load(Ordering::SeqCst) {
                hang.entered.fetch_add(1, Ordering::SeqCst);
                hang.gate.pass();
            }
            None
        }
    }

    fn set(&self, on: bool) {
        self.is_on.store(on, Ordering::SeqCst);
    }

    fn entered(&self) -> usize {
        self.entered.load(Ordering::SeqCst)
    }

    /// Waits until this many threads are there.
    fn wait_for(&self, threads: usize) {
        let start = Instant::now();
        while self.entered() < threads {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Selects fault points.
type IsMeant = fn(FaultPoint) -> bool;

/// The four kinds of points.
const POINTS: [(&str, IsMeant); 4] = [
    ("compile", |point| matches!(point, FaultPoint::Compile { .. })),
    ("execution", |point| matches!(point, FaultPoint::Execute { .. })),
    ("upload", |point| matches!(point, FaultPoint::Upload { .. })),
    ("download", |point| matches!(point, FaultPoint::Download { .. })),
];

/// The result of a call that may time out on a busy machine before it succeeds.
fn at_last<T>(mut call: impl FnMut() -> Result<T>) -> T {
    let start = Instant::now();
    loop {
        match call() {
            Err(error) if error.is_timeout() && start.elapsed() < Duration::from_secs(60) => {}
            other => return other.unwrap(),
        }
    }
}

/// The error of a call that hangs.
fn timed_out<T: std::fmt::Debug>(result: Result<T>) -> Error {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(error.is_timeout() && error.is_retryable() && error.stage() == Stage::Wait, "{text}");
    assert!(text.starts_with("timed out after ") && text.contains("it may still arrive"), "{text}");
    error
}

fn engine(config: EngineConfig, deadlines: Deadlines) -> Engine {
    config.deadlines(deadlines).build_reference().unwrap()
}

/// A call that waits for a value.
type Ask = fn(&Engine, &Tensor) -> Result<()>;

const ASKS: [(&str, Ask); 8] = [
    ("to_literal", |_, y| y.to_literal().map(drop)),
    ("to_vec", |_, y| y.to_vec::<f32>().map(drop)),
    ("item", |_, y| y.sum(&[0])?.item::<f32>().map(drop)),
    ("wait", |_, y| y.wait()),
    ("read_replicas", |_, y| y.read_replicas().map(drop)),
    ("synchronize", |engine, _| engine.synchronize()),
    ("Stream::synchronize", |engine, _| engine.stream().synchronize()),
    ("Debug", |_, y| with_mode(Mode::Debug, || y.abs().map(drop))),
];

#[test]
fn every_call_that_waits_keeps_its_deadline() {
    for (point, meant) in POINTS {
        let hang = Hang::new();
        let config = support::config().inject_faults(hang.at(meant));
        let engine = engine(config, Deadlines::none().wait(SHORT));
        let x = at_last(|| engine.tensor(&[1.0f32, 2.0], &[2]));
        let step = || ((&x * 2.0).unwrap() + 1.0).unwrap();
        if point != "compile" {
            // The next thread that requests it could launch it at once, and not come back.
            let warm = step();
            at_last(|| warm.to_vec::<f32>());
        }
        hang.set(true);
        let shut = hang.gate.shut();
        let y = step();
        if point == "upload" {
            let text = timed_out(engine.tensor(&[1.0f32, 2.0], &[2])).to_string();
            assert!(text.contains("the transfer of f32"), "{text}");
            timed_out(engine.tensor_per_replica(&[&[1.0f32]], &[1]));
        }
        for (name, ask) in ASKS {
            // A computed value needs no copy to be waited for, and none of this needs an upload.
            let copies = ["to_literal", "to_vec", "item", "read_replicas"].contains(&name);
            if point == "upload" || point == "download" && !copies {
                at_last(|| ask(&engine, &y));
                continue;
            }
            timed_out(ask(&engine, &y));
        }
        if point != "upload" {
            hang.wait_for(1);
            // The error names what is waited for, as soon as the deadline expires.
            let start = Instant::now();
            let (error, line) = loop {
                let (error, line) = (timed_out(y.to_literal_for(SHORT)), line!());
                if error.region().is_some() {
                    break (error, line);
                }
                assert!(start.elapsed() < Duration::from_secs(60), "{error}");
            };
            let text = error.to_string();
            let asked = format!("requested at {}:{line}", file!());
            let doing = match point {
                "compile" => "is compiling",
                "execution" => "is executing",
                _ => "has a result that is being computed or copied to the host",
            };
            for part in [&asked, doing, "recorded up to add at", "without progress", "region s0.r"] {
                assert!(text.contains(part), "{part:?} is not in: {text}");
            }
            let site = error.site().unwrap().to_string();
            assert!(site.starts_with(file!()), "{site}");
            assert_eq!(error.op_name(), Some("add"));
        }
        drop(shut);
        assert_eq!(at_last(|| y.to_vec::<f32>()), [3.0, 5.0]);
        at_last(|| engine.synchronize());
        assert_eq!(engine.counters().stuck, 0);
    }
}

/// A region of two ops whose compile hangs runs op by op after a while, permanently.
#[test]
fn a_compile_that_hangs_costs_speed() {
    let (hang, log) = (Hang::new(), Log::default());
    let faults = hang.at(|point| matches!(point, FaultPoint::Compile { ops } if ops > 1));
    let config = support::config().inject_faults(faults).event_sink(log.sink()).compile_threads(1);
    let engine = engine(config, Deadlines::new().compile(LIMIT));
    hang.set(true);
    let shut = hang.gate.shut();
    let x = vector(&engine, &[1.0, 2.0]);
    let step = |x: &Tensor| x.neg().and_then(|y| y.abs()).and_then(|y| y.to_vec::<f32>()).unwrap();
    assert_eq!(step(&x), [1.0, 2.0]);
    let counters = engine.counters();
    let told = (counters.stuck, counters.fallbacks, counters.compile_failures, counters.poisoned);
    assert_eq!(told, (1, 1, 1, 0), "{counters:?}");
    let events = log.take();
    let stuck = |event: &Event| match event {
        Event::Stuck { thread, stuck, is_replaced, took } => {
            assert!(*took >= LIMIT && event.to_string().contains("another thread replaces it"), "{event}");
            Some((*thread, *stuck, *is_replaced))
        }
        _ => None,
    };
    assert_eq!(events.iter().filter_map(stuck).collect::<Vec<_>>(), [("compile", 1, true)]);
    let fallback = events.iter().find(|event| matches!(event, Event::Fallback { .. })).unwrap().to_string();
    assert!(fallback.contains("the plugin has not answered for"), "{fallback}");

    // The key is not tried again, neither here nor by retries of failed compiles.
    for _ in 0..200 {
        assert_eq!(step(&x), [1.0, 2.0]);
    }
    assert_eq!((hang.entered(), engine.counters().stuck), (1, 1));

    // Other keys compile, on the replacement thread.
    hang.set(false);
    let other = vector(&engine, &[1.0, 2.0, 3.0]);
    assert_eq!(step(&other), [1.0, 2.0, 3.0]);
    let before = engine.counters();
    assert_eq!(before.pending_compiles, 0, "{before:?}");

    // A result that comes too late is neither counted nor used.
    drop(shut);
    assert_eq!(step(&x), [1.0, 2.0]);
    engine.synchronize().unwrap();
    let did = engine.counters().since(&before);
    assert_eq!((did.compiles, did.compile_failures, did.fallbacks), (0, 0, 1), "{did:?}");
}

/// If there is nothing to fall back to, the values fail.
#[test]
fn an_op_whose_compile_hangs_fails() {
    let hang = Hang::new();
    let config = support::config().inject_faults(hang.at(POINTS[0].1)).mode(Mode::Strict);
    let engine = engine(config, Deadlines::new().compile(LIMIT));
    let x = vector(&engine, &[1.0, 2.0]);
    let whole = x.abs().unwrap();
    assert_eq!(whole.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    hang.set(true);
    let _shut = hang.gate.shut();
    let (y, line) = (x.neg().unwrap(), line!());
    let poisoned = y.abs().unwrap();
    for value in [&y, &poisoned] {
        let error = value.to_vec::<f32>().unwrap_err();
        let text = error.to_string();
        assert_eq!((error.op_name(), error.stage()), (Some("negate"), Stage::Compile), "{text}");
        let place = format!("recorded at {}:{line}", file!());
        assert!(text.contains(&place) && text.contains("has not answered for"), "{text}");
    }
    assert_eq!(x.abs().unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

/// One thread is in a compile that never ends and is not abandoned.
#[test]
fn other_keys_and_streams_go_on() {
    let hang = Hang::new();
    let config = support::config().inject_faults(hang.at(POINTS[0].1)).compile_threads(2);
    let engine = engine(config, Deadlines::none());
    let shut = hang.gate.shut();
    hang.set(true);
    let x = vector(&engine, &[1.0, 2.0]);
    let y = x.exp().unwrap();
    engine.stream().flush();
    hang.wait_for(1);
    hang.set(false);
    let stream = engine.new_stream();
    for size in 1..20 {
        let z = stream.tensor(&vec![1.0f32; size], &[size]).unwrap();
        assert_eq!(z.neg().unwrap().to_vec::<f32>().unwrap(), vec![-1.0; size]);
    }
    assert!(!y.is_resolved());
    drop(shut);
    support::close(&y.to_vec::<f32>().unwrap(), &[1f32.exp(), 2f32.exp()], 1e-6);
}

/// With this many stuck threads nothing more is compiled until one comes back.
#[test]
fn so_many_threads_get_stuck_and_no_more() {
    let (hang, log) = (Hang::new(), Log::default());
    let faults = hang.at(|point| matches!(point, FaultPoint::Compile { ops: 2 }));
    let config = support::config().inject_faults(faults).event_sink(log.sink()).compile_threads(1);
    let engine = engine(config, Deadlines::new().compile(LIMIT).most_stuck_threads(2));
    let step = |x: &Tensor| x.neg().and_then(|y| y.abs());
    let inputs: Vec<Tensor> = (1..6).map(|size| vector(&engine, &vec![2.0; size])).collect();
    // The ops run one by one.
    for x in &inputs {
        with_mode(Mode::Strict, || step(x)).unwrap().wait().unwrap();
    }
    hang.set(true);
    let shut = hang.gate.shut();
    log.take();
    // On several streams, so that they are compiled whatever happens to those before.
    let values: Vec<Tensor> = inputs
        .iter()
        .map(|x| {
            let stream = engine.new_stream();
            let x = stream.from_literal(&x.to_literal().unwrap()).unwrap();
            let y = step(&x).unwrap();
            stream.flush();
            y
        })
        .collect();
    for (value, x) in values.iter().zip(&inputs) {
        assert_eq!(value.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    }
    let events = log.take();
    let stopped = events.iter().filter(|event| matches!(event, Event::CompilesStopped { stuck: 2 }));
    assert_eq!((stopped.count(), hang.entered(), engine.counters().stuck), (1, 2, 2));

    // Compiled regions run, and others fail at once.
    assert_eq!(step(&inputs[4]).unwrap().to_vec::<f32>().unwrap(), [2.0; 5]);
    let error = inputs[0].exp().unwrap().to_vec::<f32>().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no compile is started while 2 threads are stuck in the plugin"), "{text}");
    assert_eq!((error.stage(), error.op_name()), (Stage::Compile, Some("exponential")));

    // A thread comes back, and the refused keys are tried again.
    hang.set(false);
    drop(shut);
    let start = Instant::now();
    while let Err(error) = inputs[0].exp().unwrap().to_vec::<f32>() {
        assert!(start.elapsed() < Duration::from_secs(60), "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = engine.counters();
    assert_eq!(step(&inputs[4]).unwrap().to_vec::<f32>().unwrap(), [2.0; 5]);
    let did = engine.counters().since(&before);
    assert_eq!((did.compiles, did.fallbacks, did.compile_failures), (1, 0, 0), "{did:?}");
}

/// The only driver thread is in an execution that does not end.
#[test]
fn an_execution_that_hangs_holds_up_its_stream_alone() {
    let (hang, log) = (Hang::new(), Log::default());
    let faults = hang.at(POINTS[1].1);
    let config = support::config().inject_faults(faults).event_sink(log.sink()).drive_threads(1);
    let engine = engine(config, Deadlines::new().call(LIMIT));
    let x = vector(&engine, &[1.0, 2.0]);
    hang.set(true);
    let shut = hang.gate.shut();
    let y = x.neg().unwrap();
    engine.stream().flush();
    hang.wait_for(1);
    hang.set(false);
    let stream = engine.new_stream();
    let z = stream.tensor(&[3.0f32], &[1]).unwrap().neg().unwrap();
    let (send, told) = mpsc::channel();
    z.on_ready(move |ready| send.send(ready.is_ok()).unwrap());
    assert!(told.recv_timeout(Duration::from_secs(60)).unwrap(), "nobody works on the other stream");
    assert_eq!(z.to_vec::<f32>().unwrap(), [-3.0]);
    let is_told = |event: &Event| matches!(event, Event::Stuck { thread: "drive", is_replaced: true, .. });
    assert_eq!(log.take().iter().filter(|event| is_told(event)).count(), 1);
    timed_out(y.to_literal_for(SHORT));
    timed_out(engine.stream().synchronize_for(SHORT));
    drop(shut);
    assert_eq!(y.to_vec::<f32>().unwrap(), [-1.0, -2.0]);
}

/// How a program records steps that are in flight when the plugin hangs: each requested or not,
/// replayed or not.
const RECORDING: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

/// A thread that records on a blocked stream waits for room as long as for anything else. Nothing
/// that was recorded is lost.
#[test]
fn recording_on_a_stream_that_hangs_is_told() {
    for (asks, replays) in RECORDING {
        let hang = Hang::new();
        let config = support::config().inject_faults(hang.at(POINTS[1].1)).replay(replays);
        let engine = engine(config, Deadlines::none().wait(SHORT));
        let x = at_last(|| engine.tensor(&[1.0f32, 2.0], &[2]));
        let step = |y: &Tensor| -> Result<Tensor> {
            let y = y.neg()?.add(&x)?.abs()?;
            if asks {
                engine.stream().flush();
            }
            Ok(y)
        };
        // Recurring ops are in the trace cache by then.
        let mut y = x.clone();
        for _ in 0..1_000 {
            y = at_last(|| step(&y));
        }
        at_last(|| engine.synchronize());
        hang.set(true);
        let shut = hang.gate.shut();
        y = at_last(|| step(&y));
        engine.stream().flush();
        hang.wait_for(1);
        // In the end each round of this waits in vain.
        let mut kept = y.clone();
        let told = (0..100_000).find_map(|_| match step(&kept) {
            Ok(next) => {
                kept = next;
                None
            }
            Err(error) => Some(error),
        });
        let error = timed_out(Err::<(), Error>(told.expect("somebody is told")));
        let text = error.to_string();
        for part in ["room in the log of stream s0", "is executing", "recorded up to"] {
            assert!(text.contains(part), "{asks}, {replays}: {part:?} is not in: {text}");
        }
        // The other calls return too, on any thread.
        timed_out(kept.to_literal_for(SHORT));
        timed_out(engine.stream().synchronize_for(SHORT));
        engine.stream().flush();
        drop(kept.read());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..3).for_each(|_| drop(step(&y))));
            }
        });
        drop(y);
        drop(shut);
        // The values are 1 and 2, or 0 and 0, depending on whether the last steps were recorded.
        let data = at_last(|| kept.to_vec::<f32>());
        assert!(data == [1.0, 2.0] || data == [0.0, 0.0], "{data:?}");
        let next = at_last(|| step(&kept));
        let wanted = [(1.0 - data[0]).abs(), (2.0 - data[1]).abs()];
        assert_eq!(at_last(|| next.to_vec::<f32>()), wanted);
        at_last(|| engine.synchronize());
    }
}

/// A thread that records after a value that nobody provides, on its stream or on a dependent one,
/// gets an error that names the promise: after a while, and then at once. It may be the thread that
/// has to keep the promise, and then it can.
#[test]
fn recording_behind_a_promise_that_nobody_keeps_is_told() {
    for (asks, replays) in RECORDING {
        let deadlines = Deadlines::new().promise(SHORT);
        let engine = engine(support::config().replay(replays), deadlines);
        let x = vector(&engine, &[1.0, 2.0]);
        let step = |y: &Tensor| -> Result<Tensor> {
            let y = y.neg()?.add(&x)?.abs()?;
            if asks {
                y.on_stream().flush();
            }
            Ok(y)
        };
        // Recurring ops are in the trace cache by then.
        let mut y = x.clone();
        for _ in 0..100 {
            y = step(&y).unwrap();
        }
        engine.synchronize().unwrap();
        let (late, promised) = engine.stream().promised(TensorType::of(DType::F32, &[2]).unwrap());
        let other = engine.new_stream();
        let far = other.record(OpCode::Abs, Attrs::none(), &[], &[&late.neg().unwrap()]).unwrap().remove(0);
        for start in [late, far] {
            let mut kept = start.clone();
            let told = (0..300_000).find_map(|_| match step(&kept) {
                Ok(next) => {
                    kept = next;
                    None
                }
                Err(error) => Some(error),
            });
            let text = timed_out(Err::<(), Error>(told.expect("it is told"))).to_string();
            let stream = format!("room in the log of stream {}", start.on_stream().id());
            for part in
                [&stream, "f32[2], promised at ", "tests/engine/hang.rs:", "keep the promise or break it"]
            {
                assert!(text.contains(part), "{asks}, {replays}: {part:?} is not in: {text}");
            }
            // No call waits again for the missing value.
            for _ in 0..100 {
                timed_out((0..10_000).try_fold(kept.clone(), |y, _| step(&y)));
            }
            y = kept;
        }
        promised.keep(&[0u8; 8]).unwrap();
        // The values are 1 and 2, or 0 and 0, for the steps that were recorded.
        let data = y.to_vec::<f32>().unwrap();
        assert!(data == [1.0, 2.0] || data == [0.0, 0.0], "{data:?}");
        let next = (0..20_000).try_fold(y, |y, _| step(&y)).unwrap();
        assert_eq!(next.to_vec::<f32>().unwrap(), data);
        engine.synchronize().unwrap();
    }
}

/// Whatever the plugin is doing, no drop waits for it. When it comes back, everything is released.
#[test]
fn dropping_waits_for_no_plugin() {
    for (point, meant) in POINTS {
        let hang = Hang::new();
        let gone = Arc::new(());
        let (config, held) = (support::config().inject_faults(hang.at(meant)), gone.clone());
        let sink = move |_: &Event| drop(held.clone());
        let engine = engine(config.event_sink(sink), Deadlines::new().wait(SHORT));
        let x = at_last(|| engine.tensor(&[1.0f32, 2.0], &[2]));
        hang.set(true);
        let shut = hang.gate.shut();
        let y = x.neg().unwrap();
        engine.stream().flush();
        match point {
            "upload" => drop(timed_out(engine.tensor(&[1.0f32], &[1]))),
            "download" => drop(timed_out(y.to_literal())),
            _ => {}
        }
        hang.wait_for(1);
        drop((x, engine));
        drop(y);
        assert!(Arc::strong_count(&gone) > 1, "{point}: what the plugin is at has been let go");
        drop(shut);
        let start = Instant::now();
        while Arc::strong_count(&gone) > 1 {
            assert!(start.elapsed() < Duration::from_secs(60), "{point}: the engine is not let go");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Slow calls are not abandoned, and the engine counts none.
#[test]
fn what_is_slow_is_waited_for() {
    let slow = |point| {
        if let FaultPoint::Compile { .. } | FaultPoint::Execute { .. } = point {
            std::thread::sleep(Duration::from_millis(100));
        }
        None
    };
    let engine = engine(support::config().inject_faults(slow), Deadlines::new());
    let x = vector(&engine, &[1.0, 2.0]);
    assert_eq!(x.neg().unwrap().to_vec::<f32>().unwrap(), [-1.0, -2.0]);
    wait_until(&engine, |counters| counters.pending_compiles == 0);
    assert_eq!((engine.counters().stuck, engine.counters().compile_failures), (0, 0));
}
