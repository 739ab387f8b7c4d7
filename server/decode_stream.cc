#include "server/decode_stream.h"

#include <utility>
#include <vector>

#include "server/attention_wire.h"
#include "server/error_status.h"
#include "server/status_conversion.h"

namespace attnd {
namespace {

absl::Status Malformed() {
  return ErrorStatus(absl::StatusCode::kInvalidArgument, v1::REASON_INVALID_FIELD, "",
                     "a message of the stream is not a valid protobuf message");
}

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* DecodeStream::Start(
    ServiceState& state, grpc::CallbackServerContext* context) {
  std::shared_ptr<DecodeStream> stream(new DecodeStream(state, context));
  stream->self_ = stream;
  if (auto status = state.Admit(*context); !status.ok()) {
    MutexLock lock(stream->mutex_);
    stream->EndReads(status);
  }
  state.streams().Add(stream);
  stream->Advance();
  return stream.get();
}

DecodeStream::DecodeStream(ServiceState& state, grpc::CallbackServerContext* context)
    : state_(state),
      live_(state),
      context_(context),
      tenant_(state.Tenant(*context)),
      timing_(state.Timing(*context)) {}

void DecodeStream::OnReadDone(bool ok) {
  const SparePoller::Reaction reaction(state_.spare_poller());
  grpc::ByteBuffer wire;
  wire.Swap(&incoming_);
  const absl::Status processed = ok ? Process(wire) : absl::OkStatus();
  {
    MutexLock lock(mutex_);
    reading_ = false;
    if (!ok) EndReads(absl::OkStatus());  // the client has sent all it wanted
    if (!processed.ok()) EndReads(processed);
  }
  Advance();
}

absl::Status DecodeStream::Process(const grpc::ByteBuffer& wire) {
  state_.metrics().AddTransportBytes(TransportPath::kInBand, Direction::kIn,
                                     static_cast<std::int64_t>(wire.Length()));
  Message message;
  message.timing = timing_;
  message.timing.received = state_.clock().Now();
  {
    MutexLock lock(mutex_);
    // The stream has ended meanwhile, perhaps even finished: the message came too late.
    if (reads_ended_) return absl::OkStatus();
    message.index = num_messages_++;
    in_flight_[message.index] = 0;
  }
  if (auto status = state_.CheckMessageBytes(static_cast<std::int64_t>(wire.Length()));
      !status.ok()) {
    return EndWith(message, std::move(status));
  }
  WireDecodeRequest parsed;
  auto slices = WireMessage::FromByteBuffer(wire);
  const bool valid_bytes =
      slices != nullptr && ParseDecodeRequest(std::move(slices), state_.limits().wire(), parsed);
  if (!valid_bytes) return EndWith(message, Malformed());
  message.request_id = parsed.request_id;
  absl::Status refusal = state_.Admit();
  if (refusal.ok()) {
    auto request = ValidateDecode(std::move(parsed), state_.limits(), message.timing);
    if (request.ok()) {
      Submit(message, *std::move(request));
      return absl::OkStatus();
    }
    refusal = request.status();
  }
  Answer(message, refusal, EncodeDecodeFailure(message.request_id, refusal));
  return absl::OkStatus();
}

absl::Status DecodeStream::EndWith(const Message& message, absl::Status status) {
  state_.RecordAnswer(Method::kDecodeStream, status, state_.clock().Now() - message.timing.received,
                      *context_);
  MutexLock lock(mutex_);
  in_flight_.erase(message.index);
  return status;
}

void DecodeStream::Submit(const Message& message, AttentionRequest request) {
  Message submitted = message;
  submitted.shape = ReplyShapeOf(request);
  request.tenant = tenant_;
  request.on_done = RequestCompletion(
      [self = self_, submitted](AttentionResult result) { self->Complete(submitted, result); });
  state_.metrics().RecordStage(Stage::kWireDecode, state_.clock().Now() - message.timing.received);
  const Ticket ticket = state_.scheduler().Submit(std::move(request));
  bool cancelled = false;
  {
    MutexLock lock(mutex_);
    if (const auto found = in_flight_.find(message.index); found != in_flight_.end()) {
      found->second = ticket;
      cancelled = cancelled_;
    }
  }
  if (cancelled) state_.scheduler().Cancel(ticket);
}

void DecodeStream::Complete(const Message& message, const AttentionResult& result) {
  absl::Status status = result.status;
  if (status.ok()) status = CheckResult(message.shape, result);
  status = state_.FinalStatus(std::move(status), message.timing);
  if (!status.ok()) {
    Answer(message, status, EncodeDecodeFailure(message.request_id, status));
    return;
  }
  const Clock::TimePoint begin = state_.clock().Now();
  auto reply = EncodeDecodeResponse(message.request_id, ReplyTo::kStream, message.shape, result);
  state_.metrics().RecordStage(Stage::kWireEncode, state_.clock().Now() - begin);
  Answer(message, status, std::move(reply));
}

void DecodeStream::Answer(const Message& message, const absl::Status& status,
                          grpc::ByteBuffer reply) {
  state_.RecordAnswer(Method::kDecodeStream, status, state_.clock().Now() - message.timing.received,
                      *context_);
  state_.metrics().AddTransportBytes(TransportPath::kInBand, Direction::kOut,
                                     static_cast<std::int64_t>(reply.Length()));
  {
    MutexLock lock(mutex_);
    in_flight_.erase(message.index);
    if (!cancelled_) replies_.push_back(std::move(reply));
  }
  Advance();
}

void DecodeStream::OnWriteDone(bool ok) {
  const SparePoller::Reaction reaction(state_.spare_poller());
  {
    MutexLock lock(mutex_);
    writing_ = false;
    replies_.pop_front();
    if (!ok) {  // the connection is gone; OnCancel follows and cancels what is in flight
      cancelled_ = true;
      replies_.clear();
      EndReads(absl::CancelledError("the stream is broken"));
    }
  }
  Advance();
}

void DecodeStream::OnCancel() {
  std::vector<Ticket> tickets;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    EndReads(absl::CancelledError("the client cancelled the stream"));
    for (const auto& [index, ticket] : in_flight_) {
      if (ticket != 0) tickets.push_back(ticket);
    }
    while (replies_.size() > (writing_ ? 1U : 0U)) replies_.pop_back();
  }
  for (const Ticket ticket : tickets) state_.scheduler().Cancel(ticket);
  Advance();
}

void DecodeStream::EndByServer() {
  {
    MutexLock lock(mutex_);
    EndReads(ErrorStatus(absl::StatusCode::kUnavailable, v1::REASON_DRAINING, "",
                         "the server is shutting down"));
  }
  Advance();
}

void DecodeStream::OnDone() {
  state_.streams().Remove(this);
  // The last reference may be this one: nothing is touched after it.
  const std::shared_ptr<DecodeStream> self = std::move(self_);
}

void DecodeStream::EndReads(const absl::Status& status) {
  if (reads_ended_) return;
  reads_ended_ = true;
  end_status_ = status;
}

bool DecodeStream::CanRead() const {
  const auto unanswered = static_cast<int>(in_flight_.size() + replies_.size());
  return !reading_ && !reads_ended_ && unanswered < state_.config().max_in_flight_per_stream;
}

bool DecodeStream::CanWrite() const { return !writing_ && !write_starting_ && !replies_.empty(); }

bool DecodeStream::CanFinish() const {
  return reads_ended_ && !finished_ && starting_ == 0 && in_flight_.empty() && replies_.empty() &&
         !writing_;
}

void DecodeStream::Advance() {
  mutex_.lock();
  while (CanRead() || CanWrite()) {
    const bool read = CanRead();
    const bool write = CanWrite();
    const grpc::ByteBuffer* reply = write ? &replies_.front() : nullptr;
    reading_ = reading_ || read;
    writing_ = writing_ || write;
    write_starting_ = write_starting_ || write;
    ++starting_;
    mutex_.unlock();  // an operation may run its reaction on this thread
    if (read) StartRead(&incoming_);
    if (write) StartWrite(reply);
    mutex_.lock();
    --starting_;
    if (write) write_starting_ = false;
  }
  const bool finish = CanFinish();
  finished_ = finished_ || finish;
  const absl::Status status = end_status_;
  mutex_.unlock();
  if (finish) Finish(FinishStatus(status, *context_));
}

}  // namespace attnd
