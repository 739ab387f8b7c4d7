// Keeps gRPC's other polling threads out of the way of the first one while decode streams are busy.
//
// gRPC polls with two threads or more. What a reaction starts and is complete at once, a write or a
// read of what has already come, wakes another thread that waits in the poll; from then on the two
// take turns, with one or two switches a step and no more work done. A thread that ends a reaction
// of a stream while another one is inside one therefore rests here, a moment at a time, for as long
// as streams are busy, a tenth of a second at most. It goes back earlier when they are not, and
// when a thread's worth of processor is used up while another processor is free: then two threads
// do more than one.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace attnd {

class SparePoller {
 public:
  // What the machine does at a moment.
  struct Load {
    double process_seconds = 0;  // of processor that this process has used
    double runnable = 0;         // threads of the machine that run or could, the caller left out
    double processors = 0;
  };

  // `num_pollers`: threads that gRPC polls with; one of them never rests.
  explicit SparePoller(int num_pollers = NumPollers(), std::function<Load()> load = CurrentLoad);

  // On the stack of a reaction, from its beginning to its end.
  class Reaction {
   public:
    explicit Reaction(SparePoller& spare) : spare_(spare) { spare_.Enter(); }
    ~Reaction() { spare_.Leave(); }
    Reaction(const Reaction&) = delete;
    Reaction& operator=(const Reaction&) = delete;

   private:
    SparePoller& spare_;
  };

  int resting() const { return resting_; }
  // What gRPC 1.51 starts for callbacks.
  static int NumPollers();
  static Load CurrentLoad();

 private:
  void Enter();
  void Leave();
  void Rest();
  void RestWhileBusy();

  const int most_resting_;
  const std::function<Load()> load_;
  std::atomic<int> inside_{0}, resting_{0};
  std::atomic<std::int64_t> reactions_{0};
  std::atomic<std::int64_t> not_before_ns_{0};  // of the steady clock
};

}  // namespace attnd
