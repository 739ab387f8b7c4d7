// libFuzzer target: whatever bytes arrive, in whatever slices, parsing and validation end with a
// request or a status, and agree with protobuf about what is malformed.
//
// The first byte chooses message type and slice size, the rest is the message.
#include <google/protobuf/stubs/common.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "attnd/v1/attention.pb.h"
#include "server/attention_wire.h"
#include "server/request_validation.h"
#include "tests/support/wire_messages.h"

namespace attnd {
namespace {

constexpr RequestLimits kLimits{
    .max_tokens = 1 << 20, .max_steps = 64, .max_heads = 128, .max_layers = 64};

// Touches every byte that the request refers to, so that a dangling or overlong piece is seen.
std::uint64_t SumOfBytes(const TensorView& tensor) {
  std::uint64_t sum = 0;
  for (const ByteRange& piece : tensor.pieces) {
    for (std::size_t i = 0; i < piece.size; ++i) sum += static_cast<std::uint8_t>(piece.data[i]);
  }
  return sum;
}

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckRequest(const absl::StatusOr<AttentionRequest>& request) {
  if (!request.ok()) {
    Require(!request.status().message().empty());
    return;
  }
  for (const TensorView* tensor : {&request->q, &request->k, &request->v, &request->bias}) {
    std::int64_t bytes = 0;
    for (const ByteRange& piece : tensor->pieces) bytes += static_cast<std::int64_t>(piece.size);
    Require(bytes == tensor->size_bytes);
    static volatile std::uint64_t g_sink = 0;
    g_sink = g_sink + SumOfBytes(*tensor);
  }
}

}  // namespace

void FuzzOne(std::uint8_t choice, const std::string& bytes) {
  const std::size_t slice_bytes = 1 + (choice >> 1);
  auto message = testing::SlicedMessage(bytes, slice_bytes);
  if ((choice & 1) != 0) {
    WireAttendRequest wire;
    const bool parsed = ParseAttendRequest(std::move(message), kLimits.wire(), wire);
    // Beyond the size limit of options the hand parser stops looking into them.
    if (wire.refusal.code() != absl::StatusCode::kOutOfRange) {
      Require(parsed == v1::AttendRequest().ParseFromString(bytes));
    }
    if (parsed) CheckRequest(ValidateAttend(std::move(wire), kLimits, {}));
  } else {
    WireDecodeRequest wire;
    const bool parsed = ParseDecodeRequest(std::move(message), kLimits.wire(), wire);
    if (wire.refusal.code() != absl::StatusCode::kOutOfRange) {
      Require(parsed == v1::DecodeRequest().ParseFromString(bytes));
    }
    if (parsed) CheckRequest(ValidateDecode(std::move(wire), kLimits, {}));
  }
}

}  // namespace attnd

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto silence = google::protobuf::SetLogHandler(nullptr);
  static_cast<void>(silence);
  if (size == 0) return 0;
  attnd::FuzzOne(data[0], std::string(reinterpret_cast<const char*>(data + 1), size - 1));
  return 0;
}
