//! Plugins that compute wrongly, and say so by a certificate: no wrong result reaches the user.
//!
//! The defects of the fake plugin are set by a variable for a whole process, so each case runs in a
//! process of its own.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;

use fuseline::qualification::{
    Certificate, CertificateKey, Finding, Level, OperandKind, QualificationPolicy, QualificationStatus, Row,
    digest,
};
use fuseline::{DType, Engine, EngineConfig, Event, OpCode, Result, Tensor};

use crate::support::fakeplugin::{FakePlugin, path, wait_for};
use crate::support::{Log, place, vector};

/// The variable that tells a process to run a case.
const CASE: &str = "FUSELINE_TEST_QUALIFICATION";

/// What the plugin of the cases does wrong.
const DEFECTS: &str = "wrong:tanh:f32;crash:exponential:f32;wrong_folded:maximum:f32";

/// Runs a case in a process whose plugin has the defects.
#[track_caller]
fn run_case(test: &str) {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", &format!("plugin::qualification::{test}"), "--nocapture"]);
    command.env(CASE, "1").env("FUSELINE_FAKE_DEFECT", DEFECTS).env_remove("FUSELINE_FAKE_PLAN");
    let output = command.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn is_case() -> bool {
    std::env::var_os(CASE).is_some()
}

fn row(op: OpCode, operand_kind: OperandKind, finding: Finding) -> Row {
    Row { op, dtype: DType::F32, other: None, operand_kind, finding }
}

/// A certificate of the plugin that states its defects.
fn certificate(key: CertificateKey) -> Certificate {
    let call = String::from("a call");
    let wrong = Finding::Wrong { example: "0 in place of 1".into(), call: call.clone() };
    let rows = vec![
        row(OpCode::Tanh, OperandKind::Uploaded, wrong.clone()),
        row(OpCode::Exponential, OperandKind::Uploaded, Finding::Crashes { how: "SIGABRT".into(), call }),
        row(OpCode::Maximum, OperandKind::Constant, wrong),
    ];
    Certificate::new(key, Level::Quick, "2026-11-28".into(), rows, Vec::new())
}

/// A key with the digest of the plugin's file only.
fn key_of_file() -> CertificateKey {
    let plugin = digest(&std::fs::read(path()).unwrap());
    CertificateKey { plugin, ..CertificateKey::default() }
}

/// Ops with the defects among ops without.
fn program(x: &Tensor) -> Result<Vec<f32>> {
    let y = x.add(x)?.mul(x)?.tanh()?;
    let z = y.sub(x)?.exp()?.add(&y)?;
    z.mul(x)?.to_vec::<f32>()
}

fn program_of(x: f32) -> f32 {
    let y = ((x + x) * x).tanh();
    ((y - x).exp() + y) * x
}

#[track_caller]
fn computes_right(engine: &Engine) {
    let numbers = [0.5, -0.25, 0.125];
    let found = program(&vector(engine, &numbers)).unwrap();
    for (found, x) in found.iter().zip(numbers) {
        let wanted = program_of(x);
        assert!((found - wanted).abs() <= 1e-6 * wanted.abs(), "{found} in place of {wanted}");
    }
}

/// The defects are there: otherwise the other cases would show nothing.
#[test]
fn without_a_certificate_the_plugin_is_wrong() {
    if !is_case() {
        return run_case("without_a_certificate_the_plugin_is_wrong");
    }
    let engine = FakePlugin::alone().config().build().unwrap();
    let x = vector(&engine, &[0.5]);
    assert_eq!(x.tanh().unwrap().to_vec::<f32>().unwrap(), [0.0]);
}

#[test]
fn what_a_certificate_calls_wrong_is_right() {
    if !is_case() {
        return run_case("what_a_certificate_calls_wrong_is_right");
    }
    let plugin = FakePlugin::alone();
    for platform in ["fake", "cpu"] {
        let log = Log::default();
        let config = plugin.config().client_option("platform", platform).event_sink(log.sink());
        let engine = config.certificate(certificate(key_of_file())).build().unwrap();
        for _ in 0..4 {
            computes_right(&engine);
        }
        let parts = |event: &Event| match event {
            Event::InParts { parts, .. } => Some(parts.clone()),
            _ => None,
        };
        if platform == "fake" {
            // The ops between are still regions. A CPU may interpret the whole at first.
            let parts: Vec<Vec<usize>> = log.take().iter().filter_map(parts).collect();
            assert_eq!(parts, vec![vec![2, 1, 1, 1, 2]; 4]);
        }
        let compiles = engine.counters().compiles;
        computes_right(&engine);
        assert_eq!(engine.counters().compiles, compiles, "a steady loop compiles nothing");
    }
}

/// A defect of constant folding does not concern inputs.
#[test]
fn inputs_are_not_constants() {
    if !is_case() {
        return run_case("inputs_are_not_constants");
    }
    let engine = FakePlugin::alone().config().certificate(certificate(key_of_file())).build().unwrap();
    let x = vector(&engine, &[0.5, -0.5]);
    assert_eq!(x.maximum(&x.neg().unwrap()).unwrap().to_vec::<f32>().unwrap(), [0.5, 0.5]);
    assert_eq!(engine.counters().fallbacks, 0);
}

fn required(plugin: &FakePlugin, root: &Path) -> EngineConfig {
    plugin.config().disk_cache(place(root)).qualification(QualificationPolicy::Require)
}

#[test]
fn a_certificate_can_be_required() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    let error = required(&plugin, root.path()).build().unwrap_err().to_string();
    assert!(
        error.contains("requires a certificate") && error.contains("fuseline qualify --plugin"),
        "{error}"
    );
    // One of the same file in another environment is not enough.
    let other = required(&plugin, root.path()).certificate(certificate(key_of_file()));
    assert!(other.build().is_err());
    let engine = plugin.config().disk_cache(place(root.path())).build().unwrap();
    let environment = engine.cache_environment().unwrap();
    let key = CertificateKey::of_parts(environment.parts());
    engine.keep_certificate(&certificate(key)).unwrap();
    let error = engine.keep_certificate(&certificate(key_of_file())).unwrap_err().to_string();
    assert!(error.contains("another environment"), "{error}");
    drop(engine);
    required(&plugin, root.path()).build().unwrap();
}

#[test]
fn a_certificate_of_another_file_is_refused() {
    let plugin = FakePlugin::alone();
    let key = CertificateKey { plugin: digest(b"another file"), ..CertificateKey::default() };
    let config = plugin.config().certificate(certificate(key)).qualification(QualificationPolicy::Require);
    let error = config.build().unwrap_err().to_string();
    assert!(error.contains("is for another file than the plugin"), "{error}");
}

/// A program that stands in for `fuseline`: it notes the cache's folder and its arguments, and
/// waits for a file.
fn stand_in(root: &Path) -> [String; 4] {
    let script =
        "echo \"$FUSELINE_CACHE_DIR $@\" > \"$0/arguments\"; while [ ! -e \"$0/go\" ]; do sleep 0.01; done";
    ["sh", "-c", script, root.to_str().unwrap()].map(str::to_owned)
}

fn status_of(log: &Log) -> Vec<QualificationStatus> {
    let status = |event: Event| match event {
        Event::Unqualified { status, .. } => Some(status),
        _ => None,
    };
    log.take().into_iter().filter_map(status).collect()
}

/// What a qualification in the background finds counts from then on, in the process that started
/// it.
#[test]
fn an_unknown_plugin_is_qualified_in_the_background() {
    if !is_case() {
        return run_case("an_unknown_plugin_is_qualified_in_the_background");
    }
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    let log = Log::default();
    let config = || {
        let config = plugin.config().client_option("platform", "cpu").interpret_cold_regions(false);
        config.disk_cache(place(root.path()))
    };
    let engine = config().qualifier(stand_in(root.path())).event_sink(log.sink()).build().unwrap();
    let x = vector(&engine, &[0.5]);
    assert_eq!(x.tanh().unwrap().to_vec::<f32>().unwrap(), [0.0], "nobody knows yet");
    let arguments = root.path().join("arguments");
    wait_for(|| arguments.exists(), || "no qualifier has started".to_owned());
    let arguments = || std::fs::read_to_string(&arguments).unwrap();
    wait_for(|| arguments().ends_with('\n'), arguments);
    let (folder, words) = arguments().split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    // The certificate goes to the engine's own cache, and is for a client with the same options.
    assert_eq!(Path::new(&folder), root.path().join("cache"));
    assert!(words.starts_with("qualify --quick --background --plugin /"), "{words}");
    assert!(words.contains(" --client-option platform:string=cpu"), "{words}");
    let other = config().qualification(QualificationPolicy::Use).build().unwrap();
    let key = CertificateKey::of_parts(other.cache_environment().unwrap().parts());
    other.keep_certificate(&certificate(key)).unwrap();
    std::fs::write(root.path().join("go"), "").unwrap();
    let told = RefCell::new(Vec::new());
    let is_finished = || {
        told.borrow_mut().extend(status_of(&log));
        told.borrow().contains(&QualificationStatus::Finished { defects: 3 })
    };
    wait_for(is_finished, || format!("{told:?}"));
    assert_eq!(
        told.into_inner(),
        [QualificationStatus::Started, QualificationStatus::Finished { defects: 3 }]
    );
    let y = x.tanh().unwrap().to_vec::<f32>().unwrap();
    assert!((y[0] - 0.5f32.tanh()).abs() < 1e-6, "{y:?}");
}

#[test]
fn without_a_qualifier_the_user_is_told_the_command() {
    let plugin = FakePlugin::alone();
    let root = tempfile::tempdir().unwrap();
    for (platform, qualifier) in [("cpu", "/nonexistent/fuseline"), ("fake", "true")] {
        let log = Log::default();
        let config = plugin.config().client_option("platform", platform).disk_cache(place(root.path()));
        let engine = config.qualifier([qualifier]).event_sink(log.sink()).build().unwrap();
        let told = RefCell::new(Vec::new());
        let is_told = || {
            told.borrow_mut().extend(status_of(&log));
            !told.borrow().is_empty()
        };
        wait_for(is_told, || "no notice".to_owned());
        let command = format!(
            "fuseline qualify --plugin {}",
            engine.pjrt_device().unwrap().client().plugin().path().display()
        );
        assert_eq!(told.into_inner(), [QualificationStatus::Missing { command }], "{platform}");
    }
}
