//! Measures one case: compares results, then takes times.
//!
//! - Every contender has a process and a program, and runs the steps after which results are
//!   compared. One that differs from Fuseline in Fused mode is excluded, and the difference is
//!   reported.
//! - Each continues until it is steady. These steps, including the first, are the warm-up.
//! - Except in a quick run, all this is done twice with new processes, since a process may be fast
//!   or slow by chance.
//! - Rounds: each other contender runs a block of steps right next to a block of Fuseline's in
//!   Fused mode, which comes first in every other round. A pair of blocks gives one ratio, so
//!   anything that slows the machine for longer than two blocks slows both sides.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam::channel;
use indicatif::ProgressBar;
use serde_json::Value;

use crate::STOP;
use crate::cases::Case;
use crate::check::Outputs;
use crate::cli::Options;
use crate::contender::{Contender, Contenders, FLOOR, FUSED, library};
use crate::results::{CaseResult, Engine, Ratio, Run, Settings, Times};
use crate::stats;
use crate::steady::{median, steady_from};
use crate::worker::{Trouble, Worker};

/// How long a program warms up.
struct Warmth {
    /// The minimum number of steps before the rounds, unless they take longer than this.
    least: (usize, Duration),
    /// The maximum number of steps before the rounds, and the longest time after the first, to
    /// become steady.
    most: (usize, Duration),
}

const WARMTH: Warmth = Warmth { least: (30, Duration::from_secs(1)), most: (400, Duration::from_secs(15)) };

/// For quick runs and later sittings, whose warm-up steps are not reported.
const QUICK_WARMTH: Warmth =
    Warmth { least: (15, Duration::from_millis(300)), most: (200, Duration::from_secs(4)) };

/// The largest number of steps in a block.
const MAX_STEPS: u64 = 2_000;

/// The versions of contenders, by id.
type Versions = BTreeMap<String, BTreeMap<String, String>>;

/// A contender's process for a case.
struct Runner<'a> {
    contender: &'a Contender,
    worker: Worker,
    deviation: Option<f64>,
    warm: Vec<u64>,
    compiles: Vec<u64>,
    /// The engine's counters when the rounds began.
    before: Value,
    after: Value,
    /// The number of steps in a block.
    block: usize,
    rounds: Vec<Vec<u64>>,
    /// The error in the rounds, if any.
    failed: Option<String>,
}

/// Measures a case. Returns `None` if the user stopped it.
///
/// A process may be fast or slow for its whole life, because of its memory layout or what its
/// compiler's threads did first. So there are several sittings, each with new processes and its
/// share of the rounds.
pub(crate) fn case(
    case: &Case,
    contenders: &Contenders,
    options: &Options,
    bar: &ProgressBar,
) -> anyhow::Result<Option<(CaseResult, Versions)>> {
    let sittings = options.settings().sittings;
    let Some((mut result, versions)) = sitting(case, contenders, options, bar, 0)? else { return Ok(None) };
    for number in 1..sittings {
        let Some((more, _)) = sitting(case, contenders, options, bar, number)? else { return Ok(None) };
        merge(&mut result, more, sittings);
    }
    Ok(Some((result, versions)))
}

/// Adds the rounds of another sitting. The warm-up steps are those of the first.
fn merge(result: &mut CaseResult, mut more: CaseResult, sittings: usize) {
    for (id, run) in &mut result.runs {
        match (&mut *run, more.runs.remove(id)) {
            (Run::Measured(times), Some(Run::Measured(other))) => {
                times.rounds.extend(other.rounds);
                times.step = stats::step(&times.rounds);
                times.peak_kib = times.peak_kib.max(other.peak_kib);
                times.deviation = times.deviation.into_iter().chain(other.deviation).reduce(f64::max);
                if let (Some(engine), Some(other)) = (&mut times.engine, other.engine) {
                    engine.steady_compiles += other.steady_compiles;
                    engine.longest_wait = engine.longest_wait.max(other.longest_wait);
                }
            }
            // A failure in any sitting counts.
            (Run::Measured(_), Some(other)) => *run = other,
            (Run::Measured(_), None) => *run = Run::Failed("it was missing in a later sitting".to_owned()),
            (Run::Failed(_) | Run::LeftOut(_), _) => {}
        }
    }
    let others = std::mem::take(&mut more.ratios);
    let join = |ratio: Ratio| {
        let other = others.iter().find(|other| other.to == ratio.to)?;
        Some(stats::ratio(&ratio.to, [ratio.pairs, other.pairs.clone()].concat(), sittings))
    };
    result.ratios = std::mem::take(&mut result.ratios).into_iter().filter_map(join).collect();
}

/// Measures a case once, with new processes and its share of the rounds. Returns `None` if the user
/// stopped it.
fn sitting(
    case: &Case,
    contenders: &Contenders,
    options: &Options,
    bar: &ProgressBar,
    number: usize,
) -> anyhow::Result<Option<(CaseResult, Versions)>> {
    let settings = options.settings();
    // A quick run accepts that first steps disturb each other. Later sittings do not report them.
    let hasty = settings.quick || number > 0;
    let mut result = CaseResult {
        name: case.name.clone(),
        about: case.about.clone(),
        check_steps: case.check.steps,
        tolerance: case.check.tolerance,
        runs: BTreeMap::new(),
        ratios: Vec::new(),
    };
    let mut versions = Versions::new();
    let mut runners: Vec<Runner<'_>> = Vec::new();
    let workers = start_workers(case, contenders, options, number, &mut result)?;
    bar.set_message(format!("{}: setting up programs", case.name));
    let mut made = Vec::new();
    for (contender, worker) in workers {
        let found = worker.and_then(|mut worker| worker.wait_made().map(|found| (worker, found)));
        match found {
            Ok((worker, found)) => {
                versions.insert(contender.id.to_owned(), found);
                made.push((contender, worker));
            }
            Err(Trouble::Stopped) => return Ok(None),
            Err(Trouble::Failed(why)) => {
                result.runs.insert(contender.id.to_owned(), Run::Failed(why));
            }
        }
    }
    // If the first one is not Fused, or fails, there is nothing to compare with.
    let mut others = if made.is_empty() { Vec::new() } else { made.split_off(1) };
    let Some((contender, worker)) = made.pop().filter(|(contender, _)| contender.id == FUSED) else {
        return Ok(Some((result, versions)));
    };
    bar.set_message(format!("{}: warming up {}", case.name, contender.id));
    let (fused, wanted) = match ready(case, contender, worker, None, &settings, hasty) {
        Ok(ready) => ready,
        Err(Trouble::Stopped) => return Ok(None),
        Err(Trouble::Failed(why)) => {
            result.runs.insert(contender.id.to_owned(), Run::Failed(why));
            return Ok(Some((result, versions)));
        }
    };
    runners.push(fused);
    // If hasty, several at once, those with the longest compiles first.
    let at_once = if hasty { settings.threads } else { 1 };
    if at_once > 1 {
        others.sort_by_key(|(contender, _)| !contender.compiles_long());
    }
    let ids: Vec<&str> = others.iter().map(|(contender, _)| contender.id).collect();
    let others = in_turn(others, at_once, |(contender, worker)| {
        bar.set_message(format!("{}: warming up {}", case.name, contender.id));
        ready(case, contender, worker, wanted.as_ref(), &settings, hasty).map(|(runner, _)| runner)
    });
    for (id, ready) in ids.into_iter().zip(others) {
        match ready {
            Ok(runner) => runners.push(runner),
            Err(Trouble::Stopped) => return Ok(None),
            Err(Trouble::Failed(why)) => {
                result.runs.insert(id.to_owned(), Run::Failed(why));
            }
        }
    }
    runners.sort_by_key(|runner| contenders.place(runner.contender));
    bar.set_message(format!("{}: rounds", case.name));
    result.ratios = rounds(&mut runners, settings.rounds / settings.sittings);
    if STOP.load(Ordering::Relaxed) {
        return Ok(None);
    }
    result.runs.extend(runners.into_iter().map(|runner| (runner.contender.id.to_owned(), outcome(runner))));
    Ok(Some((result, versions)))
}

/// Starts a process for each contender that runs the case, and requests its program. All start at
/// the same time, since this mostly loads libraries, before any of them runs a step.
fn start_workers<'a>(
    case: &Case,
    contenders: &'a Contenders,
    options: &Options,
    sitting: usize,
    result: &mut CaseResult,
) -> anyhow::Result<Vec<(&'a Contender, Result<Worker, Trouble>)>> {
    let logs = options.output.join("logs");
    std::fs::create_dir_all(&logs)?;
    let mut workers = Vec::new();
    for contender in contenders.present() {
        if let Some(why) = case.without.get(library(contender.id)).or(case.without.get(contender.id)) {
            result.runs.insert(contender.id.to_owned(), Run::LeftOut(why.clone()));
            continue;
        }
        let again = if sitting == 0 { String::new() } else { format!(".{}", sitting + 1) };
        let log = logs.join(format!("{}.{}{again}.log", case.name.replace(['/', ' '], "_"), contender.id));
        let started = Worker::start(contenders.command(contender, case), &log);
        workers.push((contender, started.and_then(|mut worker| worker.make().map(|()| worker))));
    }
    Ok(workers)
}

/// The outcome of a contender after the rounds.
fn outcome(runner: Runner<'_>) -> Run {
    match &runner.failed {
        Some(why) => Run::Failed(why.clone()),
        None if runner.rounds.is_empty() => Run::Failed("Fuseline failed before its first round".to_owned()),
        None => Run::Measured(Box::new(runner.times())),
    }
}

/// Compares the program's results with `wanted`, and steps until it is steady. Returns the results,
/// for the others to be compared with.
fn ready<'a>(
    case: &Case,
    contender: &'a Contender,
    mut worker: Worker,
    wanted: Option<&Outputs>,
    settings: &Settings,
    hasty: bool,
) -> Result<(Runner<'a>, Option<Outputs>), Trouble> {
    let (mut warm, mut compiles) = (Vec::new(), Vec::new());
    let mut counters = Value::Null;
    let mut step = |worker: &mut Worker, count: usize| -> Result<(usize, Option<usize>), Trouble> {
        let steps = worker.steps(count)?;
        warm.extend(steps.nanoseconds);
        compiles.extend(steps.compiles);
        counters = steps.counters;
        Ok((warm.len(), steady_from(&warm, &compiles)))
    };
    let (mut count, mut steady) = step(&mut worker, case.check.steps)?;
    let (mut deviation, mut made) = (None, None);
    if contender.id != FLOOR {
        let outputs = Outputs::read(&worker.outputs()?).map_err(Trouble::Failed)?;
        let compared = outputs.deviation(wanted.unwrap_or(&outputs), case.check.tolerance);
        let what = |what| Trouble::Failed(format!("after {} steps {what}", case.check.steps));
        deviation = Some(compared.map_err(what)?);
        made = Some(outputs);
    }
    let start = Instant::now();
    let goes_on = |count: usize, steady: Option<usize>| {
        let Warmth { least, most } = if hasty { QUICK_WARMTH } else { WARMTH };
        (count < least.0 && start.elapsed() < least.1)
            || (steady.is_none() && count < most.0 && (count < 2 || start.elapsed() < most.1))
    };
    while goes_on(count, steady) {
        (count, steady) = step(&mut worker, 1)?;
    }
    let tail = &warm[warm.len() / 2..];
    let block = (settings.block_seconds * 1e9) as u64 / median(tail).max(1);
    let block = usize::try_from(block.clamp(1, MAX_STEPS)).unwrap_or(1);
    let before = counters.clone();
    let runner = Runner {
        contender,
        worker,
        deviation,
        warm,
        compiles,
        after: before.clone(),
        before,
        block,
        rounds: Vec::new(),
        failed: None,
    };
    Ok((runner, made))
}

/// Applies a function to all elements, `at_once` at a time. The results are in the same order.
fn in_turn<T: Send, R: Send>(all: Vec<T>, at_once: usize, apply: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = at_once.min(all.len());
    let (queue, waiting) = channel::unbounded();
    all.into_iter().enumerate().for_each(|one| drop(queue.send(one)));
    drop(queue);
    let (done, results) = channel::unbounded();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let done = done.clone();
            let (waiting, apply) = (&waiting, &apply);
            scope.spawn(move || waiting.iter().for_each(|(place, one)| drop(done.send((place, apply(one))))));
        }
    });
    drop(done);
    let mut results: Vec<(usize, R)> = results.iter().collect();
    results.sort_by_key(|&(place, _)| place);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Runs the rounds. The first runner is Fuseline in Fused mode. The ratios are in the order of the
/// others. A contender that fails is excluded from further rounds; a failure of Fuseline or a stop
/// by the user ends them.
fn rounds(runners: &mut [Runner<'_>], rounds: usize) -> Vec<Ratio> {
    let Some((fused, others)) = runners.split_first_mut() else { return Vec::new() };
    let mut pairs: Vec<Vec<f64>> = vec![Vec::new(); others.len()];
    for round in 0..rounds {
        for (other, pairs) in others.iter_mut().zip(&mut pairs) {
            if other.failed.is_some() {
                continue;
            }
            let pair = match round % 2 {
                0 => fused.block().and_then(|own| Some((own, other.block()?))),
                _ => other.block().and_then(|their| Some((fused.block()?, their))),
            };
            pairs.extend(pair.map(|(own, their)| own / their.max(1.0)));
            if fused.failed.is_some() || STOP.load(Ordering::Relaxed) {
                return Vec::new();
            }
        }
        if others.iter().all(|other| other.failed.is_some()) && fused.block().is_none() {
            return Vec::new();
        }
    }
    let ratio = |(other, pairs): (&Runner<'_>, Vec<f64>)| {
        other.failed.is_none().then(|| stats::ratio(other.contender.id, pairs, 1))
    };
    others.iter().zip(pairs).filter_map(ratio).collect()
}

impl Runner<'_> {
    /// Runs a block. Returns the mean step in nanoseconds, or `None` if it failed or the user
    /// stopped it.
    fn block(&mut self) -> Option<f64> {
        match self.worker.steps(self.block) {
            Ok(steps) => {
                self.after = steps.counters;
                let mean = stats::mean(&steps.nanoseconds);
                self.rounds.push(steps.nanoseconds);
                Some(mean)
            }
            Err(Trouble::Stopped) => None,
            Err(Trouble::Failed(why)) => {
                self.failed = Some(why);
                None
            }
        }
    }

    fn times(self) -> Times {
        let steps: usize = self.rounds.iter().map(Vec::len).sum();
        Times {
            deviation: self.deviation,
            steady_from: steady_from(&self.warm, &self.compiles),
            step: stats::step(&self.rounds),
            peak_kib: self.worker.peak_kib(),
            engine: self.after.is_object().then(|| engine(&self.before, &self.after, steps)),
            warm: self.warm,
            rounds: self.rounds,
        }
    }
}

/// The engine's work, from its counters before and after `steps` steps.
fn engine(before: &Value, after: &Value, steps: usize) -> Engine {
    let number = |counters: &Value, name: &str| counters[name].as_f64().unwrap_or(0.0);
    let each = |name: &str| (number(after, name) - number(before, name)) / steps.max(1) as f64;
    let whole = |name: &str| after[name].as_u64().unwrap_or(0);
    Engine {
        compiles: whole("compiles"),
        compile_seconds: number(after, "compile_s"),
        executables: whole("executables"),
        longest_wait: after["longest_stall_ns"].as_u64(),
        steady_compiles: whole("compiles") - before["compiles"].as_u64().unwrap_or(0),
        ops: each("ops"),
        regions: each("regions"),
        executions: each("executions"),
        donations: each("donations"),
        bytes_up: each("bytes_up"),
        bytes_down: each("bytes_down"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn a_second_sitting_adds_its_rounds_and_its_failures() {
        let first = sample::report().cases.swap_remove(0);
        let to = first.ratios[0].to.clone();
        let rounds = |case: &CaseResult, id: &str| match &case.runs[id] {
            Run::Measured(times) => times.rounds.len(),
            other => panic!("{id}: {other:?}"),
        };
        let mut both = first.clone();
        merge(&mut both, first.clone(), 2);
        assert_eq!(rounds(&both, FUSED), 2 * rounds(&first, FUSED));
        assert_eq!(both.ratios[0].pairs.len(), 2 * first.ratios[0].pairs.len());
        assert_eq!(both.ratios[0].quartiles, stats::quartiles(&both.ratios[0].pairs));
        // The second sitting is slower throughout, so the ratio is not known.
        let mut slower = first.clone();
        slower.ratios[0].pairs.iter_mut().for_each(|pair| *pair *= 1.5);
        let mut both = first.clone();
        merge(&mut both, slower, 2);
        assert!(both.ratios[0].noisy);
        let mut broken = first.clone();
        broken.runs.insert(to.clone(), Run::Failed("it fell over".to_owned()));
        broken.ratios.retain(|ratio| ratio.to != to);
        let mut both = first;
        merge(&mut both, broken, 2);
        assert!(matches!(&both.runs[&to], Run::Failed(why) if why == "it fell over"));
        assert!(both.ratios.iter().all(|ratio| ratio.to != to));
    }
}
