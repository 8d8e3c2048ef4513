#include "arguments.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <string_view>
#include <vector>

#include "decompose.h"

namespace fuseline {

std::string_view base_of(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  name.remove_prefix(name.find(':') + 2);
  if (name.size() > 1 && name.back() == '_' && name.front() != '_') name.remove_suffix(1);
  return name;
}

namespace {

using c10::IValue;

template <size_t N>
bool is_among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Ops that may write an element several times: each write is the same, or the CPU only warns.
constexpr std::array<std::string_view, 6> kWritesTwice{"fill", "zero", "index_put", "_index_put_impl", "index_fill", "masked_fill"};
// Ops whose CPU kernels skip the check, since they compute into a temporary before they write.
constexpr std::array<std::string_view, 8> kHasCopy{"bmm",    "baddbmm",   "addmv", "dot", "set",
                                                   "resize", "resize_as", "record_stream"};
// Ops whose CPU kernels check the tensor that they write to, but not its overlap with operands.
constexpr std::array<std::string_view, 3> kHasCopyOfOperands{"mm", "addmm", "addbmm"};
// Ops that may not read the tensor that they write to at all.
constexpr std::array<std::string_view, 15> kApart{
    "kthvalue",       "masked_select",   "index_add", "index_copy",  "index_fill",
    "index_put",      "_index_put_impl", "scatter",   "scatter_add", "scatter_reduce",
    "gather",         "cat",             "take",      "masked_scatter", "index_select"};

template <class Function>
void each_tensor(const IValue& value, const Function& function) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) function(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) function(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor && tensor->defined()) function(*tensor);
  }
}

}  // namespace

void check_overlaps(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& args = op.schema().arguments();
  const c10::ArrayRef<IValue> given(stack.data() + stack.size() - args.size(), args.size());
  for (size_t at = 0; at < args.size(); ++at) {
    if (!is_written(args[at]) || !given[at].isTensor() || !given[at].toTensor().defined()) continue;
    const std::string_view name = base_of(op);
    if (is_among(kHasCopy, name)) return;
    const at::Tensor& target = given[at].toTensor();
    if (!is_among(kWritesTwice, name)) at::assert_no_internal_overlap(target);
    if (is_among(kHasCopyOfOperands, name)) return;
    const bool is_apart = is_among(kApart, name);
    for (size_t other = 0; other < args.size(); ++other) {
      if (is_written(args[other])) continue;
      each_tensor(given[other], [&](const at::Tensor& source) {
        if (!source.storage().is_alias_of(target.storage())) return;
        is_apart ? at::assert_no_overlap(target, source) : at::assert_no_partial_overlap(target, source);
      });
    }
  }
}

}  // namespace fuseline
