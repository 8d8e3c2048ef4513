//! Stages that consist of one or a few cargo commands.

use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;

use super::tally::Tally;
use crate::host::Host;

/// Every file is formatted.
pub(crate) fn fmt(host: &Host) -> Tally {
    if !has(host, "fmt") {
        return Tally::skipped("fmt", "no rustfmt (rustup component add rustfmt)");
    }
    check("fmt", host.cargo().args(["fmt", "--all", "--check"]))
}

/// No lint warns.
pub(crate) fn clippy(host: &Host) -> Tally {
    if !has(host, "clippy") {
        return Tally::skipped("clippy", "no clippy (rustup component add clippy)");
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

/// Licences, bans and sources. The advisories need a database from the network and are checked
/// separately.
pub(crate) fn deny(host: &Host) -> Tally {
    if !has(host, "deny") {
        return Tally::skipped("deny", "no cargo-deny (cargo install --locked cargo-deny)");
    }
    check("deny", host.cargo().args(["deny", "--locked", "check", "bans", "licenses", "sources"]))
}

/// The crate builds without warnings with sets of features in which every two occur together,
/// neither occurs, and each occurs without the other. [`clippy`] builds it with all features.
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
        command.args([if lints { "clippy" } else { "check" }, "--locked", "--package", "fuseline", "--lib"]);
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

/// Runs a command as one check. Passes its output through.
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
        Err(error) => Err(format!("could not start `{}`: {error}", spelled(command))),
    }
}

/// A command as typed into a shell.
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
    anyhow::ensure!(features.len() <= MAX_FEATURES, "{} features need more sets", features.len());
    Ok(features)
}

/// The names of the packages with a library that may be published.
pub(crate) fn published(host: &Host) -> anyhow::Result<Vec<String>> {
    let packages = packages(host)?;
    let is_open = |package: &&Value| package["publish"].as_array().is_none_or(|to| !to.is_empty());
    let has_library = |package: &&Value| {
        let targets = package["targets"].as_array().into_iter().flatten();
        targets.flat_map(|target| target["kind"].as_array()).flatten().any(|kind| kind == "lib")
    };
    let open = packages.iter().filter(is_open).filter(has_library);
    open.map(|package| package["name"].as_str().map(str::to_owned).context("a package has no name")).collect()
}

/// The packages of the workspace, from cargo's metadata.
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

/// The number of features up to which six sets suffice.
const MAX_FEATURES: usize = 10;

/// The smallest list of sets in which every two features are both present, both absent, and each
/// present without the other: a covering array of strength two. The first set is empty. Of the
/// other five sets, each feature is in a different choice of three (Kleitman and Spencer, 1973:
/// "Families of k-independent sets", *Discrete Mathematics* 6). Two choices of three out of five
/// share one, and neither contains the other.
fn feature_sets(features: &[String]) -> Vec<Vec<&str>> {
    let threes: Vec<u32> = (0..1u32 << 5).filter(|three| three.count_ones() == 3).collect();
    let set = |at: u32| {
        let is_in = |three: &u32| three >> at & 1 == 1;
        features
            .iter()
            .zip(&threes)
            .filter(|(_, three)| is_in(three))
            .map(|(name, _)| name.as_str())
            .collect()
    };
    std::iter::once(Vec::new()).chain((0..5).map(set)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_two_features_come_together_and_apart() {
        let features: Vec<String> = (0..MAX_FEATURES).map(|number| format!("f{number}")).collect();
        let sets = feature_sets(&features);
        assert_eq!((sets.len(), &sets[0]), (6, &Vec::new()));
        for a in &features {
            for b in features.iter().filter(|b| *b != a) {
                let has = |set: &Vec<&str>| (set.contains(&a.as_str()), set.contains(&b.as_str()));
                let found: std::collections::BTreeSet<(bool, bool)> = sets.iter().map(has).collect();
                assert_eq!(found.len(), 4, "{a} and {b}: {found:?}");
            }
        }
    }

    #[test]
    fn the_features_are_those_of_the_root_crate() {
        let features = root_features(&Host::detect().expect("this machine")).expect("cargo metadata");
        assert!(features.iter().any(|feature| feature == "tracing"), "{features:?}");
        assert!(!features.iter().any(|feature| feature == "default"), "{features:?}");
    }
}
