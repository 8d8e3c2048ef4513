//! The functions that compute the ops, by op code.
//!
//! The matches are exhaustive, so an op without a function does not compile. Elementwise ops in the
//! lists of the op table need no entry here, only their arithmetic in `kernel.rs`.

use fuseline_fusion::{
    Literal, OpCode, for_each_binary_op, for_each_chlo_binary_op, for_each_chlo_unary_op, for_each_unary_op,
};

use super::{
    EvalCall, EvalError, JointCall, chlo, collective, composite, contraction, control, dynamic, elementwise,
    fft, handler, indexing, linalg, movement, reduction, source,
};

/// Computes a call on one replica.
type Eval = fn(&EvalCall<'_>) -> Result<Vec<Literal>, EvalError>;

/// Computes a call on all replicas: the results of each, from the operands of all.
type Joint = fn(&JointCall<'_>) -> Result<Vec<Vec<Literal>>, EvalError>;

/// A pattern for the op codes of a list.
macro_rules! codes {
    ($dialect:ident; $(($code:ident, $($rest:tt)*)),* $(,)?) => {
        $(OpCode::$code)|*
    };
}

/// The function that computes an op on one replica.
pub(super) fn eval(op: OpCode) -> Eval {
    match op {
        for_each_unary_op!(codes)
        | for_each_binary_op!(codes)
        | for_each_chlo_unary_op!(codes)
        | for_each_chlo_binary_op!(codes) => elementwise::map,
        OpCode::Clamp
        | OpCode::Compare
        | OpCode::Complex
        | OpCode::Convert
        | OpCode::Imag
        | OpCode::IsFinite
        | OpCode::IsInf
        | OpCode::IsNegInf
        | OpCode::IsPosInf
        | OpCode::Real
        | OpCode::ReducePrecision
        | OpCode::Select => elementwise::map,
        OpCode::BitcastConvert => elementwise::bitcast_convert,
        OpCode::Constant => source::constant,
        OpCode::Iota => source::iota,
        OpCode::RngBitGenerator => source::rng_bit_generator,
        OpCode::Rng => source::rng,
        OpCode::BroadcastInDim => movement::broadcast_in_dim,
        OpCode::Reshape => movement::reshape,
        OpCode::Transpose => movement::transpose,
        OpCode::Slice => movement::slice,
        OpCode::Concatenate => movement::concatenate,
        OpCode::Pad => movement::pad,
        OpCode::Reverse => movement::reverse,
        OpCode::DynamicSlice => movement::dynamic_slice,
        OpCode::DynamicUpdateSlice => movement::dynamic_update_slice,
        OpCode::OptimizationBarrier => movement::optimization_barrier,
        OpCode::Reduce => reduction::reduce,
        OpCode::ReduceWindow => reduction::reduce_window,
        OpCode::SelectAndScatter => reduction::select_and_scatter,
        OpCode::DotGeneral => contraction::dot_general,
        OpCode::Convolution => contraction::convolution,
        OpCode::Gather => indexing::gather,
        OpCode::Scatter => indexing::scatter,
        OpCode::While => control::while_loop,
        OpCode::If | OpCode::Case => control::branches,
        OpCode::Sort => control::sort,
        OpCode::Map => control::map,
        OpCode::Composite => composite::composite,
        OpCode::CustomCall => handler::custom_call,
        OpCode::Fft => fft::fft,
        OpCode::Cholesky => linalg::cholesky,
        OpCode::TriangularSolve => linalg::triangular_solve,
        OpCode::BatchNormTraining | OpCode::BatchNormInference | OpCode::BatchNormGrad => {
            linalg::by_definition
        }
        OpCode::GetDimensionSize => dynamic::get_dimension_size,
        OpCode::DynamicBroadcastInDim
        | OpCode::DynamicConv
        | OpCode::DynamicGather
        | OpCode::DynamicIota
        | OpCode::DynamicPad
        | OpCode::DynamicReshape => dynamic::dynamic,
        OpCode::TopK => chlo::top_k,
        OpCode::RaggedDot => chlo::ragged_dot,
        OpCode::Scan => chlo::scan,
        OpCode::AllGather
        | OpCode::AllReduce
        | OpCode::AllToAll
        | OpCode::CollectiveBroadcast
        | OpCode::CollectivePermute
        | OpCode::ReduceScatter
        | OpCode::ReplicaId => alone,
        OpCode::PartitionId => collective::partition_id,
    }
}

/// The function that computes an op on all replicas together, for ops that allow it
/// ([`fuseline_fusion::op::Replicas`]).
pub(super) fn joint(op: OpCode) -> Option<Joint> {
    Some(match op {
        OpCode::AllGather => collective::all_gather,
        OpCode::AllReduce => collective::all_reduce,
        OpCode::AllToAll => collective::all_to_all,
        OpCode::CollectiveBroadcast => collective::collective_broadcast,
        OpCode::CollectivePermute => collective::collective_permute,
        OpCode::ReduceScatter => collective::reduce_scatter,
        OpCode::ReplicaId => collective::replica_id,
        OpCode::While => control::while_in_step,
        OpCode::If | OpCode::Case => control::branches_in_step,
        OpCode::Composite => composite::in_step,
        _ => return None,
    })
}

/// A collective op in a program of one replica.
///
/// # Errors
/// If its groups name more replicas.
fn alone(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let joint = joint(call.signature.op()).expect("bug: a collective without a joint kernel");
    let mut each = joint(&JointCall {
        arithmetic: call.arithmetic,
        signature: call.signature,
        operands: &[call.operands.to_vec()],
    })?;
    Ok(each.pop().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::op::{OPS, Replicas};

    use super::*;

    /// The compiler ensures that every op has a function for one replica.
    #[test]
    fn ops_that_replicas_compute_together_have_a_function_for_all() {
        for def in &OPS {
            assert_eq!(joint(def.code).is_some(), def.replicas != Replicas::Apart, "{}", def.name);
        }
    }
}
