//! Silences the log of plugins on standard error.
//!
//! XLA's plugins log every client. The variable with the log level must be in the environment
//! before the library is loaded. Changing the environment of a process that may have threads is
//! unsafe, and this crate forbids unsafe code. The tool therefore re-executes itself, in the same
//! process, with the variable set. That costs a millisecond.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// XLA's variable: 0 shows everything, 1 hides information, 2 warnings, 3 errors.
const LOG_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";

/// Hides XLA's informational messages unless the user has set a level. Call it before doing
/// anything that re-executing would lose.
pub(crate) fn hush_plugins() {
    if std::env::var_os(LOG_LEVEL).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // This returns only on failure, which leaves some log lines on standard error.
    drop(command.args(arguments).env(LOG_LEVEL, "1").exec());
}
