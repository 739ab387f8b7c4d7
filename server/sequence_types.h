// Values of the sequence rpcs, independent of the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention_params.h"
#include "server/attention_request.h"
#include "server/clock.h"

namespace attnd {

struct LayerGroupValues {
  std::vector<std::int32_t> layers;  // empty: every layer that no other group names
  AttentionOptionValues options;
  std::optional<RopeOptionValues> rope;
};

struct CreateSequenceSpec {
  std::string tenant;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  kernels::DataType data_type = kernels::DataType::kFp32, kv_data_type = kernels::DataType::kFp32;
  std::vector<LayerGroupValues>
      layer_groups;             // checked: no layer twice, none out of range, at most one catch-all
  std::int64_t max_tokens = 0;  // 0: the most that the server's limit and its cache allow
  std::int64_t reserve_tokens = 0;
  std::optional<Clock::Duration> lease;
  std::string creation_key;   // empty or 16 bytes
  std::string request_bytes;  // deterministic serialisation of the request: equal keys must come
                              // with equal ones
};

struct ForkSequenceSpec {
  std::string tenant;
  std::string sequence_id;
  std::optional<std::int64_t> num_tokens;
  std::int64_t reserve_tokens = 0;
  std::optional<Clock::Duration> lease;
  std::string creation_key;
  std::string request_bytes;
};

struct SequenceGrant {
  std::string sequence_id;
  std::int64_t max_tokens = 0;
  Clock::Duration lease{0};
};

struct SequenceInfo {
  std::string sequence_id;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  kernels::DataType data_type = kernels::DataType::kFp32, kv_data_type = kernels::DataType::kFp32;
  std::int64_t max_tokens = 0;
  std::vector<std::int64_t> layer_tokens;
  std::vector<std::uint64_t> layer_epochs;
  std::int64_t device_pages = 0, host_pages = 0, shared_pages = 0;
  Clock::Duration lease_remaining{0};
};

struct SequenceList {
  std::vector<SequenceInfo> sequences;
  std::string next_page_token;  // empty: no more
};

struct SequenceFailureValue {
  std::string sequence_id;
  absl::Status status;
};

}  // namespace attnd
