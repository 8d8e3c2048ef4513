// Which line of the Python program an op comes from.
//
// A kernel runs without the interpreter's lock, and taking it for every op would cost more than the
// op. It need not be: the frames of a thread change by that thread only, which is here. So the
// chain of frames is read as it lies in memory, two words a frame: the next instruction, which
// stands for the line, and the frame that called. What an instruction stands for is asked of Python
// once, with its lock, and remembered.
//
// Where the words of a frame lie is known for some versions of Python, and compared with what
// Python itself says before it is used (_sites.py). For others every op asks Python; then that is
// done in debug mode only, unless the user says otherwise.
//
// The backward thread has no frames. There the forward op counts for which the node was made: nodes
// have numbers, and the number that the next one gets is known when the forward op is recorded.
//
// Invariants:
// - ST1: code whose instructions are remembered is never freed (a reference is kept), so that an
//   instruction stands for one line for ever.
// - ST2: frames are read by the thread that they belong to, while Python runs none of its code.
// - ST3: Python's lock is not taken by who holds a lock of this library.

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

#include "engine.h"

namespace fuseline {
namespace {

// A place, or that a frame is none: it is PyTorch's own.
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

// Where the words of a thread and a frame are, in bytes.
struct Layout {
  size_t frame_of_thread, frame_behind, code, instruction, back, owner;
  bool is_behind;  // The frame is behind a pointer.
  int no_python;   // The owner of frames that are no Python's.
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

// ----- what is known -----

std::mutex mutex;
std::vector<std::unique_ptr<const Place>> places;
std::unordered_map<std::string, const Place*> by_text;
std::unordered_map<const void*, const Place*> by_instruction;
std::unordered_set<const void*> kept;
// Of more code Python is asked every time: a program that makes code all the time must not keep all
// of it.
constexpr size_t kMostCode = 1 << 16;

// Under the lock.
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

// An attribute that is a text; with Python's lock.
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

// Asks Python for the frames of this thread, and remembers what their instructions stand for. The
// place is that of the innermost one that is not PyTorch's own.
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
      // Frames that Python does not show are passed by.
      while (raw != nullptr && (!is_pythons(raw) || word<const void*>(raw, layout.code) != code))
        raw = word<const void*>(raw, layout.back);
      if (raw != nullptr && (kept.size() < kMostCode || kept.count(code) != 0)) {
        by_instruction.emplace(word<const void*>(raw, layout.instruction), place);
        // The reference is kept (ST1).
        if (kept.insert(code).second) code = nullptr;
      }
      if (raw != nullptr) raw = word<const void*>(raw, layout.back);
    }
    if (code != nullptr) python.drop(code);
    void* outer = python.back(frame);
    python.drop(frame);
    frame = outer;
    // Of those further out nobody asks before they are the innermost ones.
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

// What this thread knows of itself.
struct Here {
  bool is_inside = false;
  uint32_t thread = static_cast<uint32_t>(at::RecordFunction::currentThreadId() * 0x9e3779b97f4a7c15u >> 32);
  std::array<Latest, kLatest> latest{};
};
// Found by a plain pointer, and freed by what is set up beside it.
thread_local Here* this_here = nullptr;
Here& make_here() {
  static thread_local struct Owner {
    Here here;
    ~Owner() { this_here = nullptr; }
  } owner;
  this_here = &owner.here;
  return owner.here;
}
Here& here() { return C10_LIKELY(this_here != nullptr) ? *this_here : make_here(); }

// The place of an instruction; null if it is not known.
const Place* known(Here& here, const void* instruction) {
  const auto bits = reinterpret_cast<uintptr_t>(instruction);
  Latest& latest = here.latest[(bits >> 1 ^ bits >> 10) % kLatest];
  if (latest.instruction == instruction) return latest.place;
  std::scoped_lock lock(mutex);
  const auto found = by_instruction.find(instruction);
  if (found == by_instruction.end()) return nullptr;
  latest = {instruction, found->second};
  return found->second;
}

const Place* walk(Here& here) {
  for (const void* frame = top(); frame != nullptr; frame = word<const void*>(frame, layout.back)) {
    if (!is_pythons(frame)) continue;
    const Place* place = known(here, word<const void*>(frame, layout.instruction));
    if (place == nullptr) return ask(true);
    if (place != &kNone) return place;
  }
  return &kNone;
}

// ----- forward and backward -----

// The forward op of an autograd node, by its number and thread: a word of the number and that of
// its place. Of so many nodes.
constexpr size_t kNodes = 1 << 14;
std::array<std::atomic<uint64_t>, kNodes> forward{};

uint32_t number_of(uint64_t sequence, uint32_t thread) {
  return static_cast<uint32_t>(sequence * 0x2127599bf4325c37u >> 24) ^ static_cast<uint32_t>(sequence) ^ thread;
}

void note_forward(const Here& here, const Place* place) {
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
  // Of a node that is written in Python the name is asked of Python.
  const std::string name = node->name();
  lock.lock();
  const std::string text = is_noted ? places[from]->text + ", backward (" + name + ")" : "backward (" + name + ")";
  return known[key] = place_of(text);
}

// ----- switches -----

enum Way : int { kOff, kWalk, kAsk };
// What the user said: -1 is nothing.
std::atomic<int> wanted{-1};
// How lines are found, if they are to be.
std::atomic<int> way{kOff};

const Place* unnamed() {
  static const Place* place = [] {
    std::scoped_lock lock(mutex);
    return place_of("a line that was not looked for (torch.fuseline.call_sites(True) has it named)");
  }();
  return place;
}

bool is_debug() {
  uint32_t mode = 0;
  return flt_mode(&mode) == FLT_OK && mode == 2;
}

const Place* find_place(Here& here) {
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
  Here& here = fuseline::here();
  if (here.is_inside) return;
  here.is_inside = true;
  is_inside_ = &here.is_inside;
  const Place* place = &kNone;
  try {
    place = find_place(here);
  } catch (const std::exception&) {
    // Whoever records must not fail because nobody can say where it is.
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

// Python's functions, in the order of the struct; and folders whose frames are passed by, a line
// each.
EXPORT void fuseline_torch_sites_init(void* const* functions, const char* folders) {
  static_assert(sizeof(fuseline::Python) % sizeof(void*) == 0, "addresses and nothing else");
  std::memcpy(static_cast<void*>(&fuseline::python), functions, sizeof fuseline::python);
  for (const char* end; (end = std::strchr(folders, '\n')) != nullptr; folders = end + 1)
    fuseline::skipped.emplace_back(folders, end);
}

// The code and the next instruction of the innermost frames of this thread, as they are read for
// this version of Python. How many; 0 where it is not known how.
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

// 0: lines are not looked for; 1: frames are read; 2: Python is asked.
EXPORT void fuseline_torch_sites_way(int way) { fuseline::way.store(way); }
// What the user says: no, yes, or -1 for neither. Returns what was said before.
EXPORT int fuseline_torch_sites_want(int wanted) { return fuseline::wanted.exchange(wanted); }
EXPORT int fuseline_torch_sites_has() { return fuseline::way.load(); }
