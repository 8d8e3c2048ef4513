//! A failed allocation ends the process at once, by SIGABRT and with the allocator's message,
//! wherever it happens in recording, sealing, encoding, lowering or reading files. It never hangs
//! and never produces a wrong result.
//!
//! The standard library aborts if it gets no memory for a `Vec`, a `Box` or an `Arc`, and so does
//! this library. Requests of programs are limited in advance (`tests/robustness/hostile.rs`), and
//! running out of device memory is an error (`tests/engine/out_of_memory.rs`). Each case is a
//! process of its own: this program with one of its allocations refused.

use std::env;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fuseline::fusion::canon::{CanonRegion, EnvFingerprint, decode};
use fuseline::fusion::lower::{Aliases, Numerics, lower};
use fuseline::fusion::program::Program;
use fuseline::fusion::{Graph, TensorType};
use fuseline::{Attrs, DType, Engine, OpCode, Tensor};

use crate::alloc_support::{count, fail_at};
use crate::support;

/// A scenario for a failing allocation. It is prepared first; the closure then returns whether it
/// succeeded.
type Scenario = (&'static str, fn() -> Box<dyn FnOnce() -> bool>);

const SCENARIOS: [Scenario; 5] =
    [("record", record), ("read", read), ("replay", replay), ("canon", canon), ("file", file)];

/// The number of failing allocations tried in each scenario.
const TRIES: u64 = 6;

fn vector(engine: &Engine) -> Tensor {
    engine.tensor(&[1.0f32, 2.0], &[2]).unwrap()
}

/// Forty ops that nobody reads.
fn record() -> Box<dyn FnOnce() -> bool> {
    let engine = support::config().build_reference().unwrap();
    let x = vector(&engine);
    Box::new(move || {
        let mut y = x.clone();
        for _ in 0..40 {
            y = y.neg().unwrap();
        }
        y.dims() == [2]
    })
}

/// Ops and a read whose thread drives the stream: it seals, encodes, hashes and looks up.
fn read() -> Box<dyn FnOnce() -> bool> {
    let engine = support::config().build_reference().unwrap();
    let x = vector(&engine);
    Box::new(move || {
        let y = x.add(&x).unwrap().mul(&x).unwrap();
        y.to_vec::<f32>().unwrap() == [2.0, 8.0]
    })
}

/// A step that was recorded before.
fn replay() -> Box<dyn FnOnce() -> bool> {
    let engine = support::config().build_reference().unwrap();
    let x = vector(&engine);
    let step = move || x.add(&x).unwrap().mul(&x).unwrap().to_vec::<f32>().unwrap() == [2.0, 8.0];
    for _ in 0..6 {
        assert!(step());
    }
    Box::new(step)
}

/// A graph, its bytes and its key, what the bytes decode to, and its module, read back.
fn canon() -> Box<dyn FnOnce() -> bool> {
    Box::new(|| {
        let mut graph = Graph::new();
        let mut y = graph.param(TensorType::of(DType::F32, &[2]).unwrap());
        for _ in 0..10 {
            y = graph.push(OpCode::Tanh, Attrs::none(), &[], &[y]).unwrap()[0];
        }
        let region = CanonRegion::new(graph, Box::new([false]));
        let environment = EnvFingerprint::of(b"here");
        let is_same = decode(region.bytes()).unwrap().key(&environment) == region.key(&environment);
        is_same && lower(&region, &[9], &Aliases::none(), Numerics::Fast).verify().is_ok()
    })
}

/// A program file, read and written.
fn file() -> Box<dyn FnOnce() -> bool> {
    Box::new(|| {
        let program = Program::parse(include_str!("../../examples/programs/attention.json")).unwrap();
        Program::parse(&program.to_json()).unwrap() == program
    })
}

/// Not a test by itself: run by the processes that [`a_refused_allocation_ends_the_process`]
/// starts.
#[test]
fn child() {
    let Ok(name) = env::var("FUSELINE_ALLOCATION_SCENARIO") else { return };
    let ready = SCENARIOS.iter().find(|scenario| scenario.0 == name).expect("a scenario").1;
    let act = ready();
    match support::number::<u64>("FUSELINE_ALLOCATION_FAILS") {
        Some(number) => {
            fail_at(number);
            assert!(act(), "a wrong result");
            println!("it ended well");
        }
        None => {
            let (result, count) = count(act);
            assert!(result);
            println!("allocations: {count}.");
        }
    }
}

/// How a process ended, and its output.
struct Ended {
    signal: Option<i32>,
    success: bool,
    output: String,
}

/// Runs [`child`] in a process. A process that hangs is killed and reported.
fn process(scenario: &str, fails: Option<u64>) -> Ended {
    use std::os::unix::process::ExitStatusExt as _;
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "allocation::child", "--nocapture", "--test-threads=1"]);
    command.env("FUSELINE_ALLOCATION_SCENARIO", scenario).env("RUST_BACKTRACE", "0");
    if let Some(fails) = fails {
        command.env("FUSELINE_ALLOCATION_FAILS", fails.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("{scenario} hangs with allocation {fails:?} refused");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Ended { signal: output.status.signal(), success: output.status.success(), output: text }
}

/// Refuses up to `most` allocations of each scenario, spread over it. Returns the numbers of
/// processes and of those that ended early.
fn refuses(most: u64) -> (u64, u64) {
    const SIGABRT: i32 = 6;
    let mut all = (0, 0);
    for (name, _) in SCENARIOS {
        let whole = process(name, None);
        assert!(whole.success, "{name}: {}", whole.output);
        let said = whole.output.split("allocations: ").nth(1).and_then(|rest| rest.split('.').next());
        let count: u64 = said.expect("it says so").parse().unwrap();
        assert!(count >= 2, "{name} makes {count} allocations");
        let mut aborted = 0;
        let tries = most.min(count);
        for number in (0..tries).map(|number| 1 + number * (count - 1) / (tries - 1)) {
            let ended = process(name, Some(number));
            let said = ended.output.contains("memory allocation of");
            match (ended.signal, ended.success) {
                (Some(SIGABRT), _) if said => aborted += 1,
                // The allocation was optional, or the count differed this time.
                (None, true) if ended.output.contains("it ended well") => {}
                _ => panic!("{name}, allocation {number} of {count}: {:?}, {}", ended.signal, ended.output),
            }
        }
        assert!(aborted >= tries / 3, "{name}: {aborted} of {tries} refused allocations ended the process");
        all = (all.0 + tries, all.1 + aborted);
    }
    all
}

#[test]
fn a_refused_allocation_ends_the_process() {
    refuses(TRIES);
}

/// Every allocation of every scenario.
#[test]
#[ignore = "soak: `cargo xtask soak allocations`"]
fn soak_every_allocation_is_refused() {
    let (tries, aborted) = refuses(u64::MAX);
    println!(
        "figures: {tries} allocations refused in {} scenarios: {aborted} processes ended by SIGABRT with the message, the others went on \
         with right results, 0 hangs",
        SCENARIOS.len()
    );
}
