#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/wire_decoder.h"
#include "client/wire_encoder.h"
#include "loadtest/capture.h"
#include "loadtest/random_tensor.h"
#include "loadtest/workload.h"

namespace attnd::loadtest {
namespace {

using client::Tensor;

// K/V of a prompt travel in chunks of at most so many bytes.
constexpr std::int64_t kPromptChunkBytes = std::int64_t{8} << 20;

std::chrono::nanoseconds DurationOf(const google::protobuf::Duration& duration) {
  return std::chrono::seconds(duration.seconds()) + std::chrono::nanoseconds(duration.nanos());
}

void Describe(const v1::ExecutionInfo& execution, OperationResult& result) {
  result.kernel_time = DurationOf(execution.kernel_time());
  result.queue_time = DurationOf(execution.queue_time());
  result.batch_requests = execution.batch_requests();
  result.kernels.assign(execution.kernels().begin(), execution.kernels().end());
}

client::ClientOptions OptionsOf(const ServiceWorkloadOptions& options) {
  client::ClientOptions client;
  client.transport = options.transport;
  client.transport.connections = options.scenario.connections;
  client.default_timeout = options.prepare_timeout;
  return client;
}

v1::AttentionOptions AttentionOptionsOf(const Scenario& scenario) {
  v1::AttentionOptions options;
  if (scenario.window >= 0) options.set_window_left(scenario.window);
  options.set_logits_soft_cap(static_cast<float>(scenario.soft_cap));
  return options;
}

std::chrono::system_clock::time_point DeadlineIn(std::chrono::nanoseconds timeout) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::microseconds>(timeout);
}

// Attend: one request, encoded once, sent again and again.
class AttendWorkload final : public Workload {
 public:
  explicit AttendWorkload(const ServiceWorkloadOptions& options)
      : options_(options), client_(OptionsOf(options)) {}

  absl::Status Prepare(int) override {
    if (absl::Status status = FillTensors(); !status.ok()) return status;
    const Scenario& scenario = options_.scenario;
    request_.options = AttentionOptionsOf(scenario);
    request_.options.set_causal(scenario.causal);
    if (scenario.sequences > 1) {
      request_.query_lengths.assign(static_cast<std::size_t>(scenario.sequences), scenario.tokens);
      request_.kv_lengths.assign(static_cast<std::size_t>(scenario.sequences), scenario.kv_tokens);
    }
    tokens_ = request_.q.shape.empty() ? 0 : request_.q.shape[0];
    return Encode();
  }

  void Start(int slot, std::chrono::nanoseconds timeout, Done done) override {
    client_.transport().StartUnary(
        path_, wire_, DeadlineIn(timeout),
        [this, done = std::move(done)](client::RawReply reply) mutable { done(ResultOf(reply)); },
        slot);
  }

  void Cancel() override { client_.transport().CancelAll(); }

  void SetExecution(const v1::ExecutionOptions& execution) override {
    request_.execution = execution;
    Encode().IgnoreError();  // it has been encoded before: only these few bytes differ
  }

 private:
  absl::Status FillTensors() {
    const Scenario& scenario = options_.scenario;
    if (scenario.capture.empty()) {
      const std::int64_t tokens = std::int64_t{scenario.sequences} * scenario.tokens;
      const std::int64_t kv_tokens = std::int64_t{scenario.sequences} * scenario.kv_tokens;
      const std::vector<std::int64_t> kv_shape{kv_tokens, scenario.kv_heads, scenario.head_dim};
      request_.q = RandomTensor(scenario.data_type, {tokens, scenario.heads, scenario.head_dim},
                                options_.seed);
      request_.k = RandomTensor(scenario.data_type, kv_shape, options_.seed + 1);
      request_.v = RandomTensor(scenario.data_type, kv_shape, options_.seed + 2);
      return absl::OkStatus();
    }
    absl::StatusOr<CapturedTensors> captured = ReadCapture(scenario);
    if (!captured.ok()) return captured.status();
    request_.q = std::move(captured->q);
    request_.k = std::move(captured->k);
    request_.v = std::move(captured->v);
    return absl::OkStatus();
  }

  absl::Status Encode() {
    absl::StatusOr<grpc::ByteBuffer> wire = client::EncodeAttendRequest(request_);
    if (!wire.ok()) return wire.status();
    wire_ = *std::move(wire);
    return absl::OkStatus();
  }

  OperationResult ResultOf(const client::RawReply& reply) {
    OperationResult result;
    result.status = reply.status;
    if (!reply.status.ok()) return result;
    const absl::StatusOr<client::AttendResult> parsed =
        client::DecodeAttendReply(reply.body, client::TensorBytesPolicy::kSkip);
    result.status = parsed.status();
    if (!parsed.ok()) return result;
    if (parsed->o.size_bytes != request_.q.size_bytes) {
      result.status = absl::DataLossError(absl::StrCat(
          "a reply with ", parsed->o.size_bytes, " bytes of o, expected ", request_.q.size_bytes));
      return result;
    }
    result.tokens = tokens_;
    Describe(parsed->execution, result);
    return result;
  }

  const ServiceWorkloadOptions options_;
  const std::string path_ = client::MethodPath("Attend");
  client::AttendRequest request_;
  grpc::ByteBuffer wire_;
  std::int64_t tokens_ = 0;
  client::AttentionClient client_;  // last: its calls end before what they use goes
};

// Decode: every slot owns its sequences and steps them together in one request.
class DecodeWorkload final : public Workload {
 public:
  explicit DecodeWorkload(const ServiceWorkloadOptions& options)
      : options_(options), client_(OptionsOf(options)) {}

  ~DecodeWorkload() override {
    streams_.clear();
    v1::DeleteSequencesRequest request;
    for (const Slot& slot : slots_) {
      for (const v1::Step& step : slot.steps) request.add_sequence_ids(step.sequence_id());
    }
    // Best effort: leases end what a lost server keeps.
    if (request.sequence_ids_size() > 0) {
      client_.DeleteSequences(request, {.timeout = std::chrono::seconds(1)}).status().IgnoreError();
    }
  }

  absl::Status Prepare(int slots) override;
  void Start(int slot, std::chrono::nanoseconds timeout, Done done) override;

  void Cancel() override {
    client_.transport().CancelAll();
    for (const auto& stream : streams_) stream->Cancel();
  }
  void SetExecution(const v1::ExecutionOptions& execution) override { execution_ = execution; }

 private:
  struct Slot {
    std::vector<v1::Step> steps;  // one a sequence: what the next request sends
  };

  absl::Status AddSequence(Slot& slot);
  absl::Status AppendPrompt(const std::string& sequence_id);
  OperationResult ResultOf(const client::DecodeResult& reply) const;
  // After a success: the slot's next token, or back to the prompt. A failed request is sent again
  // as it was: the server tells a repeat by position and epoch.
  void Advance(Slot& slot) const;

  const ServiceWorkloadOptions options_;
  const std::string path_ = client::MethodPath("Decode");
  Tensor q_, k_, v_;  // of one request; the same for all
  Tensor prompt_k_, prompt_v_;
  v1::ExecutionOptions execution_;
  std::vector<Slot> slots_;
  client::AttentionClient client_;
  std::vector<std::unique_ptr<client::DecodeStream>> streams_;  // one a connection
};

absl::Status DecodeWorkload::Prepare(int slots) {
  const Scenario& scenario = options_.scenario;
  const std::int64_t tokens = TokensPerRequest(scenario);
  const std::vector<std::int64_t> kv_shape{tokens, scenario.kv_heads, scenario.head_dim};
  q_ = RandomTensor(scenario.data_type, {tokens, scenario.heads, scenario.head_dim}, options_.seed);
  k_ = RandomTensor(scenario.data_type, kv_shape, options_.seed + 1);
  v_ = RandomTensor(scenario.data_type, kv_shape, options_.seed + 2);
  const std::int64_t row_bytes = std::int64_t{scenario.kv_heads} * scenario.head_dim *
                                 client::ElementBytes(scenario.data_type);
  const std::int64_t chunk =
      std::clamp<std::int64_t>(kPromptChunkBytes / row_bytes, 1, std::max(1, scenario.prompt));
  prompt_k_ = RandomTensor(scenario.data_type, {chunk, scenario.kv_heads, scenario.head_dim},
                           options_.seed + 3);
  prompt_v_ = RandomTensor(scenario.data_type, {chunk, scenario.kv_heads, scenario.head_dim},
                           options_.seed + 4);
  slots_.resize(static_cast<std::size_t>(slots));
  for (Slot& slot : slots_) {
    for (int i = 0; i < scenario.sequences; ++i) {
      if (absl::Status status = AddSequence(slot); !status.ok()) return status;
    }
  }
  if (scenario.mode == CallMode::kUnary) return absl::OkStatus();
  client::RetryOptions never;
  never.max_attempts = 1;  // failures are counted, not hidden
  const auto retry = std::make_shared<client::RetryPolicy>(never, options_.seed);
  // The client's own connections: another transport would poll with a thread of its own, and the
  // two would take turns.
  for (int i = 0; i < scenario.connections; ++i) {
    streams_.push_back(client_.OpenDecodeStream({.transport = nullptr,
                                                 .retry = retry,
                                                 .time = nullptr,
                                                 .default_timeout = options_.prepare_timeout,
                                                 .reply_tensors = client::TensorBytesPolicy::kSkip,
                                                 .connection = i}));
  }
  return absl::OkStatus();
}

absl::Status DecodeWorkload::AddSequence(Slot& slot) {
  const Scenario& scenario = options_.scenario;
  v1::CreateSequenceRequest request;
  request.set_num_layers(scenario.layers);
  request.set_num_heads(scenario.heads);
  request.set_num_kv_heads(scenario.kv_heads);
  request.set_head_dim(scenario.head_dim);
  request.set_data_type(scenario.data_type);
  const std::int64_t tokens = std::int64_t{scenario.prompt} + scenario.steps;
  request.set_max_tokens(tokens);
  request.set_reserve_tokens(tokens);
  *request.add_layer_groups()->mutable_options() = AttentionOptionsOf(scenario);
  const absl::StatusOr<v1::CreateSequenceResponse> created = client_.CreateSequence(request);
  if (!created.ok()) return created.status();
  v1::Step& step = slot.steps.emplace_back();
  step.set_sequence_id(created->sequence_id());
  step.set_position(scenario.prompt);
  step.set_num_tokens(scenario.step_tokens);
  return options_.fill_cache ? AppendPrompt(created->sequence_id()) : absl::OkStatus();
}

absl::Status DecodeWorkload::AppendPrompt(const std::string& sequence_id) {
  const Scenario& scenario = options_.scenario;
  const std::int64_t chunk = prompt_k_.shape[0];
  for (int layer = 0; layer < scenario.layers; ++layer) {
    for (std::int64_t done = 0; done < scenario.prompt; done += chunk) {
      const std::int64_t rows = std::min(chunk, scenario.prompt - done);
      client::DecodeRequest request;
      v1::Step& step = request.steps.emplace_back();
      step.set_sequence_id(sequence_id);
      step.set_layer(layer);
      step.set_position(done);
      step.set_num_tokens(static_cast<std::int32_t>(rows));
      request.k = prompt_k_;
      request.v = prompt_v_;
      for (Tensor* tensor : {&request.k, &request.v}) {
        tensor->size_bytes = tensor->size_bytes / chunk * rows;
        tensor->shape[0] = rows;
      }
      const absl::StatusOr<client::DecodeResult> appended = client_.Decode(request);
      if (!appended.ok()) return appended.status();
    }
  }
  return absl::OkStatus();
}

void DecodeWorkload::Advance(Slot& slot) const {
  const Scenario& scenario = options_.scenario;
  for (v1::Step& step : slot.steps) {
    // All layers of a step, then the next step; after the last one back to the prompt.
    if (step.layer() + 1 < scenario.layers) {
      step.set_layer(step.layer() + 1);
      continue;
    }
    step.set_layer(0);
    step.set_position(step.position() + scenario.accepted);
    const std::int64_t end = std::int64_t{scenario.prompt} + scenario.steps;
    const bool back = step.position() + scenario.step_tokens > end;
    if (back) step.set_position(scenario.prompt);
    // A larger epoch cuts the layer to the step's position: what was not accepted goes.
    if (back || scenario.accepted < scenario.step_tokens) step.set_epoch(step.epoch() + 1);
  }
}

OperationResult DecodeWorkload::ResultOf(const client::DecodeResult& reply) const {
  OperationResult result;
  if (!reply.failed_steps.empty()) {
    result.status = client::StatusFromProto(reply.failed_steps.front().status());
    return result;
  }
  if (reply.o.size_bytes != q_.size_bytes) {
    result.status = absl::DataLossError(
        absl::StrCat("a reply with ", reply.o.size_bytes, " bytes of o, expected ", q_.size_bytes));
    return result;
  }
  result.tokens = q_.shape[0];
  Describe(reply.execution, result);
  return result;
}

void DecodeWorkload::Start(int slot, std::chrono::nanoseconds timeout, Done done) {
  Slot& own = slots_[static_cast<std::size_t>(slot)];
  client::DecodeRequest request{own.steps, q_, k_, v_, execution_, false, false};
  if (options_.scenario.mode == CallMode::kStream) {
    streams_[static_cast<std::size_t>(slot) % streams_.size()]->Submit(
        std::move(request),
        [this, &own, done = std::move(done)](absl::StatusOr<client::DecodeResult> reply) mutable {
          OperationResult result;
          result.status = reply.status();
          if (reply.ok()) result = ResultOf(*reply);
          if (result.status.ok()) Advance(own);
          done(std::move(result));
        },
        timeout);
    return;
  }
  absl::StatusOr<grpc::ByteBuffer> wire = client::EncodeDecodeRequest(request, 0);
  if (!wire.ok()) {
    OperationResult refused;
    refused.status = wire.status();
    done(std::move(refused));
    return;
  }
  client_.transport().StartUnary(
      path_, *std::move(wire), DeadlineIn(timeout),
      [this, &own, done = std::move(done)](client::RawReply raw) mutable {
        OperationResult result;
        result.status = raw.status;
        if (raw.status.ok()) {
          const absl::StatusOr<client::DecodeReply> reply =
              client::DecodeDecodeReply(raw.body, client::TensorBytesPolicy::kSkip);
          result.status = reply.status();
          if (reply.ok()) result = ResultOf(reply->result);
        }
        if (result.status.ok()) Advance(own);
        done(std::move(result));
      },
      slot);
}

}  // namespace

std::unique_ptr<Workload> MakeServiceWorkload(const ServiceWorkloadOptions& options) {
  if (options.scenario.kind == Kind::kAttend) return std::make_unique<AttendWorkload>(options);
  return std::make_unique<DecodeWorkload>(options);
}

}  // namespace attnd::loadtest
