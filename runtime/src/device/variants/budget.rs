//! When a compile pays: once as much time was lost without it.

use std::time::Duration;

/// Counts executions until the time that they lose exceeds that of a compile.
///
/// The decision follows from estimates and never from a clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    executions: u64,
    /// The number of executions that pays the next compile.
    enough: u64,
    /// The number of compile times that must be lost for the next compile.
    multiple: u32,
}

impl Budget {
    /// The first compile takes one compile time.
    pub(super) fn new() -> Budget {
        Budget { executions: 0, enough: u64::MAX, multiple: 1 }
    }

    /// The executions counted.
    pub(super) fn executions(&self) -> u64 {
        self.executions
    }

    /// Sets what an execution loses from now on. The executions counted so far count as well.
    pub(super) fn set_loss(&mut self, loss: Duration, compile: Duration) {
        let compile = compile.as_nanos().saturating_mul(u128::from(self.multiple));
        self.enough = u64::try_from(compile.div_ceil(loss.as_nanos().max(1))).unwrap_or(u64::MAX);
    }

    /// Counts an execution. Whether a compile pays now.
    pub(super) fn count(&mut self) -> bool {
        self.executions += 1;
        self.executions >= self.enough
    }

    /// Starts the count again.
    pub(super) fn restart(&mut self) {
        self.executions = 0;
    }

    /// Starts the count again after a compile. The next takes `patience` times as much.
    pub(super) fn spend(&mut self, patience: u32) {
        self.executions = 0;
        self.multiple = self.multiple.saturating_mul(patience);
    }
}
