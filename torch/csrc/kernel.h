// The kernel of all overloads that the engine lowers. See kernel.cpp.
#pragma once

#include "decompose.h"

namespace fuseline {

// The type of a result. One that is not made has none.
struct Out {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::SmallVector<int64_t, 5> dims;
  bool is_list_item = false;
};
using Outs = c10::SmallVector<Out, 2>;

// Registers a kernel for each row of the engine's table, in its functional, in-place and out= forms.
void register_kernels();
// What calls for which the engine has no kernel do.
void register_fallback();
// Calls that the CPU computed.
Counts& fallbacks();
// What tells the types of an operator's results in C++, for tensors on the device `meta`. Null if only the dispatcher knows.
const c10::KernelFunction* meta_function(const c10::OperatorName& name);
// The types of the results of a plain call; false for another one.
using PlainRule = bool (*)(c10::ArrayRef<c10::IValue> args, Outs& outs);
// By name and overload, as `aten::add.Tensor`. Null if there is none.
PlainRule plain_rule(const std::string& operation);

}  // namespace fuseline
