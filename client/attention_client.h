// The C++ client of attnd: attention and decode calls over gRPC with deadlines, retries, streams
// and leases.
//
//   attnd::client::AttentionClient client({.transport = {.target = "127.0.0.1:8001"}});
//   auto q = TensorFromFloats(v1::DATA_TYPE_BF16, {tokens, heads, dim}, values);  // k, v likewise
//   absl::StatusOr<AttendResult> result = client.Attend({.q = *q, .k = *k, .v = *v});
//
// Guarantees
//   - Every call ends by its deadline, repetitions included.
//   - A call is repeated only as retry_policy.h says. That is safe for every rpc: appends carry
//     position and epoch, and CreateSequence and ForkSequence get a creation_key where they have
//     none.
//   - Tensors are not copied on the way to the socket and once on the way back.
//   - Errors carry the server's ErrorDetail (call_error.h).
//
// Thread-safe: any number of threads may call at once. Calls block their thread; DecodeStream does
// not. The client outlives its streams and lease keepers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "client/attention_types.h"
#include "client/call_error.h"
#include "client/decode_stream.h"
#include "client/half_precision.h"
#include "client/lease_keeper.h"
#include "client/merge_states.h"
#include "client/retry_policy.h"
#include "client/tensor.h"
#include "client/time_source.h"
#include "client/transport.h"

namespace attnd::client {

struct ClientOptions {
  TransportOptions transport;
  RetryOptions retry;
  Duration default_timeout = std::chrono::seconds(30);  // of calls that name none
  std::shared_ptr<TimeSource> time;                     // null: the machine's steady clock
  std::uint64_t random_seed = 0;                        // of jitter; 0: from the system
};

struct CallOptions {
  std::optional<Duration> timeout;  // of the whole call, repetitions included
};

class AttentionClient {
 public:
  explicit AttentionClient(ClientOptions options);
  ~AttentionClient();
  AttentionClient(const AttentionClient&) = delete;
  AttentionClient& operator=(const AttentionClient&) = delete;

  absl::StatusOr<AttendResult> Attend(const AttendRequest& request, const CallOptions& call = {});
  // Failed steps beside ones that ran are in the result; a status means that nothing ran.
  absl::StatusOr<DecodeResult> Decode(const DecodeRequest& request, const CallOptions& call = {});

  // Many decode requests in flight on one stream; see decode_stream.h.
  std::unique_ptr<DecodeStream> OpenDecodeStream();
  // With other settings; what is null in them is the client's.
  std::unique_ptr<DecodeStream> OpenDecodeStream(DecodeStreamOptions options);
  // Keeps leases from ending; see lease_keeper.h.
  std::unique_ptr<LeaseKeeper> KeepLeases(const LeaseKeeperOptions& options);

  absl::StatusOr<v1::CreateSequenceResponse> CreateSequence(v1::CreateSequenceRequest request,
                                                            const CallOptions& call = {});
  absl::StatusOr<v1::ForkSequenceResponse> ForkSequence(v1::ForkSequenceRequest request,
                                                        const CallOptions& call = {});
  absl::StatusOr<v1::Sequence> GetSequence(const v1::GetSequenceRequest& request,
                                           const CallOptions& call = {});
  absl::StatusOr<v1::ListSequencesResponse> ListSequences(const v1::ListSequencesRequest& request,
                                                          const CallOptions& call = {});
  absl::StatusOr<v1::RenewSequencesResponse> RenewSequences(
      const v1::RenewSequencesRequest& request, const CallOptions& call = {});
  absl::StatusOr<v1::TruncateSequencesResponse> TruncateSequences(
      const v1::TruncateSequencesRequest& request, const CallOptions& call = {});
  absl::StatusOr<v1::DeleteSequencesResponse> DeleteSequences(
      const v1::DeleteSequencesRequest& request, const CallOptions& call = {});
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(const CallOptions& call = {});

  // For tools that measure: raw calls without retries on the same connections.
  Transport& transport() { return *transport_; }

 private:
  absl::StatusOr<grpc::ByteBuffer> Call(const char* method, const grpc::ByteBuffer& request,
                                        const CallOptions& call);
  template <typename Reply>
  absl::StatusOr<Reply> TypedCall(const char* method, const google::protobuf::MessageLite& request,
                                  const CallOptions& call);

  const ClientOptions options_;
  const std::shared_ptr<TimeSource> time_;
  const std::shared_ptr<RetryPolicy> retry_;
  const std::shared_ptr<Transport> transport_;
};

}  // namespace attnd::client
