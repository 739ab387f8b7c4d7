#include "server/request_validation.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "server/error_status.h"
#include "server/option_validation.h"
#include "server/tensor_validation.h"

namespace attnd {
namespace {

constexpr int kTokenTensorRank = 3;

// Fills `view` where the field is present.
absl::Status ReadTensor(const char* field, std::optional<WireTensor>& tensor,
                        const WireRequest& wire, TensorView& view) {
  if (!tensor.has_value()) return absl::OkStatus();
  auto valid = ValidateTensor(field, *std::move(tensor), kTokenTensorRank, wire.message);
  if (!valid.ok()) return valid.status();
  view = *std::move(valid);
  return absl::OkStatus();
}

Clock::TimePoint EarlierDeadline(const CallTiming& timing, std::optional<Clock::Duration> timeout) {
  if (!timeout.has_value() && timing.default_timeout > Clock::Duration::zero()) {
    timeout = timing.default_timeout;
  }
  if (!timeout.has_value() || *timeout >= Clock::kNever - timing.received) return timing.deadline;
  return std::min(timing.deadline, timing.received + *timeout);
}

// What Attend and Decode share: tensors, head shape, execution options, outputs.
absl::Status ReadShared(WireRequest& wire, const RequestLimits& limits, const CallTiming& timing,
                        AttentionRequest& request) {
  if (!wire.refusal.ok()) return wire.refusal;
  if (wire.has_output || wire.has_lse_output) {
    return ErrorStatus(absl::StatusCode::kUnimplemented, v1::REASON_UNSUPPORTED,
                       wire.has_output ? "output" : "lse_output",
                       "this server does not offer outputs in shared memory");
  }
  auto execution = ValidateExecution(
      wire.execution.has_value() ? *wire.execution : v1::ExecutionOptions::default_instance(),
      limits.allow_comparison);
  if (!execution.ok()) return execution.status();
  for (const auto& status :
       {ReadTensor("q", wire.q, wire, request.q), ReadTensor("k", wire.k, wire, request.k),
        ReadTensor("v", wire.v, wire, request.v)}) {
    if (!status.ok()) return status;
  }
  if (request.k.present != request.v.present) {
    return request.k.present ? InvalidField("v", "no tensor", "a tensor, as k is there")
                             : InvalidField("k", "no tensor", "a tensor, as v is there");
  }
  auto heads = ValidateHeads(request.q, request.k, request.v, limits.max_heads);
  if (!heads.ok()) return heads.status();
  request.data_type = heads->data_type;
  request.num_heads = heads->num_heads;
  request.num_kv_heads = heads->num_kv_heads;
  request.head_dim = heads->head_dim;
  request.execution = execution->values;
  request.partial = wire.partial;
  request.return_lse = wire.return_lse || wire.partial;
  request.received = timing.received;
  request.deadline = EarlierDeadline(timing, execution->timeout);
  request.request_bytes = wire.message->size_bytes();
  return absl::OkStatus();
}

absl::Status CheckLengths(const char* field, const WireList<std::int32_t>& lengths,
                          std::int64_t tokens, const char* tensor) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < lengths.values.size(); ++i) {
    if (lengths.values[i] < 0) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), absl::StrCat(lengths.values[i]),
                          ">= 0");
    }
    sum += lengths.values[i];
  }
  if (sum == tokens) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("a sum of ", sum),
                      absl::StrCat(tokens, ", the tokens of ", tensor));
}

absl::Status CheckPositions(const char* field, const WireList<std::int64_t>& positions,
                            std::int64_t num_sequences) {
  if (positions.count == 0) return absl::OkStatus();
  if (positions.count != num_sequences) {
    return InvalidField(field, absl::StrCat(positions.count, " values"),
                        absl::StrCat(num_sequences, " values (one a sequence) or none"));
  }
  for (std::size_t i = 0; i < positions.values.size(); ++i) {
    if (positions.values[i] < 0 || positions.values[i] > kMaxPosition) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), absl::StrCat(positions.values[i]),
                          "0 to 2^40");
    }
  }
  return absl::OkStatus();
}

// Sequence lengths of an Attend request: as listed, or one sequence of everything.
absl::Status ReadLengths(const WireAttendRequest& wire, const RequestLimits& limits,
                         AttentionRequest& request) {
  const std::int64_t query_tokens = request.q.shape[0], kv_tokens = request.k.shape[0];
  if (wire.query_lengths.count != wire.kv_lengths.count) {
    return InvalidField("kv_lengths", absl::StrCat(wire.kv_lengths.count, " values"),
                        absl::StrCat(wire.query_lengths.count, " values as query_lengths"));
  }
  if (wire.query_lengths.count > kMaxAttendSequences) {
    return OverLimit("query_lengths", wire.query_lengths.count, kMaxAttendSequences);
  }
  const bool listed = wire.query_lengths.count > 0;
  if (listed) {
    for (const auto& status : {CheckLengths("query_lengths", wire.query_lengths, query_tokens, "q"),
                               CheckLengths("kv_lengths", wire.kv_lengths, kv_tokens, "k")}) {
      if (!status.ok()) return status;
    }
  }
  const auto max_query_length =
      std::min<std::int64_t>(limits.max_tokens, std::numeric_limits<std::int32_t>::max());
  request.attend_sequences.resize(listed ? wire.query_lengths.values.size() : 1);
  for (std::size_t i = 0; i < request.attend_sequences.size(); ++i) {
    const std::int64_t query_length = listed ? wire.query_lengths.values[i] : query_tokens;
    const std::int64_t kv_length = listed ? wire.kv_lengths.values[i] : kv_tokens;
    if (query_length > max_query_length) {
      return OverLimit(absl::StrCat("query_lengths[", i, "]"), query_length, max_query_length);
    }
    if (kv_length > limits.max_tokens) {
      return OverLimit(absl::StrCat("kv_lengths[", i, "]"), kv_length, limits.max_tokens);
    }
    request.attend_sequences[i].query_length = static_cast<std::int32_t>(query_length);
    request.attend_sequences[i].kv_length = kv_length;
  }
  return absl::OkStatus();
}

absl::Status ReadPositions(const WireAttendRequest& wire, AttentionRequest& request) {
  const auto num_sequences = static_cast<std::int64_t>(request.attend_sequences.size());
  for (const auto& status : {CheckPositions("query_positions", wire.query_positions, num_sequences),
                             CheckPositions("key_positions", wire.key_positions, num_sequences)}) {
    if (!status.ok()) return status;
  }
  for (std::size_t i = 0; i < request.attend_sequences.size(); ++i) {
    AttendSequence& sequence = request.attend_sequences[i];
    if (wire.key_positions.count > 0) sequence.key_position = wire.key_positions.values[i];
    sequence.query_position =
        wire.query_positions.count > 0
            ? wire.query_positions.values[i]
            : sequence.key_position + sequence.kv_length - sequence.query_length;
  }
  return absl::OkStatus();
}

absl::Status ReadBias(WireAttendRequest& wire, AttentionRequest& request) {
  if (!wire.bias.has_value()) return absl::OkStatus();
  if (request.attend_sequences.size() != 1) {
    return InvalidField("bias", absl::StrCat(request.attend_sequences.size(), " sequences"),
                        "one sequence");
  }
  if (auto status = ReadTensor("bias", wire.bias, wire, request.bias); !status.ok()) return status;
  if (request.bias.data_type != kernels::DataType::kFp32) {
    return InvalidField("bias.data_type", "a 16-bit type", "DATA_TYPE_FP32");
  }
  const std::int64_t bias_heads = request.bias.shape[0];
  if ((bias_heads != 1 && bias_heads != request.num_heads) ||
      request.bias.shape[1] != request.q.shape[0] || request.bias.shape[2] != request.k.shape[0]) {
    return InvalidField("bias.shape", ShapeText(request.bias.shape),
                        absl::StrCat("[1 or ", request.num_heads, ", ", request.q.shape[0], ", ",
                                     request.k.shape[0], "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckStep(const std::string& field, const DecodeStep& step, bool appends) {
  if (step.sequence_id.empty()) {
    return InvalidField(absl::StrCat(field, ".sequence_id"), "no bytes", "a sequence id");
  }
  if (step.layer < 0) {
    return InvalidField(absl::StrCat(field, ".layer"), absl::StrCat(step.layer), ">= 0");
  }
  if (step.position < 0 || step.position > kMaxPosition) {
    return InvalidField(absl::StrCat(field, ".position"), absl::StrCat(step.position), "0 to 2^40");
  }
  if (step.num_tokens < 1) {
    return InvalidField(absl::StrCat(field, ".num_tokens"), absl::StrCat(step.num_tokens), ">= 1");
  }
  if (!step.query_position.has_value()) return absl::OkStatus();
  if (appends) {
    return InvalidField(absl::StrCat(field, ".query_position"), absl::StrCat(*step.query_position),
                        "unset where k and v are there: new tokens stand at `position`");
  }
  if (*step.query_position < 0 || *step.query_position > kMaxPosition) {
    return InvalidField(absl::StrCat(field, ".query_position"), absl::StrCat(*step.query_position),
                        "0 to 2^40");
  }
  return absl::OkStatus();
}

absl::Status CheckSteps(const std::vector<DecodeStep>& steps, const AttentionRequest& request) {
  const TensorView& rows = request.q.present ? request.q : request.k;
  absl::flat_hash_set<std::pair<std::string_view, std::int32_t>> seen;
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string field = absl::StrCat("steps[", i, "]");
    if (auto status = CheckStep(field, steps[i], request.k.present); !status.ok()) return status;
    if (steps.size() > 1 && !seen.emplace(steps[i].sequence_id, steps[i].layer).second) {
      return InvalidField(field, "a sequence and layer that an earlier step has",
                          "each (sequence, layer) once in a request");
    }
    num_tokens += steps[i].num_tokens;
  }
  if (num_tokens != rows.shape[0]) {
    return InvalidField(request.q.present ? "q.shape" : "k.shape", ShapeText(rows.shape),
                        absl::StrCat(num_tokens, " rows, the sum of the steps' num_tokens"));
  }
  if (request.q.present && request.k.present && request.k.shape[0] != request.q.shape[0]) {
    return InvalidField("k.shape", ShapeText(request.k.shape),
                        absl::StrCat(request.q.shape[0], " rows as q"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AttentionRequest> ValidateAttend(WireAttendRequest wire, const RequestLimits& limits,
                                                const CallTiming& timing) {
  AttentionRequest request;
  request.kind = RequestKind::kAttend;
  if (auto status = ReadShared(wire, limits, timing, request); !status.ok()) return status;
  if (!request.q.present) return InvalidField("q", "no tensor", "a tensor");
  if (!request.k.present) return InvalidField("k", "no tensor", "a tensor");
  if (auto status = ReadLengths(wire, limits, request); !status.ok()) return status;
  if (auto status = ReadPositions(wire, request); !status.ok()) return status;
  if (wire.options.has_value()) {
    auto options = ValidateAttentionOptions("options", *wire.options, request.num_heads);
    if (!options.ok()) return options.status();
    request.options = *std::move(options);
  }
  if (auto status = ReadBias(wire, request); !status.ok()) return status;
  return request;
}

absl::StatusOr<AttentionRequest> ValidateDecode(WireDecodeRequest wire, const RequestLimits& limits,
                                                const CallTiming& timing) {
  AttentionRequest request;
  request.kind = RequestKind::kDecode;
  if (auto status = ReadShared(wire, limits, timing, request); !status.ok()) return status;
  if (!request.q.present && !request.k.present) {
    return InvalidField("q", "no tensor", "q, or k and v, or all three");
  }
  if (wire.steps.count == 0) return InvalidField("steps", "none", "1 step or more");
  if (wire.steps.count > limits.max_steps) {
    return OverLimit("steps", wire.steps.count, limits.max_steps);
  }
  if (auto status = CheckSteps(wire.steps.values, request); !status.ok()) return status;
  request.steps = std::move(wire.steps.values);
  return request;
}

}  // namespace attnd
