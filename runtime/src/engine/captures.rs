//! The capture of an engine that is in progress, if one is.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use fuseline_fusion::program::{ProgramId, ProgramOp};
use fuseline_fusion::{Signature, ValueId};
use fuseline_sync::atomic::{AtomicBool, Ordering};
use fuseline_sync::{Mutex, Rank};

use super::stream::TensorHandle;

/// What was captured.
#[derive(Debug, Default)]
pub struct CaptureState {
    /// The program's ids of values, and the next id.
    ids: HashMap<ValueId, ProgramId>,
    next: u32,
    /// Values from outside, kept so that their data can be read at the end.
    pub inputs: Vec<(ProgramId, TensorHandle)>,
    pub ops: Vec<ProgramOp>,
}

impl CaptureState {
    /// The id of a value, which is an input if it comes from outside.
    pub fn id_of(&mut self, tensor: &TensorHandle) -> ProgramId {
        if let Some(&id) = self.ids.get(&tensor.id()) {
            return id;
        }
        let id = self.fresh(tensor.id());
        self.inputs.push((id, tensor.clone()));
        id
    }

    fn fresh(&mut self, value: ValueId) -> ProgramId {
        let id = ProgramId(self.next);
        self.next += 1;
        self.ids.insert(value, id);
        id
    }
}

/// The capture of an engine, if one is in progress.
pub struct Captures {
    on: AtomicBool,
    state: Mutex<Option<CaptureState>>,
}

impl Captures {
    pub(crate) fn new() -> Captures {
        Captures { on: AtomicBool::new(false), state: Mutex::new(Rank::Captures, None) }
    }

    /// Whether ops are captured. One relaxed load in every record.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Begins a capture. `None` if one is in progress.
    pub fn begin(&self) -> Option<CaptureGuard<'_>> {
        let mut state = self.state.lock();
        if state.is_some() {
            return None;
        }
        *state = Some(CaptureState::default());
        drop(state);
        self.on.store(true, Ordering::Relaxed);
        Some(CaptureGuard(self))
    }

    /// Adds an op.
    pub(crate) fn record(
        &self,
        signature: &Arc<Signature>,
        operands: &[&TensorHandle],
        results: &[TensorHandle],
    ) {
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut() else { return };
        let operands = operands.iter().map(|tensor| state.id_of(tensor)).collect();
        let results = results.iter().map(|tensor| state.fresh(tensor.id())).collect();
        state.ops.push(ProgramOp { signature: signature.clone(), operands, results });
    }
}

/// A capture in progress. Dropping it ends the capture.
#[derive(Debug)]
pub struct CaptureGuard<'a>(&'a Captures);

impl CaptureGuard<'_> {
    /// Ends the capture and returns what was captured.
    pub fn finish(self) -> CaptureState {
        self.0.on.store(false, Ordering::Relaxed);
        self.0.state.lock().take().unwrap_or_default()
    }
}

impl Drop for CaptureGuard<'_> {
    fn drop(&mut self) {
        self.0.on.store(false, Ordering::Relaxed);
        *self.0.state.lock() = None;
    }
}

impl fmt::Debug for Captures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Captures({})", if self.is_on() { "on" } else { "off" })
    }
}
