// A unary call of a small typed message (everything but Attend and Decode). The bytes are received
// raw all the same: so a message that is too big is refused before protobuf expands it, and one
// that does not parse is answered INVALID_ARGUMENT and counted, where gRPC would answer
// UNIMPLEMENTED by itself.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/error_status.h"
#include "server/inline_reactor.h"
#include "server/message_bytes.h"
#include "server/service_state.h"
#include "server/status_conversion.h"

namespace attnd {

// Parsed messages take up to 40 times their size on the wire (a list of empty submessages).
inline constexpr std::size_t kMaxControlMessageBytes = std::size_t{4} << 20;

// Called exactly once, on any thread.
template <typename Response>
using ControlReply = absl::AnyInvocable<void(absl::StatusOr<Response>)>;

struct ControlContext {
  ServiceState& state;
  std::string tenant;
};

template <typename Request, typename Response>
class ControlCall final : public InlineReactor<grpc::ServerUnaryReactor> {
 public:
  // Called at most once, inside Start.
  using Handler = absl::FunctionRef<void(ControlContext context, const Request& request,
                                         ControlReply<Response> reply)>;

  // Deletes itself when gRPC is done with it.
  static grpc::ServerUnaryReactor* Start(ServiceState& state, Method method, Handler handler,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& wire, grpc::ByteBuffer* reply) {
    auto* call = new ControlCall(state, method, context, reply);
    call->Run(handler, wire);
    return call;
  }

  void OnDone() override { delete this; }

 private:
  ControlCall(ServiceState& state, Method method, grpc::CallbackServerContext* context,
              grpc::ByteBuffer* reply)
      : state_(state),
        live_(state),
        method_(method),
        context_(context),
        reply_(reply),
        timing_(state.Timing(*context)) {}

  void Run(Handler handler, const grpc::ByteBuffer& wire) {
    if (auto status = state_.Admit(*context_); !status.ok()) return End(std::move(status));
    if (wire.Length() > kMaxControlMessageBytes) {
      state_.metrics().RecordRejected(RejectReason::kMessageSize);
      return End(ErrorStatus(absl::StatusCode::kResourceExhausted, v1::REASON_MESSAGE_SIZE, "",
                             absl::StrCat(Request::descriptor()->name(), ": got ", wire.Length(),
                                          " bytes, the limit is ", kMaxControlMessageBytes)));
    }
    Request request;
    if (!ParseMessage(wire, request)) {
      return End(ErrorStatus(absl::StatusCode::kInvalidArgument, v1::REASON_INVALID_FIELD, "",
                             "the request is not a valid protobuf message"));
    }
    handler(ControlContext{state_, state_.Tenant(*context_)}, request,
            [this](absl::StatusOr<Response> response) { Reply(std::move(response)); });
  }

  void Reply(absl::StatusOr<Response> response) {
    if (response.ok()) *reply_ = SerializeMessage(*response);
    End(response.status());
  }

  void End(absl::Status status) {
    status = state_.FinalStatus(std::move(status), timing_);
    state_.RecordAnswer(method_, status, state_.clock().Now() - timing_.received, *context_);
    Finish(FinishStatus(status, *context_));  // last: the call may be gone when it returns
  }

  ServiceState& state_;
  const LiveCall live_;
  const Method method_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const reply_;
  const CallTiming timing_;
};

}  // namespace attnd
