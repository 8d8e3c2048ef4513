//! Panics in the user's code, wherever the engine calls it: they are contained in that call,
//! counted and reported, and the engine continues. For handlers and closures that describe bodies
//! see `tests/engine/handler.rs` and `tests/engine/trace_refused.rs`.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};

use fuseline::fusion::op::Signature;
use fuseline::fusion::region::{Cut, OperandDistance, PendingStats};
use fuseline::{BoundaryRule, Engine, Event, EventSink, FaultPoint, Mode, Stage, with_mode};

use crate::support::{self, Gate, Log, vector, wait_until};

/// The engine works, whatever has happened to it.
#[track_caller]
fn works(engine: &Engine) {
    for mode in [Mode::Fused, Mode::Strict, Mode::Debug] {
        let x = vector(engine, &[1.0, -2.0]);
        let y = with_mode(mode, || x.abs().and_then(|y| y.neg())).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [-1.0, -2.0]);
        let other = engine.new_stream();
        let z = other.tensor(&[3.0f32], &[1]).unwrap().neg().unwrap();
        assert_eq!(z.to_vec::<f32>().unwrap(), [-3.0]);
    }
    engine.synchronize().unwrap();
}

/// Every event by itself.
#[test]
fn sinks() {
    let seen = Arc::new(Mutex::new(Vec::<&str>::new()));
    let names = seen.clone();
    let sink = move |event: &Event| {
        names.lock().unwrap().push(event.name());
        panic!("planned: {}", event.name());
    };
    let engine = support::config().event_sink(sink).build_reference().unwrap();
    works(&engine);
    let names = seen.lock().unwrap().clone();
    assert!(names.contains(&"sealed") && names.contains(&"compile_finished"), "{names:?}");
    assert_eq!(engine.counters().panics, names.len() as u64);
}

/// On the calling thread, and on others.
#[test]
fn readiness_callbacks() {
    let (gate, log) = (Gate::new(), Log::default());
    let config = support::config().event_sink(log.sink()).inject_faults(gate.at_compiles());
    let engine = config.build_reference().unwrap();
    let x = vector(&engine, &[1.0, -2.0]);
    x.on_ready(|_| panic!("planned: at once"));
    assert_eq!(engine.counters().panics, 1);
    let shut = gate.shut();
    let y = x.neg().unwrap();
    let called = Arc::new(AtomicUsize::new(0));
    for number in 0..3 {
        let called = called.clone();
        y.on_ready(move |_| {
            called.fetch_add(1, Ordering::SeqCst);
            if number == 1 {
                std::panic::panic_any(7);
            }
            assert!(number != 0, "planned: later");
        });
    }
    drop(shut);
    assert_eq!(y.to_vec::<f32>().unwrap(), [-1.0, 2.0]);
    wait_until(&engine, |counters| counters.panics == 3);
    assert_eq!(called.load(Ordering::SeqCst), 3, "each is called whatever its neighbours do");
    let told = log.take().into_iter().filter_map(|event| match event {
        Event::Panicked { callback, message } => Some((callback, message)),
        _ => None,
    });
    let told: Vec<_> = told.collect();
    let all =
        ["planned: at once", "planned: later", "no message"].map(|words| ("readiness", words.to_owned()));
    assert_eq!(told, all);
    works(&engine);
}

#[test]
fn wakers() {
    struct Bomb(AtomicBool);
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
            panic!("planned: a waker");
        }
    }
    let (gate, log) = (Gate::new(), Log::default());
    let config = support::config().event_sink(log.sink()).inject_faults(gate.at_compiles());
    let engine = config.build_reference().unwrap();
    let y = vector(&engine, &[1.0, -2.0]).neg().unwrap();
    let shut = gate.shut();
    let mut read = Box::pin(y.read());
    let bomb = Arc::new(Bomb(AtomicBool::new(false)));
    assert!(read.as_mut().poll(&mut Context::from_waker(&bomb.clone().into())).is_pending());
    drop(shut);
    wait_until(&engine, |counters| counters.panics == 1);
    assert!(bomb.0.load(Ordering::SeqCst));
    let told = |event: &Event| matches!(event, Event::Panicked { callback: "waker", .. });
    assert_eq!(log.take().iter().filter(|event| told(event)).count(), 1);
    let std::task::Poll::Ready(data) = read.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()))
    else {
        panic!("the data is there");
    };
    assert_eq!(data.unwrap().to_vec::<f32>().unwrap(), [-1.0, 2.0]);
    works(&engine);
}

/// A rule that panics at one of its calls.
#[derive(Debug)]
struct Brittle {
    at: &'static str,
    calls: Arc<AtomicUsize>,
}

impl Brittle {
    fn call(&self, what: &str) {
        if what == self.at {
            self.calls.fetch_add(1, Ordering::SeqCst);
            panic!("planned: {what}");
        }
    }
}

impl BoundaryRule for Brittle {
    fn after(&mut self, _: &Signature, _: &[OperandDistance], _: PendingStats) -> Option<Cut> {
        self.call("after");
        None
    }

    fn best(&mut self) -> Option<usize> {
        self.call("best");
        None
    }

    fn cut(&mut self, _: usize) {
        self.call("cut");
    }

    fn reset(&mut self) {
        self.call("reset");
    }
}

/// A rule that panics is not called again: the stream's regions end at the limits.
#[test]
fn boundary_rules() {
    for at in ["after", "best", "cut", "reset"] {
        let (calls, log) = (Arc::new(AtomicUsize::new(0)), Log::default());
        let made = calls.clone();
        let budgets = fuseline::Budgets { ops: 4, joined_ops: 0, ..fuseline::Budgets::default() };
        let config = support::config()
            .region_budgets(budgets)
            .event_sink(log.sink())
            .boundary_rule(move || Box::new(Brittle { at, calls: made.clone() }));
        let engine = config.build_reference().unwrap();
        let mut x = vector(&engine, &[1.0, -2.0]);
        for _ in 0..30 {
            x = x.neg().unwrap();
        }
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, -2.0], "{at}");
        assert_eq!((calls.load(Ordering::SeqCst), engine.counters().panics), (1, 1), "{at}");
        let told = |event: &Event| match event {
            Event::Panicked { callback: "boundary rule", message } => *message == format!("planned: {at}"),
            _ => false,
        };
        assert_eq!(log.take().iter().filter(|event| told(event)).count(), 1, "{at}");
        works(&engine);
    }
}

/// Selects fault points.
type IsMeant = fn(FaultPoint) -> bool;

/// A fault plan is called on the thread that calls the plugin.
#[test]
fn plans_of_faults() {
    let points: [(&str, IsMeant); 4] = [
        ("compile", |point| matches!(point, FaultPoint::Compile { .. })),
        ("execute", |point| matches!(point, FaultPoint::Execute { .. })),
        ("upload", |point| matches!(point, FaultPoint::Upload { .. })),
        ("download", |point| matches!(point, FaultPoint::Download { .. })),
    ];
    for (name, meant) in points {
        let is_on = Arc::new(AtomicBool::new(false));
        let on = is_on.clone();
        let config = support::config().inject_faults(move |point| {
            assert!(!(on.load(Ordering::SeqCst) && meant(point)), "planned: a plan of faults");
            None
        });
        let engine = config.build_reference().unwrap();
        let x = vector(&engine, &[1.0, -2.0]);
        is_on.store(true, Ordering::SeqCst);
        let y = x.neg().unwrap();
        let error = match name {
            "upload" => engine.tensor(&[1.0f32], &[1]).map(drop).unwrap_err(),
            _ => y.to_vec::<f32>().map(drop).unwrap_err(),
        };
        let stage = match name {
            "compile" => Stage::Compile,
            "execute" => Stage::Execute,
            _ => Stage::Transfer,
        };
        assert!(error.to_string().contains("panicked") && error.stage() == stage, "{name}: {error}");
        is_on.store(false, Ordering::SeqCst);
        engine.clear_cache();
        works(&engine);
    }
}

/// Objects that the user passed to the engine are dropped with it. A panic in such a drop does not
/// reach the thread that drops an engine.
#[test]
fn drops() {
    struct Bomb(Arc<AtomicUsize>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("planned: dropped");
        }
    }
    impl EventSink for Bomb {
        fn event(&self, _: &Event) {}
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let bomb = || Bomb(dropped.clone());
    let (of_rule, of_faults) = (bomb(), bomb());
    let config = support::config()
        .event_sink(bomb())
        .boundary_rule(move || {
            let _ = &of_rule;
            Box::new(fuseline::HardOnly)
        })
        .inject_faults(move |_| {
            let _ = &of_faults;
            None
        });
    let engine = config.build_reference().unwrap();
    works(&engine);
    let kept = vector(&engine, &[1.0]);
    drop(engine);
    drop(kept);
    // Threads of the engine may hold the last references.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while dropped.load(Ordering::SeqCst) < 3 && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 3, "each once");
}

/// A sink that records and runs ops for each event reaches an end with an error, and does not
/// disturb the program.
#[test]
fn a_sink_that_feeds_itself() {
    for (mode, panics) in [(Mode::Strict, false), (Mode::Fused, false), (Mode::Strict, true)] {
        let fed: Arc<Mutex<Option<fuseline::Tensor>>> = Arc::default();
        let (recorded, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (source, count, errors) = (fed.clone(), recorded.clone(), refused.clone());
        let sink = move |_: &Event| {
            let Some(x) = source.lock().unwrap().clone() else { return };
            // Three for each event.
            for _ in 0..3 {
                match with_mode(mode, || x.neg()) {
                    Ok(_) => drop(count.fetch_add(1, Ordering::SeqCst)),
                    Err(error) => errors.lock().unwrap().push(error.to_string()),
                }
            }
            x.on_stream().flush();
            // The value is ready, so this is an event at once.
            drop(x.read());
            assert!(!panics, "planned");
        };
        let engine = support::config().event_sink(sink).build_reference().unwrap();
        let x = vector(&engine, &[1.0, -2.0]);
        *fed.lock().unwrap() = Some(x.clone());
        for _ in 0..50 {
            assert_eq!(x.abs().unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0]);
        }
        engine.synchronize().unwrap();
        *fed.lock().unwrap() = None;
        engine.synchronize().unwrap();
        let (recorded, ops) = (recorded.load(Ordering::SeqCst), engine.counters().ops);
        assert!(recorded > 50 && recorded <= 4_096 + 200, "{recorded} of {ops}");
        if mode == Mode::Strict {
            let refused = refused.lock().unwrap();
            assert!(refused.iter().all(|error| error.contains("an event sink has recorded")), "{refused:?}");
            assert!(recorded >= 4_096 && !refused.is_empty(), "{recorded}");
        }
        works(&engine);
    }
}
