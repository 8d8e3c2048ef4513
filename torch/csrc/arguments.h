// What PyTorch's CPU refuses by types, numbers and places in memory, and its meta kernels do not look
// at.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <string_view>
#include <vector>

namespace fuseline {

// Throws where what a call writes to overlaps itself, or overlaps what it reads otherwise than by being the same.
void check_overlaps(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
// Throws where tensors have element types that the overload does not take (types.cpp). The arguments
// are those of the schema that are not written to only.
void check_types(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);
// Throws where the operator does not write results of a type to a tensor of another.
void check_out(const c10::OperatorHandle& op, c10::ScalarType given, c10::ScalarType result);
// The operator's name without namespace, and without the underscore of those that work in place.
std::string_view base_of(const c10::OperatorHandle& op);

// Which numbers an operator converts to the type of its result.
class NumberRule {
 public:
  explicit NumberRule(const c10::OperatorHandle& op);
  bool has(size_t at) const { return !limits_.empty() && limits_[at] != 0; }
  // The number of an argument. Throws where the type does not hold it.
  c10::Scalar convert(size_t at, const c10::Scalar& number, c10::ScalarType type) const;

 private:
  // By the place of the argument; 0 for those that are not converted.
  std::vector<char> limits_;
};

}  // namespace fuseline
