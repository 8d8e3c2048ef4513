//! Pieces that may be installed on a machine.

use std::fs;
use std::path::{Path, PathBuf};

use super::piece::Piece;
use crate::host::Host;

/// Candidates for a piece, best first. They still have to be probed.
pub(crate) fn candidates(host: &Host, piece: Piece) -> Vec<PathBuf> {
    match piece {
        Piece::Protoc => host.which("protoc").into_iter().collect(),
        Piece::Libclang => libclang_folders(host).iter().flat_map(|folder| libclang_in(folder)).collect(),
        Piece::Headers | Piece::Plugin => Vec::new(),
    }
}

fn libclang_folders(host: &Host) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let asked = host.var("LLVM_CONFIG_PATH").map(PathBuf::from).or_else(|| host.which("llvm-config"));
    if let Some(Ok(output)) = asked.map(|program| host.command(program).arg("--libdir").output()) {
        folders.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim().to_owned()));
    }
    // Debian keeps one folder per version.
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(host.system.join("usr/lib"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.strip_prefix("llvm-")?.parse().ok()?;
            Some((version, entry.path().join("lib")))
        })
        .collect();
    versions.sort();
    folders.extend(versions.into_iter().rev().map(|(_, folder)| folder));
    folders.push(host.system.join(format!("usr/lib/{}-linux-gnu", host.arch)));
    folders.extend(["usr/lib64", "usr/lib", "usr/local/lib"].map(|folder| host.system.join(folder)));
    let mut seen = std::collections::BTreeSet::new();
    folders.retain(|folder| folder.is_absolute() && seen.insert(folder.clone()));
    folders
}

/// The libclang libraries in a folder: the one without a version first, then the highest version.
pub(crate) fn libclang_in(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((version(entry.file_name().to_str()?)?, entry.path())))
        .filter(|(_, path)| path.is_file())
        .collect();
    found.sort();
    let unversioned =
        found.iter().position(|(version, _)| version.is_empty()).map(|index| found.remove(index));
    unversioned.into_iter().chain(found.into_iter().rev()).map(|(_, path)| path).collect()
}

/// The version in `libclang.so`, `libclang.so.13`, `libclang-14.so`, `libclang-14.so.1`; `None` for
/// other files.
fn version(file: &str) -> Option<Vec<u32>> {
    let rest = file.strip_prefix("libclang")?;
    let (dashed, dotted) = rest.split_once(".so")?;
    let dashed = if dashed.is_empty() { "" } else { dashed.strip_prefix('-')? };
    let dotted = if dotted.is_empty() { "" } else { dotted.strip_prefix('.')? };
    [dashed, dotted]
        .iter()
        .flat_map(|part| part.split('.'))
        .filter(|number| !number.is_empty())
        .map(|number| number.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libclang_is_told_from_its_neighbours() {
        assert_eq!(version("libclang.so"), Some(vec![]));
        assert_eq!(version("libclang.so.13"), Some(vec![13]));
        assert_eq!(version("libclang-14.so.1"), Some(vec![14, 1]));
        assert_eq!(version("libclang-14.so.14.0.6"), Some(vec![14, 14, 0, 6]));
        for other in ["libclang-cpp.so.14", "libclangAST.a", "libclang_rt.so", "libLLVM-14.so"] {
            assert_eq!(version(other), None, "{other}");
        }
        assert_eq!(version("libclang-FIRST-RUN-cargo-xtask-setup.so"), None);
    }

    #[test]
    fn the_plain_name_comes_first_then_the_highest_version() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for name in ["libclang-9.so.1", "libclang-14.so.1", "libclang.so", "libclang-cpp.so.14"] {
            fs::write(folder.path().join(name), "").expect("write");
        }
        let names: Vec<String> = libclang_in(folder.path())
            .iter()
            .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["libclang.so", "libclang-14.so.1", "libclang-9.so.1"]);
    }
}
