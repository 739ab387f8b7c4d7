// What this server does not know, it must not ignore: an option that it skipped would change the
// answer. Unknown fields and enum values become UNIMPLEMENTED, REASON_UNKNOWN_FIELD, naming message
// and field number.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace attnd {

// `message` is the type's short name, "AttentionOptions".
absl::Status UnknownFieldError(std::string_view message, int field_number);
absl::Status UnknownEnumError(std::string_view message, int field_number, std::int64_t value);

// The first unknown field or enum value in `message` or in any message inside it; OK: none.
absl::Status CheckKnownFields(const google::protobuf::Message& message);

}  // namespace attnd
