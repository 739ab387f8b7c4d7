// Sessions of a trace: one operation is a whole session, from the creation of its sequence over its
// prompt and each output token to its end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/attention_client.h"
#include "loadtest/latency_recorder.h"
#include "loadtest/trace.h"
#include "loadtest/workload.h"

namespace attnd::loadtest {

// Of sessions that ended OK, from the actual start of the session or step.
struct SessionTimes {
  LatencyRecorder first_token;  // sequence made, prompt appended and attended
  LatencyRecorder step;         // one output token, all layers
};

// The n-th Start runs the n-th record of the trace (the first one again after the last). A slot is
// a thread: a session waits for each of its answers before it goes on, as an engine does. Shape,
// layers and connections are the scenario's.
class SessionWorkload final : public Workload {
 public:
  SessionWorkload(const ServiceWorkloadOptions& options, Trace trace);
  ~SessionWorkload() override;

  absl::Status Prepare(int slots) override;
  void Start(int slot, std::chrono::nanoseconds timeout, Done done) override;
  void Cancel() override;
  void SetExecution(const v1::ExecutionOptions& execution) override { execution_ = execution; }

  // Nothing is in flight.
  const SessionTimes& times() const { return times_; }

 private:
  struct Session;  // of one running session

  OperationResult Run(const TraceRecord& record, std::chrono::nanoseconds timeout);
  absl::Status RunSteps(Session& session, const TraceRecord& record);
  // num_tokens tokens at `position` into every layer, one request a layer.
  absl::Status Append(Session& session, std::int64_t position, std::int64_t num_tokens);

  const ServiceWorkloadOptions options_;
  const Trace trace_;
  v1::ExecutionOptions execution_;
  client::Tensor q_, k_, v_;  // of the longest chunk; requests send their first rows
  std::atomic<std::uint64_t> next_record_{0};
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  SessionTimes times_;  // guarded by mutex_ while sessions run
  client::AttentionClient client_;
  std::vector<std::jthread> threads_;  // one a slot; last: they end before what they use goes
};

}  // namespace attnd::loadtest
