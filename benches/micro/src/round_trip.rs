//! A region with one read: through the engine, and by bare PJRT calls on the same executable.
//!
//! The difference is the engine's own cost between the first recorded op and the data on the host.
//! Samples of the two alternate, because the speed of a shared machine changes.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use fuseline::{Engine, EngineConfig, Event, Result, Tensor};
use indicatif::ProgressBar;

use crate::bare::{BareCall, LaunchLog};
use crate::figures::{Figures, Time};
use crate::sampling::{FEWEST, LONG};

/// A program with one region and one read: its name, the shape of its input, its ops.
type Case = (&'static str, &'static [usize], fn(&Tensor) -> Result<Tensor>);

/// From an executable that XLA runs on the calling thread to one of hundreds of microseconds.
const CASES: [Case; 5] = [
    ("1 op on 16", &[16], |x| x + x),
    ("50 ops on 16", &[16], chain),
    ("50 ops on 1,024", &[1_024], chain),
    ("product of 64x64", &[64, 64], |x| x.matmul(x)),
    ("product of 256x256", &[256, 256], |x| x.matmul(x)),
];

/// The names of the cases.
pub(crate) const NAMES: [&str; CASES.len()] = [CASES[0].0, CASES[1].0, CASES[2].0, CASES[3].0, CASES[4].0];

/// Who runs the region.
pub(crate) const RUNNERS: [&str; 2] = ["engine", "PJRT"];

/// Runs in one sample.
const BATCH: u32 = 20;

/// Number of steps in a row without a compile after which a program is steady.
const STEADY: usize = 100;

/// The time after which warming up fails.
const MAX_WARM_UP: Duration = Duration::from_secs(30);

fn chain(x: &Tensor) -> Result<Tensor> {
    let mut y = x.clone();
    for _ in 0..10 {
        y = (((&y + x)?.tanh()? * x)? - &y)?.abs()?;
    }
    Ok(y)
}

/// Times every case.
pub(crate) fn round_trips(figures: &mut Figures, bar: &ProgressBar) -> anyhow::Result<()> {
    for case in CASES {
        bar.set_message(case.0);
        let [engine, bare] = time(case)?;
        for (runner, time) in RUNNERS.into_iter().zip([engine, bare]) {
            figures.add_time(format!("round trip/{runner}/{}", case.0), time);
        }
        bar.inc(1);
    }
    Ok(())
}

/// Medians by the engine and by PJRT.
fn time((_, dims, program): Case) -> anyhow::Result<[Time; 2]> {
    let bare = bare_call(dims, program)?;
    let engine = EngineConfig::new().without_disk_cache().build()?;
    let x = engine.full(0.5f32, dims)?;
    warm_up(&engine, &x, program)?;
    let mut samples = [Vec::new(), Vec::new()];
    let start = Instant::now();
    while samples[0].len() < FEWEST || start.elapsed() < 4 * LONG {
        let [by_engine, by_pjrt] = &mut samples;
        by_engine.push(batch(|| run(&x, program))?);
        by_pjrt.push(batch(|| call_and_read(&bare))?);
    }
    Ok(samples.map(Time::of))
}

/// Nanoseconds of one run.
fn batch(mut run: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let start = Instant::now();
    for _ in 0..BATCH {
        run()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(BATCH))
}

fn run(x: &Tensor, program: fn(&Tensor) -> Result<Tensor>) -> anyhow::Result<()> {
    drop(program(x)?.to_vec::<f32>()?);
    Ok(())
}

/// Runs the program until it compiles nothing.
fn warm_up(engine: &Engine, x: &Tensor, program: fn(&Tensor) -> Result<Tensor>) -> anyhow::Result<()> {
    let (mut steady, start) = (0, Instant::now());
    while steady < STEADY {
        let before = engine.counters();
        run(x, program)?;
        let after = engine.counters();
        let is_compiling = after.compiles != before.compiles || after.executions == before.executions;
        steady = if is_compiling { 0 } else { steady + 1 };
        ensure!(start.elapsed() < MAX_WARM_UP, "the program still compiles after {MAX_WARM_UP:?}");
        // Leaves time to background compiles.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A call of the executable that an engine has for the region in the end.
fn bare_call(dims: &[usize], program: fn(&Tensor) -> Result<Tensor>) -> anyhow::Result<BareCall> {
    let (send, events) = mpsc::channel();
    let sink = move |event: &Event| drop(send.send(event.clone()));
    let engine = EngineConfig::new().without_disk_cache().event_sink(sink).build()?;
    let x = engine.full(0.5f32, dims)?;
    warm_up(&engine, &x, program)?;
    let mut log = LaunchLog::default();
    events.try_iter().for_each(|event| log.note(event));
    let executable = log.take_launched().pop().flatten();
    let executable = executable.context("the region was launched without a compile")?;
    let device = engine.pjrt_device().context("the engine has no PJRT device")?;
    Ok(BareCall::new(executable, device)?)
}

/// Executes, waits and copies the result.
fn call_and_read(bare: &BareCall) -> anyhow::Result<()> {
    drop(bare.execute()?.outputs.first().context("the region returns nothing")?.to_host()?);
    Ok(())
}
