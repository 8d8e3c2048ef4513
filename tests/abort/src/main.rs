//! A program that is built with `panic = "abort"`. The library works in it. A panic in the user's
//! code, wherever the engine or the plugin calls it, ends the process: by SIGABRT, with the panic
//! message, and at once.
//!
//! `cargo xtask test panic-abort` builds and runs it. Cargo makes tests unwind whatever the profile
//! says, so this is not a test but a program that behaves like a test binary. `--list` lists the
//! [`cases`], each on the reference device and on the plugin. `--exact NAME` runs one in a process
//! of its own, which is this program with `--case NAME`, and judges its end.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that answers on its output")]
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test, on real threads")]

mod cases;

use std::env;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};

use cases::{CASES, Case, Device, End, PLANNED};

/// The number of SIGABRT on every supported system.
const SIGABRT: i32 = 6;

/// The time limit of a case; after it, the case counts as hanging.
const LIMIT: Duration = Duration::from_secs(120);

/// The exit status of a case that completed, which is right only for cases that work.
const SURVIVED: u8 = 3;

const DEVICES: [(&str, Device); 2] = [("reference", Device::Reference), ("plugin", Device::Plugin)];

fn main() -> ExitCode {
    if cfg!(not(panic = "abort")) {
        eprintln!("this build unwinds, and shows nothing: cargo xtask test panic-abort");
        return ExitCode::from(2);
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            all().for_each(|(name, ..)| println!("{name}: test"));
        }
        return ExitCode::SUCCESS;
    }
    let find = |wanted: &String| all().find(|(name, ..)| name == wanted);
    if let Some((_, case, device)) = value("--case").and_then(find) {
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        setrlimit(Resource::Core, none).expect("no images of processes that end as planned");
        (case.run)(device);
        if case.end == End::Works {
            return ExitCode::SUCCESS;
        }
        // A panic on another thread may still be coming.
        thread::sleep(LIMIT / 2);
        return ExitCode::from(SURVIVED);
    }
    let Some((name, case, _)) = value("--exact").and_then(find) else {
        eprintln!("say --list, or --exact and the name of a case");
        return ExitCode::from(2);
    };
    match judge(case, &process(&name)) {
        Ok(Some(skipped)) => println!("{skipped}"),
        Ok(None) => println!("{name}: ok"),
        Err(why) => {
            eprintln!("failed: {why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Every case on every device, by its name.
fn all() -> impl Iterator<Item = (String, &'static Case, Device)> {
    let on = |(prefix, device): (&'static str, Device)| {
        CASES.iter().map(move |case| (format!("{prefix}::{}", case.name), case, device))
    };
    DEVICES.into_iter().flat_map(on)
}

/// Runs a case in a process of its own. Returns its output, or `None` as its status if it had to be
/// killed.
fn process(name: &str) -> (Option<Output>, Duration) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--case", name]).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            return (None, start.elapsed());
        }
        thread::sleep(Duration::from_millis(2));
    }
    (Some(child.wait_with_output().unwrap()), start.elapsed())
}

/// Judges the end of a case's process: what it skipped, or what is wrong.
fn judge(case: &Case, (output, took): &(Option<Output>, Duration)) -> Result<Option<String>, String> {
    let Some(output) = output else { return Err(format!("it hangs: ended after {took:.1?}")) };
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    if let Some(skipped) = said.lines().find(|line| line.starts_with("skipped:")) {
        return if status.success() {
            Ok(Some(skipped.to_owned()))
        } else {
            Err(format!("{status}, {skipped}"))
        };
    }
    let panics = complained.matches("panicked at").count();
    let wrong = match case.end {
        End::Works if status.success() && panics == 0 => return Ok(None),
        End::Works => "it should work",
        End::Aborts if status.code() == Some(i32::from(SURVIVED)) => "the panic did not end it",
        End::Aborts if status.signal() != Some(SIGABRT) => "it should be ended by SIGABRT",
        End::Aborts if !complained.contains(PLANNED) => "the panic's words are missing",
        End::Aborts if panics != 1 => "there should be one panic",
        End::Aborts => return Ok(None),
    };
    Err(format!("{wrong}: {status}, {panics} panics, and it said:\n{said}{complained}"))
}
