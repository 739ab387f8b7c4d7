// Sessions of a trace: one operation is a whole session, from the creation of its sequence over its
// prompt and each output token to its end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/attention_client.h"
#include "loadtest/latency_recorder.h"
#include "loadtest/prefix_store.h"
#include "loadtest/slot_thread.h"
#include "loadtest/trace.h"
#include "loadtest/workload.h"

namespace attnd::loadtest {

// Of sessions that ended OK, from the actual start of the session or step.
struct SessionTimes {
  LatencyRecorder first_token;  // sequence made, prompt appended and attended
  LatencyRecorder step;         // one output token, all layers
  std::int64_t prompt_tokens = 0;
  std::int64_t forked_tokens = 0;  // of them, those that a fork brought along
};

// Every call of a run by method and code, as it ended here: what a server counts as answered can be
// held against it.
using CallCounts = std::map<std::string, std::map<std::string, std::int64_t>>;

// The n-th Start runs the n-th record of the trace (the first one again after the last). A slot is
// a thread: a session waits for each of its answers before it goes on, as an engine does. Shape,
// layers and connections are the scenario's.
//
// Where records name their prompt's blocks, a session forks the kept sequence that shares most of
// its prompt and appends only the rest; what its prompt adds in whole blocks is kept for the next.
class SessionWorkload final : public Workload {
 public:
  // `prefix_tokens`: of the sequences kept for their prompts, all together; 0: none is.
  SessionWorkload(const ServiceWorkloadOptions& options, Trace trace,
                  std::int64_t prefix_tokens = 0);
  ~SessionWorkload() override;

  absl::Status Prepare(int slots) override;
  void Start(int slot, std::chrono::nanoseconds timeout, Done done) override;
  void Cancel() override;
  void SetExecution(const v1::ExecutionOptions& execution) override { execution_ = execution; }

  // Deletes the sequences that are kept for their prompts. Nothing is in flight here and below.
  void EndPrefixes();
  const SessionTimes& times() const { return times_; }
  const CallCounts& calls() const { return calls_; }

 private:
  struct Session;  // of one running session

  OperationResult Run(const TraceRecord& record, std::chrono::nanoseconds timeout);
  absl::Status RunSteps(Session& session, const TraceRecord& record);
  // The session's sequence and the tokens that it begins with.
  absl::StatusOr<std::int64_t> Begin(Session& session, const TraceRecord& record);
  absl::StatusOr<std::string> Create(const Session& session);
  absl::StatusOr<std::string> Fork(const Session& session, const std::string& parent,
                                   std::int64_t num_tokens);
  // Keeps a fork of the session's sequence, cut to its prompt's whole blocks. Best effort.
  void KeepPrefix(const Session& session, const TraceRecord& record);
  void Delete(const std::vector<std::string>& sequences, const client::CallOptions& call);
  void Count(const char* method, const absl::Status& status);
  // num_tokens tokens at `position` into every layer, one request a layer.
  absl::Status Append(Session& session, std::int64_t position, std::int64_t num_tokens);

  const ServiceWorkloadOptions options_;
  const Trace trace_;
  v1::ExecutionOptions execution_;
  std::int64_t max_tokens_ = 0;  // of every sequence: any session may fork any other's
  client::Tensor q_, k_, v_;     // of the longest chunk; requests send their first rows
  std::atomic<std::uint64_t> next_record_{0};
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  SessionTimes times_;  // guarded by mutex_ while sessions run, as the next one
  CallCounts calls_;
  PrefixStore prefixes_;
  client::AttentionClient client_;
  std::deque<SlotThread> threads_;  // one a slot; last: they end before what they use goes
};

}  // namespace attnd::loadtest
