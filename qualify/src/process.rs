//! A worker process, as the parent sees it: a line in, a line out, or the way in which it ended.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::checks::cut;
use crate::worker::{MARK, Setup};

/// The longest time from the start of a process to its first answer. GPU and TPU clients take up to
/// half a minute to start on a cold machine.
const START: Duration = Duration::from_secs(120);

/// Why a worker gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its process ended, or it did not answer in time and was ended; in words.
    Died(String),
    /// It answered that it cannot work.
    Refused(String),
}

impl End {
    pub(crate) fn words(self) -> String {
        match self {
            End::Died(words) | End::Refused(words) => words,
        }
    }
}

/// A running worker. Dropping it ends its process.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    /// The last line of its standard error, once that is closed.
    last_words: Receiver<String>,
}

impl Process {
    /// Starts a worker and waits until its engine is ready.
    pub(crate) fn start(mut command: Command, setup: &Setup) -> Result<Process, End> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| End::Refused(format!("no process can be started: {error}")))?;
        let (send, answers) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let read_answers = move || {
            let Some(stdout) = stdout else { return };
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if let Some(answer) = line.strip_prefix(MARK)
                    && send.send(answer.to_owned()).is_err()
                {
                    return;
                }
            }
        };
        let (tell, last_words) = mpsc::channel();
        let read_errors = move || drop(tell.send(stderr.map(last_line).unwrap_or_default()));
        for (name, work) in [
            ("fuseline-qualify-answers", Box::new(read_answers) as Box<dyn FnOnce() + Send>),
            ("fuseline-qualify-errors", Box::new(read_errors)),
        ] {
            if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(work) {
                drop(child.kill());
                return Err(End::Refused(format!("no thread can be started: {error}")));
            }
        }
        let input = child.stdin.take();
        let mut process = Process { child, input, answers, last_words };
        process.ask(&setup.to_json().to_string(), START)?;
        Ok(process)
    }

    /// Sends a line and waits for the answer, for at most `limit`.
    pub(crate) fn ask(&mut self, line: &str, limit: Duration) -> Result<Value, End> {
        if let Some(input) = &mut self.input {
            // A process that has ended shows in the answer.
            drop(writeln!(input, "{line}").and_then(|()| input.flush()));
        }
        match self.answers.recv_timeout(limit) {
            Ok(answer) => {
                let value: Value = serde_json::from_str(&answer).unwrap_or_default();
                match value["error"].as_str() {
                    Some(error) => Err(End::Refused(error.to_owned())),
                    None => Ok(value),
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                self.end();
                Err(End::Died(format!("no answer within {} seconds", limit.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.input = None;
                let status =
                    self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                let last = self.last_words.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
                let last = if last.is_empty() { last } else { format!("; its last output: {}", cut(&last)) };
                Err(End::Died(format!("the process ended: {status}{last}")))
            }
        }
    }

    fn end(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The last line that is not blank.
fn last_line(from: impl Read) -> String {
    let mut last = String::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if !line.trim().is_empty() {
            line.trim().clone_into(&mut last);
        }
    }
    last
}
