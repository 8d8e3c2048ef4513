//! `fuseline qualify` on the fake plugin, with planted defects (`tests/fakeplugin/README.md`).

use std::process::Command;

use fuseline::qualification::{Certificate, Finding};
use fuseline::{DType, OpCode};

use crate::answer::Answer;
use crate::support::fakeplugin;

/// Runs the command with defects of the plugin.
fn qualify(defects: &str, arguments: &[&str]) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fuseline"));
    command.arg("qualify").arg("--plugin").arg(fakeplugin::path()).args(arguments);
    command.env("FUSELINE_FAKE_DEFECT", defects).env_remove("FUSELINE_FAKE_PLAN");
    Answer::of(command.output().expect("the tool starts"))
}

fn certificate(answer: &Answer) -> Certificate {
    Certificate::parse(&answer.out).unwrap_or_else(|error| panic!("{error}: {}\n{}", answer.out, answer.err))
}

/// The kind of the worst finding on an op and a type.
fn kind(certificate: &Certificate, op: OpCode, dtype: DType) -> &'static str {
    certificate.verdict(op, dtype).map_or("none", Finding::kind)
}

/// The kind of the finding of a check.
fn check(certificate: &Certificate, name: &str) -> &'static str {
    let found = certificate.checks().iter().find(|check| check.name == name);
    found.map_or("none", |check| check.finding.kind())
}

#[test]
fn a_plugin_without_defects_is_right() {
    let answer = qualify("", &["--json"]).ends_with(0);
    let certificate = certificate(&answer);
    assert!(certificate.is_clean());
    assert_eq!(certificate.key().platform, "fake");
    assert_eq!(certificate.key().plugin.len(), 64);
    assert_eq!(check(&certificate, "update in place of f32"), "right");
    let others: Vec<OpCode> = certificate
        .rows()
        .iter()
        .filter(|row| row.finding != Finding::Right && row.op != OpCode::CustomCall)
        .map(|row| row.op)
        .collect();
    // Handlers run in the memory of the host, which this platform does not use.
    assert!(others.is_empty(), "{others:?}");
}

/// Ops of the programs that are measured.
#[test]
fn quick_finds_what_is_planted() {
    let defects = "wrong:tanh:f32;crash:exponential:f32;refuse:sort:*;donation;wrong_folded:maximum:f32";
    let answer = qualify(defects, &["--quick", "--json"]).ends_with(1);
    let certificate = certificate(&answer);
    assert_eq!(kind(&certificate, OpCode::Tanh, DType::F32), "wrong");
    assert_eq!(kind(&certificate, OpCode::Exponential, DType::F32), "crashes");
    assert_eq!(kind(&certificate, OpCode::Sort, DType::F32), "refused");
    assert_eq!(kind(&certificate, OpCode::Maximum, DType::F32), "wrong");
    assert_eq!(check(&certificate, "update in place of f32"), "wrong");
    // Others are not affected.
    for op in [OpCode::Add, OpCode::Multiply, OpCode::DotGeneral, OpCode::Logistic, OpCode::Minimum] {
        assert_eq!(kind(&certificate, op, DType::F32), "right", "{op}");
    }
    let crash = certificate.verdict(OpCode::Exponential, DType::F32).and_then(Finding::evidence);
    let (call, how) = crash.expect("evidence");
    assert!(call.starts_with("exponential[f32["), "{call}");
    assert!(how.contains("SIGABRT") && how.contains("crashes, as planned"), "{how}");
}

/// Each defect on its own, so that one does not hide another: the op computes other ops too.
#[test]
fn full_finds_what_is_planted() {
    for (defect, op, dtype, found) in [
        // Short floats are computed as `f32`, so a defect there shows in their rows too.
        ("wrong:atan2:f64", OpCode::Atan2, DType::F64, "wrong"),
        ("wrong_folded:power:f16", OpCode::Power, DType::F16, "wrong"),
        ("crash:reverse:c64", OpCode::Reverse, DType::C64, "crashes"),
        ("refuse:reverse:ui16", OpCode::Reverse, DType::U16, "refused"),
    ] {
        let only = op.name();
        let answer = qualify(defect, &["--full", "--only", only, "--json"]);
        let certificate = certificate(&answer);
        assert_eq!(kind(&certificate, op, dtype), found, "{defect}");
        assert_eq!(check(&certificate, "update in place of i32"), "right", "{defect}");
        let wrong = certificate.rows().iter().filter(|row| !row.finding.is_usable());
        assert!(wrong.clone().all(|row| row.dtype == dtype), "{defect}: {:?}", wrong.collect::<Vec<_>>());
    }
    let answer = qualify("donation", &["--full", "--only", "add", "--json"]).ends_with(1);
    let certificate = certificate(&answer);
    for dtype in ["f32", "f64", "bf16", "i32"] {
        assert_eq!(check(&certificate, &format!("update in place of {dtype}")), "wrong");
    }
}

#[test]
fn a_plugin_that_hangs_is_found() {
    let answer = qualify("hang:sine:f32", &["--only", "sine", "--limit", "5", "--json"]).ends_with(1);
    let certificate = certificate(&answer);
    assert_eq!(kind(&certificate, OpCode::Sine, DType::F32), "crashes");
    let (_, how) =
        certificate.verdict(OpCode::Sine, DType::F32).and_then(Finding::evidence).expect("evidence");
    assert_eq!(how, "no answer within 5 seconds");
    assert_eq!(kind(&certificate, OpCode::Sine, DType::BF16), "right");
}

#[test]
fn the_certificate_and_the_page_are_written() {
    let folder = std::env::temp_dir().join(format!("fuseline-cli-qualify-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (file, page) = (folder.join("certificate.json"), folder.join("page.html"));
    let arguments = ["--output", file.to_str().expect("UTF-8"), "--html", page.to_str().expect("UTF-8")];
    let answer = qualify("wrong:tanh:f32", &arguments).ends_with(1);
    let text = std::fs::read_to_string(&file).expect("a certificate");
    let page = std::fs::read_to_string(&page).expect("a page");
    drop(std::fs::remove_dir_all(&folder));
    let certificate = Certificate::parse(&text).expect("a certificate");
    assert_eq!(certificate.to_json(), text);
    assert!(page.contains("tanh of f32, uploaded"), "{page}");
    assert!(answer.out.contains("tanh of f32, uploaded"), "{}", answer.out);
}

#[test]
fn a_plugin_that_cannot_be_loaded_is_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fuseline"));
    command.args(["qualify", "--plugin", "/nonexistent/plugin.so"]);
    let answer = Answer::of(command.output().expect("the tool starts")).ends_with(1);
    assert!(answer.err.contains("/nonexistent/plugin.so"), "{}", answer.err);
}

/// What the command finds counts for engines from then on, without another setting.
#[test]
fn engines_use_what_was_found() {
    let root = tempfile::tempdir().expect("a folder");
    let tool = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fuseline"));
        command
            .args(arguments)
            .env("FUSELINE_FAKE_DEFECT", "wrong:tanh:f32")
            .env_remove("FUSELINE_FAKE_PLAN");
        command.env("FUSELINE_CACHE_DIR", root.path().join("cache")).env_remove("FUSELINE_CACHE");
        command.env("XDG_STATE_HOME", root.path().join("state"));
        Answer::of(command.output().expect("the tool starts"))
    };
    let plugin = fakeplugin::path();
    let plugin = plugin.to_str().expect("UTF-8");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/programs/mlp_step.json");
    let run = ["run", program, "--device", plugin];
    tool(&run).ends_with(1);
    let answer = tool(&["qualify", "--quick", "--only", "tanh", "--plugin", plugin]).ends_with(1);
    assert!(!answer.err.contains("engines find the certificate"), "part of the ops: {}", answer.err);
    let answer = tool(&["qualify", "--quick", "--plugin", plugin]).ends_with(1);
    assert!(answer.err.contains("engines find the certificate"), "{}", answer.err);
    tool(&run).ends_with(0);
}
