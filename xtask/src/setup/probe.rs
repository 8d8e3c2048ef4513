//! Probes a piece before it is used.
//!
//! An installed piece may be incomplete (a libclang without headers, a protoc without the
//! well-known types) or too old; then set-up fetches its own. So each piece is used once for what
//! the build needs it for.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::piece::Piece;
use crate::host::Host;

const PROBE: &str = include_str!("probe.c");

/// The includes of the PJRT API's header.
const HEADER: &str =
    "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\nbool b;\n";

/// The features of protoc that XLA's messages need.
const MESSAGES: &str = "syntax = \"proto3\";\n\
    import \"google/protobuf/any.proto\";\nimport \"google/protobuf/duration.proto\";\n\
    import \"google/protobuf/timestamp.proto\";\nimport \"google/protobuf/wrappers.proto\";\n\
    message M {\n  optional int32 i = 1;\n  google.protobuf.Any a = 2;\n  google.protobuf.Duration d = 3;\n  \
    google.protobuf.Timestamp t = 4;\n  google.protobuf.Int64Value v = 5;\n}\n";

/// The major versions of clang with which the build of `pjrt-sys` 0.2.0 writes the same bindings,
/// byte for byte (12 to 19, Debian 12's and the package index's, 2026-11). With other versions the
/// pinned one is fetched instead. A folder that the user names is exempt.
const KNOWN_CLANG: std::ops::RangeInclusive<u32> = 12..=19;

/// Checks that a piece works, or says why not. `scratch` is for the probe's own files.
pub(crate) type Probe = fn(host: &Host, piece: Piece, path: &Path, scratch: &Path) -> Result<(), String>;

/// The C compiler that builds of this workspace use.
pub(crate) fn compiler(host: &Host) -> Option<PathBuf> {
    match host.var("CC") {
        // It may use a cache and have arguments: `ccache gcc -m64`.
        Some(named) => named
            .to_string_lossy()
            .split_whitespace()
            .find(|word| !["ccache", "sccache", "distcc"].contains(word))
            .and_then(|name| host.which(name)),
        None => ["cc", "gcc", "clang"].iter().find_map(|name| host.which(name)),
    }
}

/// Uses a piece as the build does.
pub(crate) fn try_out(host: &Host, piece: Piece, path: &Path, scratch: &Path) -> Result<(), String> {
    match piece {
        Piece::Headers => {
            if path.join("stddef.h").is_file() {
                Ok(())
            } else {
                Err("there is no stddef.h".to_owned())
            }
        }
        Piece::Libclang => libclang(host, path, scratch),
        Piece::Protoc => protoc(host, path, scratch),
        Piece::Plugin => {
            let mut command = host.command(built(host, scratch)?);
            command.arg("plugin").arg(path);
            output_of(&mut command).map(drop)
        }
    }
}

fn libclang(host: &Host, path: &Path, scratch: &Path) -> Result<(), String> {
    let header = scratch.join("probe.h");
    fs::write(&header, HEADER).map_err(|error| error.to_string())?;
    let mut command = host.command(built(host, scratch)?);
    if host.var("C_INCLUDE_PATH").is_none() {
        command.env("C_INCLUDE_PATH", host.root.join(Piece::Headers.place()));
    }
    command.arg("libclang").arg(path).arg(header);
    if let Some(arguments) = host.var("BINDGEN_EXTRA_CLANG_ARGS") {
        command.args(arguments.to_string_lossy().split_whitespace());
    }
    let version = output_of(&mut command)?;
    let ours = path.canonicalize().is_ok_and(|path| path.starts_with(host.setup_dir()));
    match major(&version) {
        _ if ours || host.var("LIBCLANG_PATH").is_some() => Ok(()),
        Some(major) if KNOWN_CLANG.contains(&major) => Ok(()),
        _ => Err(format!("{} is not among the versions known to work", version.trim())),
    }
}

fn protoc(host: &Host, path: &Path, scratch: &Path) -> Result<(), String> {
    fs::write(scratch.join("probe.proto"), MESSAGES).map_err(|error| error.to_string())?;
    let mut command = host.command(path);
    if let Some(include) = host.var("PROTOC_INCLUDE") {
        command.arg("-I").arg(include);
    }
    command.arg("-I").arg(scratch).arg("-o").arg(scratch.join("probe.bin")).arg(scratch.join("probe.proto"));
    output_of(&mut command).map(drop)
}

/// The probe program, compiled once into `scratch`.
fn built(host: &Host, scratch: &Path) -> Result<PathBuf, String> {
    let program = scratch.join("probe");
    if !program.exists() {
        let source = scratch.join("probe.c");
        fs::write(&source, PROBE).map_err(|error| error.to_string())?;
        let compiler = compiler(host).ok_or("there is no C compiler")?;
        let mut command = host.command(compiler);
        command.arg("-o").arg(&program).arg(source).arg("-ldl");
        output_of(&mut command)?;
    }
    Ok(program)
}

/// The output of a command, or the first line of its error.
fn output_of(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } = command.output().map_err(|error| {
        format!(
            "{}: {error}",
            Path::new(command.get_program()).file_name().unwrap_or(OsStr::new("it")).display()
        )
    })?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&stderr).into_owned();
    Err(complaint.lines().find(|line| !line.trim().is_empty()).map_or(status.to_string(), str::to_owned))
}

/// The major version in `... clang version 14.0.6 ...`.
fn major(version: &str) -> Option<u32> {
    let rest = version.split("clang version ").nth(1)?;
    rest.split('.').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_what_clang_says() {
        assert_eq!(major("Debian clang version 14.0.6"), Some(14));
        assert_eq!(major("clang version 18.1.1 (tag)"), Some(18));
        assert_eq!(major("Apple LLVM"), None);
    }

    #[test]
    fn a_library_that_is_none_is_refused_with_the_loaders_words() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let library = scratch.path().join("libclang.so");
        fs::write(&library, "not a library").expect("write");
        let host = Host { root: scratch.path().to_owned(), ..Host::detect().expect("this machine") };
        for piece in [Piece::Libclang, Piece::Plugin] {
            let why = try_out(&host, piece, &library, scratch.path()).expect_err("not a library");
            assert!(why.contains("libclang.so"), "{why}");
        }
    }

    #[test]
    fn a_library_without_the_entry_point_is_refused() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let host = Host { root: scratch.path().to_owned(), ..Host::detect().expect("this machine") };
        let (source, library) = (scratch.path().join("empty.c"), scratch.path().join("empty.so"));
        fs::write(&source, "int x;\n").expect("write");
        let compiler = compiler(&host).expect("a C compiler");
        output_of(host.command(compiler).arg("-shared").arg("-fPIC").arg("-o").arg(&library).arg(&source))
            .expect("compiles");
        let why = try_out(&host, Piece::Plugin, &library, scratch.path()).expect_err("no entry point");
        assert_eq!(why, "it has no GetPjrtApi");
        let why = try_out(&host, Piece::Libclang, &library, scratch.path()).expect_err("no libclang");
        assert_eq!(why, "it has no clang_createIndex");
    }
}
