#include "device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <memory>

#include "pinned.h"
#include "site.h"
#include "storage.h"

namespace fuseline {
namespace {

std::atomic<bool> fallbacks{true};

c10::Device only() { return c10::Device(kDevice, 0); }

c10::Device existing(c10::Device device) {
  check_device(device);
  return only();
}

c10::Stream stream(c10::Device device) { return c10::Stream(c10::Stream::DEFAULT, existing(device)); }

// Waits until everything that was recorded is computed.
void wait() {
  const CallSite site;
  check(flt_synchronize());
}

// One device with one stream. A stream is its id, and everything is on the first.
struct Guard final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kDevice;
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override { return existing(device); }
  c10::Device getDevice() const override { return only(); }
  void setDevice(c10::Device device) const override { check_device(device); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device); }
  c10::Stream exchangeStream(c10::Stream other) const override { return stream(other.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override {
    bool is_idle = false;
    check(flt_is_idle(&is_idle));
    return is_idle;
  }
  void synchronizeStream(const c10::Stream&) const override { wait(); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    check_device({kDevice, index});
    wait();
  }
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    check_device(device);
    c10::DeviceCapability capability;
    uint64_t bits = 0;
    for (size_t type = 0; type < c10::NUMBER_OF_DEVICE_CAPABILITIES; ++type)
      if (code_of(static_cast<c10::ScalarType>(type)) != 0) bits |= uint64_t{1} << type;
    capability.capability_data.capability_bits &= bits;
    return capability;
  }
  // An event is a position in the only stream. Recording it starts everything before it. Waiting
  // for an event in the stream is a no-op.
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<uint64_t> owned(static_cast<uint64_t*>(event));
    // Closing an existing event cannot fail.
    if (owned && *owned != 0) (void)flt_event_close(*owned);
  }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    if (*event == nullptr) *event = new uint64_t(0);
    auto* place = static_cast<uint64_t*>(*event);
    uint64_t next = 0;
    check(flt_event_record(flag == c10::EventFlag::BACKEND_DEFAULT, &next));
    if (*place != 0) check(flt_event_close(*place));
    *place = next;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    bool is_reached = true;
    if (event != nullptr) check(flt_event_query(*static_cast<uint64_t*>(event), &is_reached));
    return is_reached;
  }
  void synchronizeEvent(void* event) const override {
    const CallSite site;
    if (event != nullptr) check(flt_event_wait(*static_cast<uint64_t*>(event)));
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(from != nullptr && to != nullptr,
                device_name(), ": record both events before you measure the time between them");
    double milliseconds = 0;
    check(flt_event_elapsed(*static_cast<uint64_t*>(from), *static_cast<uint64_t*>(to), &milliseconds));
    return milliseconds;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// A generator: a seed, and the number of calls that have drawn. Ops of the engine draw by counter.
// Ops that the CPU computes draw from a CPU generator that is seeded from both.
struct Generator final : public c10::GeneratorImpl {
  Generator() : GeneratorImpl(only(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device().is_cpu() && state.numel() == 16 && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.is_contiguous(),
                device_name(), ": the state of a generator must be a contiguous uint8 tensor of 16 elements on the CPU");
    uint64_t words[2];
    std::memcpy(words, state.data(), sizeof words);
    seed_ = words[0];
    offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({16}, c10::ScalarType::Byte);
    const uint64_t words[2] = {seed_, offset_};
    std::memcpy(state.mutable_data_ptr(), words, sizeof words);
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* other = new Generator;
    other->seed_ = seed_;
    other->offset_ = offset_;
    return other;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator() {
  static at::Generator generator = at::make_generator<Generator>();
  return generator;
}

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void init() const override {}
  void setCurrentDevice(c10::DeviceIndex index) const override { check_device({kDevice, index}); }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return existing({kDevice, index}).index(); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return existing({kDevice, index}).index(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    check_device({kDevice, index});
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    check_device({kDevice, index});
    return at::make_generator<Generator>();
  }
  at::Device getDeviceFromPtr(void*) const override { return only(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void check_device(c10::Device device) {
  TORCH_CHECK(device.index() <= 0,
              device_name(), ": invalid device ordinal: there is only one device, ", device_name(), ":0, and no ",
              device);
}

bool may_fall_back() { return fallbacks.load(std::memory_order_relaxed); }

std::pair<uint64_t, uint64_t> next_random(std::optional<at::Generator> generator) {
  const at::Generator& used = generator && generator->defined() ? *generator : default_generator();
  auto* own = dynamic_cast<Generator*>(used.unsafeGetGeneratorImpl());
  TORCH_CHECK(own != nullptr, device_name(), ": expected a generator of the device ", device_name(),
              ", but got one of ", used.device());
  std::scoped_lock lock(own->mutex_);
  return {own->seed_, own->offset_++};
}

void register_device() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

// Python has no other way to get a generator.
TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("default_generator() -> Generator?", []() { return default_generator(); });
}

}  // namespace fuseline

// ----- for the Python module, by ctypes -----

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void fuseline_torch_set_fallback(int allowed) { fuseline::fallbacks.store(allowed != 0); }
// The wait has the call site of the caller.
EXPORT int fuseline_torch_synchronize() {
  const fuseline::CallSite site;
  return flt_synchronize();
}
