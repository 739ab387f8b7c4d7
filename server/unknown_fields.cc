#include "server/unknown_fields.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "server/error_status.h"

namespace attnd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

absl::Status CheckEnum(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  const int count = field.is_repeated() ? reflection.FieldSize(message, &field) : 1;
  for (int i = 0; i < count; ++i) {
    const int value = field.is_repeated() ? reflection.GetRepeatedEnumValue(message, &field, i)
                                          : reflection.GetEnumValue(message, &field);
    if (field.enum_type()->FindValueByNumber(value) == nullptr) {
      return UnknownEnumError(message.GetDescriptor()->name(), field.number(), value);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSubmessages(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  if (!field.is_repeated()) return CheckKnownFields(reflection.GetMessage(message, &field));
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    auto status = CheckKnownFields(reflection.GetRepeatedMessage(message, &field, i));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UnknownFieldError(std::string_view message, int field_number) {
  const absl::string_view name(message.data(), message.size());
  return ErrorStatus(absl::StatusCode::kUnimplemented, v1::REASON_UNKNOWN_FIELD,
                     absl::StrCat(name, ".", field_number),
                     absl::StrCat(name, ": this server does not know field ", field_number,
                                  "; it would compute without it"));
}

absl::Status UnknownEnumError(std::string_view message, int field_number, std::int64_t value) {
  const absl::string_view name(message.data(), message.size());
  return ErrorStatus(
      absl::StatusCode::kUnimplemented, v1::REASON_UNKNOWN_FIELD,
      absl::StrCat(name, ".", field_number),
      absl::StrCat(name, ": this server does not know value ", value, " of field ", field_number));
}

absl::Status CheckKnownFields(const Message& message) {
  const auto& reflection = *message.GetReflection();
  if (const auto& unknown = reflection.GetUnknownFields(message); unknown.field_count() > 0) {
    return UnknownFieldError(message.GetDescriptor()->name(), unknown.field(0).number());
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    absl::Status status;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) status = CheckEnum(message, *field);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      status = CheckSubmessages(message, *field);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace attnd
