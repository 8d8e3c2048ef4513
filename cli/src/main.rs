//! The command-line tool `fuseline`: runs programs of the program format, explains their regions,
//! and describes the PJRT plugins and devices of a machine.
//!
//! Every command builds its answer as text, which `main` prints at the end. Notes and errors go to
//! standard error. A reader that closes the pipe early (`fuseline ... | head`) neither aborts the
//! command nor changes its exit status.
#![forbid(unsafe_code)]

mod bench;
mod cache;
mod capabilities;
mod cli;
mod device;
mod devices;
mod doctor;
mod explain;
mod failure;
mod import;
mod load;
mod memory_trial;
mod ops;
mod options;
mod plugin_environment;
mod probe;
mod qualify;
mod region_history;
mod report;
mod run;
mod text;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use fuseline::Mode;
use serde_json::json;

use cli::{Cli, Command};
use failure::Failure;

/// The outcome of a command that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Everything is as it should be.
    Good,
    /// A result is wrong, or nothing is usable.
    Bad,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version arrive here too. If this cannot be printed, no one is left to read
            // it.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    if cli.command.loads_plugin() {
        plugin_environment::prepare_for_plugins();
    }
    let mut out = String::new();
    let outcome = dispatch(&cli.command, &mut out);
    let code = match outcome {
        Ok(Status::Good) => 0,
        Ok(Status::Bad) => 1,
        Err(failure) => {
            text::note(format_args!("fuseline: {failure}"));
            if cli.command.wants_json() {
                let document = json!({"status": failure.status(), "error": failure.to_string()});
                out = format!("{document:#}\n");
            }
            failure.exit_status()
        }
    };
    let out = text::printed(&out, cli.command.prints_json());
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            text::note(format_args!("fuseline: standard output cannot be written: {error}"));
            ExitCode::from(code.max(1))
        }
        _ => ExitCode::from(code),
    }
}

fn dispatch(command: &Command, out: &mut String) -> Result<Status, Failure> {
    match command {
        Command::Run(args) => run::run(args, out),
        Command::Explain(args) => explain::run(args, out),
        Command::Doctor(args) => doctor::run(args, out),
        Command::Devices(args) => devices::run(args, out),
        Command::Ops(args) => ops::run(args, out),
        Command::Import(args) => import::run(args, out),
        Command::Bench(args) => bench::run(args, out),
        Command::Cache(args) => cache::run(args, out),
        Command::Probe(args) => Ok(probe::run(args, out)),
        Command::Qualify(args) => qualify::run(args, out),
        Command::QualifyWorker => qualify::work(),
        Command::MemoryTrial(args) => memory_trial::run(args, out),
    }
}
