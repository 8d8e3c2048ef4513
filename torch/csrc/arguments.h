// Checks of types, numbers and memory overlap that PyTorch's CPU makes and its meta kernels omit.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <string_view>
#include <vector>

namespace fuseline {

// Throws if a written tensor overlaps itself, or overlaps an operand without being identical to it.
void check_overlaps(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
// Throws if the overload does not take the element types of its tensors. `args` has no `out=`
// tensors.
void check_types(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);
// Throws if the operator does not write a result of type `result` to a tensor of type `given`.
void check_out(const c10::OperatorHandle& op, c10::ScalarType given, c10::ScalarType result);
// The operator's name without namespace and without the trailing underscore of in-place variants.
std::string_view base_of(const c10::OperatorHandle& op);

// Converts the numbers among an operator's arguments to the type of its result.
class ScalarConversion {
 public:
  explicit ScalarConversion(const c10::OperatorHandle& op);
  bool converts(size_t at) const { return !limits_.empty() && limits_[at] != 0; }
  // Converts the number of the argument at this position. Throws if the type does not hold it.
  c10::Scalar convert(size_t at, const c10::Scalar& number, c10::ScalarType type) const;

 private:
  // A Limit plus 1 for each argument; 0 if the argument is not converted.
  std::vector<char> limits_;
};

}  // namespace fuseline
