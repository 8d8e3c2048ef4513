//! Runs the same steps from the same initial network in the three modes.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use fuseline::{Counters, Engine, EngineConfig, Mode};
use indicatif::{ProgressBar, ProgressStyle};

use crate::common::block_on;
use crate::data::{self, Set};
use crate::model::Model;
use crate::{Options, schedule};

/// The number of steps over which the losses of the modes must agree. After many more steps,
/// rounding leads to different networks.
pub(crate) const JUDGED_STEPS: usize = 50;
/// The number of untimed steps, in which regions compile.
const WARM_STEPS: usize = 10;
/// The number of steps per timed block.
const BLOCK: usize = 20;

/// The result of the steps in one mode.
pub(crate) struct Run {
    pub(crate) mode: Mode,
    /// The loss of each step.
    pub(crate) losses: Vec<f64>,
    /// Time per step, in milliseconds, of each timed block.
    pub(crate) times: Vec<f64>,
    engine: Engine,
    model: Model,
    /// Counters before the timed steps.
    warm: Counters,
    /// Counters after them.
    end: Counters,
}

impl Run {
    /// The median time per step, in milliseconds.
    pub(crate) fn time(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// The minimum time per step, in milliseconds: the one with the least interference from other
    /// work.
    pub(crate) fn best(&self) -> f64 {
        self.times.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Trains with some batches. Returns the duration, until the last computation is done.
    fn steps(&mut self, train: &Set, batches: &[Vec<usize>], total: usize) -> fuseline::Result<Duration> {
        let first = self.losses.len();
        let start = Instant::now();
        let mut losses = Vec::with_capacity(batches.len());
        for (step, indices) in batches.iter().enumerate() {
            let (images, labels) = train.upload(&self.engine, indices)?;
            losses.push(self.model.train(&images, &labels, schedule(first + step, total))?.read());
        }
        for loss in losses {
            self.losses.extend(block_on(loss)?.to_vec::<f32>()?.into_iter().map(f64::from));
        }
        self.engine.synchronize()?;
        Ok(start.elapsed())
    }
}

/// The results in all modes: Fused, Strict, Debug.
pub(crate) struct Comparison {
    pub(crate) runs: Vec<Run>,
}

/// Runs the steps in each mode. The modes take turns, so that other work on the machine affects
/// them alike. Each has its own engine, and so its own cache.
pub(crate) fn run(options: &Options, train: &Set) -> anyhow::Result<Comparison> {
    let (batch, total) = (usize::from(options.batch), options.steps as usize);
    let mut batches = Vec::new();
    for pass in 0.. {
        if batches.len() >= total {
            break;
        }
        batches.extend(data::batches(train.len(), batch, options.seed + pass));
    }
    batches.truncate(total);

    let mut runs = Vec::new();
    for mode in [Mode::Fused, Mode::Strict, Mode::Debug] {
        let engine = options.engine(EngineConfig::new().mode(mode))?;
        let model = Model::new(&engine, options.seed)?;
        let (warm, end) = (engine.counters(), engine.counters());
        runs.push(Run { mode, losses: Vec::new(), times: Vec::new(), engine, model, warm, end });
    }
    let style = ProgressStyle::with_template("comparing the modes {bar:30} {pos}/{len} steps, {elapsed}")?;
    let bar = ProgressBar::new((runs.len() * total) as u64).with_style(style);
    let (warm_up, timed) = batches.split_at(WARM_STEPS.min(total));
    for run in &mut runs {
        run.steps(train, warm_up, total)?;
        run.warm = run.engine.counters();
        bar.inc(warm_up.len() as u64);
    }
    for block in timed.chunks(BLOCK) {
        for run in &mut runs {
            let time = run.steps(train, block, total)?;
            run.times.push(time.as_secs_f64() * 1e3 / block.len() as f64);
            bar.inc(block.len() as u64);
        }
    }
    for run in &mut runs {
        run.end = run.engine.counters();
    }
    bar.finish_and_clear();
    Ok(Comparison { runs })
}

impl Comparison {
    /// The absolute difference of the losses of two modes, step by step.
    pub(crate) fn differences(&self, run: &Run) -> Vec<f64> {
        let fused = &self.runs[0].losses;
        run.losses.iter().zip(fused).map(|(a, b)| (a - b).abs()).collect()
    }

    /// The largest difference between the losses of any two modes over the compared steps. NaN if a
    /// loss is NaN.
    pub(crate) fn largest_difference(&self) -> f64 {
        let mut largest = 0.0;
        for step in 0..JUDGED_STEPS {
            let losses = || self.runs.iter().map(|run| run.losses.get(step).copied().unwrap_or(f64::NAN));
            if losses().any(f64::is_nan) {
                return f64::NAN;
            }
            let spread = losses().fold(f64::MIN, f64::max) - losses().fold(f64::MAX, f64::min);
            largest = spread.max(largest);
        }
        largest
    }

    /// How many times longer a Strict step takes than a Fused one.
    pub(crate) fn speedup(&self) -> f64 {
        self.runs[1].time() / self.runs[0].time()
    }

    /// The figures of all modes as a table.
    pub(crate) fn table(&self) -> String {
        let header = [
            "mode",
            "time/step",
            "best",
            "ops/step",
            "runs/step",
            "executables",
            "compiles",
            "compile time",
            "last loss",
        ];
        let mut rows = vec![header.map(str::to_owned)];
        for run in &self.runs {
            let timed = (run.losses.len() - WARM_STEPS.min(run.losses.len())).max(1) as f64;
            let steady = run.end.since(&run.warm);
            rows.push([
                run.mode.name().to_owned(),
                format!("{:.3} ms", run.time()),
                format!("{:.3} ms", run.best()),
                format!("{:.0}", steady.ops as f64 / timed),
                format!("{:.0}", steady.executions as f64 / timed),
                run.end.cached_executables.to_string(),
                run.end.compiles.to_string(),
                format!("{:.2} s", run.end.compile_time.as_secs_f64()),
                format!("{:.6}", run.losses.last().copied().unwrap_or(f64::NAN)),
            ]);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        let mut table = String::new();
        for (number, row) in rows.iter().enumerate() {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(table, "{cell:<width$}"),
                    _ => write!(table, "  {cell:>width$}"),
                };
            }
            table.push('\n');
            if number == 0 {
                let line = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
                table.extend(std::iter::repeat_n('-', line));
                table.push('\n');
            }
        }
        table
    }
}
