//! Builds programs in C and C++ with the installed compiler and runs them on every device.
//!
//! `c/seam.c` calls every function of the header, which [`every_function_is_called_by_a_program`]
//! checks. The examples are the ones that users read.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use engine::pjrt::discover::{Discovery, Sources};
use tempfile::TempDir;

/// What a program is linked with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Shared,
    Static,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder in which cargo has put the libraries: that of this program.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap().to_owned();
    for name in ["libfuseline.so", "libfuseline.a"] {
        assert!(
            folder.join(name).exists(),
            "{name} is not in {}: cargo builds it with the tests",
            folder.display()
        );
    }
    folder
}

/// A compiler, or the reason to skip the tests that need it.
fn compiler(variable: &str, usual: &str) -> Option<String> {
    let name = std::env::var(variable).unwrap_or_else(|_| usual.to_owned());
    match Command::new(&name).arg("--version").output() {
        Ok(_) => Some(name),
        Err(error) => {
            let kind = if usual == "cc" { "C" } else { "C++" };
            println!("skipped: no {kind} compiler: {name}: {error}");
            None
        }
    }
}

/// Builds a program. Returns `None` if there is no compiler.
fn build(source: &str, library: Library, folder: &Path) -> Option<PathBuf> {
    let is_cpp = source.ends_with(".cpp");
    let compiler = if is_cpp { compiler("CXX", "c++") } else { compiler("CC", "cc") }?;
    let program = folder.join("program");
    let libraries = libraries();
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]).arg(if is_cpp {
        "-std=c++17"
    } else {
        "-std=gnu11"
    });
    let flags = std::env::var(if is_cpp { "CXXFLAGS" } else { "CFLAGS" }).unwrap_or_default();
    command.args(flags.split_whitespace());
    command.arg("-I").arg(root().join("include")).arg(root().join(source)).arg("-o").arg(&program);
    match library {
        Library::Shared => {
            // The soname, which programs load.
            std::os::unix::fs::symlink(libraries.join("libfuseline.so"), folder.join("libfuseline.so.0"))
                .unwrap();
            command.arg(folder.join("libfuseline.so.0"));
            command.arg(format!("-Wl,-rpath,{}", folder.display()));
        }
        Library::Static => _ = command.arg(libraries.join("libfuseline.a")),
    }
    let built = command.args(["-lpthread", "-ldl", "-lm"]).output().unwrap();
    assert!(built.status.success(), "{source} is not built: {}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

/// Every device: the interpreter, and the plugin if one is found.
fn devices() -> Vec<String> {
    let mut found = Discovery::look(&Sources::of_process());
    let plugin = if found.candidates().is_empty() {
        println!("skipped: no plugin: the programs run on the interpreter alone");
        None
    } else {
        let plugin = found.first_usable().expect("what is there can be used");
        Some(plugin.path().to_string_lossy().into_owned())
    };
    std::iter::once("reference".to_owned()).chain(plugin).collect()
}

#[track_caller]
fn went_well(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out.into_owned()
}

fn runs(source: &str, library: Library, last: &str, more: &dyn Fn(&Path) -> Vec<String>) {
    let folder = TempDir::new().unwrap();
    let Some(program) = build(source, library, folder.path()) else { return };
    for device in devices() {
        let output = Command::new(&program).arg(&device).args(more(folder.path())).output().unwrap();
        let out = went_well(&output);
        assert!(out.trim_end().ends_with(last), "{device}: {out}");
    }
}

fn folder_argument(folder: &Path) -> Vec<String> {
    let own = folder.join("own");
    drop(std::fs::remove_dir_all(&own));
    std::fs::create_dir(&own).unwrap();
    vec![own.to_string_lossy().into_owned()]
}

#[test]
fn the_whole_interface_works_from_c() {
    runs("tests/c/seam.c", Library::Shared, "\nall", &folder_argument);
}

#[test]
fn the_whole_interface_works_in_a_program_that_has_the_library_in_it() {
    runs("tests/c/seam.c", Library::Static, "\nall", &folder_argument);
}

#[test]
fn the_example_in_c_fits_its_line() {
    let source = "examples/descent.c";
    runs(source, Library::Shared, "y = 3.000 x -1.000\n0 values left", &|_| Vec::new());
}

#[test]
fn the_example_in_cpp_is_right() {
    runs("examples/attention.cpp", Library::Shared, "all right", &|_| Vec::new());
}

#[test]
fn the_example_that_measures_computes() {
    runs("examples/rate.c", Library::Shared, "\nthe sum of 20000 ones: 20000", &|_| Vec::new());
}

/// The headers compile without warnings under strict options, in both languages.
#[test]
fn the_headers_are_strict() {
    let folder = TempDir::new().unwrap();
    let checks = [
        ("CC", "cc", "c", "-std=c11", "fuseline.h"),
        ("CXX", "c++", "c++", "-std=c++17", "fuseline.h"),
        ("CXX", "c++", "c++", "-std=c++17", "fuseline.hpp"),
    ];
    for (variable, usual, language, standard, header) in checks {
        let Some(compiler) = compiler(variable, usual) else { continue };
        let source = folder.path().join("header");
        std::fs::write(&source, format!("#include <{header}>\n")).unwrap();
        let mut command = Command::new(compiler);
        command.args(["-x", language, standard, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]);
        let output = command.arg("-I").arg(root().join("include")).arg(&source).output().unwrap();
        went_well(&output);
    }
}

#[test]
fn every_function_is_called_by_a_program() {
    let header = std::fs::read_to_string(root().join("include/fuseline.h")).unwrap();
    let program = std::fs::read_to_string(root().join("tests/c/seam.c")).unwrap();
    let names = functions(&header);
    assert!(names.len() > 80, "{names:?}");
    let missing: Vec<&str> =
        names.into_iter().filter(|name| !program.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "tests/c/seam.c does not call {missing:?}");
}

/// The functions that a header declares.
fn functions(header: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let starts = code
        .filter(|line| line.contains("fuseline_") && !line.starts_with("typedef") && !line.starts_with(' '));
    starts
        .filter_map(|line| {
            let (before, _) = line.split_once('(')?;
            let start = before.rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
            before[start..].starts_with("fuseline_").then_some(&before[start..])
        })
        .collect()
}
