// Kernels without a stack in front of the boxed kernel (kernel.cpp), for the most frequent
// overloads.
#pragma once

#include <ATen/core/boxing/BoxedKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace fuseline {

// Registers such a kernel for an overload, if there is one. It delegates the remaining cases to the
// boxed kernel.
bool register_quick(torch::Library& library, const c10::OperatorHandle& op, const c10::BoxedKernel& boxed);

}  // namespace fuseline
