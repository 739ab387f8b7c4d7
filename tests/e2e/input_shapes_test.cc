// Shapes, sizes and numbers that lie, through every call: refused by the field's name before they
// cost anything, and the same server serves afterwards.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/local_calls.h"
#include "tests/support/local_server.h"
#include "tests/support/resident_memory.h"

namespace attnd::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::int64_t kMinInt64 = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// AddressSanitizer keeps what was freed for a while; what must not be allocated starts at 16 GiB.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kUsualGrowth = 256 * kMiB;
#else
constexpr std::int64_t kUsualGrowth = 10 * kMiB;
#endif

void ExpectField(const grpc::Status& status, const std::string& field, const std::string& what) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << what << ": " << status.error_message();
  if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) return;
  EXPECT_EQ(DetailOf(status).field(), field) << what;
  EXPECT_THAT(status.error_message(), HasSubstr(field)) << what;
}

TEST(InputShapesTest, ShapesThatNoTensorHasAreRefusedByEveryCall) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{-1, 2, 4},
                                                 {1, -1, 4},
                                                 {1, 2, -4},
                                                 {-1, -2, 4},
                                                 {kMinInt64, 1, 1},
                                                 {1, 1, kMinInt64},
                                                 {},
                                                 {8},
                                                 {1, 8},
                                                 {1, 1, 2, 4},
                                                 {1, 1, 1, 1, 1, 1, 1, 2, 4}}) {
    const std::string what = ::testing::PrintToString(shape);
    auto attend = AttendRequestOf(1, 1, 1);
    SetShape(*attend.mutable_q(), shape);
    ExpectField(Attend(local, attend), "q.shape", what);
    attend = AttendRequestOf(1, 1, 1);
    SetShape(*attend.mutable_v(), shape);
    ExpectField(Attend(local, attend), "v.shape", what);
    auto decode = DecodeRequestOf(id, 0, 1);
    SetShape(*decode.mutable_k(), shape);
    ExpectField(Decode(local, decode), "k.shape", what);
  }
  ExpectUntouched(local, 0);
  EXPECT_TRUE(Serves(local));
}

TEST(InputShapesTest, NegativeNumbersAreRefusedByName) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  const auto attend = [&local](const std::function<void(v1::AttendRequest&)>& edit) {
    auto request = AttendRequestOf(1, 1, 1);
    edit(request);
    return Attend(local, request);
  };
  const auto decode = [&local, &id](const std::function<void(v1::Step&)>& edit) {
    auto request = DecodeRequestOf(id, 0, 1);
    edit(*request.mutable_steps(0));
    return Decode(local, request);
  };
  const auto create = [&local](const std::function<void(v1::CreateSequenceRequest&)>& edit) {
    auto request = OneLayer();
    edit(request);
    return Create(local, request);
  };
  ExpectField(attend([](auto& r) { r.mutable_options()->set_window_left(-1); }),
              "options.window_left", "attend");
  ExpectField(attend([](auto& r) { r.mutable_options()->set_window_right(-7); }),
              "options.window_right", "attend");
  ExpectField(create([](auto& r) { r.set_max_tokens(-1); }), "max_tokens", "create");
  ExpectField(create([](auto& r) { r.set_reserve_tokens(-1); }), "reserve_tokens", "create");
  ExpectField(create([](auto& r) { r.set_reserve_tokens(kMinInt64); }), "reserve_tokens", "create");
  ExpectField(create([](auto& r) { r.set_num_layers(-1); }), "num_layers", "create");
  ExpectField(create([](auto& r) { r.set_num_heads(-2); }), "num_heads", "create");
  ExpectField(create([](auto& r) { r.set_num_kv_heads(-2); }), "num_kv_heads", "create");
  ExpectField(create([](auto& r) { r.set_head_dim(-4); }), "head_dim", "create");
  ExpectField(create([](auto& r) { r.mutable_lease()->set_seconds(-1); }), "lease", "create");
  ExpectField(create([](auto& r) { r.add_layer_groups()->add_layers(-1); }),
              "layer_groups[0].layers[0]", "create");
  ExpectField(create([](auto& r) { r.add_layer_groups()->mutable_options()->set_window_left(-2); }),
              "layer_groups[0].options.window_left", "create");
  ExpectField(decode([](auto& s) { s.set_num_tokens(-1); }), "steps[0].num_tokens", "decode");
  ExpectField(decode([](auto& s) { s.set_position(-1); }), "steps[0].position", "decode");
  ExpectField(decode([](auto& s) { s.set_layer(-1); }), "steps[0].layer", "decode");
  ExpectUntouched(local, 0);
  EXPECT_TRUE(Serves(local));
}

// Products that wrap around in 32 or 64 bits to what the payload has.
TEST(InputShapesTest, SizesThatWrapAroundAreRefusedWithoutMemory) {
  LocalServer local;
  ASSERT_TRUE(Serves(local));
  const std::string id = local.CreateSequence();
  const std::int64_t batches = local.backend.batches();
  const std::int64_t before = ResidentBytes();
  for (const auto& [shape, payload_bytes] :
       {std::pair<std::vector<std::int64_t>, std::size_t>{{65'537, 65'536, 1}, 65'536 * 4},
        {{std::int64_t{1} << 33, std::int64_t{1} << 31, 1}, 0},
        {{std::int64_t{1} << 31, 1, std::int64_t{1} << 33}, 0},
        {{std::int64_t{1} << 62, 1, 1}, 0},
        {{std::int64_t{1} << 62, 2, 4}, 0},
        {{kMaxInt64, 1, 1}, 0},
        {{1, kMaxInt64, 1}, 0},
        {{1, 1, kMaxInt64}, 0},
        {{kMaxInt64, kMaxInt64, kMaxInt64}, 4},
        {{0, kMaxInt64, kMaxInt64}, 0}}) {
    const std::string what = ::testing::PrintToString(shape);
    for (int tensor = 0; tensor < 3; ++tensor) {
      auto attend = AttendRequestOf(1, 1, 1);
      auto decode = DecodeRequestOf(id, 0, 1);
      for (v1::Tensor* each : {tensor == 0   ? attend.mutable_q()
                               : tensor == 1 ? attend.mutable_k()
                                             : attend.mutable_v(),
                               tensor == 0   ? decode.mutable_q()
                               : tensor == 1 ? decode.mutable_k()
                                             : decode.mutable_v()}) {
        SetShape(*each, shape);
        each->set_data(std::string(payload_bytes, '\0'));
      }
      EXPECT_EQ(Attend(local, attend).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << what;
      EXPECT_EQ(Decode(local, decode).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << what;
    }
  }
  EXPECT_LT(ResidentBytes() - before, kUsualGrowth);
  ExpectUntouched(local, batches);
  EXPECT_TRUE(Serves(local));
}

// Dimensions of a sequence whose product wraps around, and reservations beyond any memory.
TEST(InputShapesTest, SequencesTooLargeForAnyMachineAreRefused) {
  LocalServer local;
  constexpr std::int32_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
  const auto refusal = [&local](const std::function<void(v1::CreateSequenceRequest&)>& edit) {
    auto request = OneLayer();
    edit(request);
    return Create(local, request).error_code();
  };
  const auto refused = AnyOf(grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::OUT_OF_RANGE,
                             grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refusal([](auto& r) { r.set_num_layers(kMaxInt32); }), refused);
  EXPECT_THAT(refusal([](auto& r) { r.set_num_heads(kMaxInt32), r.set_num_kv_heads(kMaxInt32); }),
              refused);
  EXPECT_THAT(refusal([](auto& r) { r.set_head_dim(kMaxInt32); }), refused);
  EXPECT_THAT(refusal([](auto& r) { r.set_max_tokens(kMaxInt64); }), refused);
  EXPECT_THAT(refusal([](auto& r) { r.set_reserve_tokens(kMaxInt64); }), refused);
  EXPECT_THAT(refusal([](auto& r) {
                r.set_num_layers(1024), r.set_num_heads(1024), r.set_num_kv_heads(1024);
                r.set_head_dim(256), r.set_reserve_tokens(1'000'000);
              }),
              refused);
  ExpectUntouched(local, 0);
  EXPECT_TRUE(Serves(local));
}

TEST(InputShapesTest, PayloadsMustHaveExactlyTheBytesOfTheirShape) {
  LocalServer local;
  const auto tensor = [](v1::Tensor& out, v1::DataType type, std::vector<std::int64_t> shape,
                         std::size_t bytes) {
    out.set_data_type(type);
    SetShape(out, shape);
    out.set_data(std::string(bytes, '\0'));
  };
  const auto request_of = [&tensor](std::size_t bytes) {
    v1::AttendRequest request;
    for (v1::Tensor* each : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
      tensor(*each, v1::DATA_TYPE_FP16, {32, 2, 32}, 4096);
    }
    request.mutable_k()->set_data(std::string(bytes, '\0'));
    return request;
  };
  for (const std::size_t bytes : {0, 2, 4094, 4095, 4097, 4098, 8192, 40'960}) {
    ExpectField(Attend(local, request_of(bytes)), "k.data", std::to_string(bytes));
  }
  auto request = request_of(4096);
  request.mutable_k()->clear_data();
  ExpectField(Attend(local, request), "k.data", "absent");
  tensor(*request.mutable_k(), v1::DATA_TYPE_FP16, {31, 2, 32}, 31 * 128);
  ExpectField(Attend(local, request), "v.shape", "keys and values of different lengths");
  tensor(*request.mutable_k(), v1::DATA_TYPE_FP16, {32, 2, 16}, 2048);
  tensor(*request.mutable_v(), v1::DATA_TYPE_FP16, {32, 2, 16}, 2048);
  ExpectField(Attend(local, request), "k.shape", "queries and keys of different head sizes");
  request = request_of(4096);
  tensor(*request.mutable_v(), v1::DATA_TYPE_FP32, {32, 2, 32}, 8192);
  ExpectField(Attend(local, request), "v.data_type", "values of another type");
  // Of the right size, but of a type that no request may have.
  tensor(*request.mutable_v(), v1::DATA_TYPE_INT8, {32, 2, 32}, 2048);
  ExpectField(Attend(local, request), "v.data_type", "a cache's type");
  tensor(*request.mutable_v(), v1::DATA_TYPE_UNSPECIFIED, {32, 2, 32}, 4096);
  ExpectField(Attend(local, request), "v.data_type", "no type");
  tensor(*request.mutable_v(), static_cast<v1::DataType>(99), {32, 2, 32}, 4096);
  EXPECT_EQ(Attend(local, request).error_code(), grpc::StatusCode::UNIMPLEMENTED)
      << "a type from the future";
  ExpectUntouched(local, 0);
  EXPECT_TRUE(Attend(local, request_of(4096)).ok());
  EXPECT_EQ(local.backend.batches(), 1);
}

// The last storage counts where a message on the wire has both: never a mixture of them.
TEST(InputShapesTest, DataAndSharedMemoryInOneTensorAreNotMixed) {
  LocalServer local;
  grpc::GenericStub stub(local.channel);
  v1::AttendRequest shared;
  shared.mutable_q()->mutable_shared_memory()->set_region("region");
  shared.mutable_q()->mutable_shared_memory()->set_byte_size(32);
  grpc::CompletionQueue queue;
  const auto call = [&](const std::string& bytes) {
    grpc::ClientContext context;
    const grpc::Slice slice(bytes);
    const auto rpc = stub.PrepareUnaryCall(&context, "/attnd.v1.AttentionService/Attend",
                                           grpc::ByteBuffer(&slice, 1), &queue);
    rpc->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    rpc->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return status.error_code();
  };
  const std::string inline_data = AttendRequestOf(1, 1, 1).SerializeAsString();
  EXPECT_EQ(call(inline_data), grpc::StatusCode::OK);
  EXPECT_EQ(call(inline_data + shared.SerializeAsString()), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(call(AttendRequestOf(1, 1, 1).SerializeAsString()), grpc::StatusCode::OK);
  queue.Shutdown();
}

}  // namespace
}  // namespace attnd::testing
