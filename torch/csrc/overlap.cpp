// Writes to tensors that share memory with themselves or with an operand.
//
// A kernel of this device computes a result and then writes it, so it never reads what it has
// written. A write to a tensor that overlaps itself (an expanded one, overlapping windows) keeps
// the last of the elements at one place, in row-major order. The CPU writes elements one by one.
// This makes a difference for three kinds of calls:
//
//   some elements are written (masked_fill_, index_put_)  the elements' places in the storage are
//                                                         written: all that the call selects
//   elements are computed from what is there (add_)       slice after slice, so that each reads
//                                                         what the previous ones have written
//   all others (cumsum_, sums and products with out=)     an error: on the CPU the result depends
//                                                         on the order of its loops
//
// Before that, `check_overlaps` raises the errors of the CPU.

#include "overlap.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "decompose.h"
#include "storage.h"

namespace fuseline {
namespace {

using c10::IValue;
using torch::jit::Stack;

template <size_t N>
bool is_among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Ops that may write an element several times: each write is the same, or the CPU only warns, or
// the last write counts.
constexpr std::array<std::string_view, 14> kWritesTwice{
    "fill", "zero", "index_put", "_index_put_impl", "index_fill", "masked_fill", "tril",
    "triu", "amax", "amin",      "cummax",          "cummin",     "mv",          "threshold"};
// Ops that only write, or read nothing that they have written. The last write counts.
constexpr std::array<std::string_view, 30> kOnlyWrites{
    "fill",     "zero", "normal", "normal_functional", "uniform",  "random",        "bernoulli", "exponential",
    "geometric", "cauchy", "log_normal", "masked_scatter", "cat",  "index_select",  "gather",    "take",
    "amax",     "amin", "cummax", "cummin",            "_softmax", "mv",            "set",       "dot",
    "vdot",     "where", "resize", "resize_as",        "record_stream", "fill_diagonal"};
// Ops that compute each element by itself. Most are tagged so in PyTorch.
constexpr std::array<std::string_view, 9> kPointwise{
    "eq", "ne", "lt", "le", "gt", "ge", "floor_divide", "threshold", "heaviside"};
// Ops whose CPU kernels do not check operands, since they write to a temporary, or whose result the
// CPU leaves open then, while this device computes it before it writes.
constexpr std::array<std::string_view, 7> kHasCopy{"bmm", "mm", "dot", "set", "resize", "resize_as", "record_stream"};
// Ops that copy an operand to the result first: the CPU checks the overlap with that one only.
constexpr std::array<std::string_view, 4> kCopiesFirst{"addmm", "addbmm", "addmv", "baddbmm"};
// Ops that may not read the tensor that they write to at all.
constexpr std::array<std::string_view, 16> kApart{
    "kthvalue",        "masked_select", "index_add",   "index_copy",     "index_fill", "index_put",
    "_index_put_impl", "scatter",       "scatter_add", "scatter_reduce", "gather",     "cat",
    "take",            "masked_scatter", "index_select", "linalg_cross"};
// Ops that resize their results before the CPU checks them.
constexpr std::array<std::string_view, 27> kResizesFirst{
    "addmm",  "addbmm", "mm",     "bmm",  "vdot",     "dot",      "cholesky_inverse", "linalg_cross", "linalg_lu_solve",
    "cumsum", "cumprod", "cummax", "cummin", "geqrf", "isin",     "kthvalue", "linspace", "logspace",
    "lu_unpack", "cat", "tril",   "triu", "gather",   "max",      "min",      "aminmax",  "avg_pool3d"};

std::string_view plain_name(const c10::OperatorHandle& op) {
  const std::string_view name = base_of(op);
  return name == "_index_put_impl_" ? "_index_put_impl" : name;
}

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

c10::ArrayRef<IValue> arguments_of(const c10::OperatorHandle& op, const Stack& stack) {
  const size_t count = op.schema().arguments().size();
  return c10::ArrayRef<IValue>(stack.data() + stack.size() - count, count);
}

bool is_out(const c10::OperatorHandle& op) { return op.schema().arguments().back().is_out(); }

bool is_pointwise(const c10::OperatorHandle& op, std::string_view name) {
  return op.hasTag(at::Tag::pointwise) || is_among(kPointwise, name);
}

void refuse_if(bool overlaps) {
  TORCH_CHECK(!overlaps, "unsupported operation: more than one element of the written-to tensor "
                         "refers to a single memory location."
                     " Please clone() the tensor before performing the operation.");
}

void check_results(std::string_view name, c10::ArrayRef<IValue> given, size_t first) {
  if (name != "aminmax" || given.size() < first + 2 || !given[first].isTensor() || !given[first + 1].isTensor()) return;
  const at::Tensor &least = given[first].toTensor(), &most = given[first + 1].toTensor();
  const auto status = at::get_overlap_status(least.unsafeGetTensorImpl(), most.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(status != at::MemOverlapStatus::Full && status != at::MemOverlapStatus::Partial,
                    "aminmax(): the `min` and `max` out= tensors must not overlap.");
}

// Whether no written tensor overlaps itself or shares its storage with another argument.
bool shares_nothing(const std::vector<c10::Argument>& args, c10::ArrayRef<IValue> given) {
  for (size_t at = 0; at < args.size(); ++at) {
    if (!is_written(args[at]) || !given[at].isTensor() || !given[at].toTensor().defined()) continue;
    const at::Tensor& target = given[at].toTensor();
    if (!target.is_non_overlapping_and_dense()) return false;
    bool is_shared = false;
    for (size_t other = 0; other < args.size(); ++other)
      if (other != at)
        each_tensor(given[other], [&](const at::Tensor& source) {
          is_shared |= source.storage().is_alias_of(target.storage());
        });
    if (is_shared) return false;
  }
  return true;
}

// The elements of the storage from the first to the last that a tensor contains, and the position
// of each of the tensor's elements there.
struct Span {
  at::Tensor row, places;

  explicit Span(const at::Tensor& tensor) {
    const auto options = tensor.options().dtype(at::kLong);
    int64_t reach = 1;
    places = at::zeros({}, options);
    for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
      reach += (tensor.size(axis) - 1) * tensor.stride(axis);
      places = places.unsqueeze(-1).add(at::arange(tensor.size(axis), options).mul(tensor.stride(axis)));
    }
    row = tensor.as_strided({reach}, {1}, tensor.storage_offset());
  }
};

// Fills the places of all elements that the mask selects.
void fill_selected(const at::Tensor& target, const at::Tensor& mask, const IValue& value) {
  const Span span(target);
  const at::Tensor flags = mask.expand(target.sizes()).reshape(-1).to(at::kByte);
  const at::Tensor is_selected =
      at::zeros(span.row.sizes(), flags.options())
          .scatter_reduce(0, span.places.reshape(-1), flags, "amax")
          .to(at::kBool);
  at::Tensor row = span.row;
  if (value.isTensor()) {
    row.masked_fill_(is_selected, value.toTensor());
  } else {
    row.masked_fill_(is_selected, value.toScalar());
  }
}

// The call of an op that writes to selected elements, as a call that writes to their places. False
// if the op is none of these.
bool selects(const c10::OperatorHandle& op, std::string_view name, const Stack& given, Stack& call) {
  const at::Tensor& target = given[0].toTensor();
  call = given;
  const auto place = [&](const Span& span, const at::Tensor& places, size_t index, size_t source) {
    call[0] = span.row;
    call[index] = places.reshape(-1);
    if (call[source].isTensor() && call[source].toTensor().dim() > 0) {
      at::Tensor values = call[source].toTensor();
      // A scatter may have more values than places.
      for (int64_t axis = 0; axis < std::min(values.dim(), places.dim()); ++axis)
        if (values.size(axis) > places.size(axis)) values = values.narrow(axis, 0, places.size(axis));
      call[source] = values.reshape(-1);
    }
  };
  if (name == "index_put" || name == "_index_put_impl") {
    const Span span(target);
    call[0] = span.row;
    const at::Tensor places = at::index(span.places, given[1].to<c10::List<std::optional<at::Tensor>>>());
    call[1] = c10::List<std::optional<at::Tensor>>({places});
    return true;
  }
  if (name == "put") {
    const Span span(target);
    place(span, span.places.take(given[1].toTensor()), 1, 2);
    return true;
  }
  const bool scatters = name == "scatter" || name == "scatter_add" || name == "scatter_reduce";
  const bool indexes = name == "index_fill" || name == "index_add" || name == "index_copy" || name == "index_reduce";
  if (!(scatters || indexes) || target.dim() == 0 || !given[1].isInt()) return false;
  const int64_t axis = c10::maybe_wrap_dim(given[1].toInt(), target.dim());
  const Span span(target);
  at::Tensor index = given[2].toTensor().to(at::kLong);
  if (name == "index_fill") index = at::where(index.lt(0), index.add(target.size(axis)), index);
  place(span, scatters ? span.places.gather(axis, index) : span.places.index_select(axis, index), 2, 3);
  call[1] = 0;
  return true;
}

// Computes a call for one slice of the target after the other.
void compute_slices(const c10::OperatorHandle& op, const Stack& call, size_t target) {
  if (!overlaps_itself(call[target].toTensor())) {
    Stack stack = call;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
    return;
  }
  const int64_t count = call[target].toTensor().size(0);
  for (int64_t at = 0; at < count; ++at) {
    Stack slice = call;
    for (IValue& arg : slice)
      if (arg.isTensor() && arg.toTensor().defined() && arg.toTensor().dim() > 0) arg = arg.toTensor().select(0, at);
    compute_slices(op, slice, target);
  }
}

}  // namespace

bool overlaps_itself(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense() || tensor.numel() < 2) return false;
  struct Level {
    int64_t stride, size;
  };
  c10::SmallVector<Level, 6> levels;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.size(axis) == 1) continue;
    if (tensor.stride(axis) == 0) return true;
    levels.push_back({tensor.stride(axis), tensor.size(axis)});
  }
  std::sort(levels.begin(), levels.end(), [](const Level& a, const Level& b) { return a.stride < b.stride; });
  int64_t extent = 1;
  bool nests = true;
  for (const Level& level : levels) {
    nests &= level.stride >= extent;
    extent += (level.size - 1) * level.stride;
  }
  if (nests) return false;
  if (extent < tensor.numel()) return true;
  // The strides do not tell: look at each place.
  std::vector<int64_t> places{0};
  for (const Level& level : levels) {
    const size_t count = places.size();
    for (int64_t at = 1; at < level.size; ++at)
      for (size_t from = 0; from < count; ++from) places.push_back(places[from] + at * level.stride);
  }
  std::vector<bool> is_taken(extent);
  for (const int64_t place : places) {
    if (is_taken[place]) return true;
    is_taken[place] = true;
  }
  return false;
}

void check_target(const at::Tensor& target, at::TensorList operands) {
  refuse_if(overlaps_itself(target));
  for (const at::Tensor& operand : operands) at::assert_no_partial_overlap(target, operand);
}

void check_overlaps(const c10::OperatorHandle& op, const Stack& stack, bool is_resized) {
  const auto& args = op.schema().arguments();
  const c10::ArrayRef<IValue> given = arguments_of(op, stack);
  // The usual in-place call needs no lookup of names.
  if (!is_out(op) && (is_resized || shares_nothing(args, given))) return;
  const std::string_view name = plain_name(op);
  if ((is_out(op) && is_among(kResizesFirst, name)) != is_resized) return;
  bool is_first = true;
  for (size_t at = 0; at < args.size(); ++at) {
    if (!is_written(args[at]) || !given[at].isTensor() || !given[at].toTensor().defined()) continue;
    if (std::exchange(is_first, false)) check_results(name, given, at);
    const at::Tensor& target = given[at].toTensor();
    if (!is_among(kWritesTwice, name) && !is_among(kHasCopy, name)) at::assert_no_internal_overlap(target);
    refuse_if(is_resized && !is_among(kOnlyWrites, name) && overlaps_itself(target));
    const bool copies = is_among(kCopiesFirst, name);
    if (is_among(kHasCopy, name)) continue;
    const bool is_apart = is_among(kApart, name);
    for (size_t other = 0; other < args.size(); ++other) {
      if (is_written(args[other]) || (copies && (other > 0 || !is_out(op)))) continue;
      each_tensor(given[other], [&](const at::Tensor& source) {
        if (!source.storage().is_alias_of(target.storage())) return;
        is_apart ? at::assert_no_overlap(target, source) : at::assert_no_partial_overlap(target, source);
      });
    }
  }
}

bool write_overlapping(const c10::OperatorHandle& op, Stack* stack) {
  const auto& args = op.schema().arguments();
  const c10::ArrayRef<IValue> given = arguments_of(op, *stack);
  c10::SmallVector<size_t, 2> targets;
  bool overlaps = false;
  for (size_t at = 0; at < args.size(); ++at) {
    if (!is_written(args[at]) || !given[at].isTensor() || !given[at].toTensor().defined()) continue;
    targets.push_back(at);
    overlaps |= is_ours(given[at].toTensor()) && overlaps_itself(given[at].toTensor());
  }
  if (C10_LIKELY(!overlaps)) return false;
  const std::string_view name = plain_name(op);
  const at::Tensor target = given[targets[0]].toTensor();
  const auto finish = [&] {
    std::vector<at::Tensor> results;
    for (const size_t at : targets) results.push_back(given[at].toTensor());
    torch::jit::drop(*stack, args.size());
    for (const at::Tensor& result : results) stack->emplace_back(result);
    return true;
  };
  if (!is_out(op) && targets[0] == 0) {
    if (name == "masked_fill" && at::is_expandable_to(given[1].toTensor().sizes(), target.sizes()) &&
        given[1].toTensor().scalar_type() == at::kBool) {
      fill_selected(target, given[1].toTensor(), given[2]);
      return finish();
    }
    if ((name == "tril" || name == "triu") && target.dim() >= 2) {
      const int64_t diagonal = given[1].toInt();
      const at::Tensor ones = at::ones(target.sizes().slice(target.dim() - 2), target.options().dtype(at::kBool));
      fill_selected(target, name == "tril" ? ones.triu(diagonal + 1) : ones.tril(diagonal - 1), c10::Scalar(0));
      return finish();
    }
    if (Stack call; selects(op, name, Stack(given.begin(), given.end()), call)) {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &call);
      return finish();
    }
  }
  // What is resized may not overlap itself any more; check_overlaps looks again.
  if (is_among(kOnlyWrites, name) || (is_out(op) && is_among(kResizesFirst, name))) return false;
  refuse_if(!is_pointwise(op, name));
  // An op with a result of its own reads nothing that it has written.
  bool is_read = false, is_plain = true;
  Stack call(given.begin(), given.end());
  for (size_t at = 0; at < call.size(); ++at) {
    if (!call[at].isTensor() || !call[at].toTensor().defined()) continue;
    const at::Tensor tensor = call[at].toTensor();
    is_read |= tensor.is_alias_of(target) && (!is_out(op) || !is_written(args[at]));
    if (tensor.dim() == 0) continue;
    is_plain &= at::is_expandable_to(tensor.sizes(), target.sizes());
    if (is_plain) call[at] = tensor.expand(target.sizes());
  }
  if (!is_read || !is_plain) return false;
  compute_slices(op, call, targets[0]);
  return finish();
}

}  // namespace fuseline
