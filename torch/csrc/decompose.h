// Computes calls that have no row, or no row for such arguments, by PyTorch's own decompositions,
// which are Python.
//
//   call ─► its functional form ─► `fuseline_decomposed::` of the same name, defined when it is
//   first asked for ─► ops of the device
//
// Each call costs tens of microseconds of Python, and the device still computes it. In-place and
// out= variants are the functional one followed by a copy.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace fuseline {

// Counts by name, each with the latest reason.
class Counts {
 public:
  void add(const std::string& name, const std::string& why = "") {
    std::scoped_lock lock(mutex_);
    auto& [number, last] = numbers_[name];
    ++number;
    last = why;
  }
  // One line per name: the name, the count and the reason.
  std::string lines() {
    std::scoped_lock lock(mutex_);
    std::string text;
    for (const auto& [name, entry] : numbers_) text += name + " " + std::to_string(entry.first) + " " + entry.second + "\n";
    return text;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::pair<uint64_t, std::string>> numbers_;
};

// Computes a call by its decomposition. Returns false, with the stack unchanged, if there is none
// that takes such arguments.
bool decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Whether this thread is computing a decomposition.
bool is_decomposing();
// The calls that were decomposed.
Counts& decomposed();

// Whether an argument is written to.
bool is_written(const c10::Argument& arg);
// Whether the first `inputs` arguments of both schemas have the same types, and the functional
// schema has no other arguments than those of its results.
bool matches(const c10::FunctionSchema& functional, const c10::FunctionSchema& other, size_t inputs);
// An overload's name without the namespace.
std::string name_of(const c10::OperatorHandle& op);

}  // namespace fuseline
