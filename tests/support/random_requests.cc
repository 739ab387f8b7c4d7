#include "tests/support/random_requests.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <limits>
#include <string>

namespace attnd::testing {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::int64_t RandomInteger(std::mt19937_64& random) {
  switch (random() % 5) {
    case 0:
      return 0;
    case 1:
      return static_cast<std::int64_t>(random() % 100);
    case 2:
      return -1 - static_cast<std::int64_t>(random() % 100);
    case 3:
      return std::numeric_limits<std::int64_t>::min();
    default:
      return static_cast<std::int64_t>(random());
  }
}

std::string RandomText(std::mt19937_64& random) {
  std::string text(random() % 200, '\0');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  return text;
}

float RandomFloat(std::mt19937_64& random) {
  return std::normal_distribution<float>(0, 100)(random);
}

void FillRandomly(std::mt19937_64& random, Message& message);

// One value: set where the field is singular, added where it is repeated.
void PutRandomValue(std::mt19937_64& random, Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  const bool repeated = field->is_repeated();
  const auto put = [&](auto set, auto add, auto value) {
    repeated ? (reflection->*add)(&message, field, value)
             : (reflection->*set)(&message, field, value);
  };
  using R = google::protobuf::Reflection;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return put(&R::SetInt32, &R::AddInt32, static_cast<std::int32_t>(RandomInteger(random)));
    case FieldDescriptor::CPPTYPE_INT64:
      return put(&R::SetInt64, &R::AddInt64, RandomInteger(random));
    case FieldDescriptor::CPPTYPE_UINT64:
      return put(&R::SetUInt64, &R::AddUInt64, static_cast<std::uint64_t>(RandomInteger(random)));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return put(&R::SetFloat, &R::AddFloat, RandomFloat(random));
    case FieldDescriptor::CPPTYPE_BOOL:
      return put(&R::SetBool, &R::AddBool, random() % 2 == 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return put(&R::SetEnumValue, &R::AddEnumValue,
                 static_cast<int>(random() % field->enum_type()->value_count()));
    case FieldDescriptor::CPPTYPE_STRING:
      return put(&R::SetString, &R::AddString, RandomText(random));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return FillRandomly(random, repeated ? *reflection->AddMessage(&message, field)
                                           : *reflection->MutableMessage(&message, field));
    default:
      return;  // the contract has no other types
  }
}

void FillRandomly(std::mt19937_64& random, Message& message) {
  const auto* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (random() % 3 == 0) continue;
    const int count = field->is_repeated() ? static_cast<int>(random() % 5) : 1;
    for (int j = 0; j < count; ++j) PutRandomValue(random, message, field);
  }
}

}  // namespace

v1::AttendRequest RandomAttendRequest(std::mt19937_64& random) {
  v1::AttendRequest request;
  FillRandomly(random, request);
  return request;
}

v1::DecodeRequest RandomDecodeRequest(std::mt19937_64& random) {
  v1::DecodeRequest request;
  FillRandomly(random, request);
  return request;
}

}  // namespace attnd::testing
