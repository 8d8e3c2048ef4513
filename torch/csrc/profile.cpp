// PyTorch's profiler, and ranges of the program in the engine's timeline.
//
// The profiler times an op between two events on its device. Here ops are recorded and run together
// later, so no single op has a time, and the profiler gets none. The engine's timeline has the
// times of regions. While one is being recorded, it also has ranges of the program
// (`record_function`, optimizer steps); the outermost ranges are its steps.

#include <ATen/record_function.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <cstring>
#include <memory>
#include <optional>

#include "engine.h"

namespace {

thread_local int depth = 0;

// Marks are ignored after the timeline has ended; nothing else can go wrong.
void mark(const char* name) { (void)flt_profile_mark(name, std::strlen(name)); }

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& range) {
  if (depth++ == 0) mark(range.name());
  return nullptr;
}

void end(const at::RecordFunction&, at::ObserverContext*) {
  if (--depth == 0) mark("between ranges");
}

std::optional<at::CallbackHandle> handle;

struct Profiler final : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;
  void record(c10::DeviceIndex* device, Event*, int64_t* cpu_ns) const override {
    if (device != nullptr) *device = 0;
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
  }
  float elapsed(const Event*, const Event*) const override { return 0; }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override { op(0); }
  // Errors are reported to readers.
  void synchronize() const override { (void)flt_synchronize(); }
};

const bool is_registered = [] {
  static Profiler profiler;
  torch::profiler::impl::registerPrivateUse1Methods(&profiler);
  return true;
}();

}  // namespace

// For the Python module: whether ranges are reported from now on.
extern "C" __attribute__((visibility("default"))) void fuseline_torch_ranges(int are_told) {
  if (handle) at::removeCallback(*handle);
  handle.reset();
  if (are_told)
    handle = at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::USER_SCOPE}));
}
