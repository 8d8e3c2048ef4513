// Checks of types and numbers that PyTorch's CPU makes and its meta kernels omit.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

namespace fuseline {

// Throws if the overload does not take the element types of its tensors. `args` has no `out=`
// tensors.
void check_types(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);
// Throws if the operator does not write a result of type `result` to a tensor of type `given`.
void check_out(const c10::OperatorHandle& op, c10::ScalarType given, c10::ScalarType result);
// Whether the result has the type of the `out=` tensor if the argument `dtype` is not given.
bool takes_type_of_out(const c10::OperatorHandle& op);
// Whether the result is converted to the type of the `out=` tensor, whatever it is.
bool converts_to_out(const c10::OperatorHandle& op);
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
