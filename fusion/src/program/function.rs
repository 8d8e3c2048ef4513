//! Converts functions to programs.

use std::sync::Arc;

use super::{Program, ProgramId, ProgramOp, ProgramValue, Role};
use crate::ir::{Body, Ref};
use crate::literal::Literal;

impl Program {
    /// The program that applies a function to inputs, op by op. Its outputs are the function's
    /// returns. `None` if the inputs do not have the types of the parameters.
    #[must_use]
    pub fn of_function(name: &str, function: &Body, inputs: Vec<Arc<Literal>>) -> Option<Program> {
        let graph = function.graph();
        if !inputs.iter().map(|data| data.ty()).eq(graph.params()) {
            return None;
        }
        let count = inputs.len() as u32;
        let id = |value: Ref| match value {
            Ref::Param(index) => ProgramId(index),
            Ref::Result(index) => ProgramId(count + index),
        };
        let values = (0..).zip(inputs).map(|(index, data)| ProgramValue {
            id: ProgramId(index),
            role: Role::Input,
            data,
        });
        let ops = graph.nodes().iter().map(|node| ProgramOp {
            signature: node.signature().clone(),
            operands: node.operands().iter().map(|&operand| id(operand)).collect(),
            results: node.results().map(id).collect(),
        });
        Some(Program {
            name: name.to_owned(),
            values: values.collect(),
            ops: ops.collect(),
            outputs: function.returns().iter().map(|&value| id(value)).collect(),
            ..Program::default()
        })
    }
}
