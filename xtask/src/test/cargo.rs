//! Stages that are one cargo command, or a few alike.

use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;

use super::tally::Tally;
use crate::host::Host;

/// More features than this, and the sets of them are too many builds.
const MOST_FEATURES: usize = 6;

/// Every file is formatted.
pub(crate) fn fmt(host: &Host) -> Tally {
    if !has(host, "fmt") {
        return Tally::skipped("fmt", "rustfmt is not installed (rustup component add rustfmt)");
    }
    check("fmt", host.cargo().args(["fmt", "--all", "--check"]))
}

/// No lint warns.
pub(crate) fn clippy(host: &Host) -> Tally {
    if !has(host, "clippy") {
        return Tally::skipped("clippy", "clippy is not installed (rustup component add clippy)");
    }
    let mut command = host.cargo();
    command.args([
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ]);
    check("clippy", &mut command)
}

/// The documentation builds without a warning.
pub(crate) fn doc(host: &Host) -> Tally {
    let mut command = host.cargo();
    command.env("RUSTDOCFLAGS", "-Dwarnings");
    check("doc", command.args(["doc", "--locked", "--workspace", "--no-deps", "--all-features"]))
}

/// Licences, bans and sources. The advisories need a database from the network and are checked apart.
pub(crate) fn deny(host: &Host) -> Tally {
    if !has(host, "deny") {
        return Tally::skipped("deny", "cargo-deny is not installed (cargo install --locked cargo-deny)");
    }
    check("deny", host.cargo().args(["deny", "--locked", "check", "bans", "licenses", "sources"]))
}

/// The crate builds without warnings with none of its features, each, every two and all of them: what one leaves out shows beside one other.
pub(crate) fn features(host: &Host) -> Tally {
    let features = match root_features(host) {
        Ok(features) => features,
        Err(error) => return Tally::failed("features", format!("{error:#}")),
    };
    let lints = has(host, "clippy");
    let mut tally = Tally::default();
    for set in feature_sets(&features) {
        let list = set.join(",");
        println!("--no-default-features --features '{list}'");
        let mut command = host.cargo();
        command.args([
            if lints { "clippy" } else { "check" },
            "--locked",
            "--package",
            "fuseline",
            "--lib",
            "--bins",
        ]);
        command.args(["--quiet", "--no-default-features", "--features", &list]);
        if lints {
            command.args(["--", "-D", "warnings"]);
        }
        let name = if list.is_empty() { "none".to_owned() } else { list };
        match succeeds(&mut command) {
            Ok(()) => tally.pass(),
            Err(why) => tally.fail(name, why),
        }
    }
    tally
}

/// Whether cargo has a subcommand.
pub(crate) fn has(host: &Host, subcommand: &str) -> bool {
    let mut command = host.cargo();
    command.args([subcommand, "--version"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a command that is one check; its output goes straight through.
fn check(name: &str, command: &mut Command) -> Tally {
    match succeeds(command) {
        Ok(()) => Tally::passed(),
        Err(why) => Tally::failed(name, why),
    }
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}", spelled(command))),
        Err(error) => Err(format!("`{}` did not start: {error}", spelled(command))),
    }
}

/// A command as one would type it.
fn spelled(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The features of the root crate, without `default`.
fn root_features(host: &Host) -> anyhow::Result<Vec<String>> {
    let packages = packages(host)?;
    let root =
        packages.iter().find(|package| package["name"] == "fuseline").context("no package fuseline")?;
    let features = root["features"].as_object().context("no features")?;
    let features: Vec<String> = features.keys().filter(|name| *name != "default").cloned().collect();
    anyhow::ensure!(features.len() <= MOST_FEATURES, "{} features make too many builds", features.len());
    Ok(features)
}

/// The names of the packages that may be published.
pub(crate) fn published(host: &Host) -> anyhow::Result<Vec<String>> {
    let packages = packages(host)?;
    let open =
        packages.iter().filter(|package| package["publish"].as_array().is_none_or(|to| !to.is_empty()));
    open.map(|package| package["name"].as_str().map(str::to_owned).context("a package has no name")).collect()
}

/// The packages of the workspace, as cargo tells of them.
fn packages(host: &Host) -> anyhow::Result<Vec<Value>> {
    let mut command = host.cargo();
    let output = command.args(["metadata", "--locked", "--no-deps", "--format-version", "1"]).output()?;
    anyhow::ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => anyhow::bail!("cargo metadata lists no packages"),
    }
}

/// The subsets of at most two, the empty one first, and the whole set.
fn feature_sets(features: &[String]) -> Vec<Vec<&str>> {
    let subset = |set: usize| (0..features.len()).filter(move |bit| set >> bit & 1 == 1);
    (0..1_usize << features.len())
        .filter(|&set| subset(set).count() <= 2 || subset(set).count() == features.len())
        .map(|set| subset(set).map(|bit| features[bit].as_str()).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_two_features_come_together_once() {
        let features = ["a", "b", "c", "d"].map(str::to_owned);
        let mut sets: Vec<String> = feature_sets(&features).iter().map(|set| set.concat()).collect();
        assert_eq!(sets[0], "");
        sets.sort();
        assert_eq!(sets, ["", "a", "ab", "abcd", "ac", "ad", "b", "bc", "bd", "c", "cd", "d"]);
        assert_eq!(feature_sets(&[]), [Vec::<&str>::new()]);
    }

    #[test]
    fn the_features_are_those_of_the_root_crate() {
        let features = root_features(&Host::detect().expect("this machine")).expect("cargo metadata");
        assert!(features.iter().any(|feature| feature == "cli"), "{features:?}");
        assert!(!features.iter().any(|feature| feature == "default"), "{features:?}");
    }
}
