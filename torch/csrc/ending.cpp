// The end of the program, before Python's own.
//
// PyTorch has a thread for the backward passes of each device, and the thread outlives the program.
// Nobody waits for it in two places where it needs Python's lock: when it starts, and when it
// releases what a backward pass has saved, possibly after `backward()` has returned. If a thread
// asks for the lock while the interpreter shuts down, the interpreter ends the thread. This either
// unwinds C++ code that must not be unwound (exit status 134), or happens before the thread has
// counted itself out, and then PyTorch's shutdown waits for it for ten seconds. So this file first
// waits until the thread is idle, by running a no-op on it after its other work.
//
// The engine's threads also compile in the background. They start no further compile, and the main
// thread has priority over running compiles.

#include <ATen/ops/empty.h>
#include <dirent.h>
#include <sched.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "engine.h"
#include "storage.h"

namespace {

using NodePtr = decltype(torch::autograd::Edge::function);

// An empty backward pass.
struct Nothing final : public torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

template <class Pointer>
Pointer make_nothing() {
  if constexpr (std::is_constructible_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return Pointer(std::make_shared<Nothing>());
  else
    return c10::make_intrusive<Nothing>();
}

// Whether the threads of the backward pass exist. Asking does not start them.
struct Engine : public torch::autograd::Engine {
  static bool has_threads(torch::autograd::Engine& engine) { return !(engine.*(&Engine::device_ready_queues_)).empty(); }
};

// Runs the empty pass. It starts on a thread without Python state, so its thread-local state has no
// Python object.
void pass() {
  try {
    const at::Tensor none = at::empty({0}, at::TensorOptions().device(fuseline::kDevice));
    NodePtr node = make_nothing<NodePtr>();
    node->add_input_metadata(none);
    torch::autograd::Engine::get_default_engine().execute({torch::autograd::Edge(node, 0)}, {none}, false, false, true);
  } catch (const std::exception&) {
    // In a forked child there are no threads to wait for.
  }
}

struct IdleSignal {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
};

// Lets the other threads run only while this one sleeps: all of them are bound to one processor,
// and the others get the scheduler's lowest class. On another processor they would slow this thread
// down through shared memory and caches. They are not stopped, because one may hold a lock that
// this thread waits for.
void deprioritize_other_threads() {
#ifdef __linux__
  DIR* threads = opendir("/proc/self/task");
  if (threads == nullptr) return;
  cpu_set_t here;
  CPU_ZERO(&here);
  const int processor = sched_getcpu();
  if (processor >= 0) CPU_SET(processor, &here);
  const bool is_bound = processor >= 0 && sched_setaffinity(0, sizeof here, &here) == 0;
  while (const dirent* entry = readdir(threads)) {
    const auto thread = static_cast<pid_t>(std::atol(entry->d_name));
    // The calls fail harmlessly for a thread that has ended meanwhile.
    if (thread == 0 || thread == getpid()) continue;
    const sched_param lowest{};
    if (sched_setscheduler(thread, SCHED_IDLE, &lowest) != 0) (void)setpriority(PRIO_PROCESS, static_cast<id_t>(thread), 19);
    if (is_bound) (void)sched_setaffinity(thread, sizeof here, &here);
  }
  closedir(threads);
#endif
}

}  // namespace

// Called by the Python module without Python's lock, after the program has ended and before the
// interpreter does. The argument is the longest wait, in milliseconds.
extern "C" __attribute__((visibility("default"))) void fuseline_torch_settle(int milliseconds) {
  flt_pause_background_compiles();
  if (Engine::has_threads(torch::autograd::Engine::get_default_engine())) {
    const auto passed = std::make_shared<IdleSignal>();
    std::thread([passed] {
      pass();
      std::scoped_lock lock(passed->mutex);
      passed->is_over = true;
      passed->changed.notify_all();
    }).detach();
    std::unique_lock lock(passed->mutex);
    passed->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return passed->is_over; });
  }
  if (flt_is_open()) deprioritize_other_threads();
}
