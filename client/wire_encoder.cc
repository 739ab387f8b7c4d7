#include "client/wire_encoder.h"

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/call_error.h"

namespace attnd::client {
namespace {

using Proto = v1::AttendRequest;
constexpr std::int64_t kMaxMessageBytes = std::numeric_limits<std::int32_t>::max();

// Below this a copy is cheaper than a slice of its own (an allocation, a reference count and one
// more entry in the socket's gather list).
constexpr std::int64_t kInlineBytes = 4096;

enum class WireType : std::uint8_t { kVarint = 0, kLengthDelimited = 2 };

void AppendVarint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80U));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void AppendTag(std::string& out, int field, WireType type) {
  AppendVarint(out, (static_cast<std::uint64_t>(field) << 3) | static_cast<std::uint64_t>(type));
}

// Collects small fields in a string and large tensors as slices, in order.
class WireWriter {
 public:
  void Varint(int field, std::uint64_t value) {
    if (value == 0) return;
    AppendTag(text_, field, WireType::kVarint);
    AppendVarint(text_, value);
  }

  void Message(int field, const google::protobuf::MessageLite& message) {
    AppendTag(text_, field, WireType::kLengthDelimited);
    AppendVarint(text_, message.ByteSizeLong());
    message.AppendToString(&text_);
  }

  template <typename Integer>
  void Packed(int field, const std::vector<Integer>& values) {
    if (values.empty()) return;
    std::string packed;
    for (const Integer value : values) {
      // Negative numbers travel sign-extended to 64 bits, int32 too.
      AppendVarint(packed, static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
    }
    AppendTag(text_, field, WireType::kLengthDelimited);
    AppendVarint(text_, packed.size());
    text_ += packed;
  }

  void TensorField(int field, const Tensor& tensor);

  // The whole message, or why it cannot be sent.
  absl::StatusOr<grpc::ByteBuffer> Finish();

 private:
  void Flush() {
    if (text_.empty()) return;
    size_bytes_ += static_cast<std::int64_t>(text_.size());
    slices_.emplace_back(text_);
    text_.clear();
  }

  std::string text_;
  std::vector<grpc::Slice> slices_;
  std::int64_t size_bytes_ = 0;
  absl::Status status_;
};

void WireWriter::TensorField(int field, const Tensor& tensor) {
  if (!tensor.present()) return;
  if (tensor.size_bytes < 0 || (tensor.size_bytes > 0 && tensor.data == nullptr)) {
    status_ = absl::InvalidArgumentError(absl::StrCat(
        "tensor field ", field, ": got ", tensor.size_bytes, " bytes at a null pointer"));
    return;
  }
  std::string head;
  AppendTag(head, v1::Tensor::kDataTypeFieldNumber, WireType::kVarint);
  AppendVarint(head, static_cast<std::uint64_t>(tensor.data_type));
  std::string dimensions;
  for (const std::int64_t dimension : tensor.shape) {
    AppendVarint(dimensions, static_cast<std::uint64_t>(dimension));
  }
  if (!dimensions.empty()) {
    AppendTag(head, v1::Tensor::kShapeFieldNumber, WireType::kLengthDelimited);
    AppendVarint(head, dimensions.size());
    head += dimensions;
  }
  AppendTag(head, v1::Tensor::kDataFieldNumber, WireType::kLengthDelimited);
  AppendVarint(head, static_cast<std::uint64_t>(tensor.size_bytes));

  AppendTag(text_, field, WireType::kLengthDelimited);
  AppendVarint(text_, head.size() + static_cast<std::uint64_t>(tensor.size_bytes));
  text_ += head;
  if (tensor.size_bytes <= kInlineBytes) {
    text_.append(reinterpret_cast<const char*>(tensor.data.get()),
                 static_cast<std::size_t>(tensor.size_bytes));
    return;
  }
  Flush();
  using Owner = std::shared_ptr<const std::byte>;
  slices_.emplace_back(
      const_cast<std::byte*>(tensor.data.get()), static_cast<std::size_t>(tensor.size_bytes),
      [](void* owner) { delete static_cast<Owner*>(owner); }, new Owner(tensor.data));
  size_bytes_ += tensor.size_bytes;
}

absl::StatusOr<grpc::ByteBuffer> WireWriter::Finish() {
  if (!status_.ok()) return status_;
  Flush();
  if (size_bytes_ > kMaxMessageBytes) {
    v1::ErrorDetail detail;
    detail.set_reason(v1::REASON_MESSAGE_SIZE);
    detail.set_step_index(-1);
    return StatusWithDetail(
        absl::StatusCode::kResourceExhausted, detail,
        absl::StrCat("the request holds ", size_bytes_, " bytes, a protobuf message at most ",
                     kMaxMessageBytes, " (2 GiB - 1): send it in parts"));
  }
  return grpc::ByteBuffer(slices_.data(), slices_.size());
}

}  // namespace

absl::StatusOr<grpc::ByteBuffer> EncodeAttendRequest(const client::AttendRequest& request) {
  WireWriter writer;
  // Options first: the reader knows what is asked before the bulk arrives.
  writer.Packed(Proto::kQueryLengthsFieldNumber, request.query_lengths);
  writer.Packed(Proto::kKvLengthsFieldNumber, request.kv_lengths);
  writer.Packed(Proto::kQueryPositionsFieldNumber, request.query_positions);
  writer.Packed(Proto::kKeyPositionsFieldNumber, request.key_positions);
  writer.Message(Proto::kOptionsFieldNumber, request.options);
  writer.Message(Proto::kExecutionFieldNumber, request.execution);
  writer.Varint(Proto::kReturnLseFieldNumber, request.return_lse ? 1 : 0);
  writer.Varint(Proto::kPartialFieldNumber, request.partial ? 1 : 0);
  writer.TensorField(Proto::kQFieldNumber, request.q);
  writer.TensorField(Proto::kKFieldNumber, request.k);
  writer.TensorField(Proto::kVFieldNumber, request.v);
  writer.TensorField(Proto::kBiasFieldNumber, request.bias);
  return writer.Finish();
}

absl::StatusOr<grpc::ByteBuffer> EncodeDecodeRequest(const client::DecodeRequest& request,
                                                     std::uint64_t request_id) {
  WireWriter writer;
  writer.Varint(v1::DecodeRequest::kRequestIdFieldNumber, request_id);
  for (const v1::Step& step : request.steps) {
    writer.Message(v1::DecodeRequest::kStepsFieldNumber, step);
  }
  writer.Message(v1::DecodeRequest::kExecutionFieldNumber, request.execution);
  writer.Varint(v1::DecodeRequest::kReturnLseFieldNumber, request.return_lse ? 1 : 0);
  writer.Varint(v1::DecodeRequest::kPartialFieldNumber, request.partial ? 1 : 0);
  writer.TensorField(v1::DecodeRequest::kQFieldNumber, request.q);
  writer.TensorField(v1::DecodeRequest::kKFieldNumber, request.k);
  writer.TensorField(v1::DecodeRequest::kVFieldNumber, request.v);
  return writer.Finish();
}

absl::StatusOr<grpc::ByteBuffer> EncodeMessage(const google::protobuf::MessageLite& message) {
  if (message.ByteSizeLong() > static_cast<std::size_t>(kMaxMessageBytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("the request holds ", message.ByteSizeLong(),
                                                     " bytes, a protobuf message at most ",
                                                     kMaxMessageBytes, " (2 GiB - 1)"));
  }
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace attnd::client
