//! `cargo xtask demo`: builds and runs the example `digits`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;

use crate::host::{self, Host};
use crate::time;

/// The example that the demo runs.
const EXAMPLE: &str = "digits";

/// Builds and runs the demo. Passes its output through and returns its exit status.
pub(crate) fn run(host: &Host, arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    if !host.root.join("examples").join(EXAMPLE).is_dir()
        && !host.root.join(format!("examples/{EXAMPLE}.rs")).is_file()
    {
        anyhow::bail!("this checkout has no example `{EXAMPLE}`");
    }
    let start = Instant::now();
    host.build(&["--release", "--example", EXAMPLE])?;
    eprintln!("demo: built in {}", time::human(start.elapsed()));

    let start = Instant::now();
    let mut demo = host.cargo();
    demo.args(["run", "--quiet", "--locked", "--release", "--example", EXAMPLE, "--"]).args(arguments);
    let code = host::exit_code(demo.status().context("could not start cargo")?);
    eprintln!("demo: ran in {}", time::human(start.elapsed()));
    code
}
