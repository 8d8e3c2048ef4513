// User-defined ops, which are StableHLO modules (torch_fuseline/_custom.py), as one op of the
// dispatcher that takes their number.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <sstream>

#include "site.h"
#include "storage.h"

namespace fuseline {
namespace {

struct Type {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> dims;
};

Type type_at(size_t op, bool is_result, size_t at) {
  std::array<int64_t, 8> dims{};
  FltType type{};
  check(flt_custom_type(op, is_result, at, dims.data(), &type));
  Type found;
  found.dims.assign(dims.begin(), dims.begin() + type.rank);
  for (int8_t one = 0; one < static_cast<int8_t>(c10::ScalarType::NumOptions); ++one)
    if (code_of(static_cast<c10::ScalarType>(one)) == type.dtype) found.dtype = static_cast<c10::ScalarType>(one);
  TORCH_CHECK(found.dtype != c10::ScalarType::Undefined,
              device_name(), ": a custom op has an element type that PyTorch lacks");
  return found;
}

std::string words(c10::ScalarType dtype, c10::IntArrayRef dims) {
  std::ostringstream text;
  text << dtype << dims;
  return text.str();
}

// Types of the results, if the operands fit.
std::vector<Type> results_of(int64_t op, at::TensorList operands) {
  size_t takes = 0, gives = 0;
  check(flt_custom_arity(static_cast<size_t>(op), &takes, &gives));
  TORCH_CHECK(operands.size() == takes, device_name(), ": the custom op takes ", takes, " tensors, not ",
              operands.size());
  for (size_t at = 0; at < takes; ++at) {
    const Type wanted = type_at(op, false, at);
    const at::Tensor& given = operands[at];
    TORCH_CHECK(given.scalar_type() == wanted.dtype && given.sizes() == c10::IntArrayRef(wanted.dims), device_name(),
                ": operand ", at,
                " of the custom op is ", words(wanted.dtype, wanted.dims), ", not ", words(given.scalar_type(), given.sizes()),
                "; a module has fixed types");
  }
  std::vector<Type> results;
  for (size_t at = 0; at < gives; ++at) results.push_back(type_at(op, true, at));
  return results;
}

std::vector<at::Tensor> call(int64_t op, at::TensorList operands) {
  const CallSite site;
  const std::vector<Type> types = results_of(op, operands);
  std::vector<Value> values, results(types.size());
  for (const at::Tensor& operand : operands) {
    TORCH_CHECK(is_ours(operand),
                device_name(), ": a custom op takes tensors on the device ", device_name(), ", not on ",
                operand.device());
    values.push_back(read(operand));
  }
  check(flt_custom_call(static_cast<size_t>(op), values.empty() ? nullptr : values[0].get(), values.size(),
                        results.empty() ? nullptr : results[0].out(), results.size()));
  std::vector<at::Tensor> tensors;
  for (size_t at = 0; at < types.size(); ++at) tensors.push_back(make(std::move(results[at]), types[at].dtype, types[at].dims));
  return tensors;
}

std::vector<at::Tensor> call_meta(int64_t op, at::TensorList operands) {
  std::vector<at::Tensor> tensors;
  for (const Type& type : results_of(op, operands)) tensors.push_back(at::empty(type.dims, at::TensorOptions(type.dtype).device(c10::kMeta)));
  return tensors;
}

TORCH_LIBRARY_FRAGMENT(fuseline, m) { m.def("custom_call(int op, Tensor[] operands) -> Tensor[]"); }
TORCH_LIBRARY_IMPL(fuseline, PrivateUse1, m) { m.impl("custom_call", &call); }
TORCH_LIBRARY_IMPL(fuseline, Meta, m) { m.impl("custom_call", &call_meta); }

}  // namespace
}  // namespace fuseline
