//! Captures a running program as a file.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use fuseline_fusion::program::{Check, Program, ProgramId, ProgramOp, ProgramValue, Role};
use fuseline_fusion::{Literal, Signature, ValueId};
use fuseline_sync::atomic::{AtomicBool, Ordering};
use fuseline_sync::{Mutex, Rank};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

#[derive(Default)]
struct CaptureState {
    /// The program's ids of values, and the next id.
    ids: HashMap<ValueId, ProgramId>,
    next: u32,
    /// Values from outside, kept so that their data can be read at the end.
    inputs: Vec<(ProgramId, Tensor)>,
    ops: Vec<ProgramOp>,
}

impl CaptureState {
    fn fresh(&mut self, value: ValueId) -> ProgramId {
        let id = ProgramId(self.next);
        self.next += 1;
        self.ids.insert(value, id);
        id
    }
}

/// The capture of an engine, if one is in progress.
pub(crate) struct Captures {
    on: AtomicBool,
    state: Mutex<Option<CaptureState>>,
}

impl Captures {
    pub(crate) fn new() -> Captures {
        Captures { on: AtomicBool::new(false), state: Mutex::new(Rank::Captures, None) }
    }

    /// Whether ops are captured. One relaxed load in every record.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Adds an op.
    pub(crate) fn record(&self, signature: &Arc<Signature>, operands: &[&Tensor], results: &[Tensor]) {
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut() else { return };
        let operands = operands
            .iter()
            .map(|tensor| {
                if let Some(&id) = state.ids.get(&tensor.id()) {
                    return id;
                }
                let id = state.fresh(tensor.id());
                state.inputs.push((id, (*tensor).clone()));
                id
            })
            .collect();
        let results = results.iter().map(|tensor| state.fresh(tensor.id())).collect();
        state.ops.push(ProgramOp { signature: signature.clone(), operands, results });
    }
}

impl fmt::Debug for Captures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Captures({})", if self.is_on() { "on" } else { "off" })
    }
}

/// The data of a tensor, which must be the same on all replicas.
fn common(tensor: &Tensor) -> Result<Literal> {
    let mut each = tensor.read_replicas()?;
    let first = each.swap_remove(0);
    if each.iter().all(|data| *data == first) {
        return Ok(first);
    }
    let message = format!(
        "capture: {tensor:?} differs between the replicas, but a program has one set of data for all of them"
    );
    Err(Error::misuse(message, fuseline_fusion::Site::Unknown))
}

impl Engine {
    /// Runs `f` and returns its tensors with the program that was recorded: every op that reached
    /// this engine meanwhile, from any thread. Values from outside are inputs with their data. The
    /// returned tensors are outputs, and their values are the expected results. The program can be
    /// saved in the program format, to run elsewhere, to inspect, or to attach to a bug report.
    ///
    /// The program runs as it would have. Captured inputs are kept alive until the end, so their
    /// memory is not reused.
    ///
    /// # Errors
    /// When `f` fails, when a capture of this engine is already in progress, or when a value cannot
    /// be read. Also when an input or a returned tensor differs between replicas, because a program
    /// has one set of data.
    pub fn capture(
        &self,
        name: &str,
        f: impl FnOnce() -> Result<Vec<Tensor>>,
    ) -> Result<(Vec<Tensor>, Program)> {
        struct Off<'a>(&'a Captures);
        impl Drop for Off<'_> {
            fn drop(&mut self) {
                self.0.on.store(false, Ordering::Relaxed);
                *self.0.state.lock() = None;
            }
        }
        Error::unless_forked(&fuseline_fusion::Site::Unknown)?;
        let captures = self.shared().captures();
        {
            let mut state = captures.state.lock();
            if state.is_some() {
                let message = "a capture of this engine is already in progress";
                return Err(Error::misuse(message, fuseline_fusion::Site::Unknown));
            }
            *state = Some(CaptureState::default());
        }
        let off = Off(captures);
        captures.on.store(true, Ordering::Relaxed);
        let outputs = f()?;
        captures.on.store(false, Ordering::Relaxed);
        let mut state = captures.state.lock().take().unwrap_or_default();
        drop(off);
        let mut values = Vec::new();
        let mut ids = Vec::new();
        for tensor in &outputs {
            // A tensor that was created before is an input that is returned unchanged.
            let id = match state.ids.get(&tensor.id()) {
                Some(&id) => id,
                None => {
                    let id = state.fresh(tensor.id());
                    state.inputs.push((id, tensor.clone()));
                    id
                }
            };
            ids.push(id);
        }
        for (id, tensor) in &state.inputs {
            values.push(ProgramValue { id: *id, role: Role::Input, data: Arc::new(common(tensor)?) });
        }
        let expected = outputs.iter().map(common).collect::<Result<Vec<_>>>()?;
        let program = Program {
            name: name.to_owned(),
            source: "captured".to_owned(),
            class: String::new(),
            values,
            ops: state.ops,
            outputs: ids,
            checks: vec![Check::almost(1e-4).expect("not negative"); expected.len()],
            expected,
        };
        Ok((outputs, program))
    }
}
