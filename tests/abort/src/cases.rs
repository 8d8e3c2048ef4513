//! The cases: either everything works, or code of the user's panics at one of the places where it
//! is called.
//!
//! Each case gets a device and returns when its own work is done. A panic may then still occur on
//! another thread.

use std::future::Future as _;
use std::pin::pin;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread;

use fuseline::embed::{Call, Session, StreamHandle};
use fuseline::fusion::op::Signature;
use fuseline::fusion::region::{Cut, OperandDistance, PendingStats};
use fuseline::handler::{self, Config, Handler, HandlerCall, Target};
use fuseline::pjrt::bytes_of;
use fuseline::pjrt::discover::{Discovery, Sources};
use fuseline::{
    BoundaryRule, Budgets, DType, Engine, EngineConfig, Event, Fault, FaultPoint, Mode, OpCode, Result,
    Tensor, TensorType, with_mode,
};

/// The message of planned panics.
pub(crate) const PLANNED: &str = "planned to panic";

/// Where ops run.
#[derive(Clone, Copy)]
pub(crate) enum Device {
    Reference,
    Plugin,
}

/// How the process of a case should end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Works,
    Aborts,
}

/// A case: the work of one process.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) end: End,
    pub(crate) run: fn(Device),
}

const fn aborts(name: &'static str, run: fn(Device)) -> Case {
    Case { name, end: End::Aborts, run }
}

pub(crate) const CASES: [Case; 23] = [
    Case { name: "it_works", end: End::Works, run: it_works },
    Case { name: "errors_are_errors", end: End::Works, run: errors_are_errors },
    aborts("a_panic_that_would_be_caught", a_panic_that_would_be_caught),
    aborts("a_sink_on_the_thread_that_reads", a_sink_on_the_thread_that_reads),
    aborts("a_sink_on_another_thread", a_sink_on_another_thread),
    aborts("a_sink_that_is_told_of_an_end", a_sink_that_is_told_of_an_end),
    aborts("a_readiness_callback_at_once", a_readiness_callback_at_once),
    aborts("a_readiness_callback_later", a_readiness_callback_later),
    aborts("a_waker", a_waker),
    aborts("a_boundary_rule_that_is_made", a_boundary_rule_that_is_made),
    aborts("a_boundary_rule_after", |device| a_boundary_rule(device, "after")),
    aborts("a_boundary_rule_best", |device| a_boundary_rule(device, "best")),
    aborts("a_boundary_rule_cut", |device| a_boundary_rule(device, "cut")),
    aborts("a_boundary_rule_reset", |device| a_boundary_rule(device, "reset")),
    aborts("a_plan_of_faults_at_a_compile", |device| {
        a_plan_of_faults(device, |point| matches!(point, FaultPoint::Compile { .. }));
    }),
    aborts("a_plan_of_faults_at_an_execution", |device| {
        a_plan_of_faults(device, |point| matches!(point, FaultPoint::Execute { .. }));
    }),
    aborts("a_plan_of_faults_at_an_upload", |device| {
        a_plan_of_faults(device, |point| matches!(point, FaultPoint::Upload { .. }));
    }),
    aborts("a_plan_of_faults_at_a_download", |device| {
        a_plan_of_faults(device, |point| matches!(point, FaultPoint::Download { .. }));
    }),
    aborts("a_handler_asked_for_its_results", |device| a_handler(device, true)),
    aborts("a_handler_that_runs", |device| a_handler(device, false)),
    aborts("a_closure_that_describes_a_body", a_closure_that_describes_a_body),
    aborts("a_callback_of_a_read", a_callback_of_a_read),
    aborts("an_owner_of_memory_that_is_lent", an_owner_of_memory_that_is_lent),
];

/// Panics once. A second caller waits while the process ends.
fn explode() -> ! {
    static HAS: AtomicBool = AtomicBool::new(false);
    while HAS.swap(true, Ordering::SeqCst) {
        thread::park();
    }
    panic!("{PLANNED}");
}

/// Unwraps a value. If a prerequisite is missing, the process prints a skip line and succeeds.
fn or_skipped<T>(made: Result<T>) -> T {
    made.unwrap_or_else(|error| {
        if Discovery::look(&Sources::of_process()).candidates().is_empty() {
            println!("skipped: no plugin: {error}");
            process::exit(0)
        }
        // Neither a skip nor the expected abort.
        eprintln!("the plugin that is here cannot be used: {error}");
        process::exit(3)
    })
}

/// Without the interpreter tier, for cases on the plugin's threads or in a compile: every region is
/// compiled before its first run, and runs on the plugin.
fn compiled_first() -> EngineConfig {
    EngineConfig::new().interpret_cold_regions(false)
}

fn engine(device: Device, config: EngineConfig) -> Engine {
    match device {
        Device::Reference => config.build_reference().unwrap(),
        Device::Plugin => or_skipped(config.build()),
    }
}

fn session(device: Device, config: EngineConfig) -> (Session, StreamHandle) {
    let session = match device {
        Device::Reference => Session::reference(config).unwrap(),
        Device::Plugin => or_skipped(Session::new(config)),
    };
    let stream = session.open_stream().unwrap();
    (session, stream)
}

fn vector(engine: &Engine, data: &[f32]) -> Tensor {
    engine.tensor(data, &[data.len()]).unwrap()
}

/// Compiles wait at this gate until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// A fault plan without faults, at which compiles wait.
    fn at_compiles(&self) -> impl Fn(FaultPoint) -> Option<Fault> + use<> {
        let gate = self.0.clone();
        move |point| {
            if matches!(point, FaultPoint::Compile { .. }) {
                drop(gate.1.wait_while(gate.0.lock().unwrap(), |open| !*open).unwrap());
            }
            None
        }
    }
}

// ----- cases that work -----

/// The engine works: modes, streams, trace cache, threads, callbacks.
fn works(engine: &Engine) {
    for mode in [Mode::Fused, Mode::Strict, Mode::Debug] {
        for _ in 0..4 {
            let x = vector(engine, &[1.0, -2.0]);
            let y = with_mode(mode, || x.abs().and_then(|y| y.add(&x)).and_then(|y| y.neg())).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [-2.0, 0.0], "{mode:?}");
        }
    }
    let (send, ready) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        for number in 0..2 {
            let send = send.clone();
            scope.spawn(move || {
                let y = engine.new_stream().tensor(&[number as f32], &[1]).unwrap().neg().unwrap();
                y.on_ready(move |outcome| send.send(outcome.is_ok()).unwrap());
                assert_eq!(y.to_vec::<f32>().unwrap(), [-(number as f32)]);
            });
        }
    });
    assert_eq!([ready.recv(), ready.recv()], [Ok(true), Ok(true)]);
    engine.synchronize().unwrap();
}

fn it_works(device: Device) {
    let engine = engine(device, EngineConfig::new());
    works(&engine);
    let counters = engine.counters();
    assert!(counters.compiles > 0 && counters.panics == 0, "{counters:?}");
    // With work in flight, and on the plugin.
    let y = vector(&engine, &[1.0]).neg().unwrap();
    engine.stream().flush();
    drop((y, engine));
    works(&self::engine(device, compiled_first()));
}

/// Failures are values; none of them is a panic that is caught on the way.
fn errors_are_errors(device: Device) {
    let is_on = Arc::new(AtomicBool::new(false));
    let on = is_on.clone();
    let fails = move |point| {
        let is_meant = matches!(point, FaultPoint::Compile { .. } | FaultPoint::Download { .. });
        (on.load(Ordering::SeqCst) && is_meant).then(|| Fault::new("planned to fail"))
    };
    let engine = engine(device, EngineConfig::new().inject_faults(fails));
    let x = vector(&engine, &[1.0, -2.0]);
    assert!(x.add(&vector(&engine, &[1.0, 2.0, 3.0])).is_err(), "the shapes do not fit");
    is_on.store(true, Ordering::SeqCst);
    let error = x.neg().unwrap().to_vec::<f32>().unwrap_err();
    assert!(error.to_string().contains("planned to fail"), "{error}");
    is_on.store(false, Ordering::SeqCst);
    engine.clear_cache();
    let refuses = register(|_| Err("planned to refuse".to_owned()));
    let made = engine.stream().call_handler(refuses, &[&x], Config::none());
    let error = made.and_then(|made| made[0].to_vec::<f32>()).unwrap_err();
    assert!(error.to_string().contains("planned to refuse"), "{error}");
    works(&engine);
}

// ----- cases that end the process -----

/// The control: in this build no panic is caught.
fn a_panic_that_would_be_caught(_: Device) {
    drop(std::panic::catch_unwind(|| explode()));
}

fn a_sink_on_the_thread_that_reads(device: Device) {
    let reads = thread::current().id();
    let engine = engine(
        device,
        EngineConfig::new().event_sink(move |_: &Event| {
            if thread::current().id() == reads {
                explode();
            }
        }),
    );
    drop(vector(&engine, &[1.0]).neg().unwrap().to_vec::<f32>());
}

/// On a thread of the engine or of the plugin.
fn a_sink_on_another_thread(device: Device) {
    let records = thread::current().id();
    let engine = engine(
        device,
        EngineConfig::new().event_sink(move |_: &Event| {
            if thread::current().id() != records {
                explode();
            }
        }),
    );
    let y = vector(&engine, &[1.0]).neg().unwrap();
    y.on_ready(|_| {});
    engine.stream().flush();
    forever();
}

/// The thread that finds a region done reports it; on a plugin that is a thread of the plugin.
fn a_sink_that_is_told_of_an_end(device: Device) {
    let sink = |event: &Event| {
        if matches!(event, Event::Completed { .. }) {
            explode();
        }
    };
    let engine = engine(device, compiled_first().event_sink(sink));
    drop(vector(&engine, &[1.0]).neg().unwrap().to_vec::<f32>());
}

/// The main thread does nothing more, and drops nothing.
fn forever() -> ! {
    loop {
        thread::park();
    }
}

fn a_readiness_callback_at_once(device: Device) {
    let engine = engine(device, EngineConfig::new());
    let x = vector(&engine, &[1.0]);
    engine.synchronize().unwrap();
    x.on_ready(|_| explode());
}

fn a_readiness_callback_later(device: Device) {
    let gate = Gate::default();
    let engine = engine(device, compiled_first().inject_faults(gate.at_compiles()));
    let y = vector(&engine, &[1.0]).neg().unwrap();
    y.on_ready(|_| explode());
    gate.open();
    forever();
}

fn a_waker(device: Device) {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            explode();
        }
    }
    let gate = Gate::default();
    let engine = engine(device, compiled_first().inject_faults(gate.at_compiles()));
    let y = vector(&engine, &[1.0]).neg().unwrap();
    let mut read = pin!(y.read());
    assert!(matches!(read.as_mut().poll(&mut Context::from_waker(&Arc::new(Bomb).into())), Poll::Pending));
    gate.open();
    forever();
}

fn a_boundary_rule_that_is_made(device: Device) {
    let engine = engine(device, EngineConfig::new().boundary_rule(|| explode()));
    drop(vector(&engine, &[1.0]).neg().unwrap().to_vec::<f32>());
}

/// A rule that panics at one of its calls.
#[derive(Debug)]
struct Brittle(&'static str);

impl Brittle {
    fn call(&self, what: &str) {
        if what == self.0 {
            explode();
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

fn a_boundary_rule(device: Device, at: &'static str) {
    let budgets = Budgets { ops: 4, joined_ops: 0, ..Budgets::default() };
    let rule = EngineConfig::new().region_budgets(budgets).boundary_rule(move || Box::new(Brittle(at)));
    let engine = engine(device, rule);
    let mut x = vector(&engine, &[1.0, -2.0]);
    for _ in 0..30 {
        x = x.neg().unwrap();
    }
    drop(x.to_vec::<f32>());
}

fn a_plan_of_faults(device: Device, is_meant: fn(FaultPoint) -> bool) {
    let plan = move |point| {
        if is_meant(point) {
            explode();
        }
        None
    };
    let engine = engine(device, compiled_first().inject_faults(plan));
    drop(vector(&engine, &[1.0]).neg().unwrap().to_vec::<f32>());
}

/// A handler whose results have the operands' types.
struct Of<F> {
    is_brittle: bool,
    run: F,
}

impl<F: Fn(HandlerCall<'_>) -> std::result::Result<(), String> + Send + Sync> Handler for Of<F> {
    fn results(&self, operands: &[TensorType], _: &Config) -> std::result::Result<Vec<TensorType>, String> {
        if self.is_brittle {
            explode();
        }
        Ok(operands.to_vec())
    }

    fn run(&self, call: HandlerCall<'_>) -> std::result::Result<(), String> {
        (self.run)(call)
    }

    fn has_side_effect(&self) -> bool {
        false
    }
}

fn register(
    run: impl Fn(HandlerCall<'_>) -> std::result::Result<(), String> + Send + Sync + 'static,
) -> &'static Target {
    handler::register("test.handler", Of { is_brittle: false, run }).unwrap()
}

/// On the plugin, XLA calls it through a function of the C ABI.
fn a_handler(device: Device, is_brittle: bool) {
    let target = handler::register("test.handler", Of { is_brittle, run: |_: HandlerCall<'_>| explode() });
    let engine = engine(device, compiled_first());
    let x = vector(&engine, &[1.0]);
    let made = engine.stream().call_handler(target.unwrap(), &[&x], Config::none());
    drop(made.and_then(|made| made[0].to_vec::<f32>()));
}

fn a_closure_that_describes_a_body(device: Device) {
    let engine = engine(device, EngineConfig::new());
    drop(Tensor::map_with(&vector(&engine, &[1.0]), |_| explode()));
}

fn a_callback_of_a_read(device: Device) {
    let gate = Gate::default();
    let (session, stream) = session(device, compiled_first().inject_faults(gate.at_compiles()));
    let ty = TensorType::of(DType::F32, &[1]).unwrap();
    let x = session.upload(stream, &ty, bytes_of(&[1.0f32])).unwrap();
    let y = session.record(stream, Call::new(OpCode::Negate, &[x])).unwrap()[0].id;
    session.read_async(y, |_, _| explode()).unwrap();
    gate.open();
    forever();
}

fn an_owner_of_memory_that_is_lent(device: Device) {
    struct Owner(Vec<u8>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            explode();
        }
    }
    let (session, stream) = session(device, EngineConfig::new());
    let ty = TensorType::of(DType::F32, &[1]).unwrap();
    let x = session.upload_shared(stream, &ty, Owner(2f32.to_le_bytes().to_vec())).unwrap();
    let y = session.record(stream, Call::new(OpCode::Negate, &[x])).unwrap()[0].id;
    drop(session.read(y));
    session.release(x).unwrap();
    session.release(y).unwrap();
    drop(session.synchronize_all());
}
