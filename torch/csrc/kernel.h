// The kernel of all overloads that the engine lowers. See kernel.cpp.
#pragma once

#include "decompose.h"

namespace fuseline {

// The type of a result. A result that is not computed has none.
struct Out {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::SmallVector<int64_t, 5> dims;
  bool is_list_item = false;
};
using Outs = c10::SmallVector<Out, 2>;

// Registers a kernel for each row of the engine's table, in its functional, in-place and out=
// forms.
void register_kernels();
// Registers the kernel of calls that the engine has no kernel for.
void register_fallback();
// The calls that the CPU computed.
Counts& fallbacks();
// The operator's function in `at::meta`: it infers the types of results from tensors on the device
// `meta`. Null if the operator is not structured.
const c10::KernelFunction* meta_function(const c10::OperatorName& name);
// Infers the types of a call's results. False if it leaves them to PyTorch.
using InferenceRule = bool (*)(c10::ArrayRef<c10::IValue> args, Outs& outs);
// By name and overload, as `aten::add.Tensor`. Null if there is none.
InferenceRule inference_rule(const std::string& operation);

}  // namespace fuseline
