//! A contender's process for one case. It answers requests for steps and results with one line of
//! JSON each. The requests are those of `cli/src/bench/serve.rs` and `benches/peers/worker.py`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::STOP;

/// The timeout of an answer: a first step compiles.
const PATIENCE: Duration = Duration::from_secs(300);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The user has asked to stop.
    Stopped,
    /// The error, for the report.
    Failed(String),
}

/// A process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    answers: Receiver<String>,
    /// The file with its standard error.
    log: PathBuf,
}

/// The answer to a request for steps.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    pub(crate) nanoseconds: Vec<u64>,
    /// The number of compiles by the end of each step; empty if unknown.
    pub(crate) compiles: Vec<u64>,
    /// The engine's counters so far, for Fuseline.
    pub(crate) counters: Value,
}

impl Worker {
    /// Starts a process in a process group of its own: Ctrl-C goes to the harness, which ends its
    /// workers in order.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Worker, Trouble> {
        let file =
            File::create(log).map_err(|error| Trouble::Failed(format!("{}: {error}", log.display())))?;
        let started = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .process_group(0)
            .spawn()
            .map_err(|error| Trouble::Failed(format!("{}: {error}", command.get_program().display())));
        let mut child = started?;
        let stdout = child.stdout.take().expect("bug: standard output is piped");
        let (send, answers) = channel();
        // The thread ends with the process, whose standard output it reads to the end.
        let read = move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        };
        let reader = std::thread::Builder::new().name("answers".to_owned()).spawn(read);
        reader.map_err(|error| Trouble::Failed(error.to_string()))?;
        Ok(Worker { child, answers, log: log.to_owned() })
    }

    /// Sends a request and waits for the answer.
    fn ask(&mut self, request: &Value) -> Result<Value, Trouble> {
        self.send(request)?;
        self.answer(request)
    }

    fn send(&mut self, request: &Value) -> Result<(), Trouble> {
        let stdin = self.child.stdin.as_mut().expect("bug: standard input is piped");
        match writeln!(stdin, "{request}").and_then(|()| stdin.flush()) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.died()),
        }
    }

    /// Waits for the answer to a request.
    fn answer(&mut self, request: &Value) -> Result<Value, Trouble> {
        let start = Instant::now();
        loop {
            if STOP.load(Ordering::Relaxed) {
                return Err(Trouble::Stopped);
            }
            let line = match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(RecvTimeoutError::Timeout) if start.elapsed() < PATIENCE => continue,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Trouble::Failed(format!(
                        "no answer to {request} in {} s",
                        PATIENCE.as_secs()
                    )));
                }
            };
            let answer: Value = serde_json::from_str(&line)
                .map_err(|error| Trouble::Failed(format!("{error} in the answer to {request}")))?;
            return match answer["error"].as_str() {
                Some(error) => Err(Trouble::Failed(error.to_owned())),
                None => Ok(answer),
            };
        }
    }

    /// Describes how the process ended, with its last output.
    fn died(&mut self) -> Trouble {
        let status = match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
        Trouble::Failed(format!("the process ended ({status}): {last}"))
    }

    /// Requests the program, which takes a while because libraries are loaded first. Call
    /// [`Worker::wait_made`] afterwards.
    pub(crate) fn make(&mut self) -> Result<(), Trouble> {
        self.send(&json!({"do": "make"}))
    }

    /// Waits until the program is made. Returns the versions of its libraries.
    pub(crate) fn wait_made(&mut self) -> Result<BTreeMap<String, String>, Trouble> {
        let answer = self.answer(&json!({"do": "make"}))?;
        serde_json::from_value(answer["versions"].clone()).map_err(|error| Trouble::Failed(error.to_string()))
    }

    pub(crate) fn steps(&mut self, count: usize) -> Result<Steps, Trouble> {
        let answer = self.ask(&json!({"do": "steps", "count": count}))?;
        let list = |name: &str| -> Vec<u64> {
            answer[name].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
        };
        let steps = Steps {
            nanoseconds: list("nanoseconds"),
            compiles: list("compiles"),
            counters: answer["counters"].clone(),
        };
        match steps.nanoseconds.len() == count {
            true => Ok(steps),
            false => Err(Trouble::Failed(format!(
                "{} times were returned for {count} steps",
                steps.nanoseconds.len()
            ))),
        }
    }

    /// The outputs, as names and bytes in base64.
    pub(crate) fn outputs(&mut self) -> Result<Value, Trouble> {
        Ok(self.ask(&json!({"do": "outputs"}))?["outputs"].take())
    }

    /// The peak memory of the process in KiB, if the system reports it.
    pub(crate) fn peak_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It has nothing to save, and may be compiling.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
