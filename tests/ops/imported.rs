//! JAX programs that a script converted to program files: recorded op by op in all three modes, and
//! compared with JAX's results; and the script itself.
//!
//! The files under `examples/import/programs` are committed. The tests that convert them again need
//! a Python with the JAX version of `examples/import/requirements.txt`: `python3`, or
//! `FUSELINE_JAX_PYTHON`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use fuseline::fusion::program::{Check, Program};
use fuseline::{DType, Literal, Mode};

use crate::support::{self, check_program};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/import")
}

/// The files of a folder with this extension, by name.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder can be read");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("so can its entries").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == ending));
    files.sort();
    files
}

#[test]
fn programs_give_what_jax_gives() {
    let engines = support::engines_of_all_tiers(support::config);
    // Nothing is interpreted in the other modes.
    let (modes, fused) = ([Mode::Fused, Mode::Strict, Mode::Debug], [Mode::Fused]);
    let devices: [(&str, &[Mode]); 3] = [
        ("the reference device", &modes),
        ("the plugin", &modes),
        ("the plugin without the interpreter tier", &fused),
    ];
    let mut failures = Vec::new();
    let files = files(&folder().join("programs"), "json");
    assert!(files.len() >= 11, "programs are missing: {files:?}");
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a program can be read");
        let name = file.file_stem().expect("a name").to_string_lossy();
        let program = match Program::parse(&text) {
            Ok(program) => Arc::new(program),
            Err(error) => {
                failures.push(format!("{name}: {error}"));
                continue;
            }
        };
        assert_eq!(program.name, name, "a program is named as its file");
        assert!(!program.expected.is_empty(), "{name} expects nothing");
        for (engine, (device, modes)) in engines.iter().zip(devices) {
            match check_program(engine, &program, modes) {
                Ok(()) => println!("{name}: {} ops as expected on {device}", program.op_count()),
                Err(error) => failures.push(format!("{name} on {device}: {error}")),
            }
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// Changes one part of a float tensor: the largest one, by a share of itself.
fn moved(tensor: &Literal, share: f32) -> Literal {
    let mut parts: Vec<f32> = tensor
        .bytes()
        .chunks_exact(4)
        .map(|raw| f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]))
        .collect();
    let largest = parts.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs())).expect("it has elements");
    *largest *= 1.0 + share;
    let bytes = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
    Literal::from_bytes(tensor.ty().clone(), bytes).expect("it is as long as before")
}

/// The tolerances of the files come from a rule, which must not let wrong results pass. An output
/// with one element off by a ten-thousandth is refused; in the program that computes in `bf16`, by
/// a twentieth.
#[test]
fn checks_are_narrow() {
    let mut floats = 0;
    for file in files(&folder().join("programs"), "json") {
        let text = std::fs::read_to_string(&file).expect("a program can be read");
        let program = Program::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let coarse = program.values.iter().any(|value| value.data.dtype() == DType::BF16);
        for (index, (tensor, check)) in program.expected.iter().zip(&program.checks).enumerate() {
            if !["f32", "c64"].contains(&tensor.dtype().mlir()) {
                assert_eq!(*check, Check::Exact, "{}: output {index}", program.name);
                continue;
            }
            floats += 1;
            let other = moved(tensor, if coarse { 0.05 } else { 1e-4 });
            assert!(check.compare(tensor, tensor).is_ok());
            assert!(
                check.compare(&other, tensor).is_err(),
                "{}: output {index} may be anything",
                program.name
            );
        }
    }
    assert!(floats > 50, "only {floats} outputs are floats");
}

// ----- the script -----

/// The Python to use, and whether the user named it.
fn python() -> (OsString, bool) {
    match std::env::var_os("FUSELINE_JAX_PYTHON") {
        Some(python) => (python, true),
        None => ("python3".into(), false),
    }
}

/// Runs Python in the folder of the script. `None` if there is none.
fn run_python(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(python().0);
    command.args(arguments).current_dir(folder());
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("JAX_PLATFORMS", "cpu");
    command.output().ok()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Why the script cannot run here, if so: its output depends on the version of JAX.
fn no_jax() -> Option<String> {
    let requirements = std::fs::read_to_string(folder().join("requirements.txt")).expect("it is committed");
    let pinned = requirements.lines().find_map(|line| line.strip_prefix("jax==")?.split_whitespace().next());
    let pinned = pinned.expect("a version of jax is pinned");
    let found = match run_python(&["-c", "import jax; print(jax.__version__)"]) {
        None => Err("there is no python3".to_owned()),
        Some(output) if !output.status.success() => Err("python3 has no jax".to_owned()),
        Some(output) => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
    };
    let reason = match found {
        Ok(version) if version == pinned => return None,
        Ok(version) => format!("python3 has jax {version}"),
        Err(reason) => reason,
    };
    assert!(!python().1, "FUSELINE_JAX_PYTHON has to have jax {pinned}: {reason}");
    Some(format!("{reason}; converting again needs jax {pinned} (see examples/import/README.md)"))
}

#[test]
fn scripts_compile() {
    const COMPILE: &str =
        "import sys; [compile(open(p, encoding='utf-8').read(), p, 'exec') for p in sys.argv[1:]]";
    let mut scripts = files(&folder(), "py");
    scripts.extend(files(&folder().join("fuseline_import"), "py"));
    assert!(scripts.len() >= 8, "scripts are missing: {scripts:?}");
    let mut arguments = vec!["-c", COMPILE];
    arguments.extend(scripts.iter().map(|script| script.to_str().expect("a path in UTF-8")));
    match run_python(&arguments) {
        None => println!("skipped: no python3: it would compile the scripts"),
        Some(output) => assert!(output.status.success(), "{}", said(&output)),
    }
}

#[test]
fn the_tests_of_the_script_pass() {
    if let Some(reason) = no_jax() {
        println!("skipped: no JAX for the tests of the import script: {reason}");
        return;
    }
    let output = run_python(&["-m", "unittest"]).expect("Python runs");
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn the_script_writes_the_committed_programs() {
    if let Some(reason) = no_jax() {
        println!("skipped: no JAX to convert the programs again: {reason}");
        return;
    }
    let output = run_python(&["convert_programs.py", "--check"]).expect("Python runs");
    assert!(output.status.success(), "{}", said(&output));
}
