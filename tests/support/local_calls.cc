#include "tests/support/local_calls.h"

#include <gtest/gtest.h>

#include <chrono>

#include "grpc/health/v1/health.grpc.pb.h"

namespace attnd::testing {

grpc::Status Attend(const LocalServer& local, const v1::AttendRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  v1::AttendResponse response;
  return local.stub->Attend(&context, request, &response);
}

grpc::Status Decode(const LocalServer& local, const v1::DecodeRequest& request) {
  grpc::ClientContext context;
  v1::DecodeResponse response;
  return local.stub->Decode(&context, request, &response);
}

grpc::Status Create(const LocalServer& local, const v1::CreateSequenceRequest& request,
                    std::string* id) {
  grpc::ClientContext context;
  v1::CreateSequenceResponse response;
  const auto status = local.stub->CreateSequence(&context, request, &response);
  if (id != nullptr) *id = response.sequence_id();
  return status;
}

v1::CreateSequenceRequest OneLayer() {
  v1::CreateSequenceRequest request;
  request.set_num_layers(1);
  request.set_num_heads(2);
  request.set_num_kv_heads(2);
  request.set_head_dim(4);
  request.set_data_type(v1::DATA_TYPE_FP32);
  return request;
}

void SetShape(v1::Tensor& tensor, const std::vector<std::int64_t>& shape) {
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
}

bool Serves(const LocalServer& local) {
  const auto stub = grpc::health::v1::Health::NewStub(local.channel);
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse response;
  return stub->Check(&context, {}, &response).ok() &&
         response.status() == grpc::health::v1::HealthCheckResponse::SERVING &&
         Attend(local, AttendRequestOf(1, 1, 1)).ok();
}

void ExpectUntouched(const LocalServer& local, std::int64_t batches) {
  EXPECT_EQ(local.backend.batches(), batches);
  EXPECT_TRUE(local.AwaitIdle());
  const auto snapshot = local.server->GetSnapshot();
  EXPECT_EQ(snapshot.queue_bytes, 0);
  EXPECT_EQ(snapshot.used_bytes, 0);
  EXPECT_EQ(snapshot.reserved_bytes, 0);
}

}  // namespace attnd::testing
