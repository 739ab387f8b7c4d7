#include "server/attention_wire.h"

#include <string>
#include <type_traits>
#include <utility>

#include "server/error_status.h"
#include "server/unknown_fields.h"

namespace attnd {
namespace {

// Options, execution options and shared memory slices of one request together. 1024 heads with
// slopes and sinks need 10 KiB; unknown fields inside cost protobuf tenfold.
constexpr std::int64_t kMaxOptionBytes = std::int64_t{1} << 20;

// A field as the cursor stands at its value.
struct WireField {
  const char* message;  // type that it stands in
  WireReader& reader;
  WireTag tag;
};

// Parse* read the value of one field, or, where its wire type is not the contract's, skip it as an
// unknown one. False: malformed.
class RequestParser {
 public:
  RequestParser(const WireLimits& limits, WireRequest& request)
      : limits_(limits), request_(request) {}

  bool Parse(WireReader reader, WireAttendRequest& request);
  bool Parse(WireReader reader, WireDecodeRequest& request);

 private:
  void Refuse(absl::Status status) {
    if (request_.refusal.ok()) request_.refusal = std::move(status);
  }
  bool SkipUnknown(const WireField& field) {
    if (!field.reader.Skip(field.tag)) return false;
    Refuse(UnknownFieldError(field.message, static_cast<int>(field.tag.field)));
    return true;
  }

  template <typename T>
  bool ParseScalar(const WireField& field, T& value);
  template <typename T>
  bool ParseRepeated(const WireField& field, WireList<T>& list, std::int64_t limit);
  template <typename Message>
  bool ParseOptions(const WireField& field, std::optional<Message>& message);
  bool ParseSlice(const WireField& field, bool& present);
  bool ParseData(const WireField& field, WireTensor& tensor);
  bool ParseTensorField(const WireField& field, WireTensor& tensor);
  bool ParseTensor(const WireField& field, std::optional<WireTensor>& tensor);
  bool ParseStepField(const WireField& field, DecodeStep& step);
  bool ParseStep(const WireField& field, WireList<DecodeStep>& steps);
  bool ParseAttendField(const WireField& field, WireAttendRequest& request);
  bool ParseDecodeField(const WireField& field, WireDecodeRequest& request);

  const WireLimits& limits_;
  WireRequest& request_;
  std::int64_t option_bytes_ = 0;
};

// Calls parse(field) for each field of `reader`.
template <typename Parse>
bool ForEachField(const char* message, WireReader& reader, Parse&& parse) {
  while (!reader.AtEnd()) {
    WireTag tag;
    if (!reader.ReadTag(tag) || !parse(WireField{message, reader, tag})) return false;
  }
  return true;
}

template <typename T>
bool ReadScalar(WireReader& reader, T& value) {
  std::uint64_t varint = 0;
  if (!reader.ReadVarint(varint)) return false;
  if constexpr (std::is_same_v<T, bool>) {
    value = varint != 0;
  } else {
    value = static_cast<T>(varint);  // int32: the low 32 bits, as protobuf does
  }
  return true;
}

template <typename T>
bool RequestParser::ParseScalar(const WireField& field, T& value) {
  if (field.tag.type != WireType::kVarint) return SkipUnknown(field);
  return ReadScalar(field.reader, value);
}

template <typename T>
bool RequestParser::ParseRepeated(const WireField& field, WireList<T>& list, std::int64_t limit) {
  T value = 0;
  if (field.tag.type == WireType::kVarint) {
    if (!ReadScalar(field.reader, value)) return false;
    list.Add(value, limit);
    return true;
  }
  if (field.tag.type != WireType::kBytes) return SkipUnknown(field);
  WireReader packed;
  if (!field.reader.ReadBytes(packed)) return false;
  while (!packed.AtEnd()) {
    if (!ReadScalar(packed, value)) return false;
    list.Add(value, limit);
  }
  return true;
}

template <typename Message>
bool RequestParser::ParseOptions(const WireField& field, std::optional<Message>& message) {
  if (field.tag.type != WireType::kBytes) return SkipUnknown(field);
  WireReader content;
  if (!field.reader.ReadBytes(content)) return false;
  if (!message.has_value()) message.emplace();
  option_bytes_ += static_cast<std::int64_t>(content.remaining());
  if (option_bytes_ > kMaxOptionBytes) {
    Refuse(ErrorStatus(absl::StatusCode::kOutOfRange, v1::REASON_LIMIT,
                       Message::descriptor()->name(),
                       "the options of one request must stay below 1 MiB"));
    return true;
  }
  std::string bytes;
  content.CopyTo(bytes);
  if (!message->MergeFromString(bytes)) return false;
  Refuse(CheckKnownFields(*message));
  return true;
}

bool RequestParser::ParseSlice(const WireField& field, bool& present) {
  std::optional<v1::SharedMemorySlice> slice;
  if (!ParseOptions(field, slice)) return false;
  present = present || slice.has_value();
  return true;
}

bool RequestParser::ParseData(const WireField& field, WireTensor& tensor) {
  if (field.tag.type != WireType::kBytes) return SkipUnknown(field);
  WireReader content;
  if (!field.reader.ReadBytes(content)) return false;
  tensor.storage = WireTensor::Storage::kData;
  tensor.size_bytes = static_cast<std::int64_t>(content.remaining());
  tensor.pieces.clear();
  content.AppendPieces(tensor.pieces);
  return true;
}

bool RequestParser::ParseTensorField(const WireField& field, WireTensor& tensor) {
  switch (field.tag.field) {
    case v1::Tensor::kDataTypeFieldNumber:
      return ParseScalar(field, tensor.data_type);
    case v1::Tensor::kShapeFieldNumber:
      return ParseRepeated(field, tensor.shape, kMaxKeptRank);
    case v1::Tensor::kDataFieldNumber:
      return ParseData(field, tensor);
    case v1::Tensor::kSharedMemoryFieldNumber: {
      bool present = false;
      if (!ParseSlice(field, present)) return false;
      if (!present) return true;
      tensor.storage = WireTensor::Storage::kSharedMemory;
      tensor.size_bytes = 0;
      tensor.pieces.clear();
      return true;
    }
    default:
      return SkipUnknown(field);
  }
}

bool RequestParser::ParseTensor(const WireField& field, std::optional<WireTensor>& tensor) {
  if (field.tag.type != WireType::kBytes) return SkipUnknown(field);
  WireReader content;
  if (!field.reader.ReadBytes(content)) return false;
  if (!tensor.has_value()) tensor.emplace();
  const bool ok = ForEachField(
      "Tensor", content, [&](const WireField& inner) { return ParseTensorField(inner, *tensor); });
  if (ok && !v1::DataType_IsValid(tensor->data_type)) {
    Refuse(UnknownEnumError("Tensor", v1::Tensor::kDataTypeFieldNumber, tensor->data_type));
  }
  return ok;
}

bool RequestParser::ParseStepField(const WireField& field, DecodeStep& step) {
  switch (field.tag.field) {
    case v1::Step::kSequenceIdFieldNumber: {
      if (field.tag.type != WireType::kBytes) return SkipUnknown(field);
      WireReader content;
      if (!field.reader.ReadBytes(content)) return false;
      step.sequence_id.clear();
      content.CopyTo(step.sequence_id);
      return true;
    }
    case v1::Step::kLayerFieldNumber:
      return ParseScalar(field, step.layer);
    case v1::Step::kPositionFieldNumber:
      return ParseScalar(field, step.position);
    case v1::Step::kNumTokensFieldNumber:
      return ParseScalar(field, step.num_tokens);
    case v1::Step::kEpochFieldNumber:
      return ParseScalar(field, step.epoch);
    case v1::Step::kQueryPositionFieldNumber:
      if (field.tag.type != WireType::kVarint) return SkipUnknown(field);
      return ReadScalar(field.reader, step.query_position.emplace());
    default:
      return SkipUnknown(field);
  }
}

bool RequestParser::ParseStep(const WireField& field, WireList<DecodeStep>& steps) {
  if (field.tag.type != WireType::kBytes) return SkipUnknown(field);
  WireReader content;
  if (!field.reader.ReadBytes(content)) return false;
  DecodeStep step;
  const bool ok = ForEachField("Step", content,
                               [&](const WireField& inner) { return ParseStepField(inner, step); });
  steps.Add(std::move(step), limits_.max_steps);
  return ok;
}

bool RequestParser::ParseAttendField(const WireField& field, WireAttendRequest& request) {
  using Message = v1::AttendRequest;
  switch (field.tag.field) {
    case Message::kQFieldNumber:
      return ParseTensor(field, request.q);
    case Message::kKFieldNumber:
      return ParseTensor(field, request.k);
    case Message::kVFieldNumber:
      return ParseTensor(field, request.v);
    case Message::kBiasFieldNumber:
      return ParseTensor(field, request.bias);
    case Message::kQueryLengthsFieldNumber:
      return ParseRepeated(field, request.query_lengths, limits_.max_sequences);
    case Message::kKvLengthsFieldNumber:
      return ParseRepeated(field, request.kv_lengths, limits_.max_sequences);
    case Message::kQueryPositionsFieldNumber:
      return ParseRepeated(field, request.query_positions, limits_.max_sequences);
    case Message::kKeyPositionsFieldNumber:
      return ParseRepeated(field, request.key_positions, limits_.max_sequences);
    case Message::kOptionsFieldNumber:
      return ParseOptions(field, request.options);
    case Message::kExecutionFieldNumber:
      return ParseOptions(field, request.execution);
    case Message::kReturnLseFieldNumber:
      return ParseScalar(field, request.return_lse);
    case Message::kPartialFieldNumber:
      return ParseScalar(field, request.partial);
    case Message::kOutputFieldNumber:
      return ParseSlice(field, request.has_output);
    case Message::kLseOutputFieldNumber:
      return ParseSlice(field, request.has_lse_output);
    default:
      return SkipUnknown(field);
  }
}

bool RequestParser::ParseDecodeField(const WireField& field, WireDecodeRequest& request) {
  using Message = v1::DecodeRequest;
  switch (field.tag.field) {
    case Message::kRequestIdFieldNumber:
      return ParseScalar(field, request.request_id);
    case Message::kStepsFieldNumber:
      return ParseStep(field, request.steps);
    case Message::kQFieldNumber:
      return ParseTensor(field, request.q);
    case Message::kKFieldNumber:
      return ParseTensor(field, request.k);
    case Message::kVFieldNumber:
      return ParseTensor(field, request.v);
    case Message::kExecutionFieldNumber:
      return ParseOptions(field, request.execution);
    case Message::kReturnLseFieldNumber:
      return ParseScalar(field, request.return_lse);
    case Message::kPartialFieldNumber:
      return ParseScalar(field, request.partial);
    case Message::kOutputFieldNumber:
      return ParseSlice(field, request.has_output);
    case Message::kLseOutputFieldNumber:
      return ParseSlice(field, request.has_lse_output);
    default:
      return SkipUnknown(field);
  }
}

bool RequestParser::Parse(WireReader reader, WireAttendRequest& request) {
  return ForEachField("AttendRequest", reader,
                      [&](const WireField& field) { return ParseAttendField(field, request); });
}

bool RequestParser::Parse(WireReader reader, WireDecodeRequest& request) {
  return ForEachField("DecodeRequest", reader,
                      [&](const WireField& field) { return ParseDecodeField(field, request); });
}

template <typename Request>
bool ParseRequest(std::shared_ptr<const WireMessage> message, const WireLimits& limits,
                  Request& request) {
  request.message = std::move(message);
  return RequestParser(limits, request).Parse(WireReader(*request.message), request);
}

}  // namespace

bool ParseAttendRequest(std::shared_ptr<const WireMessage> message, const WireLimits& limits,
                        WireAttendRequest& request) {
  return ParseRequest(std::move(message), limits, request);
}

bool ParseDecodeRequest(std::shared_ptr<const WireMessage> message, const WireLimits& limits,
                        WireDecodeRequest& request) {
  return ParseRequest(std::move(message), limits, request);
}

}  // namespace attnd
