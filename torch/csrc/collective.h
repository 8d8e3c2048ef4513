// A call of a collective: operands on their way to the host, promised results, and the threads of
// the group. See distributed.cpp.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <deque>
#include <functional>

#include "storage.h"

namespace fuseline {

using Tensors = std::vector<at::Tensor>;

// A promised result.
class Coming {
 public:
  // Puts a promised value into `value`, for the caller to write to the result's tensor.
  Coming(at::ScalarType dtype, c10::IntArrayRef dims, Value& value) {
    FltType type = type_of(dtype, dims);
    check(flt_promise(&type, value.out(), &promise_));
  }
  Coming(Coming&& other) noexcept : promise_(std::exchange(other.promise_, nullptr)) {}
  Coming(const Coming&) = delete;
  ~Coming() { fail("the operation was abandoned"); }
  void keep(const at::Tensor& cpu) {
    at::Tensor data = cpu.contiguous();
    check(flt_keep(std::exchange(promise_, nullptr), data.const_data_ptr(), data.nbytes()));
  }
  void fail(const std::string& why) {
    if (promise_ != nullptr) flt_break(std::exchange(promise_, nullptr), why.data(), why.size());
  }

 private:
  FltPromise* promise_ = nullptr;
};

// The state of a call, as its Work reports it.
class Progress {
 public:
  // `settle` gives the results their data or their error. It runs under the lock, so whoever has
  // read a result finds the call done.
  template <typename F>
  void end(F settle, std::string error, int source = -1) {
    std::scoped_lock lock(mutex_);
    settle();
    is_done_ = true;
    error_ = std::move(error);
    source_ = source;
    changed_.notify_all();
  }
  bool is_done() {
    std::scoped_lock lock(mutex_);
    return is_done_;
  }
  std::string error() {
    std::scoped_lock lock(mutex_);
    return error_;
  }
  int source() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done_; });
    return source_;
  }
  // False after the timeout. `kNoTimeout` waits forever.
  bool wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    auto done = [&] { return is_done_; };
    if (timeout != kNoTimeout) return changed_.wait_for(lock, timeout, done);
    changed_.wait(lock, done);
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_ = false;
  std::string error_;
  int source_ = -1;
};

// A request to gloo. Once it is done, `results` returns the results in the order of the call's.
struct Started {
  c10::intrusive_ptr<c10d::Work> work;
  std::function<Tensors()> results;
};
// Starts the request, given the operands on the CPU.
using Start = std::function<Started(c10d::Backend&, Tensors)>;

struct Call {
  std::string name;
  bool is_between_two;
  Tensors operands;
  // The number of operands that have not arrived, and the first error of one. Guarded by the
  // group's lock.
  size_t missing;
  std::string wrong;
  std::vector<Coming> results;
  Start start;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
};

inline std::string what(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours != nullptr ? ours->what_without_backtrace() : error.what();
}

// The state that the threads of a group share.
struct Group {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Call>> queue;
  // Started sends and receives. Each has a thread that waits for it, because they end in any order.
  std::vector<c10::intrusive_ptr<c10d::Work>> between_two;
  bool is_ending = false;
  // The first error.
  std::string broken;

  void fail(Call& call, const std::string& why) {
    std::string message = call.name + ": " + why;
    break_off(message);
    auto settle = [&] {
      for (Coming& result : call.results) result.fail(message);
    };
    call.progress->end(settle, message);
  }

  void break_off(const std::string& why) {
    std::vector<c10::intrusive_ptr<c10d::Work>> left;
    {
      std::scoped_lock lock(mutex);
      if (!broken.empty()) return;
      broken = why;
      left = between_two;
      changed.notify_all();
    }
    for (const auto& work : left) work->abort();
  }

  void finish(Call& call, const Started& started, int source) {
    try {
      Tensors results = started.results();
      TORCH_INTERNAL_ASSERT(results.size() == call.results.size());
      auto settle = [&] {
        for (size_t i = 0; i < results.size(); ++i) call.results[i].keep(results[i]);
      };
      call.progress->end(settle, "", source);
    } catch (const std::exception& error) {
      fail(call, what(error));
    }
  }
};

// The callback that receives an operand on the host.
struct Ear {
  std::shared_ptr<Group> group;
  std::shared_ptr<Call> call;
  size_t place;
};

inline void heard(void* given, bool ok, const uint8_t* bytes, size_t len) {
  std::unique_ptr<Ear> ear(static_cast<Ear*>(given));
  Call& call = *ear->call;
  if (ok) {
    at::Tensor& operand = call.operands[ear->place];
    if (len == operand.nbytes()) {
      std::memcpy(operand.mutable_data_ptr(), bytes, len);
    } else {
      ok = false;
    }
  }
  std::scoped_lock lock(ear->group->mutex);
  if (!ok && call.wrong.empty()) call.wrong = std::string(reinterpret_cast<const char*>(bytes), len);
  --call.missing;
  ear->group->changed.notify_all();
}

// The Work that Python gets for a call. It counts as complete: ops that are recorded next come
// after it.
class Recorded final : public c10d::Work {
 public:
  Recorded(int rank, c10d::OpType type, Tensors results, uint64_t number, bool waits)
      : Work(rank, type), results_(std::move(results)), number_(number), waits_(waits) {}
  void add(std::shared_ptr<Progress> progress) { parts_.push_back(std::move(progress)); }
  const std::vector<std::shared_ptr<Progress>>& parts() const { return parts_; }

  bool isCompleted() override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->is_done(); });
  }
  bool isSuccess() const override {
    auto well = [](const auto& part) { return part->is_done() && part->error().empty(); };
    return std::all_of(parts_.begin(), parts_.end(), well);
  }
  std::exception_ptr exception() const override {
    for (const auto& part : parts_) {
      if (std::string error = part->error(); !error.empty()) return std::make_exception_ptr(std::runtime_error(device_name() + ": " + error));
    }
    return nullptr;
  }
  int sourceRank() const override { return parts_.at(0)->source(); }
  Tensors result() override { return results_; }
  void synchronize() override {
    if (auto error = exception()) std::rethrow_exception(error);
  }
  void blockCurrentStream() override { synchronize(); }
  // Waits for the network only with an explicit timeout, and for barriers, which are about time.
  bool wait(std::chrono::milliseconds timeout) override {
    if (waits_ || timeout != kNoTimeout) {
      for (const auto& part : parts_) {
        TORCH_CHECK_WITH(DistBackendError, part->wait(timeout), device_name(), ": ", c10d::opTypeToString(opType_),
                         " took longer than ",
                         timeout.count(), " ms");
      }
    }
    synchronize();
    return true;
  }
  void abort() override {}
  uint64_t getSequencenumber() const override { return number_; }
  // A completed future, so that its callbacks record their ops now, whatever the network does.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto type = c10::ListType::create(c10::TensorType::get());
    auto future = c10::make_intrusive<c10::ivalue::Future>(type, std::vector<c10::Device>{c10::Device(kDevice, 0)});
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  const Tensors results_;
  const uint64_t number_;
  const bool waits_;
  std::vector<std::shared_ptr<Progress>> parts_;
};

}  // namespace fuseline
