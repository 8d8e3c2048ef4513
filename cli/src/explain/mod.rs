//! `fuseline explain`: describes the regions and kernels of a program as text, page and picture.

mod kernels;
mod layout;
mod page;
mod picture;

use std::time::{Duration, Instant};

use fuseline::{Mode, PreparedProgram, Timeline};

use crate::cli::ExplainArgs;
use crate::device::{Watch, Watched};
use crate::failure::Failure;
use crate::options::{DeviceChoice, DeviceOptions};
use crate::region_history::{Names, Region, Source, Story};
use crate::text::{count, note, say, time};
use crate::{Status, load, report};
use kernels::{Basis, Kernels};

/// Everything that is known of a program's runs.
struct Explanation {
    name: String,
    ops: usize,
    mode: Mode,
    place: String,
    /// The first run, which compiles.
    first: Story,
    /// The second run.
    second: Story,
    names: Names,
    /// The kernels of each region of the first run.
    kernels: Vec<Kernels>,
    times: [Duration; 2],
    /// The timeline of both runs.
    timeline: Timeline,
}

pub(crate) fn run(args: &ExplainArgs, out: &mut String) -> Result<Status, Failure> {
    let program = load::program(&args.program)?;
    let mode = Mode::from(args.mode);
    let watch = Watch { events: true, times: true };
    let watched = match Watched::afresh(&args.place, args.contract, mode, watch) {
        Err(failure) if args.place.device.is_none() => {
            note(format_args!("fuseline: {failure}\nfuseline: continuing with the reference interpreter"));
            let reference = DeviceOptions { device: Some(DeviceChoice::Reference), options: Vec::new() };
            Watched::afresh(&reference, args.contract, mode, watch)?
        }
        watched => watched?,
    };
    let prepared = watched.engine.prepare(program).map_err(Failure::run)?;
    let explanation = explain(&watched, &prepared)?;
    words(&explanation, out);
    if let Some(path) = &args.output {
        let picture = path.extension().is_some_and(|extension| extension == "svg");
        let text = if picture { picture::file(&explanation) } else { page::page(&explanation) };
        report::write_page(path, text)?;
    }
    Ok(Status::Good)
}

fn explain(watched: &Watched, prepared: &PreparedProgram) -> Result<Explanation, Failure> {
    let timeline = watched.timeline().cloned().unwrap_or_default();
    // Events of the uploads do not belong to a run.
    drop(watched.events());
    timeline.clear();
    let once = |name| {
        timeline.mark(name);
        let start = Instant::now();
        prepared.results().map_err(Failure::run)?;
        let took = start.elapsed();
        watched.engine.synchronize().map_err(Failure::run)?;
        Ok((took, Story::of(&watched.events())))
    };
    let (cold, first) = once("first run")?;
    let (warm, second) = once("second run")?;
    let kernels = (0..first.regions.len()).map(|index| kernels_of(&first, index)).collect();
    let program = prepared.program();
    Ok(Explanation {
        name: program.name.clone(),
        ops: program.ops.len(),
        mode: watched.engine.mode(),
        place: watched.place(),
        names: Names::of(prepared, &first),
        first,
        second,
        kernels,
        times: [cold, warm],
        timeline,
    })
}

/// The kernels of a region, from its executable or that of an equal earlier region.
fn kernels_of(story: &Story, index: usize) -> Kernels {
    let graph = story.regions[index].contents.canon().graph();
    let compiled = story.module_of(index).and_then(|(place, module)| {
        let executable = story.regions[place].compile.as_ref()?.executable.as_ref()?;
        Some((executable.optimized_program().ok()?, module))
    });
    Kernels::of(graph, compiled.as_ref().map(|(program, module)| (program, *module)))
}

impl Explanation {
    /// Why a region starts where it does, as a clause.
    fn start(&self, index: usize) -> String {
        match index.checked_sub(1).map(|before| &self.first.regions[before]) {
            None => "with the program".to_owned(),
            Some(before) => {
                format!("after {}, which ended because {}", before.title(), before.end_words())
            }
        }
    }

    fn compile_time(&self) -> Duration {
        self.first
            .regions
            .iter()
            .filter_map(|region| region.compile.as_ref())
            .map(|compile| compile.took)
            .sum()
    }

    /// The size of the program: `12 ops and 3 constants`. Constants of the file are recorded as ops
    /// too.
    fn size_words(&self) -> String {
        let recorded: usize = self.first.regions.iter().map(|region| region.reference().ops).sum();
        match recorded.saturating_sub(self.ops) {
            0 => count(self.ops, "op"),
            constants => {
                format!("{} and {}", count(self.ops, "op"), count(constants, "constant"))
            }
        }
    }

    /// The duration of the first run and its share of compiling.
    fn cold_words(&self) -> String {
        let compiles = self.first.regions.iter().filter(|region| region.compile.is_some()).count();
        format!(
            "first run {}, of which {} went into {}",
            time(self.times[0]),
            time(self.compile_time()),
            count(compiles, "compile")
        )
    }

    /// The cache hits and misses of the second run.
    fn warm_words(&self) -> String {
        let regions = &self.second.regions;
        let hits = regions.iter().filter(|region| matches!(region.source, Source::Hit { .. })).count();
        format!(
            "second run {}: {hits} of {} in the cache",
            time(self.times[1]),
            count(regions.len(), "region")
        )
    }

    /// Regions of the second run that were not in the cache.
    fn warm_misses(&self) -> impl Iterator<Item = &Region> {
        self.second.regions.iter().filter(|region| matches!(region.source, Source::Miss(_)))
    }

    /// The source of the kernels, as a sentence.
    fn basis_words(&self) -> &'static str {
        let compiled = self.kernels.iter().filter(|kernels| kernels.basis == Basis::Compiled).count();
        match compiled {
            0 => {
                "Kernels are estimated from the op table: there is no compiler's program to read. What a compiler fuses may \
                 differ."
            }
            n if n == self.kernels.len() => {
                "Kernels are read from the program that XLA returned for each region."
            }
            _ => {
                "Kernels are read from the program that XLA returned, where there is one; the others are estimated from the \
                 op table."
            }
        }
    }
}

fn words(explanation: &Explanation, out: &mut String) {
    let regions = &explanation.first.regions;
    say!(
        out,
        "{}: {} on {}, {} mode",
        explanation.name,
        explanation.size_words(),
        explanation.place,
        explanation.mode.name()
    );
    say!(out, "{}", count(regions.len(), "region"));
    say!(out, "{}", explanation.cold_words());
    say!(out, "{}", explanation.warm_words());
    for region in explanation.warm_misses() {
        say!(out, "  {}: {}", region.title(), region.source_words());
    }
    for step in explanation.timeline.steps() {
        say!(out, "\n{}, {}", step.name, step.summary);
    }
    say!(out, "\n{}", explanation.basis_words());
    for (index, (region, kernels)) in regions.iter().zip(&explanation.kernels).enumerate() {
        say!(out);
        report::head(region, &explanation.names, out);
        say!(out, "  starts {}", explanation.start(index));
        let basis = match kernels.basis {
            Basis::Compiled => "as compiled",
            Basis::Estimated => "estimated",
        };
        say!(out, "  kernels     {}, {basis}", kernels.all.len());
        for (number, kernel) in kernels.all.iter().enumerate() {
            say!(
                out,
                "    {}  {} ({}), {}",
                Kernels::letter(number),
                kernel.name,
                kernel.kind,
                count(kernel.nodes.len(), "op")
            );
        }
        say!(out, "  ops");
        let graph = region.contents.canon().graph();
        report::ops(region, &explanation.names, |node| Some(kernels.why(graph, node)), out);
    }
}
