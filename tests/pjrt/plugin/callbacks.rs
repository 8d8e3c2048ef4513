//! The user's code that the plugin's threads call, when it panics or drops the last references.

use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake};

use fuseline::embed::{Call, Session};
use fuseline::pjrt::bytes_of;
use fuseline::{DType, Event, OpCode, TensorType};
use fuseline_testgen::Seeded;

use super::{Graph, is_right, three};

use crate::support::fakeplugin::{FakePlugin, wait_for};
use crate::support::vector;

/// The message of planned panics. They are not printed.
const PLANNED: &str = "planned to panic";

/// Silences planned panics until it is dropped.
struct Quiet;

impl Quiet {
    fn new() -> Quiet {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.payload_as_str() != Some(PLANNED) {
                before(info);
            }
        }));
        Quiet
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(panic::take_hook());
        }
    }
}

/// Whether this is a thread of the plugin, whose thread names this program's `std` does not know.
fn is_on_plugin() -> bool {
    let name = std::fs::read_to_string("/proc/thread-self/comm");
    name.map_or(std::thread::current().name().is_none(), |name| name.starts_with("fake-"))
}

/// A sink that panics at each event, also on threads of the plugin.
#[test]
fn a_sink_that_always_panics() {
    let plugin = FakePlugin::alone();
    let _quiet = Quiet::new();
    let (told, on_plugin) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, there) = (told.clone(), on_plugin.clone());
    let engine = plugin.config().event_sink(move |_: &Event| {
        count.fetch_add(1, Ordering::SeqCst);
        there.fetch_add(usize::from(is_on_plugin()), Ordering::SeqCst);
        panic!("{PLANNED}");
    });
    let engine = engine.build().unwrap();
    plugin.plan("Run = delay(1); Client_Compile@every 5 = fail(INTERNAL, \"planned\")");
    for seed in 0..20 {
        let graph = Graph::sample(&mut Seeded::new(seed), 8);
        let found = graph.run(&engine);
        assert!(graph.is_closed(&graph.lost(&found)));
    }
    plugin.heal();
    let graph = Graph::sample(&mut Seeded::new(99), 8);
    assert!(graph.lost(&graph.run(&engine)).is_empty());
    engine.synchronize().unwrap();
    let counters = engine.counters();
    wait_for(|| engine.counters().panics as usize == told.load(Ordering::SeqCst), || format!("{counters:?}"));
    assert!(on_plugin.load(Ordering::SeqCst) > 20, "the plugin's threads tell of ends");
    drop(engine);
    plugin.assert_clean();
    assert_eq!(fuseline::pjrt::counters().callback_panics, 0, "they are caught before the layer");
}

fn session(plugin: &FakePlugin) -> (Session, fuseline::embed::StreamHandle) {
    let session = Session::new(plugin.config()).unwrap();
    let stream = session.open_stream().unwrap();
    (session, stream)
}

/// Callbacks of reads and of readiness that panic on the plugin's threads, with data and with
/// errors.
#[test]
fn callbacks_that_panic() {
    let plugin = FakePlugin::alone();
    let _quiet = Quiet::new();
    let (session, stream) = session(&plugin);
    let ty = TensorType::of(DType::F32, &[1]).unwrap();
    let (send, called) = mpsc::channel();
    let (rounds, mut on_plugin) = (30, 0);
    for round in 0..rounds {
        // It takes a while, so that most callbacks are registered before the data arrives.
        let plans = [
            "CopyOut = delay(2)",
            "Run@1 = fail(ABORTED, \"planned\")",
            "CopyOut@1 = fail(ABORTED, \"planned\")",
        ];
        plugin.plan(plans[round % 3]);
        let x = session.upload(stream, &ty, bytes_of(&[1.0f32])).unwrap();
        let y = session.record(stream, Call::new(OpCode::Negate, &[x])).unwrap()[0].id;
        let send_read = send.clone();
        session
            .read_async(y, move |_, data| {
                send_read.send((is_on_plugin(), data.is_ok())).unwrap();
                panic!("{PLANNED}");
            })
            .unwrap();
        let send_ready = send.clone();
        session
            .on_ready(y, move |_, outcome| {
                send_ready.send((is_on_plugin(), outcome.is_ok())).unwrap();
                panic!("{PLANNED}");
            })
            .unwrap();
        let outcomes: Vec<(bool, bool)> = (0..2).map(|_| called.recv().unwrap()).collect();
        on_plugin += outcomes.iter().filter(|(there, _)| *there).count();
        // A failed copy does not mean that the value failed.
        let failed = outcomes.iter().filter(|(_, is_ok)| !is_ok).count();
        assert_eq!(failed, [0, 2, 1][round % 3], "{outcomes:?}");
        plugin.heal();
        session.release(y).unwrap();
        let z = session.record(stream, Call::new(OpCode::Abs, &[x])).unwrap()[0].id;
        assert_eq!(session.read(z).unwrap().to_vec::<f32>().unwrap(), [1.0], "the engine works on");
        session.release(x).unwrap();
        session.release(z).unwrap();
    }
    assert_eq!((plugin.fired("Run"), plugin.fired("CopyOut")), (10, 20));
    assert!(on_plugin > 0, "none was called by the plugin");
    let counters = session.counters();
    wait_for(|| session.counters().panics == 2 * rounds as u64, || format!("{counters:?}"));
    drop(session);
    plugin.assert_clean();
}

struct Bad(AtomicUsize);

impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("{PLANNED}");
    }
}

/// A waker that panics on the thread that has copied the data.
#[test]
fn wakers_that_panic() {
    let plugin = FakePlugin::alone();
    let _quiet = Quiet::new();
    let engine = plugin.config().build().unwrap();
    plugin.plan("CopyOut@1 = hang");
    let y = three(&vector(&engine, &[1.0])).unwrap();
    let mut read = Box::pin(y.read());
    wait_for(|| plugin.hanging() == 1, || "nobody hangs".to_owned());
    let bad = Arc::new(Bad(AtomicUsize::new(0)));
    let waker = bad.clone().into();
    assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    plugin.release();
    wait_for(|| bad.0.load(Ordering::SeqCst) == 1, || "nobody wakes".to_owned());
    // The data is there anyway.
    let mut ready = None;
    while ready.is_none() {
        match read.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(data) => ready = Some(data.unwrap()),
            std::task::Poll::Pending => std::thread::yield_now(),
        }
    }
    assert_eq!(ready.unwrap().to_vec::<f32>().unwrap(), [super::three_of(1.0)]);
    is_right(&y, &[1.0]);
    drop((read, y, engine));
    plugin.assert_clean();
}

/// Memory that is lent to the plugin, whose owner panics when it is dropped on a thread of the
/// plugin.
#[test]
fn owners_of_host_memory_that_panic() {
    struct Owner(Vec<u8>, mpsc::Sender<bool>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.send(is_on_plugin()).unwrap();
            panic!("{PLANNED}");
        }
    }
    let plugin = FakePlugin::alone();
    let _quiet = Quiet::new();
    let (session, stream) = session(&plugin);
    let ty = TensorType::of(DType::F32, &[1]).unwrap();
    let (send, dropped) = mpsc::channel();
    let before = fuseline::pjrt::counters().callback_panics;
    let x = session.upload_shared(stream, &ty, Owner(2f32.to_le_bytes().to_vec(), send)).unwrap();
    let y = session.record(stream, Call::new(OpCode::Negate, &[x])).unwrap()[0].id;
    assert_eq!(session.read(y).unwrap().to_vec::<f32>().unwrap(), [-2.0]);
    assert!(dropped.try_recv().is_err(), "the buffer is alive");
    session.release(x).unwrap();
    session.release(y).unwrap();
    session.synchronize_all().unwrap();
    dropped.recv().unwrap();
    wait_for(|| fuseline::pjrt::counters().callback_panics == before + 1, || "it is not counted".to_owned());
    drop(session);
    plugin.assert_clean();
}

/// The last references are dropped inside a callback, on a thread that destroying the client waits
/// for.
#[test]
fn the_last_handles_are_dropped_in_a_callback() {
    let plugin = FakePlugin::alone();
    for point in ["Run", "CopyOut"] {
        let mut on_plugin = 0;
        for round in 0..20 {
            let (session, stream) = session(&plugin);
            let before = plugin.fired(point);
            plugin.plan(&format!("{point}@1 = hang"));
            let ty = TensorType::of(DType::F32, &[1]).unwrap();
            let x = session.upload(stream, &ty, bytes_of(&[1.0f32])).unwrap();
            let y = session.record(stream, Call::new(OpCode::Negate, &[x])).unwrap()[0].id;
            let session = Arc::new(session);
            let (last, (send, called)) = (session.clone(), mpsc::channel());
            let callback = move |_, data: fuseline::Result<fuseline::Literal>| {
                drop(last);
                send.send((is_on_plugin(), data.is_ok())).unwrap();
            };
            session.read_async(y, callback).unwrap();
            wait_for(|| plugin.hanging() == 1, || format!("{point}, round {round}: nobody hangs"));
            drop(session);
            plugin.release();
            let (is_on_plugin, is_ok) = called.recv().unwrap();
            assert!(is_ok);
            on_plugin += u32::from(is_on_plugin);
            assert_eq!(plugin.fired(point) - before, 1);
            plugin.assert_clean();
        }
        // If a copy ends before anybody waits for it, the engine's thread reports it.
        assert!(on_plugin > 0, "{point}: every callback was on a thread of the engine");
    }
}
