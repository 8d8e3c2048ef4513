//! Shared by the integration tests.
#![allow(dead_code, missing_docs, reason = "each test uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test, on real threads"
)]

pub(crate) mod fakeplugin;
pub(crate) mod reference;
pub(crate) mod script;

use std::env;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use fuseline::fusion::canon::RegionKey;
use fuseline::fusion::program::Program;
use fuseline::pjrt::discover::{Discovery, Sources};
use fuseline::{
    Counters, DiskCacheConfig, Engine, EngineConfig, Error, Event, Fault, FaultPoint, Mode, Origin, Result,
    ShapeClasses, Stage, Tensor, with_mode,
};

/// Forks, runs a function in the child, and waits for it. Returns the child's status, which is the
/// function's result. A child that hangs ends with the test.
#[cfg(unix)]
pub(crate) fn in_fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls only the library, whose guarantee is what is tested, and `child`, for
    // which the caller is responsible.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        let status = child();
        // SAFETY: the function may be called at any time.
        unsafe { libc::_exit(status) }
    }
    let mut status = 0;
    // SAFETY: the pointer is to a local variable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// A number from the environment. An invalid number is an error, since a default would hide the
/// mistake.
pub(crate) fn number<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// One of `count` parts of an exhaustive run, numbered from 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    number: usize,
    count: usize,
}

impl Part {
    pub(crate) fn has(self, place: usize) -> bool {
        place % self.count == self.number
    }

    /// From 0.
    pub(crate) fn number(self) -> usize {
        self.number
    }

    /// The number of cases of each part if all parts have `cases`, rounded up.
    pub(crate) fn share(self, cases: u32) -> u32 {
        cases.div_ceil(u32::try_from(self.count).expect("few parts"))
    }
}

/// The part in `FUSELINE_PART`: `K/N`, from 1. Without it, the whole.
pub(crate) fn part() -> Part {
    let Ok(text) = env::var("FUSELINE_PART") else { return Part { number: 0, count: 1 } };
    let parsed = text.split_once('/').and_then(|(number, count)| {
        let (number, count) = (number.parse::<usize>().ok()?, count.parse().ok()?);
        (1..=count).contains(&number).then_some(Part { number: number - 1, count })
    });
    parsed.unwrap_or_else(|| panic!("FUSELINE_PART is {text}, and no part K/N"))
}

/// The events of an engine, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Event>>>);

impl Log {
    pub(crate) fn sink(&self) -> impl Fn(&Event) + Send + Sync + use<> {
        let log = self.0.clone();
        move |event: &Event| log.lock().unwrap().push(event.clone())
    }

    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// The key of each region sealed since the previous call.
    pub(crate) fn keys(&self) -> Vec<RegionKey> {
        let sealed = |event: Event| match event {
            Event::Sealed { region, .. } => Some(region.key),
            _ => None,
        };
        self.take().into_iter().filter_map(sealed).collect()
    }

    /// Boundary reason and number of ops of each region sealed since the previous call.
    pub(crate) fn regions(&self) -> Vec<(String, usize)> {
        let sealed = |event: Event| match event {
            Event::Sealed { region, boundary, .. } => Some((boundary.name().to_owned(), region.ops)),
            _ => None,
        };
        self.take().into_iter().filter_map(sealed).collect()
    }
}

/// The tests' configuration: the product as it ships. On the plugin, a small region is interpreted
/// until it is compiled, so a test that runs it a few times never runs it on the plugin.
pub(crate) fn config() -> EngineConfig {
    EngineConfig::new()
}

/// Without the interpreter tier: a new region is compiled before its first run, and runs on the
/// plugin. For tests of what the plugin computes or does.
pub(crate) fn compiled_first() -> EngineConfig {
    config().interpret_cold_regions(false)
}

/// Without the interpreter, baseline and padded tiers: a region runs by an optimized executable of
/// its own, which is compiled before its first run. For tests that count compiles, executions or
/// the regions in memory.
pub(crate) fn optimized_only() -> EngineConfig {
    compiled_first().quick_compiles(false).shape_classes(ShapeClasses::Off)
}

/// A disk cache in a folder of the test, with the key elsewhere, like the user's.
pub(crate) fn place(root: &Path) -> DiskCacheConfig {
    DiskCacheConfig::new().folder(root.join("cache")).key_file(root.join("state/cache.key"))
}

/// An engine on the plugin that is found. Prints a message if there is none.
pub(crate) fn plugin(config: EngineConfig) -> Option<Engine> {
    plugin_for("needs a plugin", config)
}

/// Like [`plugin`], with a description of what is skipped. `cargo xtask test` counts and repeats
/// the text after `skipped:`, and treats it as a failure unless it begins with the name of a
/// missing prerequisite (`xtask/src/test/prerequisites.rs`).
///
/// # Panics
/// If there is a plugin but no engine on it, since a skipped test would hide that.
pub(crate) fn plugin_for(what: &str, config: EngineConfig) -> Option<Engine> {
    match config.build() {
        Ok(engine) => Some(engine),
        Err(error) if has_plugin() => panic!("there is a plugin, and no engine on it: {error}"),
        Err(error) => {
            println!("skipped: no plugin: {what}: {error}");
            None
        }
    }
}

/// Whether a plugin is found on this machine, even an unusable one.
fn has_plugin() -> bool {
    !Discovery::look(&Sources::of_process()).candidates().is_empty()
}

/// A reference engine, and one on the plugin that is found. Prints a message if there is none.
pub(crate) fn engines(config: impl Fn() -> EngineConfig) -> Vec<Engine> {
    let reference = config().build_reference().expect("the reference engine needs nothing");
    std::iter::once(reference).chain(plugin_for("the plugin half of this test", config())).collect()
}

/// An engine on the plugin that is found, and one without the interpreter tier: on the first, a
/// small region that a test runs a few times is interpreted in Fused mode. Prints a message if
/// there is no plugin.
pub(crate) fn plugins_of_all_tiers(what: &str, config: impl Fn() -> EngineConfig) -> Vec<Engine> {
    let Some(as_it_ships) = plugin_for(what, config()) else { return Vec::new() };
    let is_interpreted = as_it_ships.mode() == Mode::Fused;
    let compiled = is_interpreted.then(|| config().interpret_cold_regions(false));
    std::iter::once(as_it_ships).chain(compiled.and_then(|config| plugin_for(what, config))).collect()
}

/// A reference engine and [`plugins_of_all_tiers`].
pub(crate) fn engines_of_all_tiers(config: impl Fn() -> EngineConfig) -> Vec<Engine> {
    let reference = config().build_reference().expect("the reference engine needs nothing");
    let plugins = plugins_of_all_tiers("the plugin half of this test", config);
    std::iter::once(reference).chain(plugins).collect()
}

/// Runs a test on every engine of [`engines_of_all_tiers`].
pub(crate) fn on_all_tiers(config: impl Fn() -> EngineConfig, test: impl Fn(&Engine) -> Result<()>) {
    run_on(engines_of_all_tiers(config), test);
}

/// Runs a test on every engine.
pub(crate) fn on_engines(config: impl Fn() -> EngineConfig, test: impl Fn(&Engine) -> Result<()>) {
    run_on(engines(config), test);
}

fn run_on(engines: Vec<Engine>, test: impl Fn(&Engine) -> Result<()>) {
    for engine in engines {
        if let Err(error) = test(&engine) {
            panic!("{engine:?}: {error}");
        }
    }
}

/// Runs a program op by op in each mode and compares its outputs with the expected ones. The error
/// says what is wrong in which mode.
pub(crate) fn check_program(
    engine: &Engine,
    program: &Arc<Program>,
    modes: &[Mode],
) -> std::result::Result<(), String> {
    let prepared = engine.prepare(program.clone()).map_err(|error| error.to_string())?;
    for &mode in modes {
        let results =
            with_mode(mode, || prepared.results()).map_err(|error| format!("{}: {error}", mode.name()))?;
        if let Some((output, mismatch)) =
            prepared.compare(&results).and_then(|found| found.into_iter().next())
        {
            return Err(format!("{}: output {output}: {mismatch}", mode.name()));
        }
    }
    Ok(())
}

/// Runs a test on every engine in every mode.
pub(crate) fn everywhere(test: impl Fn(&Engine) -> Result<()>) {
    in_each_mode(|engine, _| test(engine));
}

/// Like [`everywhere`], for a test that does less in some modes.
pub(crate) fn in_each_mode(test: impl Fn(&Engine, Mode) -> Result<()>) {
    on_engines(EngineConfig::new, |engine| {
        for mode in [Mode::Fused, Mode::Strict, Mode::Debug] {
            with_mode(mode, || test(engine, mode)).inspect_err(|_| println!("in {mode:?} mode"))?;
        }
        Ok(())
    });
}

/// A refused call: a recording error that is the program's fault, with the calling file as its
/// site.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T>, words: &str) -> Error {
    let file = std::panic::Location::caller().file();
    let error = result.expect_err("the call does not fit");
    assert_eq!((error.stage(), error.origin()), (Stage::Record, Origin::User), "{error}");
    let text = error.to_string();
    assert!(text.contains(file), "the place is not the caller's: {text}");
    assert!(text.contains(words), "{words:?} is not in: {text}");
    error
}

/// Reads a region of two ops (and their broadcast scalars).
pub(crate) fn step(x: &Tensor) -> Result<Vec<f32>> {
    ((x * 0.5)? + 1.0)?.to_vec::<f32>()
}

/// Waits until work on the engine's other threads has been counted.
#[track_caller]
pub(crate) fn wait_until(engine: &Engine, is_counted: impl Fn(&Counters) -> bool) {
    // On a busy machine, a low-priority compile has taken more than a minute.
    let start = Instant::now();
    while !is_counted(&engine.counters()) {
        assert!(start.elapsed() < Duration::from_secs(240), "{:?}", engine.counters());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a step until nothing of it is interpreted or compiled: the start of a program is over, and
/// the step runs by the executables that it keeps.
pub(crate) fn warm_up(engine: &Engine, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    // Ten interpreted runs, a baseline executable, one for merged units and a few variants.
    for _ in 0..100 {
        let before = engine.counters();
        step()?;
        engine.synchronize()?;
        wait_until(engine, |counters| counters.pending_compiles == 0);
        let did = engine.counters().since(&before);
        if (did.interpreted, did.compiles, did.loads) == (0, 0, 0) {
            return Ok(());
        }
    }
    panic!("it never gets steady: {:?}", engine.counters());
}

/// A gate, open at first. Waiting at a shut gate makes the order of events deterministic.
#[derive(Clone)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate(Arc::new((Mutex::new(true), Condvar::new())))
    }

    fn set(&self, open: bool) {
        *self.0.0.lock().unwrap() = open;
        self.0.1.notify_all();
    }

    /// Shuts the gate until the result is dropped: a failed test leaves no thread waiting.
    pub(crate) fn shut(&self) -> Shut<'_> {
        self.set(false);
        Shut(self)
    }

    /// Waits until the gate is open.
    pub(crate) fn pass(&self) {
        let (open, changed) = &*self.0;
        drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
    }

    /// A fault plan without faults, in which matching points wait here.
    pub(crate) fn at<M: Fn(FaultPoint) -> bool>(
        &self,
        meant: M,
    ) -> impl Fn(FaultPoint) -> Option<Fault> + use<M> {
        let gate = self.clone();
        move |point| {
            if meant(point) {
                gate.pass();
            }
            None
        }
    }

    /// Like [`Gate::at`], for all compiles.
    pub(crate) fn at_compiles(&self) -> impl Fn(FaultPoint) -> Option<Fault> + use<> {
        self.at(|point| matches!(point, FaultPoint::Compile { .. }))
    }
}

/// A gate that is shut.
#[must_use]
pub(crate) struct Shut<'a>(&'a Gate);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// Waits for a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Thread(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

pub(crate) fn vector(engine: &Engine, data: &[f32]) -> Tensor {
    engine.tensor(data, &[data.len()]).unwrap()
}

/// Asserts that elements differ by rounding only.
pub(crate) fn close(actual: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(actual.len(), expected.len());
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() <= tolerance * e.abs().max(1.0), "element {i} is {a}, expected {e}");
    }
}

/// Records, compiles and reads on a stream of its own until it is stopped.
pub(crate) fn work_until(engine: &Engine, stop: &std::sync::atomic::AtomicBool) {
    let stream = engine.new_stream();
    for size in (1..=50).cycle() {
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        let x = stream.tensor(&vec![1.0f32; size], &[size]).unwrap();
        let y = (&x + &x).unwrap().tanh().unwrap();
        y.to_vec::<f32>().unwrap();
        std::thread::yield_now();
    }
}
