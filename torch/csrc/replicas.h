// The replicas that the device consists of. See replicas.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace fuseline {

// How many there are. The engine is open afterwards.
size_t replicas();
// The data of all of them, in a new first dimension, on the CPU.
at::Tensor download_each(const at::Tensor& tensor);
// The one element of a tensor; throws if it is not the same on all replicas.
at::Scalar agreed(const at::Tensor& tensor);

}  // namespace fuseline
