// The call site of a call: the engine gets it before anything is recorded, so that errors can name
// it.
#pragma once

namespace fuseline {

// While this object lives, what the thread records and reads belongs to the calling line. The
// outermost object counts. Do not create one under a lock: a new line is looked up in Python, whose
// lock another thread may hold.
class CallSite {
 public:
  CallSite();
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

 private:
  // The flag of this thread, if this object is the outermost one.
  bool* is_inside_ = nullptr;
};

// Called after an error whose line is unknown: looks for lines from now on, at any cost, unless the
// user has turned them off.
void want_sites();

}  // namespace fuseline
