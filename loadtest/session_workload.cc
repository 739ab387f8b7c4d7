#include "loadtest/session_workload.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loadtest/random_tensor.h"

namespace attnd::loadtest {
namespace {

using client::Tensor;
using SteadyClock = std::chrono::steady_clock;

// Of calls that follow cancelled ones, so that no sequence stays behind.
constexpr client::CallOptions kCleanUp{.timeout = std::chrono::seconds(5)};

// Queries of a prompt travel in chunks of at most so many bytes.
constexpr std::int64_t kChunkBytes = std::int64_t{8} << 20;

client::ClientOptions OptionsOf(const ServiceWorkloadOptions& options) {
  client::ClientOptions client;
  client.transport = options.transport;
  client.transport.connections = options.scenario.connections;
  client.retry.max_attempts = 1;  // failures are counted, not hidden
  return client;
}

std::chrono::nanoseconds DurationOf(const google::protobuf::Duration& duration) {
  return std::chrono::seconds(duration.seconds()) + std::chrono::nanoseconds(duration.nanos());
}

std::string RandomKey() {
  std::random_device random;
  std::string key;
  for (int word = 0; word < 4; ++word) {
    for (std::uint32_t bits = random(), byte = 0; byte < 4; ++byte, bits >>= 8) {
      key.push_back(static_cast<char>(bits));
    }
  }
  return key;
}

Tensor FirstRows(const Tensor& tensor, std::int64_t rows) {
  Tensor first = tensor;
  first.size_bytes = tensor.size_bytes / tensor.shape[0] * rows;
  first.shape[0] = rows;
  return first;
}

}  // namespace

struct SessionWorkload::Session {
  std::string sequence_id;
  std::size_t forked_blocks = 0;
  client::CallOptions call;
  OperationResult result;
  SessionTimes times;
};

SessionWorkload::SessionWorkload(const ServiceWorkloadOptions& options, Trace trace,
                                 std::int64_t prefix_tokens)
    : options_(options),
      trace_(std::move(trace)),
      prefixes_(trace_.empty() ? 0 : prefix_tokens / trace_.front().block_tokens),
      client_(OptionsOf(options)) {}

SessionWorkload::~SessionWorkload() {
  threads_.clear();
  EndPrefixes();
}

void SessionWorkload::EndPrefixes() { Delete(prefixes_.TakeAll(), kCleanUp); }

void SessionWorkload::Count(const char* method, const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  ++calls_[method][absl::StatusCodeToString(status.code())];
}

absl::Status SessionWorkload::Prepare(int slots) {
  const Scenario& scenario = options_.scenario;
  const auto longest = std::max_element(trace_.begin(), trace_.end(),
                                        [](const TraceRecord& one, const TraceRecord& other) {
                                          return one.prompt_tokens < other.prompt_tokens;
                                        });
  if (longest == trace_.end()) return absl::InvalidArgumentError("the trace holds no record");
  for (const TraceRecord& record : trace_) {
    max_tokens_ = std::max(max_tokens_, record.prompt_tokens + record.output_tokens);
  }
  const std::int64_t row_bytes =
      std::int64_t{scenario.heads} * scenario.head_dim * client::ElementBytes(scenario.data_type);
  const std::int64_t rows =
      std::clamp<std::int64_t>(kChunkBytes / row_bytes, 1, longest->prompt_tokens);
  const std::vector<std::int64_t> kv_shape{rows, scenario.kv_heads, scenario.head_dim};
  q_ = RandomTensor(scenario.data_type, {rows, scenario.heads, scenario.head_dim}, options_.seed);
  k_ = RandomTensor(scenario.data_type, kv_shape, options_.seed + 1);
  v_ = RandomTensor(scenario.data_type, kv_shape, options_.seed + 2);
  threads_ = std::deque<SlotThread>(static_cast<std::size_t>(slots));
  return absl::OkStatus();
}

void SessionWorkload::Start(int slot, std::chrono::nanoseconds timeout, Done done) {
  const TraceRecord& record = trace_[next_record_++ % trace_.size()];
  // Where arrivals are dense, this may be that very thread, inside its `done`.
  threads_[static_cast<std::size_t>(slot)].Run(
      [this, &record, timeout, done = std::move(done)]() mutable { done(Run(record, timeout)); });
}

void SessionWorkload::Cancel() {
  cancelled_ = true;
  client_.transport().CancelAll();
}

OperationResult SessionWorkload::Run(const TraceRecord& record, std::chrono::nanoseconds timeout) {
  Session session;
  session.call.timeout = timeout;
  session.result.status = RunSteps(session, record);
  if (!session.sequence_id.empty()) Delete({session.sequence_id}, session.call);
  if (session.result.status.ok()) {
    session.result.tokens =
        record.prompt_tokens - session.times.forked_tokens + record.output_tokens - 1;
    const std::lock_guard lock(mutex_);
    times_.prompt_tokens += record.prompt_tokens;
    times_.forked_tokens += session.times.forked_tokens;
    times_.first_token.Merge(session.times.first_token);
    times_.step.Merge(session.times.step);
  }
  return std::move(session.result);
}

void SessionWorkload::Delete(const std::vector<std::string>& sequences,
                             const client::CallOptions& call) {
  if (sequences.empty()) return;
  v1::DeleteSequencesRequest request;
  for (const std::string& sequence : sequences) request.add_sequence_ids(sequence);
  // Best effort: leases end what is left.
  absl::Status status = client_.DeleteSequences(request, call).status();
  Count("DeleteSequences", status);
  if (!status.ok() && cancelled_) {
    Count("DeleteSequences", client_.DeleteSequences(request, kCleanUp).status());
  }
}

absl::StatusOr<std::string> SessionWorkload::Create(const Session& session) {
  const Scenario& scenario = options_.scenario;
  v1::CreateSequenceRequest request;
  request.set_num_layers(scenario.layers);
  request.set_num_heads(scenario.heads);
  request.set_num_kv_heads(scenario.kv_heads);
  request.set_head_dim(scenario.head_dim);
  request.set_data_type(scenario.data_type);
  request.set_max_tokens(max_tokens_);
  v1::AttentionOptions& attention = *request.add_layer_groups()->mutable_options();
  if (scenario.window >= 0) attention.set_window_left(scenario.window);
  attention.set_logits_soft_cap(static_cast<float>(scenario.soft_cap));
  request.set_creation_key(RandomKey());
  auto created = client_.CreateSequence(request, session.call);
  Count("CreateSequence", created.status());
  if (!created.ok() && cancelled_) {
    // It may have been made before it was cancelled: the same key tells its id, to delete it by.
    created = client_.CreateSequence(request, kCleanUp);
    Count("CreateSequence", created.status());
  }
  if (!created.ok()) return created.status();
  return created->sequence_id();
}

absl::StatusOr<std::string> SessionWorkload::Fork(const Session& session, const std::string& parent,
                                                  std::int64_t num_tokens) {
  v1::ForkSequenceRequest request;
  request.set_sequence_id(parent);
  request.set_num_tokens(num_tokens);
  request.set_creation_key(RandomKey());
  auto forked = client_.ForkSequence(request, session.call);
  Count("ForkSequence", forked.status());
  if (!forked.ok() && cancelled_) {  // as in Create
    forked = client_.ForkSequence(request, kCleanUp);
    Count("ForkSequence", forked.status());
  }
  if (!forked.ok()) return forked.status();
  return forked->sequence_id();
}

absl::StatusOr<std::int64_t> SessionWorkload::Begin(Session& session, const TraceRecord& record) {
  const std::span<const std::int64_t> blocks(record.blocks.data(), WholeBlocks(record));
  if (const auto match = prefixes_.Find(blocks)) {
    // The prompt's last token is always asked: its answer is the first token of the output.
    const std::int64_t shared =
        std::min(static_cast<std::int64_t>(match->num_blocks) * record.block_tokens,
                 record.prompt_tokens - 1);
    if (auto forked = Fork(session, match->sequence_id, shared); forked.ok()) {
      session.sequence_id = *std::move(forked);
      session.forked_blocks = match->num_blocks;
      session.times.forked_tokens = shared;
      return shared;
    }
    // Gone on the server, or meanwhile from the store.
    prefixes_.Forget(match->sequence_id);
  }
  auto created = Create(session);
  if (!created.ok()) return created.status();
  session.sequence_id = *std::move(created);
  return 0;
}

void SessionWorkload::KeepPrefix(const Session& session, const TraceRecord& record) {
  const std::span<const std::int64_t> blocks(record.blocks.data(), WholeBlocks(record));
  if (blocks.size() <= session.forked_blocks) return;
  auto kept = Fork(session, session.sequence_id,
                   static_cast<std::int64_t>(blocks.size()) * record.block_tokens);
  if (kept.ok()) Delete(prefixes_.Add(*std::move(kept), blocks), session.call);
}

absl::Status SessionWorkload::RunSteps(Session& session, const TraceRecord& record) {
  const SteadyClock::time_point start = SteadyClock::now();
  const auto begun = Begin(session, record);
  if (!begun.ok()) return begun.status();
  const std::int64_t chunk = q_.shape[0];
  for (std::int64_t done = *begun; done < record.prompt_tokens; done += chunk) {
    const std::int64_t rows = std::min(chunk, record.prompt_tokens - done);
    if (absl::Status status = Append(session, done, rows); !status.ok()) return status;
  }
  session.times.first_token.Record(SteadyClock::now() - start);
  KeepPrefix(session, record);
  // The prompt's last row answered the first output token.
  for (std::int64_t token = 1; token < record.output_tokens; ++token) {
    const SteadyClock::time_point step_start = SteadyClock::now();
    absl::Status status = Append(session, record.prompt_tokens + token - 1, 1);
    if (!status.ok()) return status;
    session.times.step.Record(SteadyClock::now() - step_start);
  }
  return absl::OkStatus();
}

absl::Status SessionWorkload::Append(Session& session, std::int64_t position,
                                     std::int64_t num_tokens) {
  client::DecodeRequest request;
  request.q = FirstRows(q_, num_tokens);
  request.k = FirstRows(k_, num_tokens);
  request.v = FirstRows(v_, num_tokens);
  request.execution = execution_;
  v1::Step& step = request.steps.emplace_back();
  step.set_sequence_id(session.sequence_id);
  step.set_position(position);
  step.set_num_tokens(static_cast<std::int32_t>(num_tokens));
  for (int layer = 0; layer < options_.scenario.layers; ++layer) {
    if (cancelled_) return absl::CancelledError("the run has ended");
    request.steps.front().set_layer(layer);
    const auto reply = client_.Decode(request, session.call);
    Count("Decode", reply.status());
    if (!reply.ok()) return reply.status();
    if (!reply->failed_steps.empty()) {
      return client::StatusFromProto(reply->failed_steps.front().status());
    }
    if (reply->o.size_bytes != request.q.size_bytes) {
      return absl::DataLossError(absl::StrCat("a reply with ", reply->o.size_bytes,
                                              " bytes of o, expected ", request.q.size_bytes));
    }
    OperationResult& result = session.result;
    result.kernel_time += DurationOf(reply->execution.kernel_time());
    result.queue_time += DurationOf(reply->execution.queue_time());
    result.batch_requests = reply->execution.batch_requests();
    result.kernels.assign(reply->execution.kernels().begin(), reply->execution.kernels().end());
  }
  return absl::OkStatus();
}

}  // namespace attnd::loadtest
