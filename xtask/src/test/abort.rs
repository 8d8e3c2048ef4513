//! Runs the library in a build with `panic = "abort"`, to see what a panic in the user's code does.
//!
//! The program is `tests/abort`. It behaves like a test binary. Each of its cases runs in a process
//! of its own, whose end it checks. It prints `skipped: REASON` if there is no plugin.
//!
//! The build is kept cheap: the flag is passed to the compiler rather than set in a profile, and
//! the target is explicit, so build scripts and macros are shared with the other stages (a profile
//! would rebuild them, half of the total). Nothing is optimized, because the program computes next
//! to nothing.

use std::process::Command;
use std::time::{Duration, Instant};

use super::isolate;
use super::models::triple;
use super::tally::Tally;
use crate::host::Host;
use crate::time;

/// Flags of this build beyond the test profile.
const FLAGS: &str = "-Cpanic=abort -Copt-level=0 -Cdebuginfo=0";

/// The time limit of a case. The program ends its child process earlier.
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
        return Tally::failed("cases", "the program lists no cases");
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
