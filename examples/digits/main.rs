//! Trains a small convolutional network on handwritten digits, and compares the engine's modes.
//!
//! `cargo xtask demo`, or `cargo run --release --example digits`. The network, its gradients and
//! the optimizer are plain tensor ops, recorded one by one; no call marks what belongs together.
//! The exit status is an error if the test accuracy is below 97 %, if the modes disagree, or if the
//! steady state compiled anything.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its user")]

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod data;
mod model;
mod picture;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::Parser;
use common::{Device, block_on, checkpoint, client_option};
use compare::Comparison;
use data::Set;
use fuseline::pjrt::Value;
use fuseline::{Counters, Engine, EngineConfig};
use indicatif::{ProgressBar, ProgressStyle};
use model::Model;

/// The required test accuracy.
const WANTED_ACCURACY: f64 = 0.97;
/// The largest allowed difference of two modes' losses.
const LOSS_TOLERANCE: f64 = 1e-4;
/// The expected speed-up of a Fused step over a Strict step.
const WANTED_SPEEDUP: f64 = 3.0;
/// The number of epochs after which everything should be compiled.
const WARM_EPOCHS: usize = 2;

/// Trains a small convolutional network on handwritten digits, and compares the engine's modes on
/// it.
#[derive(Parser)]
struct Options {
    /// Passes through the training images.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..))]
    epochs: u32,
    /// Images per step.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Steps to compare the modes over.
    #[arg(long, default_value_t = 210, value_parser = clap::value_parser!(u32).range(50..))]
    steps: u32,
    /// Where to compute.
    #[arg(long, value_enum, default_value = "auto")]
    device: Device,
    /// An option for the plugin's client, such as preallocate=false on CUDA; may be repeated.
    #[arg(long = "client-option", value_name = "NAME=VALUE", value_parser = client_option)]
    client_options: Vec<(String, Value)>,
    /// Seed of the initial network and of the order of the images.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the picture.
    #[arg(long, value_name = "DIR", default_value = "demo-report")]
    report: PathBuf,
    /// File to save the trained network to, in the safetensors format.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

impl Options {
    /// An engine on the chosen device.
    fn engine(&self, mut config: EngineConfig) -> fuseline::Result<Engine> {
        for (name, value) in &self.client_options {
            config = config.client_option(name, value.clone());
        }
        self.device.build(config)
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if options.device == Device::Reference {
        eprintln!(
            "The reference interpreter is built for correctness, not for speed: this takes many minutes."
        );
    }
    let (train, test) = data::load()?;
    let engine = options.engine(EngineConfig::new())?;
    println!(
        "{} handwritten digits to train with, {} to test with; {}.",
        train.len(),
        test.len(),
        engine.pjrt_device().map_or("reference interpreter".to_owned(), |device| format!(
            "device: {}",
            device.client().platform_name()
        ))
    );

    let trained = training(&options, &engine, &train, &test)?;
    drop(engine);
    let comparison = compare::run(&options, &train)?;
    println!("\n{}", comparison.table());

    std::fs::create_dir_all(&options.report)
        .with_context(|| format!("making the folder {}", options.report.display()))?;
    let picture = options.report.join("digits.svg");
    picture::draw(&picture, &comparison, &trained.epochs)?;
    println!("Picture: {}", picture.display());

    Ok(verdict(&trained, &comparison))
}

/// The result of one epoch.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// Mean loss over its steps.
    loss: f64,
    /// The test accuracy after it.
    accuracy: f64,
}

/// The result of the training.
struct Trained {
    epochs: Vec<Epoch>,
    /// Counters after the epochs in which it may compile.
    steady: Counters,
}

impl Trained {
    fn accuracy(&self) -> f64 {
        self.epochs.last().map_or(0.0, |epoch| epoch.accuracy)
    }
}

/// The factor of the learning rate at a step: a half cosine from 1 to 0.
fn schedule(step: usize, steps: usize) -> f64 {
    0.5 * (1.0 + (std::f64::consts::PI * step as f64 / steps as f64).cos())
}

fn training(options: &Options, engine: &Engine, train: &Set, test: &Set) -> anyhow::Result<Trained> {
    let (epochs, batch) = (options.epochs as usize, usize::from(options.batch));
    let per_epoch = train.len() / batch;
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} steps, {elapsed}")?;
    let bar = ProgressBar::new((epochs * per_epoch) as u64).with_style(style);
    bar.set_message("epoch 1");

    let everything: Vec<usize> = (0..test.len()).collect();
    let (test_images, _) = test.upload(engine, &everything)?;
    let mut model = Model::new(engine, options.seed)?;
    let mut trained = Trained { epochs: Vec::new(), steady: Counters::default() };
    let mut warm = Counters::default();
    let start = Instant::now();
    for epoch in 0..epochs {
        // The losses are requested while the steps are recorded, and awaited at the end of the
        // epoch, so that this thread prepares the next steps while the device works.
        let mut losses = Vec::with_capacity(per_epoch);
        let batches = data::batches(train.len(), batch, options.seed + epoch as u64);
        for (step, indices) in batches.iter().enumerate() {
            let rate = schedule(epoch * per_epoch + step, epochs * per_epoch);
            let (images, labels) = train.upload(engine, indices)?;
            losses.push(model.train(&images, &labels, rate)?.read());
            bar.inc(1);
        }
        let mut sum = 0.0;
        for loss in losses {
            sum += block_on(loss)?.to_vec::<f32>()?.into_iter().map(f64::from).sum::<f64>();
        }
        let seen = model.classify(&test_images)?.to_vec::<i32>()?;
        let right = seen.iter().zip(test.labels()).filter(|(seen, label)| seen == label).count();
        let result = Epoch { loss: sum / per_epoch as f64, accuracy: right as f64 / test.len() as f64 };
        trained.epochs.push(result);
        let Epoch { loss, accuracy } = result;
        let number = epoch + 1;
        bar.suspend(|| {
            println!(
                "epoch {number:>2}: loss {loss:.4}, accuracy on held-out digits {:.2} %",
                accuracy * 100.0
            );
        });
        bar.set_message(format!("epoch {}", (number + 1).min(epochs)));
        if number == WARM_EPOCHS {
            warm = engine.counters();
        }
    }
    bar.finish_and_clear();
    let total = engine.counters();
    trained.steady = total.since(&warm);
    println!(
        "Trained for {epochs} epochs, {} steps, in {:.1} s; {} compiles took {:.1} s.",
        epochs * per_epoch,
        start.elapsed().as_secs_f64(),
        total.compiles,
        total.compile_time.as_secs_f64(),
    );
    if let Some(path) = &options.save {
        checkpoint::save(path, model.parameters())?;
        println!("Network: {}", path.display());
    }
    Ok(trained)
}

/// Prints the verdict and returns the exit status.
fn verdict(trained: &Trained, comparison: &Comparison) -> ExitCode {
    let mut failed = false;
    let mut check = |good: bool, sentence: String| {
        println!("{} {sentence}", if good { "ok:    " } else { "FAILED:" });
        failed |= !good;
    };
    let percent = trained.accuracy() * 100.0;
    check(
        trained.accuracy() >= WANTED_ACCURACY,
        format!(
            "{percent:.2} % of the held-out digits are classified correctly ({:.0} % required).",
            WANTED_ACCURACY * 100.0
        ),
    );
    let difference = comparison.largest_difference();
    check(
        difference <= LOSS_TOLERANCE,
        format!(
            "The losses of the three modes differ by at most {difference:.1e} over {} steps ({LOSS_TOLERANCE:.0e} \
             allowed).",
            compare::JUDGED_STEPS
        ),
    );
    // A background compile may end later.
    let Counters { compiles_asked: compiles, misses, .. } = trained.steady;
    check(
        compiles == 0 && misses == 0,
        match compiles {
            0 => format!("Fused requested no compile after epoch {WARM_EPOCHS}."),
            _ => format!("Fused requested {compiles} compiles after epoch {WARM_EPOCHS}; none was expected."),
        },
    );
    let speedup = comparison.speedup();
    if speedup >= WANTED_SPEEDUP {
        println!("ok:     A step takes {speedup:.1} times less time in Fused than in Strict.");
    } else {
        println!(
            "WARNING: A step takes only {speedup:.1} times less time in Fused than in Strict; {WANTED_SPEEDUP:.0} are \
             expected on an idle machine."
        );
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
