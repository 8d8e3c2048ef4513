//! `cargo xtask micro --outside`: compares what recording costs in this workspace with what it
//! costs in a crate outside of it.
//!
//! A crate outside has Cargo's default release profile and the default features of Fuseline. What
//! the compiler inlines across crates may differ then. The program is `benches/micro/outside.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};

use crate::callgrind;
use crate::host::Host;

/// The stages, as the program knows them.
const STAGES: [&str; 3] = ["replay", "call", "drop"];

/// The calls in a batch of the program.
const BATCH: f64 = 100.0;

/// How much more a count may be outside.
const TOLERANCE: f64 = 1.01;

/// Counts both programs and prints the figures. Fails if a count is more than 1 % higher outside.
pub(crate) fn run(host: &Host) -> anyhow::Result<ExitCode> {
    let Some(valgrind) = callgrind::valgrind(host, "micro") else { return Ok(ExitCode::FAILURE) };
    host.build(&["--release", "--package", "fuseline-micro", "--bin", "outside"])?;
    let inside = host.target_dir().join("release/outside");
    let outside = build(host)?;
    let mut is_close = true;
    println!("{:<8}{:>16}{:>16}", "", "workspace", "outside");
    for stage in STAGES {
        let [before, after] =
            [count(host, &valgrind, &inside, stage)?, count(host, &valgrind, &outside, stage)?];
        println!("{stage:<8}{before:>16.1}{after:>16.1}  {:+.1} %", (after / before - 1.0) * 100.0);
        is_close &= after <= before * TOLERANCE;
    }
    if !is_close {
        eprintln!("micro: a count is more than 1 % higher outside: an #[inline] may be missing");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the program in a crate of its own. Returns its path.
fn build(host: &Host) -> anyhow::Result<PathBuf> {
    let folder = host.target_dir().join("outside");
    fs::create_dir_all(folder.join("src")).with_context(|| format!("{} cannot be made", folder.display()))?;
    let copies = [("benches/micro/outside.rs", "src/main.rs"), ("Cargo.lock", "Cargo.lock")];
    for (from, to) in copies {
        fs::copy(host.root.join(from), folder.join(to))
            .with_context(|| format!("{from} cannot be copied"))?;
    }
    fs::write(folder.join("Cargo.toml"), manifest(&host.root))?;
    let mut build = host.cargo();
    build.current_dir(&folder).args(["build", "--release", "--target-dir"]).arg(folder.join("target"));
    ensure!(build.status().context("could not start cargo")?.success(), "the crate outside cannot be built");
    Ok(folder.join("target/release/outside"))
}

fn manifest(root: &Path) -> String {
    format!(
        "[workspace]\n\n[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nfuseline = {{ path = {:?} }}\n",
        root.display().to_string()
    )
}

/// The instructions of one call.
fn count(host: &Host, valgrind: &Path, program: &Path, stage: &str) -> anyhow::Result<f64> {
    let dump = host.target_dir().join("outside").join("callgrind.out");
    let mut command = callgrind::command(host, valgrind, &dump);
    command.arg("--toggle-collect=*7counted*").arg(program).arg(stage);
    // An allocation always costs the same (benches/micro/counts.rs).
    command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=16000");
    callgrind::run(command).with_context(|| format!("{} {stage}", program.display()))?;
    Ok(callgrind::read(&dump)?.instructions as f64 / BATCH)
}
