//! Runs the fuzzed functions (`fuzz/src/`) on the findings and seeds of fuzzing: every file of
//! `fuzz/regressions/TARGET/` and `fuzz/corpus/TARGET/`.
//!
//! `FUSELINE_FUZZ_INPUT=TARGET:PATH` runs one file only, such as one from libFuzzer in
//! `fuzz/artifacts/`.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a test")]

#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fuseline_testgen::{Entropy as _, Seeded};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// The names in a folder.
fn listed(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Runs the files of a target and returns their number.
fn replay(name: &str, run: fn(&[u8])) -> usize {
    if let Ok(input) = std::env::var("FUSELINE_FUZZ_INPUT") {
        let (target, path) = input.split_once(':').expect("FUSELINE_FUZZ_INPUT is TARGET:PATH");
        if target == name {
            run(&fs::read(path).unwrap());
        }
        return 1;
    }
    let mut failed = Vec::new();
    let mut count = 0;
    for kind in ["regressions", "corpus"] {
        let folder = folder(kind).join(name);
        if kind == "regressions" && !folder.exists() {
            continue;
        }
        for file in listed(&folder) {
            let data = fs::read(folder.join(&file)).unwrap();
            count += 1;
            if catch_unwind(AssertUnwindSafe(|| run(&data))).is_err() {
                failed.push(format!("fuzz/{kind}/{name}/{file}"));
            }
        }
    }
    assert!(failed.is_empty(), "these fail: {failed:?}");
    count
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            let count = replay(stringify!($name), fuzz::target(stringify!($name)));
            assert!(count > 0, "there are no files");
            println!("{}: {count} files", stringify!($name));
        })*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    api_program, canon_decode, canon_meta, disk_ops, emit_verify, entry_parse, fault_plan, program_json, shape, text,
}

/// Each target is tested here, has seeds, and is declared to cargo.
#[test]
fn every_target_is_complete() {
    let names: BTreeSet<String> = fuzz::TARGETS.iter().map(|target| target.0.to_owned()).collect();
    assert_eq!(names, TESTED.iter().map(|&name| name.to_owned()).collect());
    assert_eq!(names, listed(&folder("corpus")));
    let regressions = folder("regressions");
    if regressions.exists() {
        assert!(listed(&regressions).is_subset(&names));
    }
    let files = names.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(listed(&folder("fuzz_targets")), files);
    let manifest = fs::read_to_string(folder("Cargo.toml")).unwrap();
    for name in &names {
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "fuzz/Cargo.toml has no [[bin]] {name}");
    }
}

// ----- without libFuzzer -----

/// Random changes of a target's inputs: fuzzing without coverage, for machines without cargo-fuzz.
/// `FUSELINE_FUZZ_TARGETS` names the targets (default all), `FUSELINE_MINUTES` sets the time for
/// each (default 1), `FUSELINE_SEED` varies the inputs.
#[test]
#[ignore = "soak: `cargo xtask soak mutations`"]
fn soak_mutations() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<f64>().expect("a number"));
    let time = Duration::from_secs_f64(60.0 * number("FUSELINE_MINUTES").unwrap_or(1.0));
    let wanted = std::env::var("FUSELINE_FUZZ_TARGETS").unwrap_or_default();
    for (name, run) in fuzz::TARGETS {
        if !wanted.is_empty() && !wanted.split(',').any(|wanted| wanted == name) {
            continue;
        }
        let corpus = folder("corpus").join(name);
        let inputs: Vec<Vec<u8>> =
            listed(&corpus).iter().map(|file| fs::read(corpus.join(file)).unwrap()).collect();
        let mut entropy = Seeded::new(number("FUSELINE_SEED").unwrap_or(0.0) as u64);
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < time {
            let input = mutated(&inputs, &mut entropy);
            if catch_unwind(AssertUnwindSafe(|| run(&input))).is_err() {
                let path = folder("artifacts").join(format!("{name}-{}", entropy.next_u64()));
                fs::create_dir_all(folder("artifacts")).unwrap();
                fs::write(&path, &input).unwrap();
                panic!("{name} fails on {}, after {count} inputs", path.display());
            }
            count += 1;
        }
        println!("figures: {name}: {count} inputs without coverage, 0 failures");
    }
}

/// One of the inputs with some bytes changed, removed, duplicated, or taken from another input.
fn mutated(inputs: &[Vec<u8>], entropy: &mut Seeded) -> Vec<u8> {
    let any = |entropy: &mut Seeded, len: usize| entropy.draw(len as u32) as usize;
    let mut input = inputs[any(entropy, inputs.len())].clone();
    for _ in 0..1 + entropy.draw(6) {
        let (a, b) = (any(entropy, input.len() + 1), any(entropy, input.len() + 1));
        let (a, b) = (a.min(b), a.max(b).min(a.min(b) + 64));
        match entropy.draw(6) {
            0 if a < input.len() => input[a] = entropy.draw(256) as u8,
            1 if a < input.len() => input[a] ^= 1 << entropy.draw(8),
            2 => drop(input.drain(a..b)),
            3 => {
                let again = input[a..b].to_vec();
                input.splice(a..a, again);
            }
            4 => {
                let other = &inputs[any(entropy, inputs.len())];
                let from = any(entropy, other.len() + 1);
                input.splice(a..b, other[from..].iter().take(64).copied());
            }
            _ => input.insert(a, entropy.draw(256) as u8),
        }
    }
    input.truncate(8_192);
    input
}

#[test]
fn mutations_are_many() {
    let inputs = [b"one input".to_vec(), b"and another".to_vec()];
    let mut entropy = Seeded::new(1);
    let made: BTreeSet<Vec<u8>> = (0..1_000).map(|_| mutated(&inputs, &mut entropy)).collect();
    assert!(made.len() > 900, "only {} of 1,000 differ", made.len());
}
