//! What fuzzing found, and what it starts from, through the functions that are fuzzed (`fuzz/src/`): every file of
//! `fuzz/regressions/TARGET/` and `fuzz/corpus/TARGET/`.
//!
//! `FUSELINE_FUZZ_INPUT=TARGET:PATH` runs one file only, such as what libFuzzer left in `fuzz/artifacts/`.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a test")]

#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// Names in a folder.
fn listed(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Runs the files of a target; how many there were.
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

targets! { api_program, canon_decode, canon_meta, emit_verify, fault_plan, program_json, shape, text }

/// A target is tested here, has files to start from, and is known to cargo.
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
