//! Manifests, ahead-of-time compiles, and runs that compile nothing.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use fuseline::aot::{Manifest, Warmed};
use fuseline::{Engine, EngineConfig, Event, Numerics, Result};

use crate::support::{self, Log, place, vector};

/// A small program of two regions. It is in this file because errors and manifests name the file.
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

/// Several ops that are in no region of the program, so that they could run one by one.
fn another(engine: &Engine, size: usize) -> Result<Vec<f32>> {
    let x = vector(engine, &vec![0.5; size]);
    ((x.log1p()? - &x)?.sin()? * &x)?.to_vec::<f32>()
}

/// A manifest of the program and of another run. `None` without a plugin.
fn recorded(root: &Path, config: EngineConfig, run: impl Fn(&Engine) -> Result<()>) -> Option<PathBuf> {
    let path = root.join("run.jsonl");
    let engine = support::plugin(config.without_disk_cache().manifest(&path))?;
    run(&engine).expect("it runs");
    Some(path)
}

fn warmed(root: &Path, manifest: &Path, config: EngineConfig) -> Vec<Warmed> {
    let manifest = Manifest::read(manifest).expect("a manifest");
    let engine = config.disk_cache(place(root)).build().expect("there was a plugin before");
    let mut told = 0;
    let warmed = engine.warm_cache(&manifest, |_, _| told += 1).expect("there is a cache");
    assert_eq!((told, warmed.len()), (manifest.regions().len(), manifest.regions().len()));
    warmed
}

fn only(root: &Path, log: &Log, config: EngineConfig) -> Result<Engine> {
    config.disk_cache(place(root)).cache_only(true).event_sink(log.sink()).build()
}

fn names(log: &Log) -> Vec<&'static str> {
    log.take().iter().map(Event::name).collect()
}

/// A run that interprets new regions writes a manifest, another machine compiles it, and a third
/// run compiles nothing.
#[test]
fn what_a_run_needs_is_compiled_ahead_of_it() {
    for config in [EngineConfig::new, || EngineConfig::new().numerics(Numerics::Exact)] {
        let root = tempfile::tempdir().unwrap();
        let run = |engine: &Engine| program(engine).map(drop);
        let Some(manifest) = recorded(root.path(), config(), run) else { return };
        let regions = Manifest::read(&manifest).unwrap();
        assert!(regions.regions().len() >= 2);
        assert!(
            regions.regions().iter().all(|region| region.site().contains("ahead_of_time.rs")),
            "{regions:?}"
        );
        let first = warmed(root.path(), &manifest, config());
        assert!(first.iter().all(|one| matches!(one, Warmed::Compiled(_))), "{first:?}");
        let second = warmed(root.path(), &manifest, config());
        assert!(second.iter().all(|one| *one == Warmed::Present), "{second:?}");
        let log = Log::default();
        let engine = only(root.path(), &log, config()).unwrap();
        let numbers = program(&engine).unwrap();
        engine.synchronize().unwrap();
        let counters = engine.counters();
        assert!(counters.compiles == 0 && counters.loads >= 2, "{counters:?}");
        assert_eq!((counters.fallbacks, counters.compile_failures), (0, 0), "{counters:?}");
        let names = names(&log);
        assert!(!names.contains(&"interpreted") && !names.contains(&"padded"), "{names:?}");
        let reference = program(&Engine::reference()).unwrap();
        assert!(
            numbers.iter().zip(&reference).all(|(x, y)| (x - y).abs() < 1e-5),
            "{numbers:?} {reference:?}"
        );
    }
}

/// A run that pads, or runs a bucket's executable, lists the exact sizes too, for runs that may not
/// pad.
#[test]
fn sizes_that_were_padded_are_compiled_ahead_too() {
    let root = tempfile::tempdir().unwrap();
    let sizes = |engine: &Engine| (3..9).chain(3..6).try_for_each(|size| another(engine, size).map(drop));
    // A region that is interpreted is not padded.
    let config = support::compiled_first;
    let Some(manifest) = recorded(root.path(), config(), sizes) else { return };
    let made = warmed(root.path(), &manifest, config());
    assert!(made.iter().all(|one| matches!(one, Warmed::Compiled(_))), "{made:?}");
    let log = Log::default();
    let engine = only(root.path(), &log, config()).unwrap();
    sizes(&engine).unwrap();
    assert_eq!(engine.counters().compiles, 0);
    assert!(!names(&log).contains(&"padded"));
}

#[test]
fn what_is_missing_fails_alone_and_is_not_run_op_by_op() {
    let root = tempfile::tempdir().unwrap();
    let Some(manifest) = recorded(root.path(), support::config(), |engine| program(engine).map(drop)) else {
        return;
    };
    let log = Log::default();
    // Nothing is there at first.
    let engine = only(root.path(), &log, support::config()).unwrap();
    let error = program(&engine).unwrap_err().to_string();
    for words in [
        "not in the disk cache",
        "has no executables",
        "tests/engine/ahead_of_time.rs:",
        "fuseline cache warm",
    ] {
        assert!(error.contains(words), "{words:?} is not in: {error}");
    }
    // The engine that missed an executable finds it when it comes later.
    let _ = warmed(root.path(), &manifest, support::config());
    let expected = program(&engine).unwrap();
    let kept = vector(&engine, &[1.0, 2.0]);
    let error = another(&engine, 5).unwrap_err();
    assert!(error.to_string().contains("none of") || error.to_string().contains("differs"), "{error}");
    assert!(error.site().is_some_and(|site| site.to_string().contains("ahead_of_time.rs")), "{error}");
    assert_eq!(kept.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(program(&engine).unwrap(), expected);
    let counters = engine.counters();
    assert_eq!((counters.compiles, counters.fallbacks), (0, 0), "{counters:?}");
    // The first region of the first run, whose second was not recorded, and the region that was
    // never compiled.
    let names = names(&log);
    assert_eq!(names.iter().filter(|name| **name == "poisoned").count(), 2, "{names:?}");
    assert!(!names.contains(&"interpreted") && !names.contains(&"fallback"), "{names:?}");
}

/// Values that depend on a missing region fail with its error, and the others are there.
#[test]
fn a_missing_region_fails_its_dependants() {
    let root = tempfile::tempdir().unwrap();
    let two = |engine: &Engine| {
        let x = vector(engine, &[0.25, 0.5]);
        let first = (x.exp()? + &x)?;
        engine.stream().flush();
        let second = ((first.tanh()? * &x)? + &x)?;
        Ok((first.to_vec::<f32>(), second.to_vec::<f32>()))
    };
    let Some(manifest) = recorded(root.path(), support::config(), |engine| two(engine).map(drop)) else {
        return;
    };
    // Only the second region.
    let text = std::fs::read_to_string(&manifest).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    let kept = text.lines().filter(|line| !line.contains("\"ops\":2,"));
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    assert_eq!(kept.lines().count(), 2, "{kept}");
    std::fs::write(&manifest, kept).unwrap();
    let _ = warmed(root.path(), &manifest, support::config());
    let engine = only(root.path(), &Log::default(), support::config()).unwrap();
    let (first, second) = two(&engine).unwrap();
    let (first, second) = (first.unwrap_err().to_string(), second.unwrap_err().to_string());
    assert!(first.contains("exponential") && second.contains("exponential"), "{first}\n{second}");
    assert_eq!(engine.counters().compiles, 0);
}

#[test]
fn a_miss_says_what_differs() {
    let root = tempfile::tempdir().unwrap();
    let run = |engine: &Engine| another(engine, 5).map(drop);
    let Some(manifest) = recorded(root.path(), support::config(), run) else { return };
    let _ = warmed(root.path(), &manifest, support::config());
    let said = |config: EngineConfig, run: &dyn Fn(&Engine) -> Result<()>| {
        let engine = only(root.path(), &Log::default(), config).unwrap();
        run(&engine).unwrap_err().to_string()
    };
    let size = said(support::config(), &|engine| another(engine, 6).map(drop));
    assert!(size.contains("f32[5] became f32[6]") || size.contains("f32[5]"), "{size}");
    let numerics = said(support::config().numerics(Numerics::Exact), &run);
    assert!(numerics.contains("numerics was fast there and is exact here"), "{numerics}");
    let results = said(support::config(), &|engine| {
        let x = vector(engine, &[0.5; 5]);
        let log = x.log1p()?;
        let y = ((&log - &x)?.sin()? * &x)?;
        y.to_vec::<f32>()?;
        log.to_vec::<f32>().map(drop)
    });
    assert!(results.contains("returning results"), "{results}");
    let ops = said(support::config(), &|engine| {
        let x = vector(engine, &[0.5; 5]);
        ((x.log1p()? - &x)?.cos()? * &x)?.to_vec::<f32>().map(drop)
    });
    assert!(ops.contains("`cosine`") && ops.contains("`sine`"), "{ops}");
}

#[test]
fn without_a_cache_there_is_no_such_engine() {
    let root = tempfile::tempdir().unwrap();
    if support::plugin(EngineConfig::new().without_disk_cache()).is_none() {
        return;
    }
    let folder = root.path().join("cache");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = only(root.path(), &Log::default(), EngineConfig::new()).unwrap_err().to_string();
    assert!(error.contains("other users have access") && error.contains("cache_only"), "{error}");
    let error = EngineConfig::new().without_disk_cache().cache_only(true).build().unwrap_err().to_string();
    assert!(error.contains("cache_only"), "{error}");
    // It does not concern the interpreter.
    assert!(EngineConfig::new().cache_only(true).build_reference().is_ok());
}

/// A request is in a manifest once, whichever runs made it and however often. A manifest that a
/// killed process leaves is continued.
#[test]
fn a_manifest_is_gone_on_with() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run.jsonl");
    let run = |size| {
        let engine = support::config().manifest(&path).build_reference().unwrap();
        another(&engine, size).unwrap();
        another(&engine, size).unwrap();
        drop(engine);
        Manifest::read(&path).unwrap()
    };
    let first = run(5);
    let lines = || std::fs::read_to_string(&path).unwrap().lines().count();
    assert_eq!(lines(), first.regions().len() + 1);
    assert_eq!(run(5).regions().len(), first.regions().len());
    assert_eq!(lines(), first.regions().len() + 1);
    let more = run(6);
    assert!(more.regions().len() > first.regions().len());
    // Every prefix of it is a manifest, or is refused as none.
    let whole = std::fs::read(&path).unwrap();
    let head = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    for len in 0..=whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        match Manifest::read(&path) {
            Ok(manifest) => {
                assert!(len >= head, "{len}");
                let is_whole = whole[..len].ends_with(b"\n");
                assert_eq!(
                    (manifest.is_cut_off(), manifest.regions().len() <= more.regions().len()),
                    (!is_whole, true)
                );
            }
            Err(_) => assert!(len < head, "{len}"),
        }
    }
    std::fs::write(&path, &whole[..whole.len() - 7]).unwrap();
    let again = run(6);
    assert_eq!((again.regions().len(), again.is_cut_off()), (more.regions().len(), false));
    // A file with other contents is left unchanged.
    std::fs::write(&path, "a poem\n").unwrap();
    let error = support::config().manifest(&path).build_reference().unwrap_err().to_string();
    assert!(error.contains("run.jsonl:1"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a poem\n");
}

#[test]
fn hostile_manifests_are_refused_with_their_lines() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run.jsonl");
    let engine = support::config().manifest(&path).build_reference().unwrap();
    another(&engine, 5).unwrap();
    drop(engine);
    let good = std::fs::read_to_string(&path).unwrap();
    let (head, region) = good.split_once('\n').unwrap();
    let region = region.lines().next().unwrap();
    let request = region.split("\"request\":\"").nth(1).unwrap().split('"').next().unwrap();
    let refused = |lines: &[&str], words: &str| {
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        let error = Manifest::read(&path).unwrap_err().to_string();
        assert!(error.contains(words), "{words:?} is not in: {error}");
    };
    refused(&[], ":1: it is not a JSON");
    refused(&["{}"], ":1: it is not a manifest");
    refused(&[&head.replace(":1,", ":2,"), region], "this build reads version 1");
    refused(&[&head.replace("fast", "fair"), region], ":1: `numerics`");
    refused(&[&head.replace("\"replicas\":1", "\"replicas\":0"), region], ":1: `replicas`");
    refused(&[head, region, "{"], ":3: it is not a JSON document");
    refused(&[head, region, "{}"], ":3: `request` must be a base64 string");
    refused(&[head, &region.replace(request, "!")], ":2: `request` is not valid base64");
    refused(&[head, &region.replace(request, "")], ":2: the request is no request");
    refused(
        &[head, &region.replace(request, &format!("CQkJ{}", &request[4..]))],
        ":2: the request has version 9",
    );
    refused(&[head, &region.replace(request, &request[..request.len() / 8 * 4])], ":2: the re");
    refused(&[head, &region.replace("\"ops\":", "\"ops\":1")], ":2: `ops`");
    refused(&[head, &"[".repeat(100_000)], ":2: it is not a JSON document");
    // Control characters of a call site do not reach a terminal.
    std::fs::write(&path, format!("{head}\n{}\n", region.replace("tests/", "\\u001b[31mtests/"))).unwrap();
    let manifest = Manifest::read(&path).unwrap();
    assert!(manifest.regions()[0].site().starts_with("[31mtests/"), "{manifest:?}");
}
