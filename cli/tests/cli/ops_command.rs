//! `fuseline ops`, and the page of the documentation that it writes.

use std::process::Command;

use fuseline::fusion::op::OPS;
use serde_json::Value;

fn ops(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_fuseline"))
        .arg("ops")
        .args(arguments)
        .output()
        .expect("the tool starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_page_of_the_documentation_is_the_table() {
    let (status, page, _) = ops(&["--markdown"]);
    assert_eq!(status, Some(0));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ops.md");
    let kept = std::fs::read_to_string(file).expect("docs/ops.md can be read");
    assert!(page == kept, "docs/ops.md is not the op table: run `cargo run -- ops --markdown > docs/ops.md`");
}

#[test]
fn every_row_says_what_it_is() {
    let (status, document, _) = ops(&["--json"]);
    assert_eq!(status, Some(0));
    let rows: Value = serde_json::from_str(&document).expect("JSON");
    let rows = rows.as_array().expect("a list");
    assert_eq!(rows.len(), OPS.len());
    for row in rows {
        for key in ["op", "summary", "operands", "rule"] {
            let text = row[key].as_str().expect("a text");
            assert!(!text.is_empty(), "{row} has no {key}");
            let sentence = !["summary", "rule"].contains(&key) || text.ends_with('.');
            assert!(sentence, "{key} of {} is no sentence: {text}", row["op"]);
        }
    }
}

#[test]
fn one_op_is_told_in_full() {
    for name in ["dot_general", "stablehlo.dot_general"] {
        let (status, text, _) = ops(&[name]);
        assert_eq!(status, Some(0));
        for part in ["lhs_contracting_dimensions", "precision_config", "optional", "rule", "Contraction"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}

#[test]
fn an_unknown_op_is_told_with_what_may_be_meant() {
    let (status, out, error) = ops(&["dot_generl"]);
    assert_eq!((status, out.as_str()), (Some(2), ""));
    assert_eq!(error, "fuseline: there is no op \"dot_generl\"; did you mean dot_general?\n");
    let (status, _, error) = ops(&["qqq"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("`fuseline ops` lists all of them"), "{error}");
}
