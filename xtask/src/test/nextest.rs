//! Unit and integration tests, each in a process of its own.
//!
//! nextest lists the tests as JSON and reports results as JUnit; its text is for people only. Every
//! listed test must appear in the report. Without nextest, `cargo test` builds the same binaries
//! and [`isolate`] runs their tests the same way.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::tally::Tally;
use super::{cargo, isolate};
use crate::host::Host;
use crate::skip::skip_reason;

/// The profile in `.config/nextest.toml` that writes the report.
const PROFILE: &str = "xtask";

/// The packages to build and test.
const SCOPE: [&str; 3] = ["--locked", "--workspace", "--all-features"];

/// The time limit of a test without nextest: the longest limit in `.config/nextest.toml`.
const LIMIT: Duration = Duration::from_secs(900);

/// The result of a test in a report.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// Runs all tests except doctests.
pub(crate) fn run(host: &Host) -> Tally {
    if !cargo::has(host, "nextest") {
        println!(
            "cargo-nextest is not installed (cargo install --locked cargo-nextest): running the \
             test binaries of cargo instead"
        );
        return without_nextest(host);
    }
    with_nextest(host).unwrap_or_else(|error| Tally::failed("nextest", format!("{error:#}")))
}

fn with_nextest(host: &Host) -> anyhow::Result<Tally> {
    let mut list = host.cargo();
    list.args(["nextest", "list"]).args(SCOPE).args(["--message-format", "json"]);
    let listed =
        list.stderr(std::process::Stdio::inherit()).output().context("could not start cargo nextest")?;
    anyhow::ensure!(listed.status.success(), "the tests do not build ({})", listed.status);
    let listed = serde_json::from_slice(&listed.stdout).context("nextest's list is not JSON")?;

    let report = host.target_dir().join("nextest").join(PROFILE).join("junit.xml");
    // Removes the report of an earlier run, so that it is not taken for this one's.
    match fs::remove_file(&report) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).context("could not remove an old report");
        }
        _ => {}
    }
    let mut command = host.cargo();
    command.args(["nextest", "run"]).args(SCOPE).args(["--profile", PROFILE, "--no-fail-fast"]);
    let status = command.status().context("could not start cargo nextest")?;
    let report = fs::read_to_string(&report).with_context(|| {
        format!("nextest ended with {status} and wrote no report to {}", report.display())
    })?;
    let mut tally = tally(&listed, parse_report(&report)?)?;
    if !status.success() && tally.failed.is_empty() && !listed_nothing(&listed) {
        tally.fail("nextest", format!("cargo nextest run ended with {status}"));
    }
    Ok(tally)
}

fn listed_nothing(listed: &Value) -> bool {
    listed["test-count"] == 0
}

/// Parses a JUnit report: results by binary and test.
fn parse_report(xml: &str) -> anyhow::Result<BTreeMap<(String, String), Outcome>> {
    let document = roxmltree::Document::parse(xml).context("nextest's report is not XML")?;
    let mut outcomes = BTreeMap::new();
    for suite in document.descendants().filter(|node| node.has_tag_name("testsuite")) {
        let binary = suite.attribute("name").context("a suite without a name")?;
        for case in suite.children().filter(|node| node.has_tag_name("testcase")) {
            let name = case.attribute("name").context("a test without a name")?;
            let child = |tag: &str| case.children().find(|node| node.has_tag_name(tag));
            let outcome = if let Some(failure) = child("failure").or_else(|| child("error")) {
                let kind = failure.attribute("type").or(failure.attribute("message")).unwrap_or("failed");
                Outcome::Failed(first_line(failure.text()).unwrap_or(kind).to_owned())
            } else {
                let said = ["system-out", "system-err"].map(|tag| child(tag).and_then(|node| node.text()));
                match said.into_iter().flatten().find_map(skip_reason) {
                    Some(reason) => Outcome::Skipped(reason.to_owned()),
                    None => Outcome::Passed,
                }
            };
            outcomes.insert((binary.to_owned(), name.to_owned()), outcome);
        }
    }
    Ok(outcomes)
}

fn first_line(text: Option<&str>) -> Option<&str> {
    text?.lines().map(str::trim).find(|line| !line.is_empty())
}

/// Joins the list of tests with the report of the run.
fn tally(listed: &Value, mut outcomes: BTreeMap<(String, String), Outcome>) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let suites = listed["rust-suites"].as_object().context("nextest's list has no suites")?;
    for (binary, suite) in suites {
        let cases = suite["testcases"].as_object().with_context(|| format!("{binary} lists no tests"))?;
        for (test, case) in cases {
            let name = format!("{binary} {test}");
            match outcomes.remove(&(binary.clone(), test.clone())) {
                Some(Outcome::Passed) => tally.pass(),
                Some(Outcome::Failed(why)) => tally.fail(name, why),
                Some(Outcome::Skipped(why)) => tally.skip(name, why),
                None if case["ignored"] == true => tally.skip(name, "ignored"),
                None => tally.fail(name, "nextest listed it but did not run it"),
            }
        }
    }
    for ((binary, test), _) in outcomes {
        tally.fail(format!("{binary} {test}"), "nextest ran it but did not list it");
    }
    Ok(tally)
}

/// A command that builds the same binaries.
pub(super) fn test_build(host: &Host) -> Command {
    let mut command = host.cargo();
    command.args(["test", "--no-run", "--tests", "--message-format=json-render-diagnostics"]).args(SCOPE);
    command
}

fn without_nextest(host: &Host) -> Tally {
    match isolate::build(test_build(host)) {
        Ok(binaries) => isolate::run_all(host, &binaries, "", LIMIT, &[]),
        Err(why) => Tally::failed("build", why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4" failures="2" errors="0" time="0.020">
    <testsuite name="fuseline" tests="3" disabled="0" errors="0" failures="1">
        <testcase name="tests::good" classname="fuseline" time="0.005">
            <system-out>
running 1 test
test tests::good ... ok
</system-out>
        </testcase>
        <testcase name="tests::gpu" classname="fuseline" time="0.006">
            <system-out>
running 1 test
skipped: no CUDA plugin
test tests::gpu ... ok
</system-out>
            <system-err></system-err>
        </testcase>
        <testcase name="tests::bad" classname="fuseline" time="0.006">
            <failure message="thread panicked" type="test failure with exit code 101">
thread &apos;tests::bad&apos; panicked at src/lib.rs:12:9:
no</failure>
            <system-out>skipped: and failed</system-out>
        </testcase>
    </testsuite>
    <testsuite name="fuseline::hang" tests="1">
        <testcase name="hangs" classname="fuseline::hang"><failure type="test timeout"/></testcase>
    </testsuite>
</testsuites>"#;

    fn listed() -> Value {
        serde_json::json!({"test-count": 5, "rust-suites": {
            "fuseline": {"testcases": {
                "tests::good": {"ignored": false}, "tests::gpu": {"ignored": false}, "tests::bad": {"ignored": false},
                "tests::soak": {"ignored": true}}},
            "fuseline::hang": {"testcases": {"hangs": {"ignored": false}}},
        }})
    }

    #[test]
    fn list_and_report_make_the_counts() {
        let tally = tally(&listed(), parse_report(REPORT).expect("a report")).expect("a list");
        assert_eq!(tally.counts(), "1 passed, 2 failed, 2 skipped");
        let failed: Vec<String> =
            tally.failed.iter().map(|note| format!("{}: {}", note.name, note.why)).collect();
        assert_eq!(
            failed,
            [
                "fuseline tests::bad: thread 'tests::bad' panicked at src/lib.rs:12:9:",
                "fuseline::hang hangs: test timeout"
            ]
        );
        let skipped: Vec<String> =
            tally.skipped.iter().map(|note| format!("{}: {}", note.name, note.why)).collect();
        assert_eq!(skipped, ["fuseline tests::gpu: no CUDA plugin", "fuseline tests::soak: ignored"]);
    }

    #[test]
    fn a_test_in_only_one_of_list_and_report_is_a_failure() {
        let missing = REPORT.replace("tests::good", "tests::other");
        let tally = tally(&listed(), parse_report(&missing).expect("a report")).expect("a list");
        let failed: Vec<&str> = tally.failed.iter().map(|note| note.why.as_str()).collect();
        assert!(failed.contains(&"nextest listed it but did not run it"), "{failed:?}");
        assert!(failed.contains(&"nextest ran it but did not list it"), "{failed:?}");
    }

    #[test]
    fn a_report_that_is_cut_off_is_an_error() {
        assert!(parse_report(&REPORT[..400]).is_err());
    }
}
