// A validated request, independent of the wire: what the scheduler queues and the backend runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "kernels/attention_params.h"
#include "server/clock.h"

namespace attnd {

struct ByteRange {
  const std::byte* data = nullptr;
  std::size_t size = 0;
};

// A tensor's bytes where they arrived: pieces in order, kept alive by `owner` (the message's
// slices, or a shared memory region). A piece boundary may fall inside an element. Empty optional
// semantics: `present` false means the field was absent.
struct TensorView {
  bool present = false;
  kernels::DataType data_type = kernels::DataType::kFp32;
  std::vector<std::int64_t> shape;
  std::vector<ByteRange> pieces;
  std::int64_t size_bytes = 0;
  std::shared_ptr<const void> owner;
};

// Attention options as sent; ranges checked by validation, list lengths against num_heads too.
struct AttentionOptionValues {
  std::optional<float> softmax_scale;
  bool causal = false;
  std::optional<std::int32_t> window_left, window_right;
  float logits_soft_cap = 0;
  std::vector<float> alibi_slopes, sink_logits;
};

struct RopeOptionValues {
  float theta = 0;
  std::int32_t rotary_dim = 0;  // never 0 here: resolved to head_dim
  bool interleaved = false;
  float position_scale = 1, amplitude = 1;
  std::vector<float> inverse_frequencies;
};

enum class Algorithm : std::uint8_t { kFused, kNaive };

struct ExecutionValues {
  Algorithm algorithm = Algorithm::kFused;
  bool alone = false;
  std::int32_t priority = 0;
};

// One sequence of an Attend request.
struct AttendSequence {
  std::int32_t query_length = 0;
  std::int64_t kv_length = 0;
  std::int64_t query_position = 0,
               key_position = 0;  // resolved (bottom-right where the client gave none)
};

// One step of a Decode request, as sent.
struct DecodeStep {
  std::string sequence_id;
  std::int32_t layer = 0;
  std::int64_t position = 0;
  std::int32_t num_tokens = 0;
  std::uint64_t epoch = 0;
  std::optional<std::int64_t> query_position;
};

// Memory that a reply refers to without a copy; freed when the last reference (a gRPC slice) goes.
struct OutputBuffer {
  std::shared_ptr<std::byte[]> data;
  std::int64_t size_bytes = 0;
};

struct StepFailure {
  std::int32_t step_index = 0;
  absl::Status status;
};

struct ExecutionReport {
  std::vector<const char*> kernels;  // static strings from the kernel table, in order, no repeats
  std::int32_t num_splits = 0, batch_requests = 0, batch_tokens = 0;
  Clock::Duration queue_time{0}, kernel_time{0};
};

struct AttentionResult {
  absl::Status status;  // of the whole request; with an error the rest is empty
  OutputBuffer o;    // q's rows x num_heads x head_dim in data_type (FP32 when partial); empty when
                     // append only
  OutputBuffer lse;  // FP32 [rows][num_heads]; empty unless asked for
  std::vector<StepFailure> failed_steps;  // ascending
  ExecutionReport execution;
};

enum class RequestKind : std::uint8_t { kAttend, kDecode };

// Move-only. `on_done` is called exactly once, on any thread, possibly inside Submit; a request
// that is destroyed uncalled answers INTERNAL (RequestCompletion's destructor).
class RequestCompletion {
 public:
  using Function = absl::AnyInvocable<void(AttentionResult)>;
  RequestCompletion() = default;
  explicit RequestCompletion(Function function) : function_(std::move(function)) {}
  RequestCompletion(RequestCompletion&& other) noexcept : function_(std::move(other.function_)) {
    other.function_ = nullptr;
  }
  RequestCompletion& operator=(RequestCompletion&& other) noexcept {
    if (this != &other) {
      Abandon();
      function_ = std::move(other.function_);
      other.function_ = nullptr;
    }
    return *this;
  }
  ~RequestCompletion() { Abandon(); }

  bool pending() const { return static_cast<bool>(function_); }
  void operator()(AttentionResult result) {
    Function function = std::move(function_);
    function_ = nullptr;
    if (function) function(std::move(result));
  }

 private:
  void Abandon() {
    if (!function_) return;
    AttentionResult result;
    result.status = absl::InternalError("the request was dropped without an answer");
    (*this)(std::move(result));
  }
  Function function_;
};

struct AttentionRequest {
  RequestKind kind = RequestKind::kAttend;
  std::string tenant;
  kernels::DataType data_type = kernels::DataType::kFp32;
  std::int32_t num_heads = 0, num_kv_heads = 0,
               head_dim =
                   0;  // 0 where the request has no tensor that tells (Decode without q or k)
  TensorView q, k,
      v;  // Attend: all present. Decode: q absent = append only, k and v absent = attend only
  TensorView bias;  // Attend only; FP32 [1 or num_heads, query tokens, kv tokens]

  std::vector<AttendSequence> attend_sequences;  // Attend
  AttentionOptionValues options;                 // Attend
  std::vector<DecodeStep> steps;                 // Decode

  ExecutionValues execution;
  bool return_lse = false;  // true whenever partial
  bool partial = false;
  Clock::TimePoint received{};
  Clock::TimePoint deadline = Clock::kNever;
  std::int64_t request_bytes = 0;  // what the queue's byte budget counts
  RequestCompletion on_done;
};

}  // namespace attnd
