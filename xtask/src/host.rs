//! The machine and the checkout a command runs on.
//!
//! A [`Host`] holds the environment *as the user gave it*. `cargo run` adds variables of its own
//! and those of `.cargo/config.toml`. A nested cargo that inherited them would behave differently
//! from one typed into a shell; for one, it would rebuild what watches those variables. Tests make
//! a `Host` of fake folders.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::Context as _;

/// Variables that `.cargo/config.toml` sets, with their paths below the workspace.
pub(crate) const CONFIGURED: [(&str, &str); 4] = [
    ("LIBCLANG_PATH", ".cargo/libclang"),
    ("C_INCLUDE_PATH", ".setup/include"),
    ("PROTOC", ".setup/bin/protoc"),
    ("FUSELINE_SETUP_DIR", ".setup"),
];

/// A machine, a workspace and an environment for commands.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// The workspace.
    pub(crate) root: PathBuf,
    /// The root of the system's folders: `/`, except in tests.
    pub(crate) system: PathBuf,
    /// The user's environment.
    pub(crate) vars: BTreeMap<OsString, OsString>,
    /// Operating system, as in `std::env::consts::OS`.
    pub(crate) os: String,
    /// Processor, as in `std::env::consts::ARCH`.
    pub(crate) arch: String,
}

/// Converts the exit status of a program to that of this one.
pub(crate) fn exit_code(status: ExitStatus) -> anyhow::Result<ExitCode> {
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        None => anyhow::bail!("a signal ended the process ({status})"),
    }
}

impl Host {
    /// Describes this machine and the workspace in which `cargo xtask` was called.
    pub(crate) fn detect() -> anyhow::Result<Host> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .context("run this as `cargo xtask`, which sets CARGO_MANIFEST_DIR")?;
        Ok(Host::below(
            Path::new(&manifest).parent().context("xtask lies below the workspace")?.to_path_buf(),
        ))
    }

    /// This machine, with this folder in the place of the workspace.
    pub(crate) fn below(root: PathBuf) -> Host {
        let vars = without_cargo_vars(std::env::vars_os().collect(), &root);
        Host {
            root,
            system: PathBuf::from("/"),
            vars,
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
        }
    }

    /// The value of a variable, if it is set and not empty.
    pub(crate) fn var(&self, name: &str) -> Option<&OsStr> {
        self.vars.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// Builds a part of the workspace. Passes cargo's output through.
    pub(crate) fn build(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut build = self.cargo();
        build.args(["build", "--locked"]).args(arguments);
        if !build.status().context("could not start cargo")?.success() {
            anyhow::bail!("the build failed: cargo build {}", arguments.join(" "));
        }
        Ok(())
    }

    /// The first executable file of this name in `PATH`. A name with a slash is a path.
    pub(crate) fn which(&self, name: &str) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(self.root.join(name)).filter(|path| is_executable(path));
        }
        std::env::split_paths(self.var("PATH")?)
            .map(|folder| folder.join(name))
            .find(|path| is_executable(path))
    }

    /// A command that runs in the workspace with the user's environment.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(&self.vars).current_dir(&self.root);
        command
    }

    /// The cargo that called this program, or the first in `PATH`.
    pub(crate) fn cargo(&self) -> Command {
        self.command(self.var("CARGO").unwrap_or(OsStr::new("cargo")))
    }

    /// The folder of set-up.
    pub(crate) fn setup_dir(&self) -> PathBuf {
        self.root.join(".setup")
    }

    /// Cargo's target folder.
    pub(crate) fn target_dir(&self) -> PathBuf {
        self.root.join(self.var("CARGO_TARGET_DIR").map_or(Path::new("target"), Path::new))
    }

    /// Describes the machine in a sentence.
    pub(crate) fn platform(&self) -> String {
        format!("{} on {}", self.os, self.arch)
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Removes from an environment what `cargo run` added.
fn without_cargo_vars(mut vars: BTreeMap<OsString, OsString>, root: &Path) -> BTreeMap<OsString, OsString> {
    for (name, place) in CONFIGURED {
        if vars.get(OsStr::new(name)).is_some_and(|value| Path::new(value) == root.join(place)) {
            vars.remove(OsStr::new(name));
        }
    }
    vars.retain(|name, _| {
        let name = name.to_string_lossy();
        !(name.starts_with("CARGO_PKG_")
            || name.starts_with("CARGO_MANIFEST_")
            || name == "RUST_RECURSION_COUNT")
    });
    let libraries = OsStr::new("LD_LIBRARY_PATH");
    if let Some(value) = vars.remove(libraries) {
        // Cargo prepends the folders of the build and of the toolchain.
        let kept: Vec<PathBuf> = std::env::split_paths(&value)
            .filter(|folder| {
                !folder.starts_with(root) && !folder.components().any(|c| c.as_os_str() == "toolchains")
            })
            .collect();
        if let (false, Ok(kept)) = (kept.is_empty(), std::env::join_paths(kept)) {
            vars.insert(libraries.to_owned(), kept);
        }
    }
    vars
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(pairs: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn what_cargo_run_adds_is_taken_out_and_what_the_user_set_stays() {
        let given =
            vars(&[("PATH", "/bin"), ("LIBCLANG_PATH", "/opt/llvm/lib"), ("LD_LIBRARY_PATH", "/opt/lib")]);
        let mut seen = given.clone();
        seen.extend(vars(&[
            ("PROTOC", "/ws/.setup/bin/protoc"),
            ("C_INCLUDE_PATH", "/ws/.setup/include"),
            ("FUSELINE_SETUP_DIR", "/ws/.setup"),
            ("CARGO_PKG_NAME", "xtask"),
            ("CARGO_MANIFEST_DIR", "/ws/xtask"),
            ("RUST_RECURSION_COUNT", "1"),
            ("LD_LIBRARY_PATH", "/ws/target/debug/deps:/rustup/toolchains/stable/lib:/opt/lib"),
        ]));
        assert_eq!(without_cargo_vars(seen, Path::new("/ws")), given);
    }

    #[test]
    fn a_library_path_made_by_cargo_alone_disappears() {
        let seen = vars(&[("LD_LIBRARY_PATH", "/ws/target/debug/deps")]);
        assert_eq!(without_cargo_vars(seen, Path::new("/ws")), vars(&[]));
    }

    #[test]
    fn the_variables_taken_out_are_those_of_the_cargo_config() {
        let config = include_str!("../../.cargo/config.toml");
        let section = config.split("[env]").nth(1).expect("an [env] section");
        let mut found: Vec<(String, String)> = Vec::new();
        for line in section.lines().filter(|line| !line.starts_with('#') && line.contains(" = ")) {
            let (name, rest) = line.split_once(" = ").expect("checked");
            let value = rest.split('"').nth(1).expect("a quoted value");
            // A value that is not one of our paths means the same wherever it is passed on.
            if rest.contains("relative = true") {
                found.push((name.to_owned(), value.to_owned()));
            }
        }
        found.sort();
        let mut expected = CONFIGURED.map(|(name, value)| (name.to_owned(), value.to_owned()));
        expected.sort();
        assert_eq!(found, expected);
    }
}
