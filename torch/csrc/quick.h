// Kernels without a stack in front of the boxed one (kernel.cpp), for the overloads that programs
// call most.
#pragma once

#include <ATen/core/boxing/BoxedKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace fuseline {

// Registers one for an overload if there is one; the boxed kernel takes what it leaves.
bool register_quick(torch::Library& library, const c10::OperatorHandle& op, const c10::BoxedKernel& boxed);

}  // namespace fuseline
