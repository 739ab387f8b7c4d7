// What clang's thread safety analysis must report: a guarded member without its mutex.
#include "server/mutex.h"

namespace attnd {

class Counter {
 public:
  int Locked() {
    MutexLock lock(mutex_);
    return count_;
  }
  int Unlocked() { return count_; }

 private:
  Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attnd
