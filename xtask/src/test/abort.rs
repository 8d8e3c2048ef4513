//! Programs that panics end: the library in a build with `panic = "abort"`, and what a panic in the
//! user's code does there.
//!
//! The program is `tests/abort`. It answers as a test binary does, each of its cases being a
//! process of its own that it judges, and prints `skipped: REASON` where there is no plugin.
//!
//! What keeps the build affordable: the flag is given to the compiler and not by a profile, and the
//! target is explicit, so that build scripts and macros are those of the other stages (with a
//! profile cargo builds them anew, half of the whole); nothing is optimised, since the program
//! computes next to nothing.

use std::process::Command;
use std::time::{Duration, Instant};

use super::isolate;
use super::models::triple;
use super::tally::Tally;
use crate::host::Host;
use crate::time;

/// What the profile of tests does not say, and this build does.
const FLAGS: &str = "-Cpanic=abort -Copt-level=0 -Cdebuginfo=0";

/// How long a case may take. The program ends the process that it runs before.
const LIMIT: Duration = Duration::from_secs(300);

/// Builds the program and runs its cases.
pub(crate) fn run(host: &Host) -> Tally {
    let start = Instant::now();
    let binaries = match command(host).and_then(isolate::build_programs) {
        Ok(binaries) => binaries,
        Err(why) => return Tally::failed("build", why),
    };
    println!("built in {}", time::human(start.elapsed()));
    let tally = isolate::run_all(host, &binaries, "", LIMIT, &[]);
    if tally == Tally::default() {
        return Tally::failed("cases", "the program lists none");
    }
    tally
}

fn command(host: &Host) -> Result<Command, String> {
    let mut command = host.cargo();
    let given = host.var("RUSTFLAGS").map(|given| format!("{} ", given.display())).unwrap_or_default();
    command.env("RUSTFLAGS", format!("{given}{FLAGS}"));
    command.args(["build", "--locked", "--package", "fuseline-abort", "--target", &triple(host)?]);
    command.arg("--message-format=json-render-diagnostics");
    Ok(command)
}
