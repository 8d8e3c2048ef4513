//! `fuseline probe`: loads one plugin, reports on it, and may compute something with it.
//!
//! `doctor` runs it in a process of its own, because a plugin may crash, hang or keep a device. The
//! answer is one line of JSON after a marker, so other output of the plugin does not matter.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fuseline::pjrt::{OpenFault, Plugin};
use fuseline::{Engine, EngineConfig, Result};
use serde_json::{Value, json};

use crate::Status;
use crate::capabilities::capabilities_json;
use crate::cli::ProbeArgs;
use crate::devices::client_json;
use crate::text::{milliseconds, say};

/// The marker before the answer.
const MARK: &str = "fuseline-probe:";

/// The longest time for a plugin. GPU and TPU clients take up to half a minute to start on a cold
/// machine.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(args: &ProbeArgs, out: &mut String) -> Status {
    let answer = look(&args.plugin, args.smoke);
    say!(out, "\n{MARK}{answer}");
    Status::Good
}

fn look(path: &Path, smoke: bool) -> Value {
    let unusable =
        |problem: String, advice: &str| json!({"usable": false, "problem": problem, "advice": advice});
    if let Err(error) = Plugin::open(path) {
        return unusable(error.to_string(), advice(error.fault()));
    }
    let engine =
        match EngineConfig::new().interpret_cold_regions(false).quick_compiles(false).plugin(path).build() {
            Ok(engine) => engine,
            Err(error) => {
                let problem = format!("{} could not start a client: {error}", path.display());
                let advice = start_advice(&problem);
                return unusable(problem, advice);
            }
        };
    let Some(device) = engine.pjrt_device() else {
        return unusable(format!("{} has no device", path.display()), "choose another plugin");
    };
    let mut answer = json!({
        "usable": true,
        "client": client_json(device.client()),
        "capabilities": capabilities_json(&engine),
    });
    if smoke {
        let start = Instant::now();
        answer["smoke"] = match compute(&engine) {
            Ok(None) => json!({"passed": true, "ms": milliseconds(start.elapsed())}),
            Ok(Some(wrong)) => json!({"passed": false, "problem": wrong}),
            Err(error) => json!({"passed": false, "problem": error.to_string()}),
        };
    }
    answer
}

/// A product, a sum and a maximum of small integers, which every device computes exactly. Returns
/// what is wrong, if anything.
fn compute(engine: &Engine) -> Result<Option<String>> {
    let left = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    let right = engine.tensor(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0], &[3, 2])?;
    let product = left.matmul(&right)?;
    let total = (&product * &product)?.sum(&[0])?;
    let greatest = product.max(&[0, 1])?;
    let actual = (product.to_vec::<f32>()?, total.to_vec::<f32>()?, greatest.to_vec::<f32>()?);
    let expected = (vec![4.0, 5.0, 10.0, 11.0], vec![116.0, 146.0], vec![11.0]);
    Ok((actual != expected).then(|| format!("it computed {actual:?}, expected {expected:?}")))
}

/// Advice about a file that cannot be used.
pub(crate) fn advice(fault: &OpenFault) -> &'static str {
    match fault {
        OpenFault::Missing(_) => "correct the path, or install the plugin there",
        OpenFault::NotALibrary => {
            "name the plugin's shared library itself, or reinstall it if this is its library"
        }
        OpenFault::CannotLoad(_) => {
            "install the libraries that the problem names, or add their folder to LD_LIBRARY_PATH"
        }
        OpenFault::NoEntryPoint => "name a library that is a PJRT plugin",
        OpenFault::BadTable(_) => {
            "reinstall the plugin; if that does not help, report the problem to its developers"
        }
        OpenFault::Version { .. } => "install a plugin of another version",
        OpenFault::Initialise(error) => start_advice(&error.to_string()),
        _ => "choose another plugin",
    }
}

/// Advice about a plugin that cannot start, by its message.
fn start_advice(message: &str) -> &'static str {
    if message.contains("lockfile") {
        // libtpu's file, which one process at a time may have.
        return "end the other process that uses this library, or wait for its end; if there is none, remove the \
                file `libtpu_lockfile` in the folder for temporary files";
    }
    "check that the device is present, that its driver is loaded, and that no other process uses it"
}

/// Probes a plugin in a process of its own.
pub(crate) fn ask(path: &Path, smoke: bool) -> Value {
    let failed = |problem: String, output: &str| {
        let advice = format!(
            "check that the device is present and that its driver is loaded; `fuseline devices --device {}` \
             with TF_CPP_MIN_LOG_LEVEL=0 shows everything that the plugin prints",
            path.display()
        );
        json!({"usable": false, "problem": problem, "advice": advice, "output": telling_lines(output)})
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(format!("cannot find the path of this program: {error}"), ""),
    };
    let mut command = Command::new(program);
    command.arg("probe").args(smoke.then_some("--smoke")).arg("--").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return failed(format!("cannot start a process: {error}"), ""),
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (ended, stdout, stderr) = std::thread::scope(|scope| {
        let stdout = scope.spawn(|| read(stdout));
        let stderr = scope.spawn(|| read(stderr));
        let ended = wait(&mut child);
        (ended, stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default())
    });
    let answer = stdout.lines().find_map(|line| line.strip_prefix(MARK));
    if let Some(answer) = answer.and_then(|answer| serde_json::from_str(answer).ok()) {
        return answer;
    }
    let shown = path.display();
    let problem = match ended {
        Some(status) => format!("{shown} crashed its process ({status})"),
        None => format!("{shown} did not answer within {} seconds", LIMIT.as_secs()),
    };
    // Some plugins log on standard output.
    failed(problem, &format!("{stdout}\n{stderr}"))
}

/// The last lines of a plugin's output that name a cause, without repetitions, or the last line.
/// Colors are removed, and long lines cut.
fn telling_lines(output: &str) -> Vec<String> {
    const MOST: usize = 5;
    const LONGEST: usize = 300;
    const CAUSES: [&str; 3] = ["fatal", "critical", "error"];
    let lines: Vec<String> = output
        .lines()
        .map(|line| without_colors(line).trim().chars().take(LONGEST).collect())
        .filter(|line: &String| !line.is_empty())
        .collect();
    let tells = |line: &&String| {
        let line = line.to_lowercase();
        CAUSES.iter().any(|cause| line.contains(cause))
    };
    let mut told: Vec<String> = Vec::new();
    for line in lines.iter().rev().filter(tells) {
        if told.len() < MOST && !told.contains(line) {
            told.push(line.clone());
        }
    }
    if told.is_empty() {
        told.extend(lines.last().cloned());
    }
    told.reverse();
    told
}

/// A line without the control sequences of terminals that set colors: ESC, `[`, up to a letter.
fn without_colors(line: &str) -> String {
    let mut pieces = line.split("\u{1b}[");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        out += piece.find(|letter: char| letter.is_ascii_alphabetic()).map_or("", |end| &piece[end + 1..]);
    }
    out
}

fn read(from: Option<impl std::io::Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // Keep what was read before an error.
        drop(from.read_to_end(&mut bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for a process with a time limit, and kills it after that.
fn wait(child: &mut std::process::Child) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => break,
        }
    }
    drop(child.kill());
    drop(child.wait());
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_that_tell_the_cause_are_found() {
        let output = "starting\n\u{1b}[31mTT_FATAL: no chips\u{1b}[0m\nbacktrace\n  frame 1\n\
                      fatal runtime error: aborting\nError: x\nError: x\n\n";
        assert_eq!(
            telling_lines(output),
            ["TT_FATAL: no chips", "fatal runtime error: aborting", "Error: x"]
        );
        let many: String = (0..9).map(|number| format!("CRITICAL {number}\nframe\n")).collect();
        assert_eq!(
            telling_lines(&many),
            (4..9).map(|number| format!("CRITICAL {number}")).collect::<Vec<_>>()
        );
        assert_eq!(telling_lines("one\ntwo \n\n"), ["two"]);
        assert_eq!(telling_lines(" \n"), [""; 0]);
        assert_eq!(telling_lines(&format!("error {}", "ä".repeat(400)))[0].chars().count(), 300);
    }

    #[test]
    fn a_lock_of_another_process_has_its_own_advice() {
        let message = "ABORTED: Internal error when accessing libtpu multi-process lockfile.";
        assert!(start_advice(message).contains("libtpu_lockfile"));
        assert!(!start_advice("NOT_FOUND: no device").contains("lock"));
    }
}
