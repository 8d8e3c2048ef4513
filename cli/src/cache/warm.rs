//! `fuseline cache warm`.

use std::time::{Duration, Instant};

use fuseline::aot::{Manifest, Target, Warmed};
use fuseline::{EngineConfig, Event};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::WarmArgs;
use super::short;
use crate::Status;
use crate::failure::Failure;
use crate::options::DeviceChoice;
use crate::text::{count, milliseconds, note, say, time};

pub(super) fn run(args: &WarmArgs, out: &mut String) -> Result<Status, Failure> {
    let manifest = Manifest::read(&args.manifest).map_err(Failure::run)?;
    if manifest.is_cut_off() {
        note(format_args!(
            "fuseline: the last line of {} is incomplete, which happens if the run was killed; \
             the other lines are used",
            args.manifest.display()
        ));
    }
    let config = engine_config(args, &manifest)?;
    let since = Instant::now();
    let bar = progress(manifest.regions().len() as u64);
    let on_warmed = |_, _: &Warmed| bar.inc(1);
    let warmed = match &args.target {
        None => config.build().and_then(|engine| engine.warm_cache(&manifest, on_warmed)),
        Some(name) => {
            let described = args.target_options.iter();
            let target =
                described.fold(Target::new(name), |target, (name, value)| target.option(name, value.clone()));
            config.warm_cache_for(&target, &manifest, on_warmed)
        }
    };
    let warmed = warmed.map_err(Failure::run)?;
    bar.finish_and_clear();
    Ok(report(args, &manifest, &warmed, since.elapsed(), out))
}

/// The configuration that the manifest and the command line describe.
fn engine_config(args: &WarmArgs, manifest: &Manifest) -> Result<EngineConfig, Failure> {
    let mut config = EngineConfig::new()
        .numerics(manifest.numerics())
        .replicas(manifest.replicas())
        .disk_cache(args.common.dir.config()?)
        .event_sink(|event: &Event| {
            if let Event::CacheTrouble { what } = event {
                note(format_args!("fuseline: {what}"));
            }
        });
    if let Some(jobs) = args.jobs {
        config = config.compile_threads(jobs as usize);
    }
    for (name, value) in &args.place.options {
        config = config.client_option(name, value.clone());
    }
    match &args.place.device {
        Some(DeviceChoice::Reference) => {
            Err(Failure::Input("the reference interpreter compiles nothing".to_owned()))
        }
        Some(DeviceChoice::Plugin(path)) => Ok(config.plugin(path)),
        None => Ok(config),
    }
}

/// Reports what became of each region.
fn report(
    args: &WarmArgs,
    manifest: &Manifest,
    warmed: &[Warmed],
    took: Duration,
    out: &mut String,
) -> Status {
    let compiles = warmed.iter().filter_map(|one| match one {
        Warmed::Compiled(took) => Some(*took),
        _ => None,
    });
    let compiles: Vec<Duration> = compiles.collect();
    let present = warmed.iter().filter(|one| **one == Warmed::Present).count();
    let rows = manifest.regions().iter().zip(warmed);
    let failed: Vec<_> = rows
        .filter_map(|(region, warmed)| match warmed {
            Warmed::Failed(why) => Some((region, why)),
            _ => None,
        })
        .collect();
    let is_good = failed.is_empty();
    if args.common.json {
        let failed: Vec<Value> = failed
            .iter()
            .map(|(region, why)| json!({"key": region.key(), "ops": region.ops(), "site": region.site(), "why": why}))
            .collect();
        let document = json!({
            "status": if is_good { "ok" } else { "failed" },
            "regions": warmed.len(),
            "compiled": compiles.len(),
            "present": present,
            "failed": failed,
            "compile_ms": milliseconds(compiles.iter().sum()),
            "took_ms": milliseconds(took),
        });
        say!(out, "{document:#}");
    } else {
        for (region, why) in &failed {
            let (key, ops) = (short(region.key()), count(region.ops(), "op"));
            say!(out, "failed: region {key} ({ops}, recorded at {}): {why}", region.site());
        }
        say!(
            out,
            "{}: {} compiled in {}, {present} already stored, {} failed",
            count(warmed.len(), "region"),
            compiles.len(),
            time(took),
            failed.len()
        );
    }
    if is_good { Status::Good } else { Status::Bad }
}

/// A progress bar on standard error, shown on terminals only.
fn progress(regions: u64) -> ProgressBar {
    let bar = ProgressBar::new(regions);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} regions, {eta} left") {
        bar.set_style(style);
    }
    bar
}
