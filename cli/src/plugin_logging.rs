//! Keeping plugins from talking on standard error.
//!
//! XLA's plugins log every client they start. The variable that says how much has to be in the environment before the
//! library is loaded. Changing a process's own environment is unsafe in a program that may have threads, and this one
//! forbids unsafe code; so it starts itself anew, in the same process, with the variable set. That costs a millisecond.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// XLA's variable: 0 shows everything, 1 leaves out information, 2 warnings, 3 errors.
const LOG_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";

/// Leaves out XLA's informational messages, unless the user has said how much to show. Called before anything that would be
/// lost by starting anew.
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
    // It only returns when it fails, and then there are a few lines too many on standard error.
    drop(command.args(arguments).env(LOG_LEVEL, "1").exec());
}
