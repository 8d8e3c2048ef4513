// Finds the line of the Python program that records an op.
//
// A kernel runs without the interpreter's lock, and taking the lock for every op would cost more
// than the op. It is not needed: only a thread itself changes its frames, and that thread is here.
// So this file reads the chain of frames from memory, two words per frame: the next instruction,
// which identifies the line, and the calling frame. It asks Python once per instruction, with the
// lock, for the line and caches the answer.
//
// The layout of frames is known for some versions of Python, and is compared with what Python
// reports before it is used (_sites.py). With other versions each op would have to ask Python, so
// they do so only in debug mode unless the user turns it on.
//
// The backward thread has no frames. There the call site is that of the forward op that made the
// autograd node: nodes are numbered, and the number of the next node is known when the forward op
// is recorded.
//
// Invariants:
// - SITE-1: code whose instructions are cached is never freed (a reference is kept), so an
//   instruction identifies one line forever.
// - SITE-2: a thread reads only its own frames, while Python runs none of its code.
// - SITE-3: no thread takes Python's lock while it holds a lock of this library.

#include "site.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "storage.h"

namespace fuseline {
namespace {

// A call site, or the fact that a frame is PyTorch's own and does not count.
struct Place {
  const FltSite* site = nullptr;
  uint32_t number = 0;
  std::string text;
};
const Place kNone;

// ----- Python, by the addresses of its functions (_sites.py) -----

struct Python {
  void* (*this_thread)();
  int (*take)();
  void (*give)(int);
  void* (*frame_of)(void* thread);
  void* (*back)(void* frame);
  void* (*code_of)(void* frame);
  int (*line_of)(void* frame);
  void* (*attribute)(void* object, const char* name);
  const char* (*utf8)(void* text);
  void (*drop)(void* object);
  void (*clear)();
};
Python python{};
std::vector<std::string> skipped;

// Offsets of fields of threads and frames, in bytes.
struct Layout {
  size_t frame_of_thread, frame_behind, code, instruction, back, owner;
  bool is_behind;  // The frame is behind a pointer.
  int no_python;   // The owner of frames without Python code.
};
std::optional<Layout> layout_of(int version) {
  switch (version) {
    case 0x030b: return Layout{56, 8, 32, 56, 48, 69, true, -1};
    case 0x030c: return Layout{56, 0, 0, 56, 8, 70, true, 3};
    case 0x030d: return Layout{72, 0, 0, 56, 8, 70, false, 3};
    default: return std::nullopt;
  }
}
Layout layout{};

template <class T>
T word(const void* base, size_t at) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + at, sizeof value);
  return value;
}

// The innermost frame of this thread, or null.
const void* top() {
  const void* thread = python.this_thread();
  if (thread == nullptr) return nullptr;
  const void* frame = word<const void*>(thread, layout.frame_of_thread);
  return layout.is_behind && frame != nullptr ? word<const void*>(frame, layout.frame_behind) : frame;
}
bool is_pythons(const void* frame) { return word<signed char>(frame, layout.owner) != layout.no_python; }

// ----- the cache of call sites -----

std::mutex mutex;
std::vector<std::unique_ptr<const Place>> places;
std::unordered_map<std::string, const Place*> by_text;
std::unordered_map<const void*, const Place*> by_instruction;
std::unordered_set<const void*> kept;
// Beyond this much code, each op asks Python: a program that generates code all the time must not
// keep all of it.
constexpr size_t kMostCode = 1 << 16;

// Needs the lock.
const Place* place_of(const std::string& text) {
  if (auto found = by_text.find(text); found != by_text.end()) return found->second;
  auto made = std::make_unique<Place>();
  made->site = flt_site(text.data(), text.size());
  made->number = static_cast<uint32_t>(places.size());
  made->text = text;
  const Place* place = made.get();
  places.push_back(std::move(made));
  by_text.emplace(text, place);
  return place;
}

// A text attribute. Needs Python's lock.
std::string text_of(void* object, const char* name) {
  std::string text;
  if (void* value = python.attribute(object, name)) {
    if (const char* words = python.utf8(value)) text = words;
    python.drop(value);
  }
  if (text.empty()) python.clear();
  return text;
}

bool is_skipped(const std::string& file) {
  for (const std::string& folder : skipped)
    if (file.compare(0, folder.size(), folder) == 0) return true;
  return false;
}

// Asks Python for the frames of this thread and caches the lines of their instructions. Returns the
// call site of the innermost frame that is not PyTorch's own.
const Place* ask(bool remembers) {
  const Place* result = &kNone;
  const int state = python.take();
  const void* raw = remembers ? top() : nullptr;
  void* frame = python.frame_of(python.this_thread());
  while (frame != nullptr) {
    void* code = python.code_of(frame);
    const std::string file = text_of(code, "co_filename");
    const bool is_own = is_skipped(file);
    std::string text;
    if (!is_own) {
      text = file + ":" + std::to_string(python.line_of(frame));
      const std::string function = text_of(code, "co_name");
      if (function != "<module>") text += " in " + function;
    }
    {
      std::scoped_lock lock(mutex);
      const Place* place = is_own ? &kNone : place_of(text);
      if (result == &kNone) result = place;
      // Skips frames that Python does not show.
      while (raw != nullptr && (!is_pythons(raw) || word<const void*>(raw, layout.code) != code))
        raw = word<const void*>(raw, layout.back);
      if (raw != nullptr && (kept.size() < kMostCode || kept.count(code) != 0)) {
        by_instruction.emplace(word<const void*>(raw, layout.instruction), place);
        // Keep the reference (SITE-1).
        if (kept.insert(code).second) code = nullptr;
      }
      if (raw != nullptr) raw = word<const void*>(raw, layout.back);
    }
    if (code != nullptr) python.drop(code);
    void* outer = python.back(frame);
    python.drop(frame);
    frame = outer;
    // Frames further out are looked up only once they are the innermost ones.
    if (result != &kNone && frame != nullptr) {
      python.drop(frame);
      break;
    }
  }
  python.give(state);
  return result;
}

constexpr size_t kLatest = 512;
struct Latest {
  const void* instruction;
  const Place* place;
};

// State of this thread.
struct ThreadState {
  bool is_inside = false;
  uint32_t thread = static_cast<uint32_t>(at::RecordFunction::currentThreadId() * 0x9e3779b97f4a7c15u >> 32);
  std::array<Latest, kLatest> latest{};
};
// A plain pointer is fast to read; `Owner` frees the state.
thread_local ThreadState* thread_state = nullptr;
ThreadState& make_here() {
  static thread_local struct Owner {
    ThreadState here;
    ~Owner() { thread_state = nullptr; }
  } owner;
  thread_state = &owner.here;
  return owner.here;
}
ThreadState& here() { return C10_LIKELY(thread_state != nullptr) ? *thread_state : make_here(); }

// The call site of an instruction, or null if it is not cached.
const Place* known(ThreadState& here, const void* instruction) {
  const auto bits = reinterpret_cast<uintptr_t>(instruction);
  Latest& latest = here.latest[(bits >> 1 ^ bits >> 10) % kLatest];
  if (latest.instruction == instruction) return latest.place;
  std::scoped_lock lock(mutex);
  const auto found = by_instruction.find(instruction);
  if (found == by_instruction.end()) return nullptr;
  latest = {instruction, found->second};
  return found->second;
}

const Place* walk(ThreadState& here) {
  for (const void* frame = top(); frame != nullptr; frame = word<const void*>(frame, layout.back)) {
    if (!is_pythons(frame)) continue;
    const Place* place = known(here, word<const void*>(frame, layout.instruction));
    if (place == nullptr) return ask(true);
    if (place != &kNone) return place;
  }
  return &kNone;
}

// ----- forward and backward -----

// The forward op of an autograd node, by node number and thread. Each entry holds a word of the
// number and the number of the call site.
constexpr size_t kNodes = 1 << 14;
std::array<std::atomic<uint64_t>, kNodes> forward{};

uint32_t number_of(uint64_t sequence, uint32_t thread) {
  return static_cast<uint32_t>(sequence * 0x2127599bf4325c37u >> 24) ^ static_cast<uint32_t>(sequence) ^ thread;
}

void note_forward(const ThreadState& here, const Place* place) {
  const uint64_t next = at::sequence_number::peek();
  if (next == 0) return;
  const uint32_t number = number_of(next - 1, here.thread);
  forward[number % kNodes].store(static_cast<uint64_t>(number) << 32 | place->number, std::memory_order_relaxed);
}

const Place* in_backward() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return &kNone;
  const auto thread = static_cast<uint32_t>(node->thread_id() * 0x9e3779b97f4a7c15u >> 32);
  const uint32_t number = number_of(node->sequence_nr(), thread);
  const uint64_t noted = forward[number % kNodes].load(std::memory_order_relaxed);
  const bool is_noted = noted >> 32 == number;
  const uint64_t from = is_noted ? noted & 0xffffffffu : UINT32_MAX;

  static std::unordered_map<uint64_t, const Place*> known;
  auto& ref = *node;
  const uint64_t key = std::type_index(typeid(ref)).hash_code() * 0x9e3779b97f4a7c15u ^ from;
  std::unique_lock lock(mutex);
  if (auto found = known.find(key); found != known.end()) return found->second;
  lock.unlock();
  // The name of a node that is written in Python comes from Python.
  const std::string name = node->name();
  lock.lock();
  const std::string text = is_noted ? places[from]->text + ", backward (" + name + ")" : "backward (" + name + ")";
  return known[key] = place_of(text);
}

// ----- switches -----

enum Way : int { kOff, kWalk, kAsk };
// The user's setting; -1 means none.
std::atomic<int> wanted{-1};
// How call sites are found, if at all.
std::atomic<int> way{kOff};

const Place* unnamed() {
  static const Place* place = [] {
    std::scoped_lock lock(mutex);
    return place_of("an unknown line (torch." + device_name() + ".call_sites(True) records lines)");
  }();
  return place;
}

bool is_debug() {
  uint32_t mode = 0;
  return flt_mode(&mode) == FLT_OK && mode == 2;
}

const Place* find_place(ThreadState& here) {
  const int by = way.load(std::memory_order_relaxed), said = wanted.load(std::memory_order_relaxed);
  if (by == kOff) return &kNone;
  if (said == 0 || (by == kAsk && said != 1 && !is_debug())) return unnamed();
  if (by == kAsk && python.this_thread() == nullptr) return in_backward();
  const Place* place = by == kWalk ? walk(here) : ask(false);
  if (place == &kNone) return in_backward();
  if (c10::GradMode::is_enabled()) note_forward(here, place);
  return place;
}

}  // namespace

CallSite::CallSite() {
  ThreadState& here = fuseline::here();
  if (here.is_inside) return;
  here.is_inside = true;
  is_inside_ = &here.is_inside;
  const Place* place = &kNone;
  try {
    place = find_place(here);
  } catch (const std::exception&) {
    // An unknown call site must not make recording fail.
  }
  flt_at(place->site);
}

CallSite::~CallSite() {
  if (is_inside_ == nullptr) return;
  *is_inside_ = false;
  flt_at(nullptr);
}

void want_sites() {
  int nothing = -1;
  wanted.compare_exchange_strong(nothing, 1);
}

}  // namespace fuseline

// ----- for the Python module, by ctypes -----

#define EXPORT extern "C" __attribute__((visibility("default")))

// Takes Python's functions in the order of the struct, and the folders whose frames are skipped,
// one per line.
EXPORT void fuseline_torch_sites_init(void* const* functions, const char* folders) {
  static_assert(sizeof(fuseline::Python) % sizeof(void*) == 0, "addresses and nothing else");
  std::memcpy(static_cast<void*>(&fuseline::python), functions, sizeof fuseline::python);
  for (const char* end; (end = std::strchr(folders, '\n')) != nullptr; folders = end + 1)
    fuseline::skipped.emplace_back(folders, end);
}

// Returns code and next instruction of the innermost frames of this thread, read with the layout of
// this version of Python. The result is their number, or 0 if the layout is not known.
EXPORT size_t fuseline_torch_frames(int version, const void** codes, const void** instructions, size_t room) {
  const auto found = fuseline::layout_of(version);
  if (!found) return 0;
  fuseline::layout = *found;
  size_t count = 0;
  for (const void* frame = fuseline::top(); frame != nullptr && count < room;
       frame = fuseline::word<const void*>(frame, fuseline::layout.back)) {
    if (!fuseline::is_pythons(frame)) continue;
    codes[count] = fuseline::word<const void*>(frame, fuseline::layout.code);
    instructions[count++] = fuseline::word<const void*>(frame, fuseline::layout.instruction);
  }
  return count;
}

// 0: no call sites; 1: read frames; 2: ask Python.
EXPORT void fuseline_torch_sites_way(int way) { fuseline::way.store(way); }
// Sets the user's choice: no, yes, or -1 for neither. Returns the previous one.
EXPORT int fuseline_torch_sites_want(int wanted) { return fuseline::wanted.exchange(wanted); }
EXPORT int fuseline_torch_sites_has() { return fuseline::way.load(); }
