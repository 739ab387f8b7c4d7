#include "tests/support/local_server.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "attnd/v1/rpc_status.pb.h"
#include "tests/support/await.h"
#include "tests/support/test_device.h"

namespace attnd::testing {
namespace {

constexpr int kHeads = 2, kHeadDim = 4;

void FillTensor(v1::Tensor& tensor, std::int64_t tokens, float value) {
  tensor.set_data_type(v1::DATA_TYPE_FP32);
  for (const std::int64_t dimension : {tokens, std::int64_t{kHeads}, std::int64_t{kHeadDim}}) {
    tensor.add_shape(dimension);
  }
  const std::vector<float> values(tokens * kHeads * kHeadDim, value);
  tensor.set_data(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
}

}  // namespace

ServerConfig SmallConfig() {
  ServerConfig config;
  config.listen = "127.0.0.1:0";
  config.admin_listen = "127.0.0.1:0";
  config.device = TestDevice();
  config.threads = 1;
  config.cache_bytes = std::int64_t{64} << 20;
  config.workspace_bytes = std::int64_t{64} << 20;
  config.measure_ceilings = false;
  config.lame_duck = Milliseconds(0);
  config.stop_limit = Milliseconds(10'000);
  return config;
}

LocalServer::LocalServer(const ServerConfig& config, ServerHooks hooks) {
  hooks.wrap_backend = [this](std::unique_ptr<AttentionBackend> inner) {
    return backend.Wrap(std::move(inner));
  };
  const bool wait = !hooks.before_self_test;
  auto started = AttndServer::Start(config, std::move(hooks));
  EXPECT_TRUE(started.ok()) << started.status();
  if (!started.ok()) return;
  server = *std::move(started);
  if (wait) {
    EXPECT_TRUE(server->WaitUntilReady().ok());
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  channel =
      grpc::CreateCustomChannel(server->address(), grpc::InsecureChannelCredentials(), arguments);
  stub = v1::AttentionService::NewStub(channel);
}

std::string LocalServer::CreateSequence(const std::string& tenant) {
  v1::CreateSequenceRequest request;
  request.set_num_layers(1);
  request.set_num_heads(kHeads);
  request.set_num_kv_heads(kHeads);
  request.set_head_dim(kHeadDim);
  request.set_data_type(v1::DATA_TYPE_FP32);
  request.set_max_tokens(4096);
  grpc::ClientContext context;
  if (!tenant.empty()) context.AddMetadata("attnd-tenant", tenant);
  v1::CreateSequenceResponse response;
  const auto status = stub->CreateSequence(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.sequence_id();
}

bool LocalServer::AwaitIdle() const {
  return Await([this] {
    const auto snapshot = server->GetSnapshot();
    return server->live_calls() == 0 && snapshot.queue_requests == 0 &&
           snapshot.running_requests == 0;
  });
}

v1::DecodeRequest DecodeRequestOf(const std::string& sequence_id, std::int64_t position,
                                  float value) {
  v1::DecodeRequest request;
  v1::Step& step = *request.add_steps();
  step.set_sequence_id(sequence_id);
  step.set_position(position);
  step.set_num_tokens(1);
  FillTensor(*request.mutable_q(), 1, 1);
  FillTensor(*request.mutable_k(), 1, 1);
  FillTensor(*request.mutable_v(), 1, value);
  return request;
}

v1::AttendRequest AttendRequestOf(std::int64_t query_tokens, std::int64_t kv_tokens, float value) {
  v1::AttendRequest request;
  FillTensor(*request.mutable_q(), query_tokens, 1);
  FillTensor(*request.mutable_k(), kv_tokens, 1);
  FillTensor(*request.mutable_v(), kv_tokens, value);
  return request;
}

std::vector<float> FloatsOf(const v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  // memcpy may not be given the null address of an empty vector.
  if (!values.empty()) {
    std::memcpy(values.data(), tensor.data().data(), values.size() * sizeof(float));
  }
  return values;
}

v1::ErrorDetail DetailOf(const grpc::Status& status) {
  v1::RpcStatus envelope;
  v1::ErrorDetail detail;
  EXPECT_TRUE(envelope.ParseFromString(status.error_details()));
  EXPECT_EQ(envelope.details_size(), 1) << status.error_message();
  if (envelope.details_size() == 1) {
    EXPECT_TRUE(envelope.details(0).UnpackTo(&detail));
  }
  return detail;
}

std::string PushbackOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

}  // namespace attnd::testing
