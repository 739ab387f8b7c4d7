// AttendRequest and DecodeRequest read from the wire by hand, so that tensor bytes stay where gRPC
// put them. The outcome is what protobuf's own parser would give (the last value of a repeated
// singular field wins, submessages merge, repeated scalars packed or not), with two differences:
// fields and enum values that the server does not know are a refusal, and lists are kept only up to
// the server's limits, so that a message of a few MiB cannot expand to gigabytes.
//
// Nothing is validated here; see request_validation.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"
#include "server/attention_request.h"
#include "server/wire_reader.h"

namespace attnd {

// A repeated field: `count` values came, the first ones (up to the limit) were kept.
template <typename T>
struct WireList {
  std::vector<T> values;
  std::int64_t count = 0;

  void Add(T value, std::int64_t limit) {
    if (count++ < limit) values.push_back(std::move(value));
  }
};

struct WireTensor {
  enum class Storage : std::uint8_t { kNone, kData, kSharedMemory };

  v1::DataType data_type = v1::DATA_TYPE_UNSPECIFIED;  // possibly a number that has no name
  WireList<std::int64_t> shape;
  Storage storage = Storage::kNone;
  std::vector<ByteRange> pieces;  // of `data`; none are empty
  std::int64_t size_bytes = 0;
};

// What both requests have. `refusal` is not OK where the message parses but must not be computed:
// an unknown field or enum value, or options beyond any sensible size.
struct WireRequest {
  std::optional<WireTensor> q, k, v;
  std::optional<v1::ExecutionOptions> execution;
  bool return_lse = false;
  bool partial = false;
  bool has_output = false, has_lse_output = false;
  absl::Status refusal;
  std::shared_ptr<const WireMessage> message;  // owns what the pieces point to
};

struct WireAttendRequest : WireRequest {
  std::optional<WireTensor> bias;
  WireList<std::int32_t> query_lengths, kv_lengths;
  WireList<std::int64_t> query_positions, key_positions;
  std::optional<v1::AttentionOptions> options;
};

struct WireDecodeRequest : WireRequest {
  std::uint64_t request_id = 0;
  WireList<DecodeStep> steps;
};

struct WireLimits {
  std::int64_t max_steps = 0;      // of a DecodeRequest
  std::int64_t max_sequences = 0;  // of an AttendRequest
};

// More dimensions than any tensor has; shapes are kept up to this rank.
inline constexpr std::int64_t kMaxKeptRank = 8;

// False: the bytes are malformed (what was read so far is in `request`).
bool ParseAttendRequest(std::shared_ptr<const WireMessage> message, const WireLimits& limits,
                        WireAttendRequest& request);
bool ParseDecodeRequest(std::shared_ptr<const WireMessage> message, const WireLimits& limits,
                        WireDecodeRequest& request);

}  // namespace attnd
