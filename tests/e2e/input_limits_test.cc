// Messages over the limit, lengths over the advertised maximum, compressed messages: refused before
// they cost anything, and the same connection serves the next call.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "client/attention_client.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_calls.h"
#include "tests/support/local_server.h"

namespace attnd::testing {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// A matcher of each of a million values takes half a second.
void ExpectAll(float expected, const std::vector<float>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  ASSERT_FALSE(values.empty());
  EXPECT_NEAR(*least, expected, 1e-5F);
  EXPECT_NEAR(*most, expected, 1e-5F);
}

TEST(InputLimitsTest, TensorsOverGrpcsDefaultOfFourMebibytesAreServed) {
  LocalServer local;
  // Few tokens of many heads: large tensors, little arithmetic.
  constexpr int kTokens = 160;
  constexpr int kHeads = 32;
  constexpr int kDim = 256;
  const std::vector<float> values(kTokens * kHeads * kDim, 0.5F);
  v1::AttendRequest request;
  for (v1::Tensor* each : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    each->set_data_type(v1::DATA_TYPE_FP32);
    SetShape(*each, {kTokens, kHeads, kDim});
    each->set_data(values.data(), values.size() * sizeof(float));
  }
  // A client of generated code that has raised its receive limit.
  grpc::ClientContext context;
  v1::AttendResponse response;
  const auto status = local.stub->Attend(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.ByteSizeLong(), std::size_t{4'194'304});
  ExpectAll(0.5F, FloatsOf(response.o()));
  // One that has not is told by its own library; the server does not mind.
  const auto plain = v1::AttentionService::NewStub(
      grpc::CreateChannel(local.server->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext plain_context;
  EXPECT_EQ(plain->Attend(&plain_context, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // The client library has.
  client::AttentionClient client({.transport = {.target = local.server->address()}});
  client::AttendRequest same;
  same.q = same.k = same.v =
      *client::TensorFromFloats(v1::DATA_TYPE_FP32, {kTokens, kHeads, kDim}, values);
  const auto result = client.Attend(same);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAll(0.5F, *client::FloatsFromTensor(result->o));
  EXPECT_TRUE(Serves(local));
}

TEST(InputLimitsTest, AMessageOfTheLimitIsServedAndOneByteMoreIsNot) {
  auto request = AttendRequestOf(300, 1300, 1);
  const auto size = static_cast<std::int64_t>(request.ByteSizeLong());
  ServerConfig config = SmallConfig();
  config.max_message_bytes = size;
  {
    const LocalServer exact(config);
    EXPECT_TRUE(Attend(exact, request).ok());
  }
  config.max_message_bytes = size - 1;
  LocalServer local(config);
  grpc::ClientContext open_context;
  const auto open = local.stub->DecodeStream(&open_context);
  for (int i = 0; i < 3; ++i) {
    const grpc::Status status = Attend(local, request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(DetailOf(status).reason(), v1::REASON_MESSAGE_SIZE) << status.error_message();
    EXPECT_TRUE(Serves(local)) << "over the same connection";
  }
  // A stream ends by such a message, and takes no other one with it.
  grpc::ClientContext context;
  const auto stream = local.stub->DecodeStream(&context);
  auto step = DecodeRequestOf(local.CreateSequence(), 0, 1);
  ASSERT_TRUE(open->Write(step));
  step.mutable_q()->set_data(std::string(size, 'x'));
  stream->Write(step);
  v1::DecodeResponse response;
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status ended = stream->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(ended).reason(), v1::REASON_MESSAGE_SIZE) << ended.error_message();
  ASSERT_TRUE(open->Read(&response));
  EXPECT_EQ(response.status().code(), 0) << response.status().message();
  open->WritesDone();
  EXPECT_TRUE(open->Finish().ok());
  EXPECT_TRUE(local.AwaitIdle());
  const Exposition page = ParseExposition(local.server->MetricsText());
  EXPECT_EQ(page.Value("attnd_rejected_total", {{"reason", "message_size"}}), 4)
      << "three calls and a message of a stream";
}

v1::GetServerInfoResponse InfoOf(const LocalServer& local) {
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(local.stub->GetServerInfo(&context, {}, &info).ok());
  return info;
}

void ExpectLimit(const grpc::Status& status) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE) << status.error_message();
  if (status.error_code() == grpc::StatusCode::OUT_OF_RANGE) {
    EXPECT_EQ(DetailOf(status).reason(), v1::REASON_LIMIT);
    EXPECT_FALSE(DetailOf(status).has_retry_delay()) << "never helps";
  }
}

TEST(InputLimitsTest, LengthsOverTheAdvertisedMaximumAreRefusedBeforeAnyWork) {
  ServerConfig config = SmallConfig();
  config.max_tokens = 4096;
  LocalServer local(config);
  const std::int64_t most = InfoOf(local).limits().max_tokens();
  EXPECT_EQ(most, 4096);
  EXPECT_TRUE(Attend(local, AttendRequestOf(1, most, 1)).ok());
  auto create = OneLayer();
  create.set_max_tokens(most);
  EXPECT_TRUE(Create(local, create).ok());
  const std::int64_t batches = local.backend.batches();
  for (int i = 0; i < 25; ++i) {
    ExpectLimit(Attend(local, AttendRequestOf(1, most + 1, 1)));
    ExpectLimit(Attend(local, AttendRequestOf(1, 10 * most, 1)));
    ExpectLimit(Attend(local, AttendRequestOf(most + 1, 1, 1)));
    create.set_max_tokens(most + 1);
    ExpectLimit(Create(local, create));
  }
  ExpectUntouched(local, batches);
  EXPECT_TRUE(Serves(local));
}

// Appends `num_tokens` tokens of a sequence of OneLayer, without queries.
grpc::Status AppendTokens(const LocalServer& local, const std::string& id, std::int64_t position,
                          std::int64_t num_tokens) {
  v1::DecodeRequest request;
  v1::Step& step = *request.add_steps();
  step.set_sequence_id(id);
  step.set_position(position);
  step.set_num_tokens(static_cast<std::int32_t>(num_tokens));
  const auto tensors = AttendRequestOf(0, num_tokens, 1);
  *request.mutable_k() = tensors.k();
  *request.mutable_v() = tensors.v();
  return Decode(local, request);
}

TEST(InputLimitsTest, ASequenceGrowsToItsMaximumAndNotBeyond) {
  LocalServer local;
  auto create = OneLayer();
  constexpr std::int64_t kMost = 1000;
  create.set_max_tokens(kMost);
  std::string id;
  ASSERT_TRUE(Create(local, create, &id).ok());
  ExpectLimit(AppendTokens(local, id, 0, kMost + 1));
  EXPECT_TRUE(AppendTokens(local, id, 0, kMost - 1).ok());
  ExpectLimit(AppendTokens(local, id, kMost - 1, 2));
  EXPECT_TRUE(AppendTokens(local, id, kMost - 1, 1).ok());
  const std::int64_t batches = local.backend.batches();
  for (int i = 0; i < 100; ++i) ExpectLimit(AppendTokens(local, id, kMost, 1));
  EXPECT_EQ(local.backend.batches(), batches);
  EXPECT_TRUE(Serves(local));
}

// Appends `num_tokens` zeros to a sequence of one FP16 KV head of 32.
grpc::Status AppendNarrow(const LocalServer& local, const std::string& id,
                          std::int64_t num_tokens) {
  v1::DecodeRequest request;
  v1::Step& step = *request.add_steps();
  step.set_sequence_id(id);
  step.set_num_tokens(static_cast<std::int32_t>(num_tokens));
  for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_v()}) {
    tensor->set_data_type(v1::DATA_TYPE_FP16);
    SetShape(*tensor, {num_tokens, 1, 32});
    tensor->set_data(std::string(static_cast<std::size_t>(num_tokens) * 32 * 2, '\0'));
  }
  return Decode(local, request);
}

// With a cache that holds less than --max_tokens, what is advertised is what the cache holds of the
// narrowest sequence: one layer, one 16-bit KV head of up to 32.
TEST(InputLimitsTest, ASmallCacheShrinksTheAdvertisedMaximum) {
  ServerConfig config = SmallConfig();
  config.cache_bytes = 2 * kMiB;
  LocalServer local(config);
  const std::int64_t most = InfoOf(local).limits().max_tokens();
  EXPECT_LT(most, config.max_tokens);
  auto create = OneLayer();
  create.set_num_heads(1);
  create.set_num_kv_heads(1);
  create.set_head_dim(32);
  create.set_data_type(v1::DATA_TYPE_FP16);
  create.set_max_tokens(most + 1);
  ExpectLimit(Create(local, create));
  create.set_max_tokens(most);
  std::string id;
  ASSERT_TRUE(Create(local, create, &id).ok());
  const auto appended = AppendNarrow(local, id, most);
  EXPECT_TRUE(appended.ok()) << appended.error_message();
  // Another one finds no place: refused before any work, and nothing is kept for it.
  ASSERT_TRUE(Create(local, create, &id).ok());
  const std::int64_t batches = local.backend.batches();
  const std::int64_t used_bytes = local.server->GetSnapshot().used_bytes;
  for (int i = 0; i < 100; ++i) {
    const auto full = AppendNarrow(local, id, most);
    ASSERT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << full.error_message();
    EXPECT_EQ(DetailOf(full).reason(), v1::REASON_CACHE_FULL);
  }
  EXPECT_EQ(local.backend.batches(), batches);
  EXPECT_EQ(local.server->GetSnapshot().used_bytes, used_bytes);
  EXPECT_TRUE(Serves(local));
}

// A wider shape may have what the cache holds of it, no more: asked for by name or by default.
TEST(InputLimitsTest, AWiderShapeHasAMaximumOfItsOwn) {
  ServerConfig config = SmallConfig();
  config.cache_bytes = 2 * kMiB;
  LocalServer local(config);
  auto create = OneLayer();
  create.set_num_layers(2);
  create.set_num_heads(8);
  create.set_num_kv_heads(8);
  create.set_head_dim(64);
  constexpr std::int64_t kMost = 2 * kMiB / (2 * 8 * 64 * sizeof(float)) / 2;
  grpc::ClientContext context;
  v1::CreateSequenceResponse response;
  ASSERT_TRUE(local.stub->CreateSequence(&context, create, &response).ok());
  EXPECT_EQ(response.max_tokens(), kMost);
  EXPECT_GT(InfoOf(local).limits().max_tokens(), kMost);
  create.set_max_tokens(kMost + 1);
  const auto refused = Create(local, create);
  ExpectLimit(refused);
  EXPECT_EQ(DetailOf(refused).field(), "max_tokens");
  EXPECT_NE(refused.error_message().find("got 257, need at most 256"), std::string::npos)
      << refused.error_message();
  create.set_max_tokens(kMost);
  EXPECT_TRUE(Create(local, create).ok());
}

// A limit on message bytes bounds nothing where a small message inflates to a large one.
TEST(InputLimitsTest, CompressedStreamsAndControlMessagesReachNoHandler) {
  LocalServer local;
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext stream_context;
    stream_context.set_compression_algorithm(algorithm);
    const auto stream = local.stub->DecodeStream(&stream_context);
    stream->Write(DecodeRequestOf(std::string(kMiB, '\0'), 0, 1));
    v1::DecodeResponse reply;
    EXPECT_FALSE(stream->Read(&reply));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
    grpc::ClientContext create_context;
    create_context.set_compression_algorithm(algorithm);
    v1::CreateSequenceRequest create = OneLayer();
    create.set_creation_key(std::string(kMiB, '\0'));
    v1::CreateSequenceResponse created;
    EXPECT_EQ(local.stub->CreateSequence(&create_context, create, &created).error_code(),
              grpc::StatusCode::UNIMPLEMENTED);
  }
  // Nothing of them reached a handler.
  EXPECT_EQ(ParseExposition(local.server->MetricsText())
                .Value("attnd_transport_bytes_total", {{"path", "in_band"}, {"direction", "in"}})
                .value_or(0),
            0);
  ExpectUntouched(local, 0);
  EXPECT_TRUE(Serves(local));
}

}  // namespace
}  // namespace attnd::testing
