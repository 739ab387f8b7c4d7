// One unary Attend or Decode call: parse, validate, submit, and (from the completion, on the
// backend's thread) write the reply.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "server/attention_request.h"
#include "server/inline_reactor.h"
#include "server/reply_encoder.h"
#include "server/service_state.h"

namespace attnd {

class AttentionCall final : public InlineReactor<grpc::ServerUnaryReactor> {
 public:
  // `kind` says which of the two. Deletes itself when gRPC is done with it.
  static grpc::ServerUnaryReactor* Start(ServiceState& state, RequestKind kind,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& wire, grpc::ByteBuffer* reply);

  // gRPC calls these two after Start has returned, never during it.
  void OnCancel() override;
  void OnDone() override;

 private:
  AttentionCall(ServiceState& state, RequestKind kind, grpc::CallbackServerContext* context,
                grpc::ByteBuffer* reply);
  void Run(const grpc::ByteBuffer& wire);
  absl::StatusOr<AttentionRequest> ReadRequest(const grpc::ByteBuffer& wire);
  void Reply(AttentionResult result);
  void End(absl::Status status);

  ServiceState& state_;
  const LiveCall live_;
  const RequestKind kind_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const reply_;
  const CallTiming timing_;
  bool entered_ = false;  // holds a place of --max_unary_in_flight
  std::uint64_t request_id_ = 0;
  ReplyShape shape_;
  Ticket ticket_ = 0;
};

}  // namespace attnd
