//! `fuseline run`.

use std::time::{Duration, Instant};

use fuseline::fusion::program::Mismatch;
use fuseline::{Counters, Event, Literal, Numerics, PreparedProgram};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::{Dump, RunArgs};
use crate::device::{Watch, Watched};
use crate::failure::Failure;
use crate::region_history::{Names, Story, region_json};
use crate::text::{count, milliseconds, note, say, time};
use crate::{Status, load, report};

/// A progress bar appears if the runs take longer than this in total.
const SHOW_PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// The result of all runs.
struct Outcome {
    times: Vec<Duration>,
    /// The first run with unexpected outputs, and the mismatches; `None` if nothing is expected.
    mismatches: Option<(u32, Vec<(usize, Mismatch)>)>,
    counters: Counters,
    first: Vec<Event>,
    later: Vec<Event>,
    /// The outputs of the first run.
    outputs: Vec<Literal>,
}

impl Outcome {
    fn is_wrong(&self) -> bool {
        self.mismatches.as_ref().is_some_and(|(_, mismatches)| !mismatches.is_empty())
    }

    fn first_time(&self) -> Duration {
        self.times.first().copied().unwrap_or_default()
    }

    fn least(&self) -> Duration {
        self.times.iter().min().copied().unwrap_or_default()
    }

    fn median(&self) -> Duration {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }
}

pub(crate) fn run(args: &RunArgs, out: &mut String) -> Result<Status, Failure> {
    let program = load::program(&args.program)?;
    let watch = Watch { events: args.dump.is_some(), times: args.timeline.is_some() };
    let watched = Watched::new(&args.place, args.contract, args.mode.into(), watch)?;
    let prepared = watched.engine.prepare(program).map_err(Failure::run)?;
    let outcome = repeat(&watched, &prepared, args.repeat)?;
    if args.json {
        let document = json(args, &watched, &prepared, &outcome);
        say!(out, "{document:#}");
    } else {
        words(args, &watched, &prepared, &outcome, out);
    }
    if let (Some(path), Some(timeline)) = (&args.timeline, watched.timeline()) {
        if !args.json {
            say!(out, "\nall runs, {}", timeline.summary());
            let mut runs = timeline.steps();
            runs.sort_by_key(|run| run.summary.took);
            if let Some(run) = runs.get(runs.len() / 2).filter(|_| runs.len() > 2) {
                say!(out, "\nmedian run, {}, {}", run.name, run.summary);
            }
        }
        report::write_page(path, timeline.page(&prepared.program().name))?;
    }
    Ok(if outcome.is_wrong() { Status::Bad } else { Status::Good })
}

/// Runs the program. A time spans from recording the first op to the outputs on the host.
fn repeat(watched: &Watched, prepared: &PreparedProgram, times: u32) -> Result<Outcome, Failure> {
    let mut outcome = Outcome {
        times: Vec::new(),
        mismatches: None,
        counters: Counters::default(),
        first: Vec::new(),
        later: Vec::new(),
        outputs: Vec::new(),
    };
    let before = watched.engine.counters();
    let start = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    for round in 0..times {
        if let Some(timeline) = watched.timeline() {
            timeline.mark(format!("run {}", round + 1));
        }
        let began = Instant::now();
        let results = prepared.results();
        outcome.times.push(began.elapsed());
        let results = results.map_err(|error| {
            if let Some(bar) = &bar {
                bar.finish_and_clear();
            }
            Failure::run(error)
        })?;
        if let Some(mismatches) = prepared.compare(&results)
            && !outcome.is_wrong()
        {
            outcome.mismatches = Some((round, mismatches));
        }
        if round == 0 {
            watched.engine.synchronize().map_err(Failure::run)?;
            outcome.first = watched.events();
            outcome.outputs = results;
        }
        if bar.is_none() && start.elapsed() > SHOW_PROGRESS_AFTER && round + 1 < times {
            bar = Some(progress(times));
        }
        if let Some(bar) = &bar {
            bar.set_position(u64::from(round) + 1);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    watched.engine.synchronize().map_err(Failure::run)?;
    outcome.later = watched.events();
    outcome.counters = watched.engine.counters().since(&before);
    Ok(outcome)
}

/// A progress bar on standard error, shown on terminals only.
fn progress(times: u32) -> ProgressBar {
    let bar = ProgressBar::new(times.into());
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} runs, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// The report of a run as text.
fn words(args: &RunArgs, watched: &Watched, prepared: &PreparedProgram, outcome: &Outcome, out: &mut String) {
    let program = prepared.program();
    if let Some(what) = args.dump {
        dump(what, prepared, outcome, out);
    }
    let mode = watched.engine.mode();
    say!(
        out,
        "{}: {} on {}, {} mode",
        program.name,
        count(program.ops.len(), "op"),
        watched.place(),
        mode.name()
    );
    output_words(args, prepared, outcome, out);
    if args.repeat > 1 {
        say!(
            out,
            "  time      first {}, median {}, min {} ({} runs)",
            time(outcome.first_time()),
            time(outcome.median()),
            time(outcome.least()),
            args.repeat
        );
    } else {
        say!(out, "  time      {}", time(outcome.first_time()));
    }
    counter_words(&outcome.counters, out);
}

/// Prints what `--dump` requests.
fn dump(what: Dump, prepared: &PreparedProgram, outcome: &Outcome, out: &mut String) {
    match what {
        Dump::Events => {
            for event in outcome.first.iter().chain(&outcome.later) {
                say!(out, "{:<16} {event}", event.name());
            }
            say!(out);
        }
        Dump::Outputs => {
            for (id, output) in prepared.program().outputs.iter().zip(&outcome.outputs) {
                say!(out, "{id}: {output}");
            }
            say!(out);
        }
        Dump::Stablehlo => {
            let story = Story::of(&outcome.first);
            for index in 0..story.regions.len() {
                let region = &story.regions[index];
                match story.module_of(index) {
                    Some((place, module)) if place == index => {
                        say!(out, "// {}", region.reference());
                        say!(out, "{}", module.text().trim_end());
                    }
                    Some((place, _)) => {
                        say!(out, "// {}: as {}", region.reference(), story.regions[place].title());
                    }
                    None => say!(out, "// {}: {}", region.reference(), region.source_words()),
                }
                say!(out);
            }
        }
        Dump::Regions => {
            let story = Story::of(&outcome.first);
            let names = Names::of(prepared, &story);
            for region in &story.regions {
                report::head(region, &names, out);
                say!(out, "  ops");
                report::ops(region, &names, |_| None, out);
                say!(out);
            }
        }
    }
}

/// Compares the outputs with those of the file, in words.
fn output_words(args: &RunArgs, prepared: &PreparedProgram, outcome: &Outcome, out: &mut String) {
    let program = prepared.program();
    match &outcome.mismatches {
        None => say!(out, "  outputs   {}; the file has no expected outputs", program.outputs.len()),
        Some((_, found)) if found.is_empty() => {
            say!(out, "  outputs   {}, as expected", program.outputs.len());
        }
        Some((round, found)) => {
            let which = if args.repeat > 1 { format!(" in run {}", round + 1) } else { String::new() };
            say!(out, "  outputs   {} of {} not as expected{which}", found.len(), program.outputs.len());
            for (output, mismatch) in found {
                let words = mismatch_words(prepared, *output, mismatch);
                say!(out, "            {words}");
                note(format_args!("fuseline: {}: {words}", program.name));
            }
        }
    }
}

/// What the engine did, in words.
fn counter_words(counters: &Counters, out: &mut String) {
    say!(
        out,
        "  regions   {} ({} from the cache, {} compiled, {} loaded)",
        counters.regions,
        counters.hits,
        counters.compiles,
        counters.loads
    );
    say!(out, "  compiling {}", time(counters.compile_time));
    if counters.donations > 0 {
        say!(out, "  memory    reused {} times", counters.donations);
    }
    if counters.compared > 0 {
        say!(
            out,
            "  numerics  {} compared with {} ops, {} differ",
            count(counters.compared as usize, "region"),
            if counters.compared == 1 { "its" } else { "their" },
            counters.different
        );
    }
    if counters.fallbacks + counters.compile_failures > 0 {
        say!(
            out,
            "  trouble   {} compiles failed, {} regions ran op by op",
            counters.compile_failures,
            counters.fallbacks
        );
    }
}

/// `output 0 (%4: f32[2,3]): element 5 is 1.0, expected 2.0 (1 elements differ)`, with the element
/// as an index.
fn mismatch_words(prepared: &PreparedProgram, output: usize, mismatch: &Mismatch) -> String {
    let program = prepared.program();
    let name = program.outputs.get(output).map(ToString::to_string).unwrap_or_default();
    let place = place(prepared, output, mismatch).filter(|place| place.len() > 1);
    let place = place.map(|place| format!(", at {place:?}")).unwrap_or_default();
    format!("output {output} ({name}{place}): {mismatch}")
}

/// Where in an output the first differing element lies.
fn place(prepared: &PreparedProgram, output: usize, mismatch: &Mismatch) -> Option<Vec<u64>> {
    let Mismatch::Element { index, .. } = mismatch else { return None };
    let dims = prepared.program().expected.get(output)?.dims();
    let mut left = *index as u64;
    let mut place: Vec<u64> = dims
        .iter()
        .rev()
        .map(|&size| {
            let size = size.max(1);
            let here = left % size;
            left /= size;
            here
        })
        .collect();
    place.reverse();
    Some(place)
}

fn json(args: &RunArgs, watched: &Watched, prepared: &PreparedProgram, outcome: &Outcome) -> Value {
    let program = prepared.program();
    let counters = &outcome.counters;
    let mismatches = outcome.mismatches.as_ref().map(|(round, found)| {
        let entries = found.iter().map(|(output, mismatch)| {
            let (actual, expected, count) = match mismatch {
                Mismatch::Element { actual, expected, count, .. } => {
                    (json!(actual), json!(expected), json!(count))
                }
                Mismatch::Type { actual, expected } => (json!(actual), json!(expected), Value::Null),
            };
            json!({
                "run": round,
                "output": output,
                "index": place(prepared, *output, mismatch),
                "actual": actual,
                "expected": expected,
                "differing": count,
                "message": mismatch_words(prepared, *output, mismatch),
            })
        });
        entries.collect::<Vec<_>>()
    });
    json!({
        "status": if outcome.is_wrong() { "mismatch" } else { "ok" },
        "program": {
            "name": program.name,
            "ops": program.ops.len(),
            "outputs": program.outputs.len(),
        },
        "device": watched.place_json(),
        "mode": watched.engine.mode().name(),
        "numerics": Numerics::from(args.contract.numerics).to_string(),
        "compared": mismatches.is_some(),
        "mismatches": mismatches.unwrap_or_default(),
        "time": {
            "runs": args.repeat,
            "first_ms": milliseconds(outcome.first_time()),
            "median_ms": milliseconds(outcome.median()),
            "min_ms": milliseconds(outcome.least()),
        },
        "counters": {
            "ops": counters.ops,
            "regions": counters.regions,
            "skipped": counters.skipped,
            "hits": counters.hits,
            "misses": counters.misses,
            "compiles": counters.compiles,
            "loads": counters.loads,
            "compile_failures": counters.compile_failures,
            "compile_ms": milliseconds(counters.compile_time),
            "executions": counters.executions,
            "fallbacks": counters.fallbacks,
            "compared": counters.compared,
            "different": counters.different,
            "donations": counters.donations,
            "bytes_up": counters.bytes_up,
            "bytes_down": counters.bytes_down,
        },
        "dump": args.dump.map(|dump| dump_json(dump, prepared, outcome)),
    })
}

fn dump_json(dump: Dump, prepared: &PreparedProgram, outcome: &Outcome) -> Value {
    let story = Story::of(&outcome.first);
    let entries: Vec<Value> = match dump {
        Dump::Events => {
            let all = outcome.first.iter().chain(&outcome.later);
            all.map(|event| {
                let region = event.region().map(|region| format!("{}.{}", region.stream, region.seq));
                json!({"event": event.name(), "region": region, "message": event.to_string()})
            })
            .collect()
        }
        Dump::Outputs => {
            let named = prepared.program().outputs.iter().zip(&outcome.outputs);
            named.map(|(id, output)| json!({"id": id.to_string(), "value": output.to_string()})).collect()
        }
        Dump::Regions => {
            let names = Names::of(prepared, &story);
            story.regions.iter().map(|region| region_json(region, &names)).collect()
        }
        Dump::Stablehlo => (0..story.regions.len())
            .map(|index| {
                let region = story.regions[index].reference();
                json!({
                    "region": format!("{}.{}", region.stream, region.seq),
                    "key": region.key.to_string(),
                    "module": story.module_of(index).map(|(_, module)| module.text()),
                })
            })
            .collect(),
    };
    json!({dump.name(): entries})
}
