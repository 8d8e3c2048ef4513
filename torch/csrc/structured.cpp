// Infers the types of the results of PyTorch's structured operators in C++.
//
// PyTorch has a meta function in C++ for each structured operator, and its CPU kernels call it
// first. For most of them PyTorch also registers a meta function in Python, for `torch.compile`,
// which replaces the other one in the dispatcher. The first call of such a function imports sympy
// and torch._dynamo: 0.65 s and 1.78 s (`import torch.fx.experimental.symbolic_shapes`, `import
// torch._dynamo`; 2 cores, 2026-11-27). Its errors also differ from those of the CPU. This file
// therefore calls the C++ functions without the dispatcher.

#include "structured.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <unordered_map>

#include "kernel.h"

namespace fuseline {
namespace {

template <class Operator, typename Operator::schema* function>
c10::KernelFunction boxed() {
  return c10::KernelFunction::makeFromUnboxedFunction(
      c10::CompileTimeFunctionPointer<typename Operator::schema, function>());
}

}  // namespace

const c10::KernelFunction* meta_function(const c10::OperatorName& name) {
  static const auto* table = new std::unordered_map<c10::OperatorName, c10::KernelFunction>{
#define ENTRY(op, function) \
  {{at::_ops::op::name, at::_ops::op::overload_name}, boxed<at::_ops::op, &at::meta::function>()},
      FUSELINE_STRUCTURED(ENTRY)
#undef ENTRY
  };
  const auto found = table->find(name);
  return found == table->end() ? nullptr : &found->second;
}

}  // namespace fuseline
