// AttendResponse and DecodeResponse written to the wire by hand: a few header bytes, then the
// output buffers themselves as gRPC slices, so that outputs are never copied by the server.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "server/attention_request.h"

namespace attnd {

// Shape of o and lse, known from the request before its result is.
struct ReplyShape {
  bool has_o = false;    // false: append only
  bool has_lse = false;  // return_lse or partial
  kernels::DataType o_type = kernels::DataType::kFp32;
  std::int64_t rows = 0;
  std::int32_t num_heads = 0, head_dim = 0;

  std::int64_t o_bytes() const {
    return has_o ? rows * num_heads * head_dim * kernels::ElementBytes(o_type) : 0;
  }
  std::int64_t lse_bytes() const {
    return has_lse ? rows * num_heads * std::int64_t{sizeof(float)} : 0;
  }
};

ReplyShape ReplyShapeOf(const AttentionRequest& request);

// INTERNAL where the result's buffers are not of the promised size: a reply never carries memory
// that was not computed for it.
absl::Status CheckResult(const ReplyShape& shape, const AttentionResult& result);

// The result's status is OK and CheckResult passed.
grpc::ByteBuffer EncodeAttendResponse(const ReplyShape& shape, const AttentionResult& result);

enum class ReplyTo : std::uint8_t { kUnary, kStream };  // streams carry DecodeResponse.status
grpc::ByteBuffer EncodeDecodeResponse(std::uint64_t request_id, ReplyTo to, const ReplyShape& shape,
                                      const AttentionResult& result);

// A stream's answer to a request that failed as a whole.
grpc::ByteBuffer EncodeDecodeFailure(std::uint64_t request_id, const absl::Status& status);

}  // namespace attnd
