//! The command-line tool as users see it: commands in, exit status and text out.
//!
//! Everything runs on the reference interpreter. Tests of plugins skip with a message if none is
//! found.

mod untrusted;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use fuseline::pjrt::discover::{Discovery, Sources};
use fuseline::{DType, Engine, EngineConfig, Literal, Result, Tensor, nn};
use serde_json::Value;

use crate::answer::Answer;

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("fuseline-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn tool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fuseline"));
    command.stdin(Stdio::null());
    command
}

fn fuseline<A: AsRef<std::ffi::OsStr>>(arguments: &[A]) -> Answer {
    Answer::of(tool().args(arguments).output().expect("the tool starts"))
}

/// Runs a program file on the reference interpreter, with further arguments.
fn reference(command: &str, program: &Path, more: &[&str]) -> Answer {
    let program = program.to_str().expect("UTF-8");
    fuseline(&[&[command, program, "--device", "reference"], more].concat())
}

/// Runs on the plugin that is found.
fn on_plugin(command: &str, program: &Path, more: &[&str]) -> Answer {
    fuseline(&[&[command, program.to_str().expect("UTF-8")], more].concat())
}

/// Whether there is a plugin; prints a message if not. A plugin that cannot be used is a failure.
#[allow(clippy::print_stdout, reason = "how a test says that it skips")]
fn has_plugin() -> bool {
    static ANSWER: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    let look = || {
        let answer = fuseline(&["devices"]);
        match answer.status {
            Some(0) => Ok(()),
            _ if !Discovery::look(&Sources::of_process()).candidates().is_empty() => panic!("{}", answer.err),
            _ => Err(answer.err.lines().next().unwrap_or_default().to_owned()),
        }
    };
    match ANSWER.get_or_init(look) {
        Ok(()) => true,
        Err(why) => {
            println!("skipped: no plugin: {why}");
            false
        }
    }
}

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/programs").join(format!("{name}.json"))
}

// ----- the example programs -----

/// Reproducible numbers between -1 and 1.
fn numbers(seed: u64, dims: &[u64]) -> Literal {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let data: Vec<f32> = (0..dims.iter().product::<u64>()).map(|_| next()).collect();
    Literal::from_slice(dims, &data).expect("as many as the sizes say")
}

/// A chain of elementwise ops with two lifted scalars.
fn elementwise_chain(engine: &Engine) -> Result<(Vec<Tensor>, String)> {
    let x = engine.from_literal(&numbers(1, &[8, 16]))?;
    let (scale, shift) = (engine.scalar(1.5f32), engine.scalar(-0.25f32));
    let (outputs, program) = engine.capture("elementwise_chain", || {
        let y = x.mul(&scale)?.add(&shift)?;
        let y = y.tanh()?.mul(&y)?;
        Ok(vec![y.exp()?.log1p()?, nn::relu(&y)?])
    })?;
    Ok((outputs, program.to_json()))
}

/// One step of gradient descent on a classifier with one hidden layer, gradients written out.
fn mlp_step(engine: &Engine) -> Result<(Vec<Tensor>, String)> {
    let x = engine.from_literal(&numbers(2, &[8, 6]))?;
    let labels = engine.tensor(&[0i32, 1, 2, 3, 0, 1, 2, 3], &[8])?;
    let (w1, w2) = (engine.from_literal(&numbers(3, &[6, 5]))?, engine.from_literal(&numbers(4, &[5, 4]))?);
    let rate = engine.scalar(0.1f32);
    let (outputs, program) = engine.capture("mlp_step", || {
        let hidden = x.matmul(&w1)?.tanh()?;
        let logits = hidden.matmul(&w2)?;
        let loss = nn::cross_entropy(&logits, &labels)?;
        let wrong = nn::softmax(&logits, -1)?.sub(&labels.one_hot(4, DType::F32)?)?;
        let wrong = (&wrong * 0.125)?;
        let g2 = hidden.transpose(&[1, 0])?.matmul(&wrong)?;
        let slope = (1.0 - &(&hidden * &hidden)?)?;
        let back = wrong.matmul(&w2.transpose(&[1, 0])?)?.mul(&slope)?;
        let g1 = x.transpose(&[1, 0])?.matmul(&back)?;
        Ok(vec![loss, w1.sub(&g1.mul(&rate)?)?, w2.sub(&g2.mul(&rate)?)?])
    })?;
    Ok((outputs, program.to_json()))
}

/// Causal attention with two heads.
fn attention(engine: &Engine) -> Result<(Vec<Tensor>, String)> {
    let dims = [1, 2, 4, 3];
    let q = engine.from_literal(&numbers(5, &dims))?;
    let (k, v) = (engine.from_literal(&numbers(6, &dims))?, engine.from_literal(&numbers(7, &dims))?);
    let (outputs, program) = engine.capture("attention", || {
        Ok(vec![nn::attention(&q, &k, &v, nn::Attention { causal: Some(0), ..Default::default() })?.0])
    })?;
    Ok((outputs, program.to_json()))
}

type Example = fn(&Engine) -> Result<(Vec<Tensor>, String)>;

const EXAMPLES: [(&str, Example); 3] =
    [("elementwise_chain", elementwise_chain), ("mlp_step", mlp_step), ("attention", attention)];

/// The files under `examples/programs` match captures. `FUSELINE_BLESS=1` rewrites them.
#[test]
fn example_programs_are_captures() {
    for (name, record) in EXAMPLES {
        // Label checks are ops too, and are not part of the examples.
        let engine = EngineConfig::new().check_indices(false).build_reference().expect("needs nothing");
        let (_, json) = record(&engine).expect(name);
        let path = example(name);
        if std::env::var_os("FUSELINE_BLESS").is_some() {
            std::fs::write(&path, format!("{json}\n")).expect("written");
        }
        let there = std::fs::read_to_string(&path).expect(name);
        // The last bits of library functions differ between machines, so only the part before the
        // results is compared.
        let program = |json: &str| {
            let mut program: Value = serde_json::from_str(json).expect("JSON");
            program["expected"] = Value::Null;
            program
        };
        assert_eq!(program(&there), program(&json), "{name} is out of date; run with FUSELINE_BLESS=1");
    }
}

// ----- run -----

#[test]
fn examples_run_as_expected_in_every_mode() {
    for (name, _) in EXAMPLES {
        for mode in ["fused", "strict", "debug"] {
            let answer = reference("run", &example(name), &["--mode", mode]).ends_with(0);
            answer.says(&[name, "as expected", "the reference interpreter", &format!("{mode} mode")]);
            assert_eq!(answer.err, "");
            if has_plugin() {
                let answer = on_plugin("run", &example(name), &["--mode", mode]).ends_with(0);
                answer.says(&["as expected", "API"]);
                assert_eq!(answer.err, "", "a plugin's chatter is not shown");
            }
        }
    }
}

#[test]
fn a_run_tells_times_and_counts_for_programs() {
    let check = |document: &Value, platform: &str| {
        assert_eq!(document["status"], "ok");
        assert_eq!(document["program"]["name"], "mlp_step");
        assert_eq!(document["compared"], true);
        assert_eq!(document["mismatches"], Value::Array(Vec::new()));
        assert_eq!(document["device"]["platform"], platform);
        assert_eq!(document["mode"], "fused");
        assert_eq!(document["time"]["runs"], 5);
        let time = |key: &str| document["time"][key].as_f64().expect("a number");
        assert!(time("min_ms") <= time("median_ms") && time("min_ms") <= time("first_ms"));
        assert!(time("min_ms") > 0.0);
        let counters = &document["counters"];
        let count = |key: &str| counters[key].as_u64().expect("a number");
        assert_eq!(count("compiles"), count("misses"), "{counters}");
        assert!(count("hits") >= 4 && count("regions") >= count("hits") + count("misses"), "{counters}");
        assert_eq!(document["dump"], Value::Null);
    };
    let answer = reference("run", &example("mlp_step"), &["--repeat", "5", "--json"]).ends_with(0);
    check(&answer.json(), "reference");
    let words = reference("run", &example("mlp_step"), &["--repeat", "5"]).ends_with(0);
    words.says(&["first", "median", "min", "(5 runs)", "from the cache"]);
    if has_plugin() {
        let document =
            on_plugin("run", &example("mlp_step"), &["--repeat", "5", "--json"]).ends_with(0).json();
        let platform = document["device"]["platform"].as_str().expect("a name").to_owned();
        assert_ne!(platform, "reference");
        check(&document, &platform);
    }
}

#[test]
fn numbers_are_held_to_what_was_asked_for() {
    let asked = |place: fn(&str, &Path, &[&str]) -> Answer| {
        let program = example("mlp_step");
        let exact = place("run", &program, &["--numerics", "exact", "--json"]).ends_with(0);
        assert_eq!(exact.json()["numerics"], "exact");
        assert_eq!(exact.json()["counters"]["different"], 0);
        let exact = place("run", &program, &["--numerics", "exact", "--dump", "events"]).ends_with(0);
        exact.says(&[
            "shadowed",
            "until a check shows that it gives the same results as a whole",
            "as expected",
        ]);
        assert!(!place("run", &program, &["--dump", "events"]).ends_with(0).out.contains("shadowed"));
        place("run", &program, &["--compare", "--dump", "events"]).ends_with(0).says(&["shadowed"]);
    };
    asked(reference);
    if has_plugin() {
        asked(on_plugin);
    }
}

#[test]
fn modules_regions_and_events_are_shown() {
    let chain = example("elementwise_chain");
    let run = |dump: &str, json: bool| {
        let more = ["--dump", dump, "--json"];
        reference("run", &chain, &more[..if json { 3 } else { 2 }]).ends_with(0)
    };
    run("stablehlo", false).says(&[
        "// region s0.r0",
        "module @region {",
        "\"stablehlo.tanh\"",
        "as expected",
    ]);
    run("regions", false).says(&[
        "region s0.r0 (key ",
        "ends because the host reads a value that it computes at elementwise_chain: outputs[0] (host_read)",
        "not in the cache: its sequence of ops is new",
        "f32[8, 16]",
        "= multiply(",
        "at elementwise_chain: ops[0]",
    ]);
    run("events", false).says(&["sealed ", "lowered ", "compile_finished ", "launched "]);
    let modules = run("stablehlo", true).json();
    let module = modules["dump"]["stablehlo"][0]["module"].as_str().expect("a module");
    assert!(module.starts_with("module @region {"), "{module}");
    let regions = run("regions", true).json();
    let region = &regions["dump"]["regions"][0];
    assert_eq!(region["boundary"], "host_read");
    assert_eq!(region["key"].as_str().map(str::len), Some(64));
    let ops = region["ops"].as_array().expect("a list");
    assert_eq!(ops[0]["op"], "broadcast_in_dim");
    assert!(
        ops.iter()
            .any(|op| op["op"] == "tanh" && op["site"].as_str().is_some_and(|site| site.contains("ops[")))
    );
    let events = run("events", true).json();
    let names: Vec<&str> = events["dump"]["events"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    assert_eq!(names[0], "sealed");
    assert!(names.contains(&"compile_finished"), "{names:?}");
}

#[test]
fn equal_regions_share_a_module() {
    let folder = Folder::new("share");
    // Twice the negation, in Strict mode: two regions, one key.
    let program = folder.file(
        "twice.json",
        r#"{"values":[{"id":0,"role":"input","shape":[2],"dtype":"f32","data":"AACAPwAAAEA="}],"ops":[
            {"op":"stablehlo.negate","operands":[0],"results":[{"id":1,"shape":[2],"dtype":"f32"}],"attrs":{}},
            {"op":"stablehlo.negate","operands":[1],"results":[{"id":2,"shape":[2],"dtype":"f32"}],"attrs":{}}],
            "outputs":[2]}"#,
    );
    let answer = reference("run", &program, &["--mode", "strict", "--dump", "stablehlo"]).ends_with(0);
    answer.says(&["as region s0.r0", "the file has no expected outputs", "twice: 2 ops"]);
    assert_eq!(answer.out.matches("module @region").count(), 1);
}

/// A module of another front end runs, and converts to an equal program file.
#[test]
fn modules_are_imported_and_run() {
    let folder = Folder::new("import");
    let text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n\
                %one = stablehlo.constant dense<1.0> : tensor<2xf32>\n\
                %0 = stablehlo.add %x, %one : tensor<2xf32>\n\
                return %0 : tensor<2xf32>\n}\n";
    let module = folder.file("plus_one.mlir", text);
    let written = folder.0.join("plus_one.json");
    fuseline(&["import".as_ref(), module.as_os_str(), "--output".as_ref(), written.as_os_str()]).ends_with(0);
    let program = fuseline::fusion::program::Program::parse(
        &std::fs::read_to_string(&written).expect("it was written"),
    )
    .expect("a program");
    assert_eq!((program.name.as_str(), program.op_count()), ("plus_one", 3));
    for file in [&module, &written] {
        reference("run", file, &["--dump", "outputs"]).ends_with(0).says(&["plus_one", "f32[2] [1, 1]"]);
    }
    let piped = fuseline(&["import".as_ref(), module.as_os_str()]).ends_with(0);
    assert_eq!(piped.json()["n_ops"], 3);

    let wrong = folder.file("wrong.mlir", text.replace("add %x", "add %y"));
    let answer = fuseline(&["import".as_ref(), wrong.as_os_str()]).ends_with(2);
    assert!(answer.err.contains("wrong.mlir:3:20: %y is not defined before this"), "{}", answer.err);
    fuseline(&["import", "step.json"]).ends_with(2);
}

#[test]
fn a_program_is_read_from_standard_input() {
    let text = std::fs::read(example("attention")).expect("an example");
    let mut child = tool()
        .args(["run", "-", "--device", "reference"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    child.stdin.take().expect("a pipe").write_all(&text).expect("written");
    Answer::of(child.wait_with_output().expect("it ends")).ends_with(0).says(&["attention", "as expected"]);
}

const WRONG: &str = r#"{"name":"doubled","values":[{"id":0,"role":"input","shape":[2,2],"dtype":"f32",
"data":"AACAPwAAAEAAAEBAAACAQA=="}],"ops":[{"op":"stablehlo.add","operands":[0,0],
"results":[{"id":1,"shape":[2,2],"dtype":"f32"}],"attrs":{}}],"outputs":[1],
"expected":[{"shape":[2,2],"dtype":"f32","data":"AAAAQAAAgEAAAMBAAACAQA=="}]}"#;

#[test]
fn a_wrong_result_names_the_first_differing_element() {
    let folder = Folder::new("wrong");
    let program = folder.file("wrong.json", WRONG);
    let words = "output 0 (%1, at [1, 1]): element 3 is 8.0, expected 4.0 (1 elements differ)";
    let answer = reference("run", &program, &[]).ends_with(1);
    answer.says(&["1 of 1 not as expected", words]);
    assert!(answer.err.contains(words), "{}", answer.err);
    let document = reference("run", &program, &["--json"]).ends_with(1).json();
    assert_eq!(document["status"], "mismatch");
    let mismatch = &document["mismatches"][0];
    assert_eq!(mismatch["index"], serde_json::json!([1, 1]));
    assert_eq!((&mismatch["actual"], &mismatch["expected"]), (&8.0.into(), &4.0.into()));
}

#[test]
fn a_wrong_file_is_told_with_its_place() {
    let folder = Folder::new("files");
    let value = r#"{"id":0,"role":"input","shape":[1],"dtype":"f32","data":"AACAPw=="}"#;
    let op = |op: &str, operands: &str, dtype: &str| {
        format!(
            "{{\"values\":[{value}],\n \"ops\":[\n  {{\"op\":\"{op}\",\"operands\":{operands},\
             \"results\":[{{\"id\":1,\"shape\":[1],\"dtype\":\"{dtype}\"}}],\"attrs\":{{}}}}],\"outputs\":[1]}}"
        )
    };
    let deep = format!("{{\"values\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("empty", Vec::new(), ":1:0: EOF while parsing"),
        ("truncated", WRONG.as_bytes()[..150].to_vec(), ":2:"),
        ("no json", b"hello".to_vec(), ":1:1: expected value"),
        ("list", b"[]".to_vec(), ":1:1: program: expected an object, found a list"),
        ("no values", b"{\n}".to_vec(), ":1:1: program: \"values\" is missing"),
        ("deep", deep.into_bytes(), "recursion limit exceeded"),
        ("garbage", vec![b'{', b'\n', 0xff, 0xfe, 0x00, 0x80], ":2:1: the file is not UTF-8 text"),
        (
            "unknown op",
            op("stablehlo.frobnicate", "[0]", "f32").into(),
            ":3:9: ops[0].op: op \"stablehlo.frobnicate\"",
        ),
        (
            "undefined",
            op("stablehlo.negate", "[7]", "f32").into(),
            ":3:40: ops[0].operands[0]: id 7 is not defined",
        ),
        (
            "operands",
            op("stablehlo.negate", "3", "f32").into(),
            ":3:39: ops[0].operands: expected a list, found a number",
        ),
        (
            "dtype",
            op("stablehlo.negate", "[0]", "f99").into(),
            "ops[0].results[0].dtype: element type \"f99\"",
        ),
        (
            "result",
            op("stablehlo.negate", "[0]", "i32").into(),
            "ops[0].results: stablehlo.negate is declared to return",
        ),
        ("arity", op("stablehlo.add", "[0]", "f32").into(), ":3:3: ops[0]: add"),
        ("data", op("stablehlo.negate", "[0]", "f32").replace("AACAPw==", "AACA").into(), "values[0].data"),
        (
            "base64",
            op("stablehlo.negate", "[0]", "f32").replace("AACAPw==", "%%%%").into(),
            "values[0].data: not base64",
        ),
    ];
    for (name, content, words) in cases {
        let path = folder.file(&format!("{name}.json"), content);
        for command in ["run", "explain"] {
            let answer = reference(command, &path, &[]).ends_with(2);
            assert_eq!(answer.out, "");
            assert!(answer.err.contains(words), "{name}: {}", answer.err);
            assert!(
                answer.err.starts_with(&format!("fuseline: {}", path.display())),
                "{name}: {}",
                answer.err
            );
        }
        let document = reference("run", &path, &["--json"]).ends_with(2).json();
        assert_eq!(document["status"], "invalid");
        assert!(document["error"].as_str().is_some_and(|error| error.contains(words)), "{document}");
    }
    let missing = reference("run", &folder.0.join("nothing.json"), &[]).ends_with(2);
    assert!(missing.err.contains("cannot be read: No such file"), "{}", missing.err);
    let directory = reference("run", &folder.0, &[]).ends_with(2);
    assert!(directory.err.contains("cannot be read: it is a folder, not a file"), "{}", directory.err);
}

#[test]
fn a_device_that_cannot_be_used_is_a_failure_with_a_reason() {
    let folder = Folder::new("device");
    let fake = folder.file("plugin.so", "no library");
    for (device, words) in [
        (fake.to_str().expect("UTF-8"), "is not a shared library"),
        ("nowhere/plugin.so", "cannot be read: No such file"),
    ] {
        let program = example("attention");
        let program = program.to_str().expect("UTF-8");
        for arguments in [
            &["run", program, "--device", device][..],
            &["explain", program, "--device", device],
            &["devices", "--device", device],
        ] {
            let answer = fuseline(arguments).ends_with(1);
            assert!(answer.err.contains(words) && answer.out.is_empty(), "{}", answer.err);
        }
        let document = fuseline(&["run", program, "--device", device, "--json"]).ends_with(1).json();
        assert_eq!(document["status"], "failed");
    }
}

// ----- explain -----

/// Checks that tags and quotes of a text are well-formed XML, and returns the names of the
/// elements.
fn elements(text: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    let mut seen = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>') || seen.last().is_some_and(|name| name == "style"), "a bare >");
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if tag.starts_with(['?', '!']) {
            continue;
        }
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "at {tag}");
            continue;
        }
        let name = tag.split_whitespace().next().expect("a name").to_owned();
        // Void elements of HTML.
        if name != "meta" {
            open.push(name.clone());
        }
        seen.push(name);
    }
    assert_eq!(open, Vec::<String>::new());
    seen
}

#[test]
fn an_explanation_says_why() {
    let answer = reference("explain", &example("mlp_step"), &[]).ends_with(0);
    answer.says(&[
        "mlp_step: ",
        "Kernels are estimated from the op table",
        "ends because the host reads a value that it computes at mlp_step: outputs[0] (host_read)",
        "second run",
        "in the cache",
        "starts with the program",
        "by itself: contractions are not fused",
        "at mlp_step: ops[0]",
    ]);
    let strict = reference("explain", &example("mlp_step"), &["--mode", "strict"]).ends_with(0);
    let why = "ends because every op is a region in Strict mode";
    strict.says(&[why, "starts after region s0.r0, which ended because"]);
    if has_plugin() {
        let answer = on_plugin("explain", &example("mlp_step"), &[]).ends_with(0);
        answer.says(&[
            "Kernels are read from the program that XLA returned",
            "fusion)",
            "other op",
            "compile  ",
        ]);
    }
}

/// A page without the script of its timeline.
fn markup(page: &Path) -> String {
    let text = std::fs::read_to_string(page).expect("a page");
    let (before, rest) = text.split_once("<script>").expect("a timeline");
    before.to_owned() + rest.split_once("</script>").expect("its end").1
}

#[test]
fn pages_and_pictures_are_whole() {
    let folder = Folder::new("pages");
    let mut ways = vec![("reference", reference as fn(&str, &Path, &[&str]) -> Answer)];
    if has_plugin() {
        ways.push(("plugin", on_plugin));
    }
    for (way, run) in ways {
        for (name, _) in EXAMPLES {
            // Compiling each op takes a while; one program is enough.
            let strict = way == "reference" || name == "attention";
            for mode in if strict { &["fused", "strict"][..] } else { &["fused"] } {
                let page = folder.0.join(format!("{name}-{way}-{mode}.html"));
                let page_name = page.to_str().expect("UTF-8");
                run("explain", &example(name), &["--mode", mode, "-o", page_name]).ends_with(0);
                let text = markup(&page);
                assert!(text.starts_with("<!DOCTYPE html>"));
                for outside in ["src=", "href=", "url(", "@import", "<script"] {
                    assert!(!text.contains(outside), "{outside} in {name}: it needs nothing from outside");
                }
                assert!(text.contains("prefers-color-scheme: dark"));
                assert!(elements(&text).iter().filter(|name| *name == "rect").count() > 5);
                let picture = folder.0.join(format!("{name}-{way}-{mode}.svg"));
                let picture_name = picture.to_str().expect("UTF-8");
                run("explain", &example(name), &["--mode", mode, "--output", picture_name]).ends_with(0);
                let text = std::fs::read_to_string(&picture).expect("a picture");
                assert!(text.starts_with("<?xml"));
                assert_eq!(elements(&text)[0], "svg");
                for nowhere in ["translate(NaN", "translate(inf", "MNaN", "Minf", "=\"NaN", "=\"inf"] {
                    assert!(!text.contains(nowhere), "a place is not a number");
                }
            }
        }
    }
}

#[test]
fn names_from_a_file_are_text_in_a_page() {
    let folder = Folder::new("escape");
    let program = folder.file("x.json", WRONG.replace("doubled", r"<script>&'\u0022"));
    let page = folder.0.join("x.html");
    reference("explain", &program, &["-o", page.to_str().expect("UTF-8")]).ends_with(0);
    let text = markup(&page);
    assert!(!text.contains("<script>") && text.contains("&lt;script&gt;&amp;"));
    elements(&text);
}

#[test]
fn a_page_that_cannot_be_written_is_a_failure() {
    let answer = reference("explain", &example("attention"), &["-o", "no/such/folder/x.html"]).ends_with(1);
    assert!(answer.err.contains("cannot be written"), "{}", answer.err);
    let answer = reference("explain", &example("attention"), &["-o", "x.png"]).ends_with(2);
    assert!(answer.err.contains(".html or .svg"), "{}", answer.err);
}

// ----- doctor and devices -----

/// A command that finds no plugin: no variables, no Python, an empty folder.
fn in_an_empty_world(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = tool();
    command
        .args(arguments)
        .env("PATH", &folder.0)
        .env("FUSELINE_SETUP_DIR", &folder.0)
        .env_remove("FUSELINE_PJRT_PLUGIN")
        .env_remove("PJRT_NAMES_AND_LIBRARY_PATHS");
    command
}

#[test]
fn the_doctor_says_what_is_wrong_and_what_to_do() {
    let folder = Folder::new("doctor");
    let text = folder.file("text.so", "not a library at all");
    let names = format!("mine:{},nocolon", text.display());
    let ask = |arguments: &[&str]| {
        let mut command = in_an_empty_world(&folder, arguments);
        command.env("PJRT_NAMES_AND_LIBRARY_PATHS", &names);
        Answer::of(command.output().expect("the tool starts")).ends_with(1)
    };
    ask(&["doctor"]).says(&[
        "1. explicit path",
        "2. FUSELINE_PJRT_PLUGIN\n   not set",
        "3. PJRT_NAMES_AND_LIBRARY_PATHS\n   mine: ",
        "is not a shared library",
        "what to do: name the plugin's shared library itself",
        "has no colon",
        "write the variable as name:path,name:path",
        "4. Python packages\n   python3 could not be queried",
        "5. setup folder\n   nothing in",
        "no plugin can be used: install a plugin",
    ]);
    let document = ask(&["doctor", "--json"]).json();
    assert_eq!(document["status"], "failed");
    assert_eq!(document["candidates"].as_array().map(Vec::len), Some(2));
    assert_eq!(document["candidates"][0]["usable"], false);
    assert!(document["candidates"][0]["advice"].is_string() && document["advice"].is_string());
    assert_eq!(document["sources_without"].as_array().map(Vec::len), Some(4));
}

/// A library that is no plugin, and one that ends its process when loaded.
#[test]
fn the_doctor_survives_what_it_looks_at() {
    let folder = Folder::new("crash");
    let source = folder.file(
        "crash.c",
        "#include <stdio.h>\n#include <stdlib.h>\n\
         __attribute__((constructor)) static void die(void) {\n\
         fprintf(stderr, \"TT_FATAL: No chips\\nbacktrace\\nquery error %s\\nlast\\n\", \
         getenv(\"TPU_SKIP_MDS_QUERY\"));\n__builtin_trap();\n}\n",
    );
    let library = folder.0.join("crash.so");
    let compiler = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if !compiler.is_ok_and(|status| status.success()) {
        println!("skipped: no C compiler: it would make a crashing library with");
        return;
    }
    let mut command = in_an_empty_world(&folder, &["doctor", "--device", library.to_str().expect("UTF-8")]);
    command.env_remove("TPU_SKIP_MDS_QUERY");
    let answer = Answer::of(command.output().expect("the tool starts")).ends_with(1);
    answer.says(&[
        "1. explicit path\n",
        "crashed its process (signal:",
        "its output: TT_FATAL: No chips\n                 query error 1\n     what to do:",
    ]);
    // What the user sets is kept.
    let asked = command.arg("--json").env("TPU_SKIP_MDS_QUERY", "0").output().expect("the tool starts");
    let document = Answer::of(asked).ends_with(1).json();
    assert_eq!(document["candidates"][0]["output"][1], "query error 0");
    let mut command =
        in_an_empty_world(&folder, &["devices", "--json", "--device", library.to_str().expect("UTF-8")]);
    let answer = Answer::of(command.output().expect("the tool starts")).ends_with(1);
    assert!(answer.err.contains("crash.so crashed its process (signal:"), "{}", answer.err);
    assert_eq!(answer.json()["status"], "failed");
}

#[test]
fn the_doctor_computes_on_the_chosen_plugin() {
    if !has_plugin() {
        return;
    }
    let answer = fuseline(&["doctor"]).ends_with(0);
    answer.says(&["usable, and chosen", "API ", "device 0: ", "extensions: ", "test computation: correct"]);
    let document = fuseline(&["doctor", "--json"]).ends_with(0).json();
    let chosen: Vec<&Value> = document["candidates"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|candidate| candidate["chosen"] == true)
        .collect();
    assert_eq!(chosen.len(), 1);
    assert_eq!(chosen[0]["smoke"]["passed"], true);
    assert!(chosen[0]["client"]["devices"].as_array().is_some_and(|devices| !devices.is_empty()));
    // A plugin that was named is the only candidate, even if it cannot be used.
    let path = chosen[0]["path"].as_str().expect("a path");
    let document = Answer::of(
        tool().args(["doctor", "--json", "--device", "no/plugin.so"]).output().expect("the tool starts"),
    );
    let document = document.ends_with(1).json();
    assert!(
        document["candidates"]
            .as_array()
            .expect("a list")
            .iter()
            .all(|candidate| candidate["chosen"] == false)
    );
    let named = fuseline(&["doctor", "--device", path]).ends_with(0);
    named.says(&["1. explicit path\n   "]);
}

#[test]
fn devices_are_listed() {
    let answer = fuseline(&["devices", "--device", "reference"]).ends_with(0);
    answer.says(&["device 0: reference interpreter"]);
    let document = fuseline(&["devices", "--device", "reference", "--json"]).ends_with(0).json();
    assert_eq!(document["devices"].as_array().map(Vec::len), Some(1));
    let folder = Folder::new("devices");
    let nothing = in_an_empty_world(&folder, &["devices"]).output().expect("the tool starts");
    let nothing = Answer::of(nothing).ends_with(1);
    assert!(nothing.err.contains("no usable PJRT plugin was found"), "{}", nothing.err);
    assert!(nothing.err.contains("`fuseline doctor` shows the reasons"), "{}", nothing.err);
    if has_plugin() {
        let document = fuseline(&["devices", "--json"]).ends_with(0).json();
        let device = &document["devices"][0];
        assert!(
            device["kind"].is_string() && device["id"].is_i64() && device["addressable"] == true,
            "{device}"
        );
    }
}

#[test]
fn options_reach_the_client() {
    let answer = fuseline(&["devices", "--client-option", "cpu_device_count"]).ends_with(2);
    assert!(answer.err.contains("NAME=VALUE"), "{}", answer.err);
    let answer = fuseline(&["devices", "--client-option", "visible_devices:list=0"]).ends_with(2);
    assert!(answer.err.contains("bool, int, ints, float or string"), "{}", answer.err);
    if has_plugin() {
        for option in ["cpu_device_count=3", "cpu_device_count:int=3"] {
            let document = fuseline(&["devices", "--json", "--client-option", option]).ends_with(0).json();
            assert_eq!(document["devices"].as_array().map(Vec::len), Some(3));
        }
        fuseline(&["devices", "--client-option", "cpu_device_count:ints=3"]).ends_with(1);
    }
}

#[test]
fn without_a_plugin_an_explanation_uses_the_reference() {
    let folder = Folder::new("fallback");
    let program = example("attention");
    let program = program.to_str().expect("UTF-8");
    let answer = in_an_empty_world(&folder, &["explain", program]).output().expect("the tool starts");
    let answer = Answer::of(answer).ends_with(0);
    assert!(answer.err.contains("continuing with the reference interpreter"), "{}", answer.err);
    let answer = in_an_empty_world(&folder, &["run", program]).output().expect("the tool starts");
    Answer::of(answer).ends_with(1);
}

// ----- the command line -----

#[test]
fn help_has_examples_and_exit_statuses() {
    fuseline(&["--help"]).ends_with(0).says(&["run", "explain", "doctor", "devices", "Exit status:"]);
    for command in ["run", "explain", "doctor", "devices"] {
        let answer = fuseline(&[command, "--help"]).ends_with(0);
        answer.says(&["Usage: fuseline", "Exit status:", "  0  "]);
        assert!(!answer.out.contains("probe"));
    }
    fuseline(&["--version"]).ends_with(0).says(&[env!("CARGO_PKG_VERSION")]);
}

#[test]
fn a_wrong_command_line_is_told_on_standard_error() {
    for arguments in [
        &["frobnicate"][..],
        &["run"],
        &["run", "x.json", "--mode", "quick"],
        &["run", "x.json", "--repeat", "0"],
        &["run", "x.json", "--dump", "everything"],
        &[],
    ] {
        let answer = fuseline(arguments).ends_with(2);
        assert!(answer.out.is_empty() && answer.err.contains("--help"), "{arguments:?}: {}", answer.err);
    }
}

/// The reader is gone before the answer: the reading end of the pipe is closed.
#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let program = example("elementwise_chain");
    let program = program.to_str().expect("UTF-8");
    for arguments in [
        &["run", program, "--device", "reference", "--dump", "stablehlo"][..],
        &["run", "--help"],
        &["explain", program, "--device", "reference"],
        &["devices", "--device", "reference"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output =
            tool().args(arguments).stdout(writer).stderr(Stdio::piped()).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        assert!(!error.contains("panicked"), "{error}");
    }
}
