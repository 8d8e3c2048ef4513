// Times ops of one element in a C++ loop, as the code of a backend or a C++ program calls them.
// Built and called by speed.py.

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sum.h>
#include <c10/core/InferenceMode.h>

#include <ctime>
#include <functional>

namespace {

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

// Nanoseconds of CPU time of the calling thread for one call of op `which`, averaged over `count`
// calls. Negative if there is no such op.
extern "C" __attribute__((visibility("default"))) double dispatch_time(const char* device, int which, int count) {
  const at::Tensor x = at::ones({1}, c10::TensorOptions().device(c10::Device(device))), y = at::ones_like(x);
  at::Tensor z = at::ones_like(x);
  const std::function<void()> ops[] = {
      [&] { at::add(x, y); }, [&] { at::mul(x, y); }, [&] { at::neg(x); }, [&] { z.add_(y); },
      [&] { at::exp(x); },    [&] { at::lt(x, y); },  [&] { at::sum(x); },
  };
  if (which < 0 || which >= static_cast<int>(std::size(ops))) return -1;
  const double start = thread_seconds();
  for (int at = 0; at < count; ++at) ops[which]();
  return (thread_seconds() - start) / count * 1e9;
}
