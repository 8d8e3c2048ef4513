//! The generators of calls, by op code. The match is exhaustive, so an op without a generator does
//! not compile.

use fuseline_fusion::{
    OpCode, for_each_binary_op, for_each_chlo_binary_op, for_each_chlo_unary_op, for_each_unary_op,
};

use super::{
    Sample, Sampler, chlo, collective, composite, contraction, control, dynamic, elementwise, handler,
    indexing, linalg, movement, reduction, source,
};

/// Generates a valid call on operands of a pool; `None` if no value fits.
type Generator = fn(&mut Sampler<'_>) -> Option<Sample>;

/// A pattern for the op codes of a list.
macro_rules! codes {
    ($dialect:ident; $(($code:ident, $($rest:tt)*)),* $(,)?) => {
        $(OpCode::$code)|*
    };
}

/// The generator of an op.
pub(super) fn generator(op: OpCode) -> Generator {
    match op {
        for_each_unary_op!(codes) | for_each_chlo_unary_op!(codes) => elementwise::unary,
        OpCode::Imag
        | OpCode::IsFinite
        | OpCode::IsInf
        | OpCode::IsNegInf
        | OpCode::IsPosInf
        | OpCode::Real => elementwise::unary,
        for_each_binary_op!(codes) | for_each_chlo_binary_op!(codes) => elementwise::binary,
        OpCode::Complex => elementwise::binary,
        OpCode::Compare => elementwise::compare,
        OpCode::Select => elementwise::select,
        OpCode::Clamp => elementwise::clamp,
        OpCode::Convert => elementwise::convert,
        OpCode::BitcastConvert => elementwise::bitcast_convert,
        OpCode::ReducePrecision => elementwise::reduce_precision,
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
        OpCode::If => control::if_else,
        OpCode::Case => control::case,
        OpCode::Sort => control::sort,
        OpCode::Map => control::map,
        OpCode::Composite => composite::composite,
        OpCode::CustomCall => handler::custom_call,
        OpCode::Fft => linalg::fft,
        OpCode::Cholesky => linalg::cholesky,
        OpCode::TriangularSolve => linalg::triangular_solve,
        OpCode::BatchNormTraining | OpCode::BatchNormInference | OpCode::BatchNormGrad => linalg::batch_norm,
        OpCode::GetDimensionSize => dynamic::get_dimension_size,
        OpCode::DynamicBroadcastInDim => dynamic::broadcast_in_dim,
        OpCode::DynamicConv => dynamic::conv,
        OpCode::DynamicGather => dynamic::gather,
        OpCode::DynamicIota => dynamic::iota,
        OpCode::DynamicPad => dynamic::pad,
        OpCode::DynamicReshape => dynamic::reshape,
        OpCode::TopK => chlo::top_k,
        OpCode::RaggedDot => chlo::ragged_dot,
        OpCode::Scan => chlo::scan,
        OpCode::AllGather => collective::all_gather,
        OpCode::AllReduce => collective::all_reduce,
        OpCode::AllToAll => collective::all_to_all,
        OpCode::CollectiveBroadcast => collective::collective_broadcast,
        OpCode::CollectivePermute => collective::collective_permute,
        OpCode::ReduceScatter => collective::reduce_scatter,
        OpCode::ReplicaId | OpCode::PartitionId => collective::place,
    }
}
