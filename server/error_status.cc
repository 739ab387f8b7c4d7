#include "server/error_status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

constexpr char kPayloadType[] = "type.googleapis.com/attnd.v1.ErrorDetail";

// For statuses that were not built here (a library's, or RequestCompletion's).
v1::Reason ReasonFromCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return v1::REASON_INVALID_FIELD;
    case absl::StatusCode::kOutOfRange:
      return v1::REASON_LIMIT;
    case absl::StatusCode::kUnimplemented:
      return v1::REASON_UNSUPPORTED;
    case absl::StatusCode::kDeadlineExceeded:
      return v1::REASON_DEADLINE;
    case absl::StatusCode::kCancelled:
      return v1::REASON_CANCELLED;
    case absl::StatusCode::kInternal:
      return v1::REASON_INTERNAL;
    default:
      return v1::REASON_UNSPECIFIED;
  }
}

}  // namespace

absl::Status ErrorStatus(absl::StatusCode code, const v1::ErrorDetail& detail,
                         std::string_view message) {
  absl::Status status(code, absl::string_view(message.data(), message.size()));
  status.SetPayload(kPayloadType, absl::Cord(detail.SerializeAsString()));
  return status;
}

absl::Status ErrorStatus(absl::StatusCode code, v1::Reason reason, std::string_view field,
                         std::string_view message) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  detail.set_field(field.data(), field.size());
  detail.set_step_index(-1);
  return ErrorStatus(code, detail, message);
}

absl::Status InvalidField(std::string_view field, std::string_view got, std::string_view need) {
  const auto view = [](std::string_view text) {
    return absl::string_view(text.data(), text.size());
  };
  return ErrorStatus(absl::StatusCode::kInvalidArgument, v1::REASON_INVALID_FIELD, field,
                     absl::StrCat(view(field), ": got ", view(got), ", need ", view(need)));
}

v1::ErrorDetail ErrorDetailOf(const absl::Status& status) {
  v1::ErrorDetail detail;
  if (const auto payload = status.GetPayload(kPayloadType);
      payload.has_value() && detail.ParseFromString(std::string(*payload))) {
    return detail;
  }
  detail.Clear();
  detail.set_reason(ReasonFromCode(status.code()));
  detail.set_step_index(-1);
  return detail;
}

v1::Status ToProtoStatus(const absl::Status& status) {
  v1::Status proto;
  proto.set_code(static_cast<int>(status.code()));
  if (status.ok()) return proto;
  proto.set_message(std::string(status.message()));
  *proto.mutable_detail() = ErrorDetailOf(status);
  return proto;
}

const char* DataTypeName(kernels::DataType type) {
  switch (type) {
    case kernels::DataType::kFp32:
      return "FP32";
    case kernels::DataType::kFp16:
      return "FP16";
    case kernels::DataType::kBf16:
      return "BF16";
    case kernels::DataType::kInt8:
      return "INT8";
    case kernels::DataType::kFp8E4m3:
      return "FP8_E4M3";
  }
  return "unknown";
}

}  // namespace attnd
