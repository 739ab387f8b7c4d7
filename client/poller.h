// One completion queue of gRPC and the one thread that waits for it: it polls the sockets and runs
// what their operations lead to.
//
// Not gRPC's callback API: that polls with two threads at least, and each operation that is
// complete at once wakes the other one, with a switch or two of threads a message and no more work
// done.
#pragma once

#include <thread>

#include "grpcpp/completion_queue.h"

namespace attnd::client {

class Poller {
 public:
  // Whoever waits for an operation of the queue. It lives until it is called.
  class Waiter {
   public:
    Waiter() = default;
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    // Once an operation, on the poller's thread: must not block. An exception out of it ends the
    // process.
    virtual void OnCompleted(bool ok) = 0;

   protected:
    ~Waiter() = default;
  };

  Poller();
  // Waits for the operations under way, their waiters included. Not on the poller's own thread.
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  grpc::CompletionQueue* queue() { return &queue_; }
  // The tag of an operation that is started next: what was done before, `waiter` sees.
  static void* TagOf(Waiter& waiter);

 private:
  void Run() noexcept;

  grpc::CompletionQueue queue_;
  std::thread thread_;
};

}  // namespace attnd::client
