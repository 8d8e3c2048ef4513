//! Sets environment variables that plugins read when they are loaded: what they log, and whether
//! they look for a TPU in the network.
//!
//! The variables must be in the environment before the library is loaded. Changing the environment
//! of a process that may have threads is unsafe, and this crate forbids unsafe code. The tool
//! therefore re-executes itself, in the same process, with the variables set. That costs a
//! millisecond. A variable that the user has set is kept.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// XLA's variable: 0 shows everything, 1 hides information, 2 warnings, 3 errors.
const LOG_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";

/// libtpu's variable: with 1 it does not ask the metadata server of the cloud about its machine.
/// Elsewhere there is no such server, and the library repeats each request 30 times.
const SKIP_METADATA: &str = "TPU_SKIP_MDS_QUERY";

/// The devices on the PCI bus, a folder for each.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Hides XLA's informational messages. Without a TPU, keeps libtpu from asking for its machine.
/// Call this before doing anything that re-executing would lose.
pub(crate) fn prepare_for_plugins() {
    let is_free = |name: &str| std::env::var_os(name).is_none();
    let mut variables = Vec::new();
    if is_free(LOG_LEVEL) {
        variables.push((LOG_LEVEL, "1"));
    }
    if is_free(SKIP_METADATA) && !has_tpu(Path::new(PCI_DEVICES)) {
        variables.push((SKIP_METADATA, "1"));
    }
    if variables.is_empty() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // This returns only on failure, which leaves some log lines on standard error.
    drop(command.args(arguments).envs(variables).exec());
}

/// Whether a TPU may be on the bus: a device of Google that is neither a disk nor a network card,
/// which machines of its cloud have too.
fn has_tpu(devices: &Path) -> bool {
    const GOOGLE: &str = "0x1ae0";
    const STORAGE_AND_NETWORK: [&str; 2] = ["0x01", "0x02"];
    let Ok(devices) = std::fs::read_dir(devices) else { return false };
    devices.flatten().any(|device| {
        let line = |name: &str| std::fs::read_to_string(device.path().join(name)).unwrap_or_default();
        line("vendor").trim() == GOOGLE
            && !STORAGE_AND_NETWORK.iter().any(|class| line("class").starts_with(class))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tpu_is_told_from_other_devices_of_its_vendor() {
        let bus = tempfile::tempdir().expect("a folder");
        assert!(!has_tpu(&bus.path().join("none")) && !has_tpu(bus.path()));
        let add = |name: &str, vendor: &str, class: &str| {
            let device = bus.path().join(name);
            std::fs::create_dir(&device).expect("a folder");
            std::fs::write(device.join("vendor"), format!("{vendor}\n")).expect("a file");
            std::fs::write(device.join("class"), format!("{class}\n")).expect("a file");
        };
        add("0000:00:00.0", "0x8086", "0x060000");
        add("0000:00:01.0", "0x1ae0", "0x020000");
        add("0000:00:02.0", "0x1ae0", "0x010802");
        assert!(!has_tpu(bus.path()));
        add("0000:00:03.0", "0x1ae0", "0x120000");
        assert!(has_tpu(bus.path()));
    }
}
