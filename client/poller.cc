#include "client/poller.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace attnd::client {
namespace {

// The queue hands a waiter from thread to thread; ThreadSanitizer does not see how gRPC does it.
void TellBefore([[maybe_unused]] void* tag) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(tag);
#endif
}
void TellAfter([[maybe_unused]] void* tag) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(tag);
#endif
}

}  // namespace

Poller::Poller() : thread_([this] { Run(); }) {}

Poller::~Poller() {
  queue_.Shutdown();
  thread_.join();
}

void Poller::Run() noexcept {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    TellAfter(tag);
    static_cast<Waiter*>(tag)->OnCompleted(ok);
  }
}

void* Poller::TagOf(Waiter& waiter) {
  void* const tag = &waiter;
  TellBefore(tag);
  return tag;
}

}  // namespace attnd::client
