// The hand encoder against the generated classes.
#include "client/wire_encoder.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "client/call_error.h"

namespace attnd::client {
namespace {

using google::protobuf::util::MessageDifferencer;

std::string Bytes(const grpc::ByteBuffer& wire) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(wire.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

// `count` FP32 values from `first` on.
Tensor Numbers(std::vector<std::int64_t> shape, std::int64_t count, float first) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
  return *TensorFromFloats(v1::DATA_TYPE_FP32, std::move(shape), values);
}

void ToProto(const Tensor& tensor, v1::Tensor& proto) {
  proto.set_data_type(tensor.data_type);
  for (const std::int64_t dimension : tensor.shape) proto.add_shape(dimension);
  proto.set_data(tensor.data.get(), static_cast<std::size_t>(tensor.size_bytes));
}

TEST(WireEncoderTest, AttendRequestParsesBackWithEveryField) {
  AttendRequest request;
  request.q = Numbers({3, 2, 4}, 24, 0);          // small: inlined
  request.k = Numbers({100, 2, 16}, 3200, 1000);  // large: a slice of its own
  request.v = Numbers({100, 2, 16}, 3200, -5);
  request.bias = Numbers({1, 3, 100}, 300, 0.5F);
  request.query_lengths = {1, 2, -1};
  request.kv_lengths = {99, 1};
  request.query_positions = {1LL << 40, 0};
  request.key_positions = {5, 6};
  request.options.set_softmax_scale(-0.25F);
  request.options.set_causal(true);
  request.options.set_window_left(0);
  request.options.add_alibi_slopes(0.5F);
  request.options.add_sink_logits(-1);
  request.execution.set_algorithm(v1::ALGORITHM_NAIVE);
  request.execution.set_alone(true);
  request.return_lse = true;
  request.partial = true;

  v1::AttendRequest expected;
  ToProto(request.q, *expected.mutable_q());
  ToProto(request.k, *expected.mutable_k());
  ToProto(request.v, *expected.mutable_v());
  ToProto(request.bias, *expected.mutable_bias());
  for (const auto value : request.query_lengths) expected.add_query_lengths(value);
  for (const auto value : request.kv_lengths) expected.add_kv_lengths(value);
  for (const auto value : request.query_positions) expected.add_query_positions(value);
  for (const auto value : request.key_positions) expected.add_key_positions(value);
  *expected.mutable_options() = request.options;
  *expected.mutable_execution() = request.execution;
  expected.set_return_lse(true);
  expected.set_partial(true);

  const auto wire = EncodeAttendRequest(request);
  ASSERT_TRUE(wire.ok()) << wire.status();
  v1::AttendRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(Bytes(*wire)));
  EXPECT_TRUE(MessageDifferencer::Equals(parsed, expected));
}

TEST(WireEncoderTest, DecodeRequestParsesBackWithEveryField) {
  DecodeRequest request;
  for (int i = 0; i < 3; ++i) {
    v1::Step step;
    step.set_sequence_id(std::string(24, static_cast<char>('a' + i)));
    step.set_layer(i);
    step.set_position(1LL << (10 * i));
    step.set_num_tokens(1);
    step.set_epoch(~0ULL);
    if (i == 1) step.set_query_position(0);
    request.steps.push_back(step);
  }
  request.q = Numbers({3, 64, 128}, 3 * 64 * 128, 0);
  request.k = Numbers({3, 1, 8}, 24, 7);
  request.v = Numbers({3, 1, 8}, 24, 8);
  request.execution.mutable_timeout()->set_nanos(5);
  request.return_lse = true;

  v1::DecodeRequest expected;
  expected.set_request_id(123456789);
  for (const auto& step : request.steps) *expected.add_steps() = step;
  ToProto(request.q, *expected.mutable_q());
  ToProto(request.k, *expected.mutable_k());
  ToProto(request.v, *expected.mutable_v());
  *expected.mutable_execution() = request.execution;
  expected.set_return_lse(true);

  const auto wire = EncodeDecodeRequest(request, 123456789);
  ASSERT_TRUE(wire.ok()) << wire.status();
  v1::DecodeRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(Bytes(*wire)));
  EXPECT_TRUE(MessageDifferencer::Equals(parsed, expected));
}

TEST(WireEncoderTest, AbsentAndEmptyTensorsDiffer) {
  DecodeRequest request;
  request.q = Tensor{v1::DATA_TYPE_BF16, {0, 8, 64}, nullptr, 0};
  v1::DecodeRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(Bytes(*EncodeDecodeRequest(request, 0))));
  EXPECT_TRUE(parsed.has_q());
  EXPECT_EQ(parsed.q().storage_case(), v1::Tensor::kData);
  EXPECT_EQ(parsed.q().shape_size(), 3);
  EXPECT_FALSE(parsed.has_k());
}

TEST(WireEncoderTest, LargeTensorsAreReferredToAndKeptAlive) {
  Tensor tensor = Numbers({4096}, 4096, 0);
  const std::weak_ptr<const std::byte> memory = tensor.data;
  const std::byte* address = tensor.data.get();
  AttendRequest request;
  request.q = tensor;
  {
    auto wire = EncodeAttendRequest(request);
    request.q = Tensor();
    tensor = Tensor();
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(wire->Dump(&slices).ok());
    bool found = false;
    for (const grpc::Slice& slice : slices) {
      found = found || reinterpret_cast<const std::byte*>(slice.begin()) == address;
    }
    EXPECT_TRUE(found) << "the tensor was copied";
    EXPECT_FALSE(memory.expired());
  }
  EXPECT_TRUE(memory.expired()) << "the last slice must release the tensor";
}

// Address space only: nothing of it is read, since the refusal comes before any copy.
TEST(WireEncoderTest, MessagesBeyondTwoGibibytesAreRefusedWithBothSizes) {
  constexpr std::int64_t kBytes = std::int64_t{3} << 30;
  void* memory =
      mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  AttendRequest request;
  request.q =
      Tensor{v1::DATA_TYPE_FP32,
             {kBytes / 4},
             std::shared_ptr<const std::byte>(
                 static_cast<std::byte*>(memory),
                 [](const std::byte* start) { munmap(const_cast<std::byte*>(start), kBytes); }),
             kBytes};
  const auto wire = EncodeAttendRequest(request);
  ASSERT_FALSE(wire.ok());
  EXPECT_EQ(wire.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DescribeError(wire.status()).reason, v1::REASON_MESSAGE_SIZE);
  EXPECT_NE(std::string(wire.status().message()).find("2147483647"), std::string::npos);
  EXPECT_NE(std::string(wire.status().message()).find("322122"), std::string::npos);
}

TEST(WireEncoderTest, TensorsWithoutMemoryAreRefused) {
  AttendRequest request;
  request.q = Tensor{v1::DATA_TYPE_FP32, {1}, nullptr, 4};
  EXPECT_EQ(EncodeAttendRequest(request).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace attnd::client
