#include "client/wire_decoder.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/slice_cursor.h"

namespace attnd::client {
namespace {

constexpr int kVarint = 0;
constexpr int kLengthDelimited = 2;

// The body of a Tensor message that ends at `limit`.
bool ReadTensor(SliceCursor& cursor, std::int64_t limit, TensorBytesPolicy policy, Tensor& tensor) {
  while (cursor.position() < limit) {
    int field = 0;
    int wire_type = 0;
    std::uint64_t number = 0;
    std::int64_t length = 0;
    if (!cursor.ReadTag(field, wire_type)) return false;
    if (field == v1::Tensor::kDataTypeFieldNumber && wire_type == kVarint) {
      if (!cursor.ReadVarint(number)) return false;
      tensor.data_type = static_cast<v1::DataType>(number);
    } else if (field == v1::Tensor::kShapeFieldNumber && wire_type == kVarint) {
      if (!cursor.ReadVarint(number)) return false;
      tensor.shape.push_back(static_cast<std::int64_t>(number));
    } else if (field == v1::Tensor::kShapeFieldNumber && wire_type == kLengthDelimited) {
      if (!cursor.ReadLength(limit, length)) return false;
      const std::int64_t end = cursor.position() + length;
      while (cursor.position() < end) {
        if (!cursor.ReadVarint(number)) return false;
        tensor.shape.push_back(static_cast<std::int64_t>(number));
      }
      if (cursor.position() != end) return false;
    } else if (field == v1::Tensor::kDataFieldNumber && wire_type == kLengthDelimited) {
      if (!cursor.ReadLength(limit, length)) return false;
      tensor.size_bytes = length;
      if (policy == TensorBytesPolicy::kSkip) {
        if (!cursor.Skip(length)) return false;
      } else {
        std::shared_ptr<std::byte> memory = AllocateBytes(length);
        if (!cursor.ReadBytes(length, memory.get())) return false;
        tensor.data = std::move(memory);
      }
    } else if (!cursor.SkipField(wire_type, limit)) {
      return false;
    }
  }
  return cursor.position() == limit;
}

bool ReadTensorField(SliceCursor& cursor, TensorBytesPolicy policy, Tensor& tensor) {
  std::int64_t length = 0;
  return cursor.ReadLength(cursor.size(), length) &&
         ReadTensor(cursor, cursor.position() + length, policy, tensor);
}

// Small messages: gathered, then generated code. Merges, as protobuf does with repeated
// occurrences.
bool ReadMessageField(SliceCursor& cursor, google::protobuf::MessageLite& message) {
  std::int64_t length = 0;
  std::string text;
  return cursor.ReadLength(cursor.size(), length) && cursor.ReadString(length, text) &&
         message.MergeFromString(text);
}

absl::Status CheckTensor(const char* name, const Tensor& tensor) {
  if (!tensor.present() && tensor.size_bytes == 0) return absl::OkStatus();
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(tensor.data_type, tensor.shape);
  if (!bytes.ok()) {
    return absl::InternalError(absl::StrCat("reply field ", name, ": ", bytes.status().message()));
  }
  if (*bytes != tensor.size_bytes) {
    return absl::InternalError(absl::StrCat("reply field ", name, ": the shape needs ", *bytes,
                                            " bytes, got ", tensor.size_bytes));
  }
  return absl::OkStatus();
}

absl::Status Malformed(const char* message, const SliceCursor& cursor) {
  return absl::InternalError(absl::StrCat("the reply is no ", message, ": malformed at byte ",
                                          cursor.position(), " of ", cursor.size()));
}

// One field of either reply whose value is `length`-delimited; false: malformed.
bool ReadAttendField(SliceCursor& cursor, int field, TensorBytesPolicy policy,
                     AttendResult& result) {
  switch (field) {
    case v1::AttendResponse::kOFieldNumber:
      return ReadTensorField(cursor, policy, result.o);
    case v1::AttendResponse::kLseFieldNumber:
      return ReadTensorField(cursor, policy, result.lse);
    case v1::AttendResponse::kExecutionFieldNumber:
      return ReadMessageField(cursor, result.execution);
    default:
      return cursor.SkipField(kLengthDelimited, cursor.size());
  }
}

bool ReadDecodeField(SliceCursor& cursor, int field, TensorBytesPolicy policy, DecodeReply& reply) {
  switch (field) {
    case v1::DecodeResponse::kStatusFieldNumber:
      return ReadMessageField(cursor,
                              reply.status.has_value() ? *reply.status : reply.status.emplace());
    case v1::DecodeResponse::kOFieldNumber:
      return ReadTensorField(cursor, policy, reply.result.o);
    case v1::DecodeResponse::kLseFieldNumber:
      return ReadTensorField(cursor, policy, reply.result.lse);
    case v1::DecodeResponse::kFailedStepsFieldNumber:
      return ReadMessageField(cursor, reply.result.failed_steps.emplace_back());
    case v1::DecodeResponse::kExecutionFieldNumber:
      return ReadMessageField(cursor, reply.result.execution);
    default:
      return cursor.SkipField(kLengthDelimited, cursor.size());
  }
}

}  // namespace

absl::StatusOr<AttendResult> DecodeAttendReply(const grpc::ByteBuffer& wire,
                                               TensorBytesPolicy policy) {
  SliceCursor cursor(wire);
  AttendResult result;
  while (cursor.position() < cursor.size()) {
    int field = 0;
    int wire_type = 0;
    if (!cursor.ReadTag(field, wire_type)) return Malformed("AttendResponse", cursor);
    const bool read = wire_type == kLengthDelimited ? ReadAttendField(cursor, field, policy, result)
                                                    : cursor.SkipField(wire_type, cursor.size());
    if (!read) return Malformed("AttendResponse", cursor);
  }
  if (absl::Status status = CheckTensor("o", result.o); !status.ok()) return status;
  if (absl::Status status = CheckTensor("lse", result.lse); !status.ok()) return status;
  return result;
}

absl::StatusOr<DecodeReply> DecodeDecodeReply(const grpc::ByteBuffer& wire,
                                              TensorBytesPolicy policy) {
  SliceCursor cursor(wire);
  DecodeReply reply;
  while (cursor.position() < cursor.size()) {
    int field = 0;
    int wire_type = 0;
    if (!cursor.ReadTag(field, wire_type)) return Malformed("DecodeResponse", cursor);
    bool read = false;
    if (field == v1::DecodeResponse::kRequestIdFieldNumber && wire_type == kVarint) {
      read = cursor.ReadVarint(reply.request_id);
    } else {
      read = wire_type == kLengthDelimited ? ReadDecodeField(cursor, field, policy, reply)
                                           : cursor.SkipField(wire_type, cursor.size());
    }
    if (!read) return Malformed("DecodeResponse", cursor);
  }
  if (absl::Status status = CheckTensor("o", reply.result.o); !status.ok()) return status;
  if (absl::Status status = CheckTensor("lse", reply.result.lse); !status.ok()) return status;
  return reply;
}

absl::Status DecodeMessage(const grpc::ByteBuffer& wire, google::protobuf::MessageLite& message) {
  SliceCursor cursor(wire);
  std::string text;
  if (!cursor.ReadString(cursor.size(), text) || !message.ParseFromString(text)) {
    return absl::InternalError(absl::StrCat("the reply is no ", message.GetTypeName()));
  }
  return absl::OkStatus();
}

}  // namespace attnd::client
