// Names of c10d that PyTorch before 2.14 lacks or spells in another way.

#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/headeronly/version.h>

namespace fuseline {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
inline constexpr c10d::OpType ALLGATHER_INTO_TENSOR_COALESCED = c10d::OpType::COALESCED;
inline constexpr c10d::OpType REDUCE_SCATTER_TENSOR_COALESCED = c10d::OpType::COALESCED;
#else
using PreMulSumSupplement = c10d::PreMulSumSupplement;
inline constexpr c10d::OpType ALLGATHER_INTO_TENSOR_COALESCED = c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED;
inline constexpr c10d::OpType REDUCE_SCATTER_TENSOR_COALESCED = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#endif

}  // namespace fuseline
