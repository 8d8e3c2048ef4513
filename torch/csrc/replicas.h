// The replicas that the device consists of. See replicas.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace fuseline {

// The number of replicas. Opens the engine.
size_t replicas();
// The data of all replicas, in a new first dimension, on the CPU.
at::Tensor download_each(const at::Tensor& tensor);
// The single element of a tensor. Throws if it differs between replicas.
at::Scalar agreed(const at::Tensor& tensor);

}  // namespace fuseline
