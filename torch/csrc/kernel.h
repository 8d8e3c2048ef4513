// The kernel of all overloads that the engine lowers. See kernel.cpp.
#pragma once

#include "decompose.h"

namespace fuseline {

// Registers a kernel for each row of the engine's table, in its functional, in-place and out= forms.
void register_kernels();
// What calls for which the engine has no kernel do.
void register_fallback();
// Calls that the CPU computed.
Counts& fallbacks();

}  // namespace fuseline
