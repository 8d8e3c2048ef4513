// Memory of the host that PyTorch calls pinned. See pinned.cpp.
#pragma once

#include <c10/core/Allocator.h>

namespace fuseline {

c10::Allocator* pinned_allocator();
// Whether there is such memory at this address.
bool is_pinned(const void* data);

}  // namespace fuseline
