#include "client/attention_client.h"

#include <condition_variable>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "client/wire_decoder.h"
#include "client/wire_encoder.h"

namespace attnd::client {
namespace {

std::uint64_t SystemRandom() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

// 16 bytes that no other client picks: makes creation safe to repeat.
std::string NewCreationKey() {
  std::string key;
  for (int word = 0; word < 2; ++word) {
    const std::uint64_t bits = SystemRandom();
    for (int byte = 0; byte < 8; ++byte) key.push_back(static_cast<char>(bits >> (8 * byte)));
  }
  return key;
}

std::chrono::system_clock::time_point SystemDeadline(Duration remaining) {
  // A century at most: later ones would overflow the system clock.
  constexpr Duration kLongest = std::chrono::hours(24 * 36500);
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::microseconds>(std::min(remaining, kLongest));
}

// One attempt, waited for.
RawReply CallOnce(Transport& transport, const std::string& path, const grpc::ByteBuffer& request,
                  Duration remaining) {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<RawReply> reply;
  // Copying a ByteBuffer copies references to its slices.
  transport.StartUnary(path, request, SystemDeadline(remaining), [&](RawReply raw) {
    const std::lock_guard<std::mutex> lock(mutex);
    reply = std::move(raw);
    changed.notify_one();
  });
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return reply.has_value(); });
  return *std::move(reply);
}

void SleepUntil(TimeSource& time, TimePoint until) {
  std::mutex mutex;
  std::condition_variable never_notified;
  std::unique_lock<std::mutex> lock(mutex);
  while (time.Now() < until) time.WaitUntil(lock, never_notified, until);
}

}  // namespace

AttentionClient::AttentionClient(ClientOptions options)
    : options_(std::move(options)),
      time_(options_.time ? options_.time : SystemTime()),
      retry_(std::make_shared<RetryPolicy>(
          options_.retry, options_.random_seed != 0 ? options_.random_seed : SystemRandom())),
      transport_(std::make_shared<Transport>(options_.transport)) {}

AttentionClient::~AttentionClient() = default;

absl::StatusOr<grpc::ByteBuffer> AttentionClient::Call(const char* method,
                                                       const grpc::ByteBuffer& request,
                                                       const CallOptions& call) {
  const std::string path = MethodPath(method);
  const TimePoint started = time_->Now();
  const Duration timeout = call.timeout.value_or(options_.default_timeout);
  const TimePoint deadline =
      timeout < TimeSource::kNever - started ? started + timeout : TimeSource::kNever;
  for (int attempt = 1;; ++attempt) {
    RawReply reply = CallOnce(*transport_, path, request, deadline - time_->Now());
    if (reply.status.ok()) {
      retry_->OnSuccess();
      return std::move(reply.body);
    }
    const std::optional<TimePoint> next =
        retry_->NextAttempt({reply.status, reply.pushback_ms, attempt}, time_->Now(), deadline);
    if (!next.has_value()) return reply.status;
    SleepUntil(*time_, *next);
  }
}

template <typename Reply>
absl::StatusOr<Reply> AttentionClient::TypedCall(const char* method,
                                                 const google::protobuf::MessageLite& request,
                                                 const CallOptions& call) {
  const absl::StatusOr<grpc::ByteBuffer> wire = EncodeMessage(request);
  if (!wire.ok()) return wire.status();
  const absl::StatusOr<grpc::ByteBuffer> body = Call(method, *wire, call);
  if (!body.ok()) return body.status();
  Reply reply;
  if (absl::Status status = DecodeMessage(*body, reply); !status.ok()) return status;
  return reply;
}

absl::StatusOr<AttendResult> AttentionClient::Attend(const AttendRequest& request,
                                                     const CallOptions& call) {
  const absl::StatusOr<grpc::ByteBuffer> wire = EncodeAttendRequest(request);
  if (!wire.ok()) return wire.status();
  const absl::StatusOr<grpc::ByteBuffer> body = Call("Attend", *wire, call);
  if (!body.ok()) return body.status();
  return DecodeAttendReply(*body, TensorBytesPolicy::kCopy);
}

absl::StatusOr<DecodeResult> AttentionClient::Decode(const DecodeRequest& request,
                                                     const CallOptions& call) {
  const absl::StatusOr<grpc::ByteBuffer> wire = EncodeDecodeRequest(request, 0);
  if (!wire.ok()) return wire.status();
  const absl::StatusOr<grpc::ByteBuffer> body = Call("Decode", *wire, call);
  if (!body.ok()) return body.status();
  absl::StatusOr<DecodeReply> reply = DecodeDecodeReply(*body, TensorBytesPolicy::kCopy);
  if (!reply.ok()) return reply.status();
  return std::move(reply->result);
}

std::unique_ptr<DecodeStream> AttentionClient::OpenDecodeStream() {
  return OpenDecodeStream({.default_timeout = options_.default_timeout});
}

std::unique_ptr<DecodeStream> AttentionClient::OpenDecodeStream(DecodeStreamOptions options) {
  if (options.transport == nullptr) options.transport = transport_;
  if (options.retry == nullptr) options.retry = retry_;
  if (options.time == nullptr) options.time = time_;
  return std::make_unique<DecodeStream>(std::move(options));
}

std::unique_ptr<LeaseKeeper> AttentionClient::KeepLeases(const LeaseKeeperOptions& options) {
  return std::make_unique<LeaseKeeper>(
      options, time_, [this](const v1::RenewSequencesRequest& request, Duration timeout) {
        return RenewSequences(request, {.timeout = timeout});
      });
}

absl::StatusOr<v1::CreateSequenceResponse> AttentionClient::CreateSequence(
    v1::CreateSequenceRequest request, const CallOptions& call) {
  if (request.creation_key().empty()) request.set_creation_key(NewCreationKey());
  return TypedCall<v1::CreateSequenceResponse>("CreateSequence", request, call);
}

absl::StatusOr<v1::ForkSequenceResponse> AttentionClient::ForkSequence(
    v1::ForkSequenceRequest request, const CallOptions& call) {
  if (request.creation_key().empty()) request.set_creation_key(NewCreationKey());
  return TypedCall<v1::ForkSequenceResponse>("ForkSequence", request, call);
}

absl::StatusOr<v1::Sequence> AttentionClient::GetSequence(const v1::GetSequenceRequest& request,
                                                          const CallOptions& call) {
  return TypedCall<v1::Sequence>("GetSequence", request, call);
}

absl::StatusOr<v1::ListSequencesResponse> AttentionClient::ListSequences(
    const v1::ListSequencesRequest& request, const CallOptions& call) {
  return TypedCall<v1::ListSequencesResponse>("ListSequences", request, call);
}

absl::StatusOr<v1::RenewSequencesResponse> AttentionClient::RenewSequences(
    const v1::RenewSequencesRequest& request, const CallOptions& call) {
  return TypedCall<v1::RenewSequencesResponse>("RenewSequences", request, call);
}

absl::StatusOr<v1::TruncateSequencesResponse> AttentionClient::TruncateSequences(
    const v1::TruncateSequencesRequest& request, const CallOptions& call) {
  return TypedCall<v1::TruncateSequencesResponse>("TruncateSequences", request, call);
}

absl::StatusOr<v1::DeleteSequencesResponse> AttentionClient::DeleteSequences(
    const v1::DeleteSequencesRequest& request, const CallOptions& call) {
  return TypedCall<v1::DeleteSequencesResponse>("DeleteSequences", request, call);
}

absl::StatusOr<v1::GetServerInfoResponse> AttentionClient::GetServerInfo(const CallOptions& call) {
  return TypedCall<v1::GetServerInfoResponse>("GetServerInfo", v1::GetServerInfoRequest(), call);
}

}  // namespace attnd::client
