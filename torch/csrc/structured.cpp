// The types of results of PyTorch's structured operators, told in C++.
//
// PyTorch has a meta function in C++ for each structured operator, which its CPU kernels begin with too. For most of them it registers another one in
// Python over that, for `torch.compile`. The first call of one of those imports sympy and torch._dynamo, which takes seconds at the beginning of a program
// and a third of a second at its end, and its errors have other words than those of the CPU. So the C++ functions are called past the dispatcher.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <unordered_map>

#include "kernel.h"
#include "structured.h"

namespace fuseline {
namespace {

template <class Operator, typename Operator::schema* function>
c10::KernelFunction boxed() {
  return c10::KernelFunction::makeFromUnboxedFunction(c10::CompileTimeFunctionPointer<typename Operator::schema, function>());
}

}  // namespace

const c10::KernelFunction* meta_function(const c10::OperatorName& name) {
  static const auto* table = new std::unordered_map<c10::OperatorName, c10::KernelFunction>{
#define ENTRY(op, function) {{at::_ops::op::name, at::_ops::op::overload_name}, boxed<at::_ops::op, &at::meta::function>()},
      FUSELINE_STRUCTURED(ENTRY)
#undef ENTRY
  };
  const auto found = table->find(name);
  return found == table->end() ? nullptr : &found->second;
}

}  // namespace fuseline
