// Host memory that PyTorch calls pinned. See pinned.cpp.
#pragma once

#include <c10/core/Allocator.h>

namespace fuseline {

c10::Allocator* pinned_allocator();
// Whether this address is in pinned memory.
bool is_pinned(const void* data);

}  // namespace fuseline
