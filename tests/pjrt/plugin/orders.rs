//! Destruction: whatever is dropped, in any order, on any thread, with anything in flight,
//! everything is released.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuseline::{Engine, EngineConfig, Event, Mode, Tensor, with_mode};
use fuseline_testgen::{Entropy, Seeded};

use super::{COMPILE, Graph, three};

use crate::support::fakeplugin::{FakePlugin, wait_for};

/// The number of threads of engines, clients and the plugin in this process.
fn engine_threads() -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    // The main thread has the name of this program, and so has the thread sanitizer's own.
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let tasks = tasks.filter_map(Result::ok);
    let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    let is_ours = |name: &String| {
        *name != program && ["fuseline-", "pjrt-", "fake-"].iter().any(|prefix| name.starts_with(prefix))
    };
    names.filter(is_ours).count()
}

/// Asserts that no object lives and no thread remains.
#[track_caller]
fn all_is_gone(plugin: &FakePlugin) {
    plugin.assert_clean();
    wait_for(|| engine_threads() == 0, || format!("{} threads of engines", engine_threads()));
}

#[test]
fn threads_of_engines_are_found() {
    let plugin = FakePlugin::alone();
    all_is_gone(&plugin);
    let engine = plugin.config().build().unwrap();
    if cfg!(target_os = "linux") {
        // A thread sets its name when it runs.
        wait_for(|| engine_threads() >= 5, || format!("{} threads", engine_threads()));
    }
    drop(engine);
    all_is_gone(&plugin);
}

/// An object to drop.
type Thing = Box<dyn Any + Send>;

/// An engine with every object that it can provide, in any state.
fn things(config: EngineConfig, random: &mut Seeded) -> Vec<Thing> {
    let kept = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let executables = kept.clone();
    let config = config.event_sink(move |event: &Event| {
        if let Event::CompileFinished { executable: Some(executable), .. } = event {
            executables.lock().unwrap().push(executable.clone());
        }
    });
    let engine = config.build().unwrap();
    let mut things: Vec<Thing> = Vec::new();
    for _ in 0..1 + random.draw(3) {
        let graph = Graph::sample(random, 4);
        let mode = [Mode::Fused, Mode::Fused, Mode::Strict][random.draw(3) as usize];
        let made = with_mode(mode, || graph.record(&engine));
        for (value, wanted) in made.into_iter().zip(graph.values) {
            match random.draw(8) {
                // A read that nobody waits for, or that another thread waits for.
                0 => things.push(Box::new(value.read())),
                1 => {
                    let read = value.read();
                    let reader = std::thread::spawn(move || {
                        let data = crate::support::block_on(read).unwrap();
                        assert_eq!(data.to_vec::<i32>().unwrap(), [wanted]);
                    });
                    things.push(Box::new(Joined(Some(reader))));
                }
                2 => value.on_ready(|_| ()),
                3 => assert_eq!(value.item::<i32>().unwrap(), wanted),
                4 => {
                    let stream = engine.new_stream();
                    let literal = fuseline::Literal::from_slice(&[1], &[7i32]).unwrap();
                    things.push(Box::new(stream.from_literal(&literal).unwrap().add(&value).unwrap()));
                    things.push(Box::new(stream));
                }
                _ => {}
            }
            things.push(Box::new(value));
        }
        if random.draw(3) == 0 {
            engine.stream().flush();
        }
    }
    if let Some(device) = engine.pjrt_device() {
        things.push(Box::new(device.clone()));
        things.push(Box::new(device.client().clone()));
    }
    // Executables that are compiled later are dropped with the sink.
    things.push(Box::new(std::mem::take(&mut *kept.lock().unwrap())));
    things.push(Box::new(engine.clone()));
    things.push(Box::new(engine));
    things
}

/// Joins a thread on drop.
struct Joined(Option<std::thread::JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        let joined = self.0.take().map_or(Ok(()), std::thread::JoinHandle::join);
        assert!(joined.is_ok() || std::thread::panicking(), "the reader panicked");
    }
}

/// Drops objects in a random order, on this thread and others, some of them while it unwinds.
fn drop_all(mut things: Vec<Thing>, random: &mut Seeded) {
    let mut threads = Vec::new();
    while !things.is_empty() {
        let thing = things.swap_remove(random.draw(things.len() as u32) as usize);
        match random.draw(6) {
            0 => threads.push(std::thread::spawn(move || drop(thing))),
            1 => {
                let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                    let _thing = thing;
                    std::panic::resume_unwind(Box::new("planned"));
                }));
                assert!(unwound.is_err());
            }
            2 => {
                thread_local!(static LAST: std::cell::RefCell<Option<Thing>> = const { std::cell::RefCell::new(None) });
                // Dropped with the thread, before or after its other values.
                threads.push(std::thread::spawn(move || LAST.with(|last| *last.borrow_mut() = Some(thing))));
            }
            _ => drop(thing),
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

fn in_any_order(plugin: &FakePlugin, seeds: std::ops::Range<u64>) {
    let before = fuseline::pjrt::counters();
    for seed in seeds {
        let mut random = Seeded::new(seed);
        plugin.plan(match random.draw(4) {
            0 => "Run@every 3 = delay(2); Client_Compile@every 2 = delay(2)",
            1 => "CopyOut = delay(1); CopyIn@every 2 = delay(1)",
            _ => "",
        });
        let config = match random.draw(3) {
            0 => plugin.config().client_option("platform", "cpu"),
            1 => plugin.config().client_option("platform", "cpu").interpret_cold_regions(false),
            _ => plugin.config(),
        };
        let things = things(config, &mut random);
        drop_all(things, &mut random);
        all_is_gone(plugin);
    }
    assert_eq!(fuseline::pjrt::counters(), before);
}

#[test]
fn things_are_dropped_in_any_order() {
    let plugin = FakePlugin::alone();
    in_any_order(&plugin, 0..300);
    assert!(plugin.fired("Run") > 20 && plugin.fired("CopyOut") > 20);
}

#[test]
#[ignore = "soak: `cargo xtask soak plugin-orders`"]
fn ten_thousand_orders() {
    in_any_order(&FakePlugin::alone(), 1_000..11_000);
}

/// The engine's handle is dropped at any moment, while threads record, read and wait. All of them
/// end.
fn at_any_moment(plugin: &FakePlugin, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut random = Seeded::new(seed);
        plugin.plan(
            ["Run = delay(1)", "Client_Compile = delay(3)", "Run@every 4 = fail(ABORTED, \"planned\")", ""]
                [random.draw(4) as usize],
        );
        let engine = plugin.config().compile_threads(2).build().unwrap();
        let steps = AtomicUsize::new(0);
        let leaves_at = random.draw(60) as usize;
        let seeds: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        let threads: Vec<_> = seeds
            .into_iter()
            .map(|seed| (Seeded::new(seed), engine.tensor(&[1.0f32, 2.0], &[2]).unwrap()))
            .collect();
        std::thread::scope(|scope| {
            for (mut random, mut x) in threads {
                let steps = &steps;
                scope.spawn(move || {
                    let mut pending: Vec<Tensor> = Vec::new();
                    for _ in 0..10 + random.draw(20) {
                        steps.fetch_add(1, Ordering::SeqCst);
                        let next = match random.draw(3) {
                            0 => three(&x).unwrap(),
                            1 => x.tanh().unwrap(),
                            _ => x.abs().unwrap(),
                        };
                        match random.draw(6) {
                            0 => drop(next.to_vec::<f32>()),
                            1 => drop(next.wait()),
                            2 => drop(next.read()),
                            3 => pending.push(std::mem::replace(&mut x, next)),
                            _ => x = next,
                        }
                    }
                });
            }
            // The engine is dropped in the middle.
            wait_for(|| steps.load(Ordering::SeqCst) >= leaves_at.min(29), || "nobody records".to_owned());
            drop(engine);
        });
        all_is_gone(plugin);
    }
}

#[test]
fn an_engine_is_dropped_with_work_in_flight() {
    let plugin = FakePlugin::alone();
    at_any_moment(&plugin, 0..150);
    assert!(plugin.fired("Run") > 20 && plugin.fired(COMPILE) > 20);
}

#[test]
#[ignore = "soak: `cargo xtask soak plugin-ends`"]
fn an_engine_is_dropped_ten_thousand_times() {
    at_any_moment(&FakePlugin::alone(), 1_000..11_000);
}

/// Dropping the last handle waits for no computation. The client is destroyed when that has ended.
#[test]
fn the_last_handle_goes_while_the_device_hangs() {
    let plugin = FakePlugin::alone();
    let engine: Engine = plugin.config().build().unwrap();
    plugin.plan("Run@1 = hang");
    let y = three(&engine.tensor(&[1.0f32], &[1]).unwrap()).unwrap();
    engine.stream().flush();
    wait_for(|| plugin.hanging() == 1, || "nothing hangs".to_owned());
    drop((y, engine));
    assert_eq!((plugin.live("client"), plugin.hanging()), (1, 1));
    plugin.release();
    all_is_gone(&plugin);
    assert_eq!(plugin.fired("Run"), 1);
}
