// The hand parser against protobuf's own: same fields from every valid message, same verdict on
// every damaged one.
#include "server/attention_wire.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "server/error_status.h"
#include "tests/support/random_requests.h"
#include "tests/support/wire_messages.h"

namespace attnd {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr WireLimits kLimits{100'000, 100'000};

bool Parse(const std::string& bytes, std::size_t slice_bytes, WireAttendRequest& parsed) {
  return ParseAttendRequest(testing::SlicedMessage(bytes, slice_bytes), kLimits, parsed);
}
bool Parse(const std::string& bytes, std::size_t slice_bytes, WireDecodeRequest& parsed) {
  return ParseDecodeRequest(testing::SlicedMessage(bytes, slice_bytes), kLimits, parsed);
}

void ExpectSame(const std::optional<WireTensor>& parsed, bool present, const v1::Tensor& expected) {
  ASSERT_EQ(parsed.has_value(), present);
  if (!present) return;
  EXPECT_EQ(parsed->data_type, expected.data_type());
  EXPECT_THAT(parsed->shape.values,
              ElementsAreArray(
                  expected.shape().begin(),
                  expected.shape().begin() + std::min<int>(expected.shape_size(), kMaxKeptRank)));
  EXPECT_EQ(parsed->shape.count, expected.shape_size());
  EXPECT_EQ(parsed->storage == WireTensor::Storage::kData, expected.has_data());
  EXPECT_EQ(parsed->storage == WireTensor::Storage::kSharedMemory, expected.has_shared_memory());
  EXPECT_EQ(testing::BytesOf(parsed->pieces), expected.data());
  EXPECT_EQ(parsed->size_bytes, static_cast<std::int64_t>(expected.data().size()));
}

template <typename Proto>
void ExpectSameShared(const WireRequest& parsed, const Proto& expected) {
  ExpectSame(parsed.q, expected.has_q(), expected.q());
  ExpectSame(parsed.k, expected.has_k(), expected.k());
  ExpectSame(parsed.v, expected.has_v(), expected.v());
  ASSERT_EQ(parsed.execution.has_value(), expected.has_execution());
  if (parsed.execution) {
    EXPECT_TRUE(MessageDifferencer::Equals(*parsed.execution, expected.execution()));
  }
  EXPECT_EQ(parsed.return_lse, expected.return_lse());
  EXPECT_EQ(parsed.partial, expected.partial());
  EXPECT_EQ(parsed.has_output, expected.has_output());
  EXPECT_EQ(parsed.has_lse_output, expected.has_lse_output());
}

void ExpectSame(const WireAttendRequest& parsed, const v1::AttendRequest& expected) {
  ExpectSameShared(parsed, expected);
  ExpectSame(parsed.bias, expected.has_bias(), expected.bias());
  EXPECT_THAT(parsed.query_lengths.values, ElementsAreArray(expected.query_lengths()));
  EXPECT_THAT(parsed.kv_lengths.values, ElementsAreArray(expected.kv_lengths()));
  EXPECT_THAT(parsed.query_positions.values, ElementsAreArray(expected.query_positions()));
  EXPECT_THAT(parsed.key_positions.values, ElementsAreArray(expected.key_positions()));
  ASSERT_EQ(parsed.options.has_value(), expected.has_options());
  if (parsed.options) {
    EXPECT_TRUE(MessageDifferencer::Equals(*parsed.options, expected.options()));
  }
}

void ExpectSame(const WireDecodeRequest& parsed, const v1::DecodeRequest& expected) {
  ExpectSameShared(parsed, expected);
  EXPECT_EQ(parsed.request_id, expected.request_id());
  ASSERT_EQ(parsed.steps.count, expected.steps_size());
  for (int i = 0; i < expected.steps_size(); ++i) {
    const DecodeStep& step = parsed.steps.values[i];
    EXPECT_EQ(step.sequence_id, expected.steps(i).sequence_id());
    EXPECT_EQ(step.layer, expected.steps(i).layer());
    EXPECT_EQ(step.position, expected.steps(i).position());
    EXPECT_EQ(step.num_tokens, expected.steps(i).num_tokens());
    EXPECT_EQ(step.epoch, expected.steps(i).epoch());
    EXPECT_EQ(step.query_position.has_value(), expected.steps(i).has_query_position());
    EXPECT_EQ(step.query_position.value_or(0), expected.steps(i).query_position());
  }
}

// Same verdict as protobuf, and same content where both accept and nothing was refused. Protobuf
// keeps what it does not know; its unknown fields must be our refusals.
template <typename Wire, typename Proto>
void ExpectAgreement(const std::string& bytes, std::size_t slice_bytes) {
  Wire parsed;
  Proto expected;
  const bool accepted = Parse(bytes, slice_bytes, parsed);
  ASSERT_EQ(accepted, expected.ParseFromString(bytes)) << ::testing::PrintToString(bytes);
  if (accepted && parsed.refusal.ok()) ExpectSame(parsed, expected);
}

template <typename Wire, typename Proto>
void ExpectAgreementOnDamagedCopies(const Proto& request, std::mt19937_64& random) {
  const std::string bytes = request.SerializeAsString();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ExpectAgreement<Wire, Proto>(bytes.substr(0, length), 16);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1U << (random() % 8)));
    ExpectAgreement<Wire, Proto>(damaged, 1 + random() % 64);
  }
}

TEST(AttentionWireTest, ReadsRandomAttendRequestsAsProtobufDoes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(i);
    const auto request = testing::RandomAttendRequest(random);
    WireAttendRequest parsed;
    ASSERT_TRUE(Parse(request.SerializeAsString(), 1 + random() % 100, parsed));
    EXPECT_TRUE(parsed.refusal.ok()) << parsed.refusal;
    ExpectSame(parsed, request);
  }
}

TEST(AttentionWireTest, ReadsRandomDecodeRequestsAsProtobufDoes) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(i);
    const auto request = testing::RandomDecodeRequest(random);
    WireDecodeRequest parsed;
    ASSERT_TRUE(Parse(request.SerializeAsString(), 1 + random() % 100, parsed));
    EXPECT_TRUE(parsed.refusal.ok()) << parsed.refusal;
    ExpectSame(parsed, request);
  }
}

TEST(AttentionWireTest, ConcatenatedMessagesMergeAsProtobufDoes) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    ExpectAgreement<WireAttendRequest, v1::AttendRequest>(
        testing::RandomAttendRequest(random).SerializeAsString() +
            testing::RandomAttendRequest(random).SerializeAsString(),
        50);
    ExpectAgreement<WireDecodeRequest, v1::DecodeRequest>(
        testing::RandomDecodeRequest(random).SerializeAsString() +
            testing::RandomDecodeRequest(random).SerializeAsString(),
        50);
  }
}

TEST(AttentionWireTest, JudgesEveryTruncationAndBitFlipAsProtobufDoes) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    ExpectAgreementOnDamagedCopies<WireAttendRequest>(testing::RandomAttendRequest(random), random);
    ExpectAgreementOnDamagedCopies<WireDecodeRequest>(testing::RandomDecodeRequest(random), random);
  }
}

TEST(AttentionWireTest, TensorBytesAreReferencesIntoTheMessage) {
  v1::AttendRequest request;
  request.mutable_q()->set_data(std::string(200'000, 'x'));
  const auto message = testing::SlicedMessage(request.SerializeAsString(), 65'536);
  WireAttendRequest parsed;
  ASSERT_TRUE(ParseAttendRequest(message, kLimits, parsed));
  ASSERT_EQ(parsed.q->pieces.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_GE(parsed.q->pieces[i].data, message->pieces()[i].data);
    EXPECT_LE(parsed.q->pieces[i].data + parsed.q->pieces[i].size,
              message->pieces()[i].data + message->pieces()[i].size);
  }
}

TEST(AttentionWireTest, EmptyDataIsNotAbsentData) {
  v1::DecodeRequest request;
  request.mutable_q();
  request.mutable_k()->set_data("");
  WireDecodeRequest parsed;
  ASSERT_TRUE(Parse(request.SerializeAsString(), 64, parsed));
  EXPECT_EQ(parsed.q->storage, WireTensor::Storage::kNone);
  EXPECT_EQ(parsed.k->storage, WireTensor::Storage::kData);
  EXPECT_FALSE(parsed.v.has_value());
}

TEST(AttentionWireTest, ReadsUnpackedRepeatedScalars) {
  // query_lengths (5): 3, then packed {4, 5}, then 6.
  WireAttendRequest parsed;
  ASSERT_TRUE(Parse("\x28\x03\x2A\x02\x04\x05\x28\x06", 3, parsed));
  EXPECT_THAT(parsed.query_lengths.values, ElementsAre(3, 4, 5, 6));
}

struct UnknownCase {
  const char* description;
  std::string bytes;
  const char* field;
};

TEST(AttentionWireTest, RefusesWhatItDoesNotKnowNamingMessageAndField) {
  const auto nested = [](char tag, const std::string& content) {
    return std::string({tag, static_cast<char>(content.size())}) + content;
  };
  const std::string varint_field_15 = "\x78\x01";
  for (const auto& [description, bytes, field] : {
           UnknownCase{"top level", varint_field_15, "AttendRequest.15"},
           UnknownCase{"tensor", nested('\x0A', varint_field_15), "Tensor.15"},
           UnknownCase{"enum value", nested('\x0A', "\x08\x4D"), "Tensor.1"},
           UnknownCase{"options", nested('\x4A', varint_field_15), "AttentionOptions.15"},
           UnknownCase{"execution", nested('\x52', varint_field_15), "ExecutionOptions.15"},
           UnknownCase{"algorithm", nested('\x52', "\x08\x09"), "ExecutionOptions.1"},
           UnknownCase{"known field, other wire type", "\x5D\x01\x02\x03\x04", "AttendRequest.11"},
           UnknownCase{"group", "\x7B\x08\x01\x7C", "AttendRequest.15"},
       }) {
    SCOPED_TRACE(description);
    WireAttendRequest parsed;
    ASSERT_TRUE(Parse(bytes, 1, parsed));
    EXPECT_EQ(parsed.refusal.code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(ErrorDetailOf(parsed.refusal).reason(), v1::REASON_UNKNOWN_FIELD);
    EXPECT_EQ(ErrorDetailOf(parsed.refusal).field(), field);
  }
  WireDecodeRequest step;
  ASSERT_TRUE(Parse(nested('\x12', varint_field_15), 1, step));
  EXPECT_EQ(ErrorDetailOf(step.refusal).field(), "Step.15");
}

TEST(AttentionWireTest, KeepsTheRequestIdOfARefusedMessage) {
  v1::DecodeRequest request;
  request.set_request_id(77);
  WireDecodeRequest parsed;
  ASSERT_TRUE(Parse("\x78\x01" + request.SerializeAsString(), 64, parsed));
  EXPECT_FALSE(parsed.refusal.ok());
  EXPECT_EQ(parsed.request_id, 77U);
}

TEST(AttentionWireTest, KeepsListsOnlyUpToTheLimits) {
  v1::DecodeRequest many;
  for (int i = 0; i < 1000; ++i) many.add_steps();
  WireDecodeRequest decode;
  ASSERT_TRUE(
      ParseDecodeRequest(testing::SlicedMessage(many.SerializeAsString(), 4096), {64, 64}, decode));
  EXPECT_EQ(decode.steps.count, 1000);
  EXPECT_EQ(decode.steps.values.size(), 64U);

  v1::AttendRequest ragged;
  for (int i = 0; i < 1000; ++i) ragged.add_query_lengths(1);
  for (int i = 0; i < 1000; ++i) ragged.mutable_q()->add_shape(1);
  WireAttendRequest attend;
  ASSERT_TRUE(ParseAttendRequest(testing::SlicedMessage(ragged.SerializeAsString(), 4096), {64, 64},
                                 attend));
  EXPECT_EQ(attend.query_lengths.count, 1000);
  EXPECT_EQ(attend.query_lengths.values.size(), 64U);
  EXPECT_EQ(attend.q->shape.count, 1000);
  EXPECT_EQ(attend.q->shape.values.size(), 8U);
}

TEST(AttentionWireTest, RefusesOptionsBeyondOneMebibyte) {
  v1::AttendRequest request;
  for (int i = 0; i < 300'000; ++i) request.mutable_options()->add_sink_logits(0.0F);
  WireAttendRequest parsed;
  ASSERT_TRUE(Parse(request.SerializeAsString(), 65'536, parsed));
  EXPECT_EQ(parsed.refusal.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ErrorDetailOf(parsed.refusal).reason(), v1::REASON_LIMIT);
}

}  // namespace
}  // namespace attnd
