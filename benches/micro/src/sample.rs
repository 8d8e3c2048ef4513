//! All measurements that sample times.

use std::time::Instant;

use fuseline::Engine;
use fuseline_micro::op::{self, BATCH, Class};
use fuseline_micro::region::{self, SIZES};
use indicatif::{ProgressBar, ProgressStyle};

use crate::figures::{Figures, Time};
use crate::sampling::{FEWEST, LONG, sample};
use crate::{round_trip, wait};

/// Times everything.
pub(crate) fn everything(figures: &mut Figures) -> anyhow::Result<()> {
    let steps = Class::ALL.len() * op::Stage::ALL.len()
        + SIZES.len()
        + wait::THREADS.len() * 2
        + wait::READS.len()
        + round_trip::NAMES.len();
    let bar = ProgressBar::new(steps as u64);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {msg}")?);
    for class in Class::ALL {
        for stage in op::Stage::ALL {
            let name = format!("op/{}/{}", class.name(), stage.name());
            bar.set_message(name.clone());
            let time = one(class, stage);
            figures.add_time(name, time);
            bar.inc(1);
        }
    }
    let engine = device();
    figures.device = match engine.pjrt_device() {
        Some(device) => format!("the {} by PJRT", device.kind()),
        None => "the reference interpreter".to_owned(),
    };
    for ops in SIZES {
        bar.set_message(format!("regions of {ops}"));
        regions(&engine, ops, figures);
        bar.inc(1);
    }
    wait::threads(figures, &bar);
    wait::reads(&engine, figures, &bar)?;
    if engine.pjrt_device().is_some() {
        round_trip::round_trips(figures, &bar)?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// The device of timed executions: a plugin's, if one is found.
fn device() -> Engine {
    fuseline_micro::config().build().unwrap_or_else(|error| {
        eprintln!("micro: executions run on the reference interpreter: {error}");
        fuseline_micro::reference()
    })
}

/// Time of a stage for one op.
fn one(class: Class, stage: op::Stage) -> Time {
    let rig = op::Rig::new(class);
    let run = || {
        let mut batch = rig.prepare(stage);
        let start = Instant::now();
        rig.run(stage, &mut batch);
        start.elapsed().as_nanos() as f64 / BATCH as f64
    };
    sample(run)
}

/// Times of all stages for regions of one size, per region.
fn regions(engine: &Engine, ops: usize, figures: &mut Figures) {
    let mut rig = region::Rig::new(engine, ops);
    let mut samples = region::Stage::ALL.map(|_| Vec::new());
    let start = Instant::now();
    while samples[0].len() < FEWEST || start.elapsed() < 4 * LONG {
        for (samples, took) in samples.iter_mut().zip(rig.pass()) {
            samples.push(took.as_nanos() as f64 / rig.regions() as f64);
        }
    }
    for (stage, samples) in region::Stage::ALL.into_iter().zip(samples) {
        figures.add_time(format!("region/{}/{ops}", stage.name()), Time::of(samples));
    }
}
