// The device as PyTorch sees it: guard, hooks, generator; copies, factories and views.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace fuseline {

// Throws if there is no such device. A negative index is the current device.
void check_device(c10::Device device);
// Whether calls without a kernel may be computed by the CPU.
bool may_fall_back();
// Resizes a tensor in row-major order, as `resize_` does.
void set_sizes(const at::Tensor& tensor, c10::IntArrayRef dims);
// Checks that a tensor can take a result. An `out=` argument is resized.
void prepare_target(const at::Tensor& target, c10::ScalarType dtype, c10::IntArrayRef dims, bool is_out);
// Seed and offset for one call of a random op, from this generator or the device's.
std::pair<uint64_t, uint64_t> next_random(std::optional<at::Generator> generator);

void register_device();
void register_basics();
void register_composites();

}  // namespace fuseline
