// Unary calls on a LocalServer, and what refused ones must leave behind.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/local_server.h"

namespace attnd::testing {

// Ends after a minute at the latest.
grpc::Status Attend(const LocalServer& local, const v1::AttendRequest& request);
grpc::Status Decode(const LocalServer& local, const v1::DecodeRequest& request);
// `id`, where given, becomes the new sequence's.
grpc::Status Create(const LocalServer& local, const v1::CreateSequenceRequest& request,
                    std::string* id = nullptr);

// One layer, FP32, 2 heads of 4.
v1::CreateSequenceRequest OneLayer();
void SetShape(v1::Tensor& tensor, const std::vector<std::int64_t>& shape);

// SERVING, and an Attend is answered.
bool Serves(const LocalServer& local);
// Fails the test unless the backend has seen `batches` and nothing is queued, cached or kept.
void ExpectUntouched(const LocalServer& local, std::int64_t batches);

}  // namespace attnd::testing
