//! Runs the harness from its command line, with Fuseline alone.
#![allow(missing_docs, clippy::print_stdout, reason = "a test")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The command-line tool, which is built beside the harness.
fn fuseline() -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_harness")).with_file_name("fuseline");
    if !path.is_file() {
        println!("skipped: no command-line tool at {}", path.display());
        return None;
    }
    let devices = Command::new(&path).arg("devices").stdin(Stdio::null()).output().expect("the tool starts");
    if !devices.status.success() {
        println!("skipped: no plugin: {}", String::from_utf8_lossy(&devices.stderr).trim());
        return None;
    }
    Some(path)
}

fn harness(folder: &std::path::Path, only: &str) -> Option<Command> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
    command.args(["--quick", "--peers", "none", "--only", only, "--output"]).arg(folder);
    command.arg("--fuseline").arg(fuseline()?);
    Some(command)
}

fn results(folder: &std::path::Path) -> Value {
    let text = std::fs::read_to_string(folder.join("results.json")).expect("there are results");
    serde_json::from_str(&text).expect("they are JSON")
}

#[test]
fn a_run_leaves_samples_and_a_page() {
    let folder = tempfile::tempdir().expect("there is room for temporary files");
    let Some(mut command) = harness(folder.path(), "chain/10 ops on 16") else { return };
    let output = command.output().expect("it starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let results = results(folder.path());
    assert_eq!(results["interrupted"], false);
    let case = &results["cases"][0];
    assert_eq!(case["name"], "chain/10 ops on 16");
    let summary = std::fs::read_to_string(folder.path().join("summary.json")).expect("there is a summary");
    let summary: Value = serde_json::from_str(&summary).expect("it is JSON");
    assert_eq!(summary["cases"][0]["ratios"], case["ratios"]);
    assert_eq!(summary["cases"][0]["runs"]["pjrt"]["measured"]["rounds"], Value::Array(Vec::new()));
    for id in ["fuseline-fused", "fuseline-strict", "fuseline-debug", "pjrt"] {
        let times = &case["runs"][id]["measured"];
        let rounds = times["rounds"].as_array().unwrap_or_else(|| panic!("{id} was not measured: {case:#}"));
        let blocks = if id == "fuseline-fused" { 12 } else { 4 };
        assert_eq!(rounds.len(), blocks, "{id}");
        assert!(
            rounds
                .iter()
                .flat_map(|round| round.as_array().into_iter().flatten())
                .all(|time| time.as_u64() > Some(0))
        );
        assert!(times["warm"].as_array().is_some_and(|warm| !warm.is_empty()), "{id}");
    }
    let fused = &case["runs"]["fuseline-fused"]["measured"]["engine"];
    assert_eq!(
        (&fused["ops"], &fused["regions"], &fused["steady_compiles"]),
        (&10.0.into(), &1.0.into(), &0.into())
    );
    let strict = &case["runs"]["fuseline-strict"]["measured"];
    assert!(
        strict["deviation"].as_f64().is_some_and(|deviation| deviation <= 1e-5),
        "{}",
        strict["deviation"]
    );
    let others: Vec<&str> =
        case["ratios"].as_array().into_iter().flatten().filter_map(|ratio| ratio["to"].as_str()).collect();
    assert_eq!(others, ["fuseline-strict", "fuseline-debug", "pjrt"]);
    let page = std::fs::read_to_string(folder.path().join("index.html")).expect("there is a page");
    assert!(page.contains("chain/10 ops on 16") && page.contains("PJRT alone"));
    assert!(folder.path().join("plots").read_dir().is_ok_and(|mut files| files.next().is_some()));
    // The stored results suffice to make the page again, and to compare a run with itself.
    for file in ["results.json", "index.html"] {
        std::fs::remove_file(folder.path().join(file)).expect("it is there");
    }
    let mut again = Command::new(env!("CARGO_BIN_EXE_harness"));
    again.args(["--render", "--output"]).arg(folder.path());
    let output = again.arg("--against").arg(folder.path().join("summary.json")).output().expect("it starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && words.contains("3 of 3 ratios are within 10 %"), "{words}");
    let made_again = std::fs::read_to_string(folder.path().join("index.html")).expect("there is a page");
    assert_eq!(made_again, page);
}

/// Ctrl-C ends a run at once and keeps the earlier measurements.
#[test]
fn a_run_that_is_stopped_keeps_what_it_has() {
    let folder = tempfile::tempdir().expect("there is room for temporary files");
    let Some(mut command) = harness(folder.path(), "chain") else { return };
    let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
    let start = Instant::now();
    let measured = || {
        let text = std::fs::read_to_string(folder.path().join("results.json")).unwrap_or_default();
        serde_json::from_str::<Value>(&text)
            .ok()
            .and_then(|found| Some(found["cases"].as_array()?.len()))
            .unwrap_or(0)
    };
    while measured() == 0 {
        assert!(start.elapsed() < Duration::from_secs(120), "nothing is measured");
        std::thread::sleep(Duration::from_millis(50));
    }
    let stop = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("there is kill");
    assert!(stop.success());
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(1), "{status}");
    let results = results(folder.path());
    assert_eq!(results["interrupted"], true);
    let cases = results["cases"].as_array().expect("a list");
    assert!((1..8).contains(&cases.len()));
    assert!(cases.iter().all(|case| case["runs"]["fuseline-fused"]["measured"].is_object()), "{cases:?}");
    assert!(folder.path().join("index.html").is_file());
}
