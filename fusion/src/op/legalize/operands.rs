//! The types in which ops with a body combine their operands.

use super::Builder;
use crate::dtype::DType;
use crate::error::OpError;
use crate::ir::{OpCode, Ref};
use crate::op::def::Call;
use crate::shape::TensorType;

/// The type in which the last body combines operand `index`; `None` for the indices of a `scatter`.
pub(super) fn combined_type(call: &Call<'_>, index: usize) -> Option<DType> {
    let types: Vec<DType> = call.bodies.last()?.return_types().map(TensorType::dtype).collect();
    let count = types.len();
    let index = match call.def.code {
        OpCode::Scatter if index == count => return None,
        OpCode::Scatter if index > count => index - 1,
        _ => index,
    };
    types.get(index % count).copied()
}

/// Whether all operands have the types in which they are combined.
pub(super) fn is_uniform(call: &Call<'_>) -> bool {
    let fits = |index: usize| combined_type(call, index).is_none_or(|to| to == call.operand(index).dtype());
    (0..call.operands.len()).all(fits)
}

/// A graph with the operands converted to the types in which they are combined.
pub(super) fn converted(call: &Call<'_>) -> Result<(Builder, Vec<Ref>), OpError> {
    let (mut graph, mut operands) = Builder::of(call);
    for (index, operand) in operands.iter_mut().enumerate() {
        if let Some(to) = combined_type(call, index) {
            *operand = graph.convert(*operand, call.operand(index).dtype(), to)?;
        }
    }
    Ok((graph, operands))
}
