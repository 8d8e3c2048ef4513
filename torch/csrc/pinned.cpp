// Host memory that PyTorch calls pinned, for code that asks whether memory is pinned (DDP does).
// Transfers copy on the caller's thread, so this is ordinary memory, recognized by its address.

#include "pinned.h"

// GCC warns about the layout of objects in this header.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Winterference-size"
#endif
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_pin_memory_native.h>
#include <ATen/ops/is_pinned_native.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_set>

#include "device.h"

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

// Freed memory goes back to the CPU's allocator: nothing is cached, so there are no statistics.
struct Pinned final : public at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    // Even an empty block gets an address of its own.
    void* data = c10::GetDefaultCPUAllocator()->raw_allocate(std::max<size_t>(bytes, 1));
    std::scoped_lock lock(mutex);
    pinned.insert(data);
    return {data, data, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  // A transfer has made its copy when its call returns.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

Pinned& the_allocator() {
  static Pinned allocator;
  return allocator;
}

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &the_allocator())

// PyTorch checks the device type that memory is pinned for, but not the index.
void check_index(std::optional<at::Device> device) {
  if (device && device->is_privateuseone()) check_device(*device);
}

at::Tensor pin_memory(const at::Tensor& self, std::optional<at::Device> device) {
  check_index(device);
  return at::native::_pin_memory(self, device);
}

bool tensor_is_pinned(const at::Tensor& self, std::optional<at::Device> device) {
  check_index(device);
  return at::native::is_pinned(self, device);
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_pin_memory", &pin_memory);
  m.impl("is_pinned", &tensor_is_pinned);
}

}  // namespace

c10::Allocator* pinned_allocator() { return &the_allocator(); }

bool is_pinned(const void* data) {
  std::scoped_lock lock(mutex);
  return pinned.contains(data);
}

}  // namespace fuseline
