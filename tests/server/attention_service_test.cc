// The unary rpcs through a real channel: answers, errors, accounts.
#include "server/attention_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/await.h"
#include "tests/support/local_server.h"
#include "tests/support/wire_messages.h"

namespace attnd {
namespace {

using testing::AttendRequestOf;
using testing::Await;
using testing::DecodeRequestOf;
using testing::DetailOf;
using ::testing::Each;
using ::testing::FloatNear;
using testing::FloatsOf;
using ::testing::HasSubstr;
using testing::LocalServer;
using testing::PushbackOf;
using ::testing::SizeIs;
using testing::SmallConfig;

// Calls a unary method with arbitrary bytes.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& bytes, grpc::ClientContext& context) {
  grpc::GenericStub stub(channel);
  const auto request = testing::SlicedBuffer(bytes, 65'536);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/attnd.v1.AttentionService/" + method, {}, &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

const char* const kUnaryMethods[] = {"Attend",
                                     "Decode",
                                     "CreateSequence",
                                     "ForkSequence",
                                     "GetSequence",
                                     "ListSequences",
                                     "RenewSequences",
                                     "TruncateSequences",
                                     "DeleteSequences",
                                     "RegisterSharedMemory",
                                     "UnregisterSharedMemory",
                                     "ListSharedMemory",
                                     "GetServerInfo"};

TEST(AttentionServiceTest, AttendAnswersWithTheWeightedValues) {
  const LocalServer local;
  grpc::ClientContext context;
  v1::AttendResponse response;
  auto request = AttendRequestOf(3, 5, 0.25F);
  request.set_return_lse(true);
  const auto status = local.stub->Attend(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.o().shape(), ::testing::ElementsAre(3, 2, 4));
  EXPECT_THAT(FloatsOf(response.o()), Each(FloatNear(0.25F, 1e-6F)));
  // Every score is 4 x 1/sqrt(4) = 2; the sum of 5 exp(2) has the log 2 + ln 5.
  EXPECT_THAT(FloatsOf(response.lse()), Each(FloatNear(2 + std::log(5.0F), 1e-5F)));
  EXPECT_FALSE(response.execution().kernels().empty());
}

TEST(AttentionServiceTest, DecodeAppendsAndAttends) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  for (int position = 0; position < 20; ++position) {
    grpc::ClientContext context;
    v1::DecodeResponse response;
    auto request = DecodeRequestOf(id, position, 3.0F);
    request.set_request_id(position + 1000);
    const auto status = local.stub->Decode(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.request_id(), position + 1000U);
    EXPECT_FALSE(response.has_status()) << "streams only";
    EXPECT_THAT(FloatsOf(response.o()), SizeIs(8));
    EXPECT_THAT(FloatsOf(response.o()), Each(FloatNear(3.0F, 1e-5F)));
  }
  grpc::ClientContext context;
  v1::GetSequenceRequest get;
  get.set_sequence_id(id);
  v1::Sequence sequence;
  ASSERT_TRUE(local.stub->GetSequence(&context, get, &sequence).ok());
  EXPECT_THAT(sequence.layer_tokens(), ::testing::ElementsAre(20));
  EXPECT_EQ(sequence.data_type(), v1::DATA_TYPE_FP32);
}

TEST(AttentionServiceTest, ErrorsCarryDetailAndPushback) {
  const LocalServer local;
  grpc::ClientContext context;
  v1::AttendResponse response;
  auto request = AttendRequestOf(1, 1, 1);
  request.mutable_q()->set_shape(0, -1);
  const auto status = local.stub->Attend(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(status).reason(), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(DetailOf(status).field(), "q.shape");
  EXPECT_EQ(PushbackOf(context), "-1");
  EXPECT_EQ(local.backend.batches(), 0) << "nothing was executed";
}

TEST(AttentionServiceTest, MalformedBytesAreInvalidForEveryMethod) {
  const LocalServer local;
  for (const char* method : kUnaryMethods) {
    for (const std::string& bytes : {std::string("\x0A\xFF"), std::string("\x0C"),
                                     std::string(11, '\x80'), std::string("\x00\x00", 2)}) {
      grpc::ClientContext context;
      const auto status = CallRaw(local.channel, method, bytes, context);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
          << method << " " << ::testing::PrintToString(bytes) << " " << status.error_message();
    }
  }
  EXPECT_TRUE(local.AwaitIdle());
}

// A message of no bytes is a message.
TEST(AttentionServiceTest, AnEmptyRequestIsToldWhatItLacks) {
  const LocalServer local;
  const std::pair<const char*, const char*> lacking[] = {
      {"Attend", "q"}, {"Decode", "q"}, {"CreateSequence", "num_layers"}};
  for (const auto& [method, field] : lacking) {
    grpc::ClientContext context;
    const auto status = CallRaw(local.channel, method, "", context);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_EQ(DetailOf(status).field(), field) << status.error_message();
  }
}

TEST(AttentionServiceTest, ControlMessagesAreBoundedBeforeTheyAreParsed) {
  const LocalServer local;
  grpc::ClientContext context;
  // 3 million empty layer groups: 6 MB on the wire, a quarter of a gigabyte as messages.
  std::string bytes;
  for (int i = 0; i < 3'000'000; ++i) bytes += std::string("\x3A\x00", 2);
  const auto status = CallRaw(local.channel, "CreateSequence", bytes, context);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(status).reason(), v1::REASON_MESSAGE_SIZE);
}

TEST(AttentionServiceTest, UnknownOptionsAreUnimplemented) {
  const LocalServer local;
  v1::CreateSequenceRequest create;
  create.set_num_layers(1);
  create.GetReflection()->MutableUnknownFields(&create)->AddVarint(50, 1);
  grpc::ClientContext context;
  v1::CreateSequenceResponse response;
  const auto status = local.stub->CreateSequence(&context, create, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(DetailOf(status).reason(), v1::REASON_UNKNOWN_FIELD);
  EXPECT_THAT(status.error_message(), HasSubstr("CreateSequenceRequest"));
  EXPECT_THAT(status.error_message(), HasSubstr("50"));
}

TEST(AttentionServiceTest, SharedMemoryIsUnimplementedWithAClearText) {
  const LocalServer local;
  for (const char* method :
       {"RegisterSharedMemory", "UnregisterSharedMemory", "ListSharedMemory"}) {
    grpc::ClientContext context;
    const auto status = CallRaw(local.channel, method, "", context);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
    EXPECT_EQ(DetailOf(status).reason(), v1::REASON_UNSUPPORTED);
    EXPECT_THAT(status.error_message(), HasSubstr("shared_memory"));
  }
}

TEST(AttentionServiceTest, TellsWhatItIsAndWhatItsLimitsAre) {
  const LocalServer local;
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(local.stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_FALSE(info.version().empty());
  EXPECT_EQ(info.server(), "attnd");
  EXPECT_THAT(info.features(), ::testing::Contains("comparison"));
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).backend(), "cpu");
  EXPECT_FALSE(info.kernels().empty());
  for (const auto& row : info.kernels()) EXPECT_FALSE(row.types().empty()) << row.name();
  EXPECT_GT(info.limits().max_tokens(), 0);
  EXPECT_EQ(info.limits().max_message_bytes(), local.server->config().max_message_bytes);
  EXPECT_GT(info.limits().max_lease().seconds(), 0);
  EXPECT_EQ(info.cache().pages() * info.cache().page_bytes(), std::int64_t{64} << 20);
}

TEST(AttentionServiceTest, FeaturesNameWhatTheConfigurationOffers) {
  const auto features = [](bool comparison, bool invariant) {
    ServerConfig config = SmallConfig();
    config.allow_comparison = comparison;
    config.batch_invariant = invariant;
    const LocalServer local(config);
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    EXPECT_TRUE(local.stub->GetServerInfo(&context, {}, &info).ok());
    return std::vector<std::string>(info.features().begin(), info.features().end());
  };
  EXPECT_THAT(features(true, true), ::testing::ElementsAre("comparison", "batch_invariant"));
  EXPECT_THAT(features(false, false), ::testing::IsEmpty());
}

TEST(AttentionServiceTest, TenantsComeFromTheHeaderOnlyWhereItIsTrusted) {
  const auto get = [](LocalServer& local, const std::string& id, const std::string& tenant) {
    grpc::ClientContext context;
    context.AddMetadata("attnd-tenant", tenant);
    v1::GetSequenceRequest request;
    request.set_sequence_id(id);
    v1::Sequence sequence;
    return local.stub->GetSequence(&context, request, &sequence).error_code();
  };
  ServerConfig config = SmallConfig();
  LocalServer closed(config);
  EXPECT_EQ(get(closed, closed.CreateSequence("a"), "b"), grpc::StatusCode::OK)
      << "both are the default tenant";
  config.trust_tenant_header = true;
  LocalServer open(config);
  const std::string id = open.CreateSequence("a");
  EXPECT_EQ(get(open, id, "a"), grpc::StatusCode::OK);
  EXPECT_EQ(get(open, id, "b"), grpc::StatusCode::NOT_FOUND);
}

// A proxy that adds its header to the client's own would let the client choose its tenant.
TEST(AttentionServiceTest, ACallOfTwoTenantsIsRefused) {
  ServerConfig config = SmallConfig();
  const auto get = [](LocalServer& local, const std::string& id, const std::string& other) {
    grpc::ClientContext context;
    context.AddMetadata("attnd-tenant", "a");
    context.AddMetadata("attnd-tenant", other);
    v1::GetSequenceRequest request;
    request.set_sequence_id(id);
    v1::Sequence sequence;
    return local.stub->GetSequence(&context, request, &sequence);
  };
  LocalServer closed(config);
  EXPECT_TRUE(get(closed, closed.CreateSequence(), "b").ok()) << "the header means nothing";
  config.trust_tenant_header = true;
  LocalServer open(config);
  const std::string id = open.CreateSequence("a");
  for (const char* other : {"b", "a", ""}) {
    const grpc::Status refused = get(open, id, other);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << other;
    EXPECT_EQ(DetailOf(refused).field(), "attnd-tenant");
    EXPECT_THAT(refused.error_message(),
                HasSubstr("attnd-tenant: got 2 headers, need at most one"));
  }
  const auto names_two = [](grpc::ClientContext& context) {
    context.AddMetadata("attnd-tenant", "a");
    context.AddMetadata("attnd-tenant", "b");
  };
  grpc::ClientContext attend_context;
  grpc::ClientContext decode_context;
  grpc::ClientContext stream_context;
  for (auto* context : {&attend_context, &decode_context, &stream_context}) names_two(*context);
  v1::AttendResponse attended;
  v1::DecodeResponse decoded;
  EXPECT_EQ(
      DetailOf(open.stub->Attend(&attend_context, AttendRequestOf(1, 1, 1), &attended)).field(),
      "attnd-tenant");
  EXPECT_EQ(
      DetailOf(open.stub->Decode(&decode_context, DecodeRequestOf(id, 0, 1), &decoded)).field(),
      "attnd-tenant");
  const auto stream = open.stub->DecodeStream(&stream_context);
  EXPECT_FALSE(stream->Read(&decoded));
  EXPECT_EQ(DetailOf(stream->Finish()).field(), "attnd-tenant");
  // A step names its sequence: whoever is of two tenants has none.
  grpc::ClientContext context;
  context.AddMetadata("attnd-tenant", "a");
  context.AddMetadata("attnd-tenant", "b");
  v1::DecodeResponse response;
  EXPECT_FALSE(open.stub->Decode(&context, testing::DecodeRequestOf(id, 0, 1), &response).ok());
}

TEST(AttentionServiceTest, CallsOverTheUnaryLimitAreRefusedWithARetryDelay) {
  ServerConfig config = SmallConfig();
  config.max_unary_in_flight = 2;
  LocalServer local(config);
  local.backend.Hold();
  std::vector<std::thread> held;
  for (int i = 0; i < 2; ++i) {
    held.emplace_back([&local] {
      grpc::ClientContext context;
      v1::AttendResponse response;
      EXPECT_TRUE(local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response).ok());
    });
  }
  EXPECT_TRUE(Await([&] { return local.server->live_calls() >= 2; }));
  local.backend.AwaitBatches(1);
  {
    grpc::ClientContext context;
    v1::AttendResponse response;
    const auto status = local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(DetailOf(status).reason(), v1::REASON_QUEUE_FULL);
    EXPECT_TRUE(DetailOf(status).has_retry_delay());
    EXPECT_GT(std::stoi(PushbackOf(context)), 0);
  }
  local.backend.Release();
  for (auto& call : held) call.join();
  for (int i = 0; i < 20; ++i) {  // a place is free before its answer is out
    grpc::ClientContext context;
    v1::AttendResponse response;
    EXPECT_TRUE(local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response).ok());
  }
}

TEST(AttentionServiceTest, CancelledAndExpiredCallsLeaveNothingBehind) {
  LocalServer local;
  local.backend.Hold();
  auto request = AttendRequestOf(1, 1, 1);
  const auto start_call = [&local](grpc::ClientContext& context, const v1::AttendRequest& attend,
                                   grpc::StatusCode expected) {
    return std::thread([&local, &context, attend, expected] {
      v1::AttendResponse response;
      EXPECT_EQ(local.stub->Attend(&context, attend, &response).error_code(), expected);
    });
  };
  // Two batches may be in flight; what comes after them waits in the queue.
  grpc::ClientContext first, second;
  std::thread running_first = start_call(first, request, grpc::StatusCode::OK);
  local.backend.AwaitBatches(1);
  std::thread running_second = start_call(second, request, grpc::StatusCode::OK);
  local.backend.AwaitBatches(2);
  grpc::ClientContext cancelled, expired;
  std::thread waiting = start_call(cancelled, request, grpc::StatusCode::CANCELLED);
  request.mutable_execution()->mutable_timeout()->set_nanos(100'000'000);
  std::thread late = start_call(expired, request, grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Await([&] { return local.server->live_calls() >= 4; }));
  cancelled.TryCancel();
  waiting.join();
  late.join();
  EXPECT_TRUE(Await([&] { return local.server->live_calls() <= 2; }));
  local.backend.Release();
  running_first.join();
  running_second.join();
  EXPECT_TRUE(local.AwaitIdle());
  EXPECT_EQ(local.backend.batches(), 2) << "neither was executed";
  const std::string metrics = local.server->MetricsText();
  EXPECT_THAT(metrics, HasSubstr("attnd_requests_total{method=\"Attend\",code=\"OK\"} 2"));
  EXPECT_THAT(metrics, HasSubstr("attnd_requests_total{method=\"Attend\",code=\"CANCELLED\"} 1"));
  EXPECT_THAT(metrics,
              HasSubstr("attnd_requests_total{method=\"Attend\",code=\"DEADLINE_EXCEEDED\"} 1"));
}

TEST(AttentionServiceTest, ADeviceFaultIsInternalAndThenUnavailable) {
  LocalServer local;
  local.backend.FailNext(absl::InternalError("device fault"));
  const auto attend = [&local] {
    grpc::ClientContext context;
    v1::AttendResponse response;
    return local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response);
  };
  EXPECT_EQ(attend().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(attend().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(local.AwaitIdle());
}

}  // namespace
}  // namespace attnd
