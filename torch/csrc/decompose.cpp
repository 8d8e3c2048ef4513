#include "decompose.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "arguments.h"
#include "device.h"
#include "overlap.h"

namespace fuseline {
namespace {

using c10::IValue;
using torch::jit::Stack;

// How an overload is computed: by which op, and how many of its arguments that op takes. The
// remaining arguments are written, or, if there are none, the first one is.
struct Plan {
  std::optional<c10::OperatorHandle> by;
  size_t inputs = 0;
  bool is_functional = true;
};

std::mutex plan_mutex;
std::unordered_map<c10::OperatorName, Plan> plans;

// Asks the Python side to define the decomposition of a functional overload.
bool define(const std::string& name) {
  static const auto ask = c10::Dispatcher::singleton().findSchema({"fuseline::_decompose", ""});
  if (!ask) return false;
  Stack stack{IValue(name)};
  ask->callBoxed(&stack);
  return stack.back().toBool();
}

std::optional<c10::OperatorHandle> decomposition_of(const c10::OperatorHandle& functional) {
  const auto& name = functional.operator_name();
  if (name.name.rfind("aten::", 0) != 0 || !define(name_of(functional))) return std::nullopt;
  return c10::Dispatcher::singleton().findSchema({"fuseline_decomposed::" + name.name.substr(6), name.overload_name});
}

Plan plan_of(const c10::OperatorHandle& op) {
  const auto& args = op.schema().arguments();
  const size_t written = std::count_if(args.begin(), args.end(), is_written);
  if (written == 0) return {decomposition_of(op), args.size(), true};
  const bool is_out = is_written(args.back()) && args.back().is_out();
  if (!is_out && (written != 1 || !is_written(args[0]))) return {};
  const size_t inputs = is_out ? args.size() - written : args.size();
  std::string base = op.operator_name().name;
  if (!is_out) {
    if (base.back() != '_') return {};
    base.pop_back();
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& other : dispatcher.getAllOpNames()) {
    if (other.name != base) continue;
    const auto functional = dispatcher.findSchema(other);
    if (!functional) continue;
    const auto& schema = functional->schema();
    if (std::any_of(schema.arguments().begin(), schema.arguments().end(), is_written)) continue;
    if (!matches(schema, op.schema(), inputs)) continue;
    if (auto by = decomposition_of(*functional)) return {by, inputs, false};
  }
  return {};
}

// Decompositions that this thread is computing. One that reaches itself has no decomposition.
thread_local std::vector<c10::OperatorName> running;

}  // namespace

bool is_decomposing() { return !running.empty(); }

bool decompose(const c10::OperatorHandle& op, Stack* stack) {
  Plan plan;
  {
    std::unique_lock lock(plan_mutex);
    const auto found = plans.find(op.operator_name());
    if (found != plans.end()) {
      plan = found->second;
    } else {
      // The lock is released while Python runs: another thread may hold what Python needs.
      lock.unlock();
      plan = plan_of(op);
      lock.lock();
      plans.emplace(op.operator_name(), plan);
    }
  }
  if (!plan.by) return false;
  const auto& name = plan.by->operator_name();
  if (std::find(running.begin(), running.end(), name) != running.end()) return false;

  const size_t count = op.schema().arguments().size();
  const c10::ArrayRef<IValue> given(stack->data() + stack->size() - count, count);
  Stack results(given.begin(), given.begin() + plan.inputs);
  for (size_t at = plan.inputs; at < plan.by->schema().arguments().size(); ++at) {
    // A factory takes the type of its `out=` argument.
    const bool is_type = plan.by->schema().arguments()[at].name() == "dtype" && given[plan.inputs].isTensor();
    results.push_back(is_type ? IValue(static_cast<int64_t>(given[plan.inputs].toTensor().scalar_type())) : IValue());
  }
  running.push_back(name);
  try {
    plan.by->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &results);
  } catch (const std::exception&) {
    // The decomposition rejects the arguments. The CPU computes the call or reports the error.
    running.pop_back();
    return false;
  }
  running.pop_back();
  decomposed().add(c10::toString(op.operator_name()));
  if (plan.is_functional) {
    torch::jit::drop(*stack, count);
    for (IValue& result : results) stack->push_back(std::move(result));
    return true;
  }
  const bool is_out = op.schema().arguments().back().is_out();
  std::vector<at::Tensor> targets;
  for (size_t at = is_out ? plan.inputs : 0; at < (is_out ? count : 1); ++at) targets.push_back(given[at].toTensor());
  TORCH_INTERNAL_ASSERT(targets.size() == results.size());
  for (size_t at = 0; at < targets.size(); ++at) {
    const at::Tensor& result = results[at].toTensor();
    if (is_out) check_out(op, targets[at].scalar_type(), result.scalar_type());
    prepare_target(targets[at], result.scalar_type(), result.sizes(), is_out);
  }
  if (is_out) check_overlaps(op, *stack, true);
  for (size_t at = 0; at < targets.size(); ++at) targets[at].copy_(results[at].toTensor());
  torch::jit::drop(*stack, count);
  for (const at::Tensor& target : targets) stack->emplace_back(target);
  return true;
}

Counts& decomposed() {
  static Counts counts;
  return counts;
}

bool is_written(const c10::Argument& arg) { return arg.alias_info() != nullptr && arg.alias_info()->isWrite(); }

bool matches(const c10::FunctionSchema& functional, const c10::FunctionSchema& other, size_t inputs) {
  const auto &a = functional.arguments(), &b = other.arguments();
  if (inputs > a.size()) return false;
  for (size_t at = 0; at < inputs; ++at)
    if (*a[at].type() != *b[at].type()) return false;
  for (size_t at = inputs; at < a.size(); ++at) {
    const std::string& name = a[at].name();
    if (name != "dtype" && name != "layout" && name != "device" && name != "pin_memory" && name != "memory_format")
      return false;
  }
  return true;
}

std::string name_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  const std::string plain = name.name.substr(name.name.find(':') + 2);
  return name.overload_name.empty() ? plain : plain + "." + name.overload_name;
}

}  // namespace fuseline
