//! What `fuseline run` and `fuseline explain` report about where the time goes.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs the tool on an example with the reference interpreter: exit status, standard output,
/// standard error.
fn tool(command: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/programs/mlp_step.json");
    let mut tool = Command::new(env!("CARGO_BIN_EXE_fuseline"));
    tool.arg(command).arg(program).args(["--device", "reference"]).args(more).stdin(Stdio::null());
    let output = tool.output().expect("the tool starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn says(text: &str, all: &[&str]) {
    for words in all {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}

#[test]
fn a_run_says_where_the_time_went_and_writes_a_page() {
    let page = std::env::temp_dir().join(format!("fuseline-why-{}.html", std::process::id()));
    let name = page.to_str().expect("UTF-8");
    let (status, out, err) = tool("run", &["--repeat", "5", "--timeline", name]);
    assert_eq!(status, Some(0), "{err}");
    says(
        &out,
        &[
            " % ",
            "the program itself, and recording",
            "all runs, ",
            "median run, run ",
            "host reads",
            "mlp_step: outputs[0]: 5 times",
        ],
    );
    says(&err, &["fuseline: wrote "]);
    let text = std::fs::read_to_string(&page).expect("a page");
    says(&text, &["<title>mlp_step", "run 5", "mlp_step: outputs[0]", "Regions by time"]);
    // The output stays a single document.
    let (status, out, _) = tool("run", &["--json", "--timeline", name]);
    assert_eq!(status, Some(0));
    assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok(), "{out}");
    drop(std::fs::remove_file(page));
}

#[test]
fn a_page_must_be_one_and_have_a_place() {
    let (status, _, err) = tool("run", &["--timeline", "x.svg"]);
    assert_eq!(status, Some(2));
    says(&err, &["it should end in .html"]);
    let (status, _, err) = tool("run", &["--timeline", "no/such/folder/x.html"]);
    assert_eq!(status, Some(1));
    says(&err, &["cannot be written"]);
}

#[test]
fn an_explanation_says_where_the_time_of_both_runs_went() {
    let (status, out, err) = tool("explain", &[]);
    assert_eq!(status, Some(0), "{err}");
    says(
        &out,
        &["first run, ", "second run, ", "waiting for", "host reads", "at mlp_step: outputs[0] (host_read)"],
    );
}
