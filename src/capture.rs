//! Captures a running program as a file.

use std::sync::Arc;

use fuseline_fusion::program::{Check, Program, ProgramValue, Role};
use fuseline_fusion::{Literal, Site};
use fuseline_runtime::{Error, Result};

use crate::engine::Engine;
use crate::handle::Tensor;

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
    Err(Error::misuse(message, Site::Unknown))
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
        Error::unless_forked(&Site::Unknown)?;
        let Some(capture) = self.shared().captures().begin() else {
            let message = "a capture of this engine is already in progress";
            return Err(Error::misuse(message, Site::Unknown));
        };
        let outputs = f()?;
        let mut state = capture.finish();
        let mut values = Vec::new();
        // A tensor that was created before is an input that is returned unchanged.
        let ids = outputs.iter().map(|tensor| state.id_of(tensor.handle())).collect();
        for (id, tensor) in &state.inputs {
            values.push(ProgramValue {
                id: *id,
                role: Role::Input,
                data: Arc::new(common(&Tensor::from_handle(tensor.clone()))?),
            });
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
