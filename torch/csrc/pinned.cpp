// Memory of the host that PyTorch calls pinned, for what asks whether it is (DDP does). Transfers copy on the caller's thread, so that it is memory
// like any other; it is known by its address.

#include "pinned.h"

#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_set>

namespace fuseline {
namespace {

std::mutex mutex;
std::unordered_set<const void*> pinned;

void free_pinned(void* data) {
  {
    std::scoped_lock lock(mutex);
    pinned.erase(data);
  }
  c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

struct Pinned final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    // An address of its own, also for nothing.
    void* data = c10::GetDefaultCPUAllocator()->raw_allocate(std::max<size_t>(bytes, 1));
    std::scoped_lock lock(mutex);
    pinned.insert(data);
    return {data, data, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static Pinned allocator;
  return &allocator;
}

bool is_pinned(const void* data) {
  std::scoped_lock lock(mutex);
  return pinned.contains(data);
}

}  // namespace fuseline
