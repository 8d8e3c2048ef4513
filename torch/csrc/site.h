// The line of the Python program that a call comes from: said to the engine before anything is
// recorded, so that errors can name it.
#pragma once

namespace fuseline {

// While it is alive, what this thread records and reads is for the line that called. The outermost
// one counts. Not under a lock: a line that is met for the first time is asked of Python, which
// another thread may have.
class CallSite {
 public:
  CallSite();
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

 private:
  // Of this thread, if this is the outermost one.
  bool* is_inside_ = nullptr;
};

// After an error whose line is not known: from now on lines are looked for, whatever it costs,
// unless the user has said no.
void want_sites();

}  // namespace fuseline
