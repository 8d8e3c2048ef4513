//! `cargo xtask`: set-up, demo, measurements and tests of this workspace.
//!
//! This program depends on no other crate of the workspace, so it builds before libclang and protoc
//! are there. Providing them is its first job.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks to its user")]

mod bench;
mod callgrind;
mod capi;
mod cli;
mod demo;
mod env;
mod host;
mod micro;
mod outside;
mod setup;
mod skip;
mod soak;
mod test;
mod time;
mod trip;

use std::process::ExitCode;

use cli::Command;
use host::Host;

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os().skip(1).collect()) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("xtask: {message}\n\n{}", cli::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Help => {
            println!("{}", cli::USAGE);
            Ok(ExitCode::SUCCESS)
        }
        Command::ListStages => {
            print!("{}", test::list());
            Ok(ExitCode::SUCCESS)
        }
        Command::Setup => {
            let done = set_up(&Host::detect()?)?;
            if done == setup::Done::Ready {
                println!("set-up: nothing to do");
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Env(folder) => {
            let host = env::host()?;
            set_up(&host)?;
            match folder {
                None => print!("{}", env::exports(&host.root)?),
                Some(folder) => {
                    let path = env::configure(&host.root, &folder)?;
                    println!("{} sets the variables that a build needs", path.display());
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo(arguments) => {
            let host = Host::detect()?;
            set_up(&host)?;
            demo::run(&host, &arguments)
        }
        Command::Capi(prefix) => {
            let host = Host::detect()?;
            set_up(&host)?;
            capi::run(&host, &prefix)
        }
        Command::Bench(arguments) => {
            let host = Host::detect()?;
            set_up(&host)?;
            bench::run(&host, &arguments)
        }
        Command::Micro(arguments) => {
            let host = Host::detect()?;
            set_up(&host)?;
            micro::run(&host, &arguments)
        }
        Command::Outside => {
            let host = Host::detect()?;
            set_up(&host)?;
            outside::run(&host)
        }
        Command::Trip => {
            let host = Host::detect()?;
            set_up(&host)?;
            trip::run(&host)
        }
        Command::Soak(arguments) => soak::run(&Host::detect()?, &arguments),
        Command::TestFull(arguments) => test::full::run(&Host::detect()?, &arguments),
        Command::Test(selection) => test::run(&Host::detect()?, &selection),
    }
}

/// Runs set-up and reports its duration if it did anything.
fn set_up(host: &Host) -> anyhow::Result<setup::Done> {
    use anyhow::Context as _;
    let done = setup::ensure(host).context("set-up")?;
    if let setup::Done::Provided(took) = done {
        eprintln!("set-up: done in {}", time::human(took));
    }
    Ok(done)
}
