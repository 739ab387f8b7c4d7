#include "server/attention_call.h"

#include <utility>

#include "server/attention_wire.h"
#include "server/error_status.h"
#include "server/status_conversion.h"

namespace attnd {
namespace {

absl::Status Malformed() {
  return ErrorStatus(absl::StatusCode::kInvalidArgument, v1::REASON_INVALID_FIELD, "",
                     "the request is not a valid protobuf message");
}

absl::Status Cancelled() {
  return ErrorStatus(absl::StatusCode::kCancelled, v1::REASON_CANCELLED, "",
                     "the client cancelled the call");
}

absl::Status NoMessage() {
  return ErrorStatus(absl::StatusCode::kInvalidArgument, v1::REASON_INVALID_FIELD, "",
                     "the call ended without a message, need one");
}

}  // namespace

AttentionCall::Reactor* AttentionCall::Start(ServiceState& state, RequestKind kind,
                                             grpc::CallbackServerContext* context) {
  auto* call = new AttentionCall(state, kind, context);
  // gRPC keeps what is asked of it until the reactor has been returned.
  if (absl::Status status = call->Enter(); status.ok()) {
    call->StartRead(&call->incoming_);
  } else {
    call->End(std::move(status));
  }
  return call;
}

AttentionCall::AttentionCall(ServiceState& state, RequestKind kind,
                             grpc::CallbackServerContext* context)
    : state_(state),
      live_(state),
      kind_(kind),
      context_(context),
      timing_(state.Timing(*context)) {}

absl::Status AttentionCall::Enter() {
  if (auto status = state_.Admit(*context_); !status.ok()) return status;
  if (auto status = state_.CheckUnaryLimit(); !status.ok()) return status;
  return state_.scheduler().TakePlace(place_);
}

void AttentionCall::OnReadDone(bool ok) {
  state_.scheduler().LeavePlace(place_);
  timing_.received = state_.clock().Now();
  if (ok) {
    grpc::ByteBuffer wire;  // goes with the last tensor that lies in it, not with the call
    wire.Swap(&incoming_);
    return Run(wire);
  }
  End(context_->IsCancelled() ? Cancelled() : NoMessage());
}

void AttentionCall::Run(const grpc::ByteBuffer& wire) {
  const auto bytes = static_cast<std::int64_t>(wire.Length());
  state_.metrics().AddTransportBytes(TransportPath::kInBand, Direction::kIn, bytes);
  if (auto status = state_.EnterUnary(); !status.ok()) return End(std::move(status));
  entered_ = true;
  if (auto status = state_.CheckMessageBytes(bytes); !status.ok()) return End(std::move(status));
  auto request = ReadRequest(wire);
  if (!request.ok()) return End(request.status());
  shape_ = ReplyShapeOf(*request);
  request->tenant = state_.Tenant(*context_);
  request->on_done =
      RequestCompletion([this](AttentionResult result) { Reply(std::move(result)); });
  state_.metrics().RecordStage(Stage::kWireDecode, state_.clock().Now() - timing_.received);
  // The answer may have come when Submit returns; the call lives until OnReadDone has returned.
  const Ticket ticket = state_.scheduler().Submit(*std::move(request));
  ticket_ = ticket;
  if (cancelled_) state_.scheduler().Cancel(ticket);
}

absl::StatusOr<AttentionRequest> AttentionCall::ReadRequest(const grpc::ByteBuffer& wire) {
  auto message = WireMessage::FromByteBuffer(wire);
  if (message == nullptr) return Malformed();
  const WireLimits limits = state_.limits().wire();
  if (kind_ == RequestKind::kAttend) {
    WireAttendRequest parsed;
    if (!ParseAttendRequest(std::move(message), limits, parsed)) return Malformed();
    return ValidateAttend(std::move(parsed), state_.limits(), timing_);
  }
  WireDecodeRequest parsed;
  if (!ParseDecodeRequest(std::move(message), limits, parsed)) return Malformed();
  request_id_ = parsed.request_id;
  return ValidateDecode(std::move(parsed), state_.limits(), timing_);
}

void AttentionCall::Reply(AttentionResult result) {
  if (!result.status.ok()) return End(std::move(result.status));
  if (auto status = CheckResult(shape_, result); !status.ok()) return End(std::move(status));
  const Clock::TimePoint begin = state_.clock().Now();
  reply_ = kind_ == RequestKind::kAttend
               ? EncodeAttendResponse(shape_, result)
               : EncodeDecodeResponse(request_id_, ReplyTo::kUnary, shape_, result);
  state_.metrics().RecordStage(Stage::kWireEncode, state_.clock().Now() - begin);
  state_.metrics().AddTransportBytes(TransportPath::kInBand, Direction::kOut,
                                     static_cast<std::int64_t>(reply_.Length()));
  End(absl::OkStatus());
}

void AttentionCall::End(absl::Status status) {
  // Nobody receives the answer of a cancelled call: it does not count as served.
  if (status.ok() && context_->IsCancelled()) status = Cancelled();
  status = state_.FinalStatus(std::move(status), timing_);
  const Clock::Duration duration = state_.clock().Now() - timing_.received;
  if (entered_) state_.LeaveUnary(duration);
  state_.RecordAnswer(kind_ == RequestKind::kAttend ? Method::kAttend : Method::kDecode, status,
                      duration, *context_);
  // Last: the call may be gone when these return.
  if (status.ok()) {
    StartWriteAndFinish(&reply_, grpc::WriteOptions(), FinishStatus(status, *context_));
  } else {
    Finish(FinishStatus(status, *context_));
  }
}

void AttentionCall::OnCancel() {
  cancelled_ = true;
  state_.scheduler().Cancel(ticket_);
}

void AttentionCall::OnDone() { delete this; }

}  // namespace attnd
