//! Executables of other processes: what a second engine finds that a first one has compiled.

mod support;

use std::path::Path;

use fuseline::{DiskCacheConfig, Engine, EngineConfig, Event, Numerics, Result, Tensor};
use support::Log;

fn place(root: &Path) -> DiskCacheConfig {
    DiskCacheConfig::new().folder(root.join("cache")).key_file(root.join("state/cache.key"))
}

/// An engine on the plugin, if there is one.
fn engine(root: &Path, log: &Log, config: EngineConfig) -> Option<Engine> {
    support::plugin(config.disk_cache(place(root)).event_sink(log.sink()))
}

fn vector(engine: &Engine, numbers: &[f32]) -> Tensor {
    engine.tensor(numbers, &[numbers.len() as u64]).expect("a vector")
}

/// A small program of two regions; what it gives is a function of `x` alone.
fn program(engine: &Engine) -> Result<Vec<f32>> {
    let x = vector(engine, &[0.1, 0.2, 0.3]);
    let mut y = x.clone();
    for _ in 0..5 {
        y = ((&y * &x)? + &x)?.tanh()?;
    }
    let mut numbers = y.to_vec::<f32>()?;
    numbers.extend((y.exp()? * 2.0)?.to_vec::<f32>()?);
    Ok(numbers)
}

/// Every region is compiled when it first comes.
fn eager() -> EngineConfig {
    EngineConfig::new().interpret_cold_regions(false).quick_compiles(false)
}

fn troubles(log: &Log) -> Vec<String> {
    let trouble = |event: &Event| match event {
        Event::CacheTrouble { what } => Some(what.clone()),
        _ => None,
    };
    log.take().iter().filter_map(trouble).collect()
}

#[test]
fn a_second_engine_compiles_nothing() {
    let root = tempfile::tempdir().unwrap();
    for config in [eager, || EngineConfig::new().numerics(Numerics::Exact)] {
        let log = Log::default();
        let Some(first) = engine(root.path(), &log, config()) else { return };
        let expected = program(&first).unwrap();
        let counters = first.counters();
        assert!(counters.compiles >= 2 && counters.loads == 0, "{counters:?}");
        drop(first);
        let second = engine(root.path(), &log, config()).unwrap();
        let numbers = program(&second).unwrap();
        let later = second.counters();
        assert_eq!(
            numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        );
        assert_eq!((later.compiles, later.loads), (0, counters.compiles), "{later:?}");
        assert_eq!(troubles(&log), Vec::<String>::new());
    }
}
