// Calls that have no row, or none for such arguments, as calls of other ops: PyTorch's own
// decompositions, which are Python.
//
//   call ─► its functional form ─► `fuseline_decomposed::` of the same name, defined when it is
//   first asked for ─► ops of the device
//
// Each costs what Python costs, tens of microseconds, and is computed by the device all the same.
// In-place and out= forms are the functional one with a copy behind it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace fuseline {

// How often something was, by name, and why the last time.
class Counts {
 public:
  void add(const std::string& name, const std::string& why = "") {
    std::scoped_lock lock(mutex_);
    auto& [number, last] = numbers_[name];
    ++number;
    last = why;
  }
  // A line for each: its name, the number, and why.
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

// Computes a call by its decomposition, if there is one that takes such arguments. The stack is as
// it was if not.
bool decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Whether this thread computes one.
bool is_decomposing();
// Calls that were.
Counts& decomposed();

// Whether an argument is written to.
bool is_written(const c10::Argument& arg);
// Whether the first arguments of two schemas have the same types, and those left of the first are
// only where a result is to be.
bool matches(const c10::FunctionSchema& functional, const c10::FunctionSchema& other, size_t inputs);
// An overload's name without the namespace.
std::string name_of(const c10::OperatorHandle& op);

}  // namespace fuseline
