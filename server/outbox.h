// Answers and callbacks that wait for the scheduler's mutex to be released.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "server/work_item.h"

namespace attnd {

// What a locked section decided and that must run without the lock: answers and callbacks.
// Delivered by its destructor, so it is declared before the lock is taken.
class Outbox {
 public:
  Outbox() = default;
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void Answer(std::unique_ptr<PendingRequest> request) { answered_.push_back(std::move(request)); }
  void Call(absl::AnyInvocable<void()> call) { calls_.push_back(std::move(call)); }

 private:
  absl::InlinedVector<std::unique_ptr<PendingRequest>, 4> answered_;
  std::vector<absl::AnyInvocable<void()>> calls_;
};

}  // namespace attnd
