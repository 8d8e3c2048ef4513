// `parameter.data = other` between devices.
//
// PyTorch allows this between the devices that it lists (CPU, CUDA, ..), and `module.to` moves
// parameters in place that way. This file allows it between the CPU and this device, since both
// have plain dense tensors.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "storage.h"

namespace {

// Like torch::autograd::VariableHooks::set_data, without its list of devices.
void set_data(const at::Tensor& self, const at::Tensor& source) {
  for (const at::Tensor* tensor : {&self, &source}) {
    const c10::Device device = tensor->device();
    TORCH_CHECK(device.is_cpu() || device.is_privateuseone(),
                fuseline::device_name(), ": data must be on the CPU or on the device ", fuseline::device_name(), ", not on ", device);
  }
  TORCH_CHECK(!self.requires_grad() || torch::autograd::isDifferentiableType(source.scalar_type()),
              fuseline::device_name(), ": the data of a tensor that requires gradients must have a floating point or complex dtype");
  if (auto* meta = torch::autograd::impl::get_autograd_meta(self)) {
    std::scoped_lock lock(meta->mutex_);
    // Gradients of the old data go to the new device.
    if (auto accumulator = meta->grad_accumulator_.lock()) {
      const auto& metadata = accumulator->input_metadata(0);
      if (metadata.device() != source.device() || self.scalar_type() != source.scalar_type()) meta->grad_accumulator_.reset();
    }
  }
  self.unsafeGetTensorImpl()->shallow_copy_from(source.getIntrusivePtr());
}

TORCH_LIBRARY(fuseline, m) {
  m.def("set_data(Tensor(a!) self, Tensor source) -> ()");
  m.impl("set_data", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(set_data));
}

}  // namespace
