// The end of the program, before Python's own.
//
// PyTorch has a thread for the backward passes of each device, and it outlives the program. Two
// things of it need Python's lock without anybody waiting for them: its beginning, and the release
// of what a backward pass has kept, which may come after `backward()` has returned. A thread that
// asks for the lock when the interpreter is being taken down is ended by it, in the middle of C++
// that may not be left so (status 134), or before it has counted itself out, which PyTorch's end
// then waits for, for ten seconds. So before that the thread is seen at rest: something is run on
// it, behind whatever it was at.
//
// The engine's threads also compile in the background. They begin no further compile, and the main
// thread has priority over the compiles that are under way.

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

// A backward pass of nothing.
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

// Whether there are threads of the backward pass. They are not started for this.
struct Engine : public torch::autograd::Engine {
  static bool has_threads(torch::autograd::Engine& engine) { return !(engine.*(&Engine::device_ready_queues_)).empty(); }
};

// The pass has no Python object in its thread-local state: it is begun on a thread that Python does
// not know.
void pass() {
  try {
    const at::Tensor none = at::empty({0}, at::TensorOptions().device(fuseline::kDevice));
    NodePtr node = make_nothing<NodePtr>();
    node->add_input_metadata(none);
    torch::autograd::Engine::get_default_engine().execute({torch::autograd::Edge(node, 0)}, {none}, false, false, true);
  } catch (const std::exception&) {
    // In the child of a fork there are no threads to be waited for.
  }
}

struct Passed {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
};

// Lets the other threads run only while this one sleeps: all of them are bound to one processor,
// and the others have the scheduler's lowest class. On another processor they would slow this
// thread down through shared memory and caches. They are not stopped, because one may hold a lock
// that this thread waits for.
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
    // One that has ended meanwhile has no class to be lowered.
    if (thread == 0 || thread == getpid()) continue;
    const sched_param lowest{};
    if (sched_setscheduler(thread, SCHED_IDLE, &lowest) != 0) (void)setpriority(PRIO_PROCESS, static_cast<id_t>(thread), 19);
    if (is_bound) (void)sched_setaffinity(thread, sizeof here, &here);
  }
  closedir(threads);
#endif
}

}  // namespace

// For the Python module, when the program has ended and the interpreter has not, without its lock.
// Waits so long at most.
extern "C" __attribute__((visibility("default"))) void fuseline_torch_settle(int milliseconds) {
  flt_pause_background_compiles();
  if (Engine::has_threads(torch::autograd::Engine::get_default_engine())) {
    const auto passed = std::make_shared<Passed>();
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
