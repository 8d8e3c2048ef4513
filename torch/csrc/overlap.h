// Writes to tensors that share memory with themselves or with an operand.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fuseline {

// Whether two elements of a tensor are at one place of its storage.
bool overlaps_itself(const at::Tensor& tensor);
// Throws if the tensor overlaps itself, or overlaps an operand without being identical to it.
void check_target(const at::Tensor& target, at::TensorList operands);
// Throws if a written tensor of a call overlaps itself, or overlaps an operand without being
// identical to it, and the CPU reports that or leaves the result open. Operators that resize their
// results before the CPU checks them are checked if `is_resized`, all others if not.
void check_overlaps(const c10::OperatorHandle& op, const torch::jit::Stack& stack, bool is_resized = false);
// Computes a call whose written tensor overlaps itself, if the result depends on that. Returns
// false, with the stack unchanged, if the call is to be computed like any other.
bool write_overlapping(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace fuseline
