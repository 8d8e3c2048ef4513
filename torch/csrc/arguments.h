// What PyTorch's CPU refuses by types, shapes and places in memory, and its meta kernels do not look at.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

namespace fuseline {

// Throws where what a call writes to overlaps itself, or overlaps what it reads otherwise than by being the same.
void check_overlaps(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
// Throws where tensors have element types that the overload does not take together.
void check_types(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);

}  // namespace fuseline
