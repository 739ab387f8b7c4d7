// What a run sends. A workload has slots; at most one operation runs in a slot at a time (a decode
// slot owns its sequences, whose steps depend on each other).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "client/attention_client.h"
#include "loadtest/scenario.h"

namespace attnd::loadtest {

struct OperationResult {
  absl::Status status;
  std::int64_t tokens = 0;  // query tokens answered
  // From the reply's ExecutionInfo.
  std::chrono::nanoseconds kernel_time{0};
  std::chrono::nanoseconds queue_time{0};
  int batch_requests = 0;
  std::vector<std::string> kernels;
};

class Workload {
 public:
  using Done = absl::AnyInvocable<void(OperationResult)>;

  Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;
  virtual ~Workload() = default;

  // Blocks: connects and makes the server's state. Once, before anything else.
  virtual absl::Status Prepare(int slots) = 0;

  // Returns at once; `done` runs exactly once, on any thread, possibly inside Start.
  virtual void Start(int slot, std::chrono::nanoseconds timeout, Done done) = 0;

  // Operations in flight end soon, CANCELLED.
  virtual void Cancel() = 0;

  // Of the operations started from now on; nothing is in flight.
  virtual void SetExecution(const v1::ExecutionOptions& execution) = 0;
};

struct ServiceWorkloadOptions {
  Scenario scenario;
  client::TransportOptions transport;  // connections are the scenario's
  std::chrono::nanoseconds prepare_timeout = std::chrono::seconds(60);  // of one preparing call
  bool fill_cache = true;  // false: prompts are not sent (an echo keeps no cache)
  std::uint64_t seed = 1;  // of random tensors
};

// The scenario against a server. Sequences that it made are deleted when it goes.
std::unique_ptr<Workload> MakeServiceWorkload(const ServiceWorkloadOptions& options);

}  // namespace attnd::loadtest
