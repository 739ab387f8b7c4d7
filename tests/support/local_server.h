// A whole server in this process, on free ports, with a backend that the test controls.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "server/attnd_server.h"
#include "tests/support/holding_backend.h"

namespace attnd::testing {

// Free ports, TestDevice(), one kernel thread (ThreadSanitizer does not see how oneTBB's threads
// synchronise), 64 MiB of cache, no bandwidth measurement, no lame duck period.
ServerConfig SmallConfig();

struct LocalServer {
  // Fails the test where the server does not start.
  explicit LocalServer(const ServerConfig& config = SmallConfig(), ServerHooks hooks = {});

  BackendControl backend;  // outlives the server
  std::unique_ptr<AttndServer> server;
  std::shared_ptr<grpc::Channel> channel;  // raised receive limit
  std::unique_ptr<v1::AttentionService::Stub> stub;

  // A sequence of one layer, FP32, 2 heads of 4. Its id.
  std::string CreateSequence(const std::string& tenant = "");
  // Blocks until no call object exists and nothing waits or runs; false after 20 seconds.
  bool AwaitIdle() const;
};

// A one-token step of such a sequence whose values are all `value`: with `position` tokens of the
// same value before it, every element of o is `value`.
v1::DecodeRequest DecodeRequestOf(const std::string& sequence_id, std::int64_t position,
                                  float value);
// Attend over `kv_tokens` keys whose values are all `value`.
v1::AttendRequest AttendRequestOf(std::int64_t query_tokens, std::int64_t kv_tokens, float value);

std::vector<float> FloatsOf(const v1::Tensor& tensor);
// The ErrorDetail of a unary error; fails the test where there is none.
v1::ErrorDetail DetailOf(const grpc::Status& status);
// The trailer that says whether and when to retry; empty: not sent.
std::string PushbackOf(const grpc::ClientContext& context);

}  // namespace attnd::testing
