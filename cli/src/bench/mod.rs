//! `fuseline bench`: measures programs step by step on any plugin.

#[path = "../../../benches/programs/bare.rs"]
mod bare;
mod bare_execution;
#[cfg(test)]
mod memory;
#[path = "../../../benches/programs/mod.rs"]
mod programs;
mod restart;
mod serve;
#[path = "../../../benches/programs/steady.rs"]
mod steady;

use std::time::{Duration, Instant};

use fuseline::{Counters, Engine, Mode};
use serde_json::{Value, json};

use crate::Status;
use crate::cli::BenchArgs;
use crate::device::Watched;
use crate::failure::Failure;
use crate::options::ModeChoice;
use crate::text::{say, time};
use programs::Case;

/// The largest number of steps until a program is steady.
const MAX_WARM: usize = 400;

/// The time after which warming up ends, except for the first few steps.
const MAX_TIME: Duration = Duration::from_secs(60);

/// The measurements of a program in one mode.
struct Measured {
    mode: Mode,
    times: Vec<u64>,
    /// The first steady step, if the program became steady.
    steady: Option<usize>,
    all: Counters,
    /// Counters of the steady steps.
    later: Counters,
    later_steps: usize,
}

impl Measured {
    fn median(&self) -> Option<Duration> {
        let times = self.times.get(self.steady?..).filter(|times| !times.is_empty())?;
        Some(Duration::from_nanos(steady::median(times)))
    }

    fn each(&self, count: u64) -> f64 {
        count as f64 / self.later_steps.max(1) as f64
    }

    fn to_json(&self) -> Value {
        json!({
            "mode": self.mode.name(),
            "step_ns": self.times,
            "steady_from": self.steady,
            "steady_ns": self.median().map(|time| time.as_nanos() as u64),
            "compiles": self.all.compiles,
            "compile_s": self.all.compile_time.as_secs_f64(),
            "stalls": self.all.stalls,
            "longest_stall_ns": self.all.longest_stall.as_nanos() as u64,
            "executables": self.all.cached_executables,
            "steady_compiles": self.later.compiles,
            "ops_per_step": self.each(self.later.ops),
            "replayed_per_step": self.each(self.later.replayed),
            "regions_per_step": self.each(self.later.regions),
        })
    }
}

pub(crate) fn run(args: &BenchArgs, out: &mut String) -> Result<Status, Failure> {
    let cases = Case::all();
    if let Some(name) = &args.serve {
        let case = cases.iter().find(|case| case.name == *name);
        let case = case.ok_or_else(|| Failure::Input(format!("no program is named {name}")))?;
        return serve::serve(args, case);
    }
    let is_chosen = |case: &&Case| match (&args.case, &args.only) {
        (Some(name), _) => case.name == *name,
        (None, only) => only.as_ref().is_none_or(|only| case.name.contains(only)),
    };
    let chosen: Vec<&Case> = cases.iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        let only = args.only.as_deref().unwrap_or_default();
        return Err(Failure::Input(format!(
            "no program has {only} in its name; `fuseline bench --list` lists them"
        )));
    }
    if args.list {
        for case in chosen {
            say!(out, "{}", case.name);
        }
        return Ok(Status::Good);
    }
    if args.restart {
        return restart::run(args, &chosen, out);
    }
    let modes = match args.mode {
        Some(mode) => vec![mode],
        None => vec![ModeChoice::Fused, ModeChoice::Strict],
    };
    let bar = progress(chosen.len() * modes.len());
    let mut rows = Vec::new();
    let mut place = None;
    for case in chosen {
        for &mode in &modes {
            bar.set_message(format!("{} in {}", case.name, Mode::from(mode).name()));
            // A new engine, so that nothing is compiled before the first step.
            let watched = Watched::with_tiers(&args.place, args.contract, mode.into(), args.compile_first)?;
            let measured = measure(&watched, case, mode.into(), args.time)
                .map_err(|error| Failure::Run(format!("{}: {error}", case.name)))?;
            place.get_or_insert_with(|| (watched.place(), watched.place_json()));
            rows.push((case, measured));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let (place, place_json) = place.unwrap_or_default();
    if args.json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|(case, measured)| json!({"name": case.name, "measured": measured.to_json()}))
            .collect();
        say!(out, "{:#}", json!({"status": "ok", "device": place_json, "programs": rows}));
        return Ok(Status::Good);
    }
    say!(out, "On {place}:");
    table(&rows, out);
    Ok(Status::Good)
}

/// A progress bar on standard error, which names the program that runs.
fn progress(runs: usize) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(runs as u64);
    bar.set_style(indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a template"));
    bar
}

/// The number of steps after which a program has requested nearly all its compiles.
const WARM_UP_STEPS: usize = 10;

/// Counts events that a steady program does not have, and waits until the program is steady.
#[derive(Default)]
struct Warming {
    steps: usize,
}

impl Warming {
    /// Returns the number of compiles and of interpreted regions so far. From step
    /// [`WARM_UP_STEPS`] on it waits for background compiles: the measurement is about the steady
    /// state, not how soon it begins, and a compiler would take a core from it.
    fn after_step(&mut self, engine: &Engine) -> u64 {
        self.steps += 1;
        while self.steps >= WARM_UP_STEPS && engine.counters().pending_compiles > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let counters = engine.counters();
        counters.compiles + counters.interpreted
    }
}

fn measure(watched: &Watched, case: &Case, mode: Mode, seconds: f64) -> fuseline::Result<Measured> {
    let engine = &watched.engine;
    let mut program = case.make(engine)?;
    let (mut times, mut compiles) = (Vec::new(), Vec::new());
    let mut warming = Warming::default();
    let mut step = || -> fuseline::Result<(usize, Option<usize>)> {
        let start = Instant::now();
        program.step()?;
        times.push(start.elapsed().as_nanos() as u64);
        compiles.push(warming.after_step(engine));
        Ok((times.len(), steady::steady_from(&times, &compiles)))
    };
    let start = Instant::now();
    let (mut first, mut steady) = (0, None);
    while steady.is_none() && first < MAX_WARM && (first < 8 || start.elapsed() < MAX_TIME) {
        (first, steady) = step()?;
    }
    let before = engine.counters();
    let (start, mut count) = (Instant::now(), first);
    while start.elapsed().as_secs_f64() < seconds || count < first + 5 {
        (count, steady) = step()?;
    }
    let all = engine.counters();
    Ok(Measured { mode, steady, all, later: all.since(&before), later_steps: times.len() - first, times })
}

fn table(rows: &[(&Case, Measured)], out: &mut String) {
    let head = [
        "program",
        "mode",
        "first step",
        "steady from",
        "step",
        "ops",
        "regions",
        "compiles",
        "of",
        "longest stall",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    for (case, measured) in rows {
        let none = || "-".to_owned();
        lines.push([
            case.name.clone(),
            measured.mode.name().to_owned(),
            measured.times.first().map_or_else(none, |&first| time(Duration::from_nanos(first))),
            measured.steady.map_or_else(|| "not steady".to_owned(), |step| format!("step {}", step + 1)),
            measured.median().map_or_else(none, time),
            format!("{:.0}", measured.each(measured.later.ops)),
            format!("{:.1}", measured.each(measured.later.regions)),
            measured.all.compiles.to_string(),
            time(measured.all.compile_time),
            match measured.all.longest_stall {
                Duration::ZERO => none(),
                longest => time(longest),
            },
        ]);
    }
    columns(&lines, out);
}

/// Writes rows of cells: the first two columns are words, the others numbers.
fn columns<const N: usize>(lines: &[[String; N]], out: &mut String) {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for line in lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            text += &if column < 2 { format!("{cell}{gap}  ") } else { format!("{gap}{cell}  ") };
        }
        say!(out, "  {}", text.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fuseline::qualification::Level;
    use fuseline::{Engine, EngineConfig, Event, Numerics};

    use super::*;

    #[test]
    fn every_case_can_be_made() -> fuseline::Result<()> {
        let engine = Engine::reference();
        for case in Case::all() {
            case.make(&engine)?;
        }
        Ok(())
    }

    /// `fuseline qualify --quick` tries every op of the programs on the types that they use.
    #[test]
    fn the_quick_qualification_has_the_ops_of_the_programs() -> fuseline::Result<()> {
        let (send, receive) = std::sync::mpsc::channel();
        let sink = move |event: &Event| {
            if let Event::Sealed { contents, .. } = event {
                drop(send.send(contents.clone()));
            }
        };
        let engine = EngineConfig::new().event_sink(sink).build_reference()?;
        for case in Case::all().iter().filter(|case| case.quick) {
            let mut program = case.make(&engine)?;
            program.step()?;
            program.step()?;
        }
        drop(engine);
        let mut used = BTreeSet::new();
        for contents in receive {
            for node in contents.canon().graph().nodes() {
                let signature = node.signature();
                let first = signature.operands().first().or(signature.results().first());
                used.extend(first.map(|ty| (signature.op(), ty.dtype())));
            }
        }
        let tried = fuseline_qualify::plan::covered(Level::Quick);
        let missing: Vec<_> = used.difference(&tried).collect();
        println!("figures: {} ops on types are in the programs, {} are tried", used.len(), tried.len());
        assert!(used.len() > 30 && missing.is_empty(), "{missing:?}");
        Ok(())
    }

    /// The small cases agree in Fused and Strict mode, up to rounding, and bit for bit with exact
    /// numerics. Their results depend on the data.
    #[test]
    fn programs_are_the_same_in_both_modes() -> fuseline::Result<()> {
        let all = Case::all();
        for numerics in [Numerics::Fast, Numerics::Exact] {
            // One engine for all cases, since they share many ops.
            let mut engines = Vec::new();
            for mode in [Mode::Fused, Mode::Strict] {
                let config = EngineConfig::new().mode(mode).numerics(numerics).compare_regions(false);
                // Two steps of the default engine would be the interpreter's.
                let Ok(engine) = config.interpret_cold_regions(false).build() else {
                    println!("skipped: programs on the plugin: there is none");
                    return Ok(());
                };
                engines.push(engine);
            }
            // Compiling takes most of the time. Exact numerics, the stricter check, has every case.
            let stride = if numerics == Numerics::Exact { 1 } else { 3 };
            for case in all.iter().filter(|case| case.quick).step_by(stride) {
                let mut found = Vec::new();
                for engine in &engines {
                    let mut program = case.make(engine)?;
                    program.step()?;
                    program.step()?;
                    found.push(program.outputs()?);
                }
                for ((name, fused), (_, strict)) in found[0].iter().zip(&found[1]) {
                    assert!(!fused.is_empty(), "{}: {name} is empty", case.name);
                    let close = |(a, b): (&f32, &f32)| match numerics {
                        Numerics::Exact => a.to_bits() == b.to_bits(),
                        Numerics::Fast => (a - b).abs() <= 1e-3 * (1.0 + a.abs()),
                    };
                    assert!(fused.iter().zip(strict).all(close), "{}, {numerics}: {name} differs", case.name);
                }
            }
        }
        Ok(())
    }
}
