// Requests and results of the two calls that carry tensors. Field meanings, ranges and defaults are
// those of the messages of the same names in proto/attnd/v1/attention.proto.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attnd/v1/attention.pb.h"
#include "client/tensor.h"

namespace attnd::client {

struct AttendRequest {
  Tensor q, k, v;
  Tensor bias;                                          // absent: none
  std::vector<std::int32_t> query_lengths, kv_lengths;  // both empty: one sequence
  std::vector<std::int64_t> query_positions, key_positions;
  v1::AttentionOptions options;
  v1::ExecutionOptions execution;
  bool return_lse = false;
  bool partial = false;
};

struct AttendResult {
  Tensor o;
  Tensor lse;  // absent unless return_lse or partial
  v1::ExecutionInfo execution;
};

struct DecodeRequest {
  std::vector<v1::Step> steps;
  Tensor q, k, v;  // q absent: append only; k and v absent: attend only
  v1::ExecutionOptions execution;
  bool return_lse = false;
  bool partial = false;
};

struct DecodeResult {
  Tensor o;    // rows of failed steps are 0
  Tensor lse;  // absent unless return_lse or partial; rows of failed steps are -inf
  std::vector<v1::StepFailure> failed_steps;
  v1::ExecutionInfo execution;
};

}  // namespace attnd::client
