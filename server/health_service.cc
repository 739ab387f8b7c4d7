#include "server/health_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/message_bytes.h"
#include "server/mutex.h"

namespace attnd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

bool IsKnown(const std::string& service) {
  return service.empty() || service == "attnd.v1.AttentionService";
}

grpc::ByteBuffer Reply(HealthCheckResponse::ServingStatus status) {
  HealthCheckResponse response;
  response.set_status(status);
  return SerializeMessage(response);
}

HealthCheckResponse::ServingStatus ToProto(HealthState::State state) {
  return state == HealthState::State::kServing ? HealthCheckResponse::SERVING
                                               : HealthCheckResponse::NOT_SERVING;
}

// One Watch. Writes the latest status whenever it differs from the one written last; states that
// come and go during a write are skipped.
class WatchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                        public EndableStream,
                        public std::enable_shared_from_this<WatchCall> {
 public:
  // Owns itself until gRPC is done with it.
  static WatchCall* Start(HealthState& state, OpenStreams& streams, const grpc::ByteBuffer& wire) {
    std::shared_ptr<WatchCall> call(new WatchCall(state, streams));
    call->self_ = call;
    HealthCheckRequest request;
    if (const grpc::Status parsed = ParseNameMessage(wire, request); !parsed.ok()) {
      call->End(parsed);
    } else if (IsKnown(request.service())) {
      // Weak: a subscription must not keep a call alive that gRPC is done with.
      call->subscription_ =
          state.Subscribe([weak = std::weak_ptr<WatchCall>(call)](HealthState::State now) {
            if (const auto self = weak.lock(); self != nullptr) self->Update(ToProto(now));
          });
    } else {
      call->Update(HealthCheckResponse::SERVICE_UNKNOWN);
    }
    streams.Add(call);  // after the first status, which is written even when this ends the stream
    return call.get();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) ended_ = true;
    }
    Advance();
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void EndByServer() override {
    End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }

  void OnDone() override {
    if (subscription_ != 0) state_.Unsubscribe(subscription_);
    streams_.Remove(this);
    // The last reference may be this one: nothing is touched after it.
    const std::shared_ptr<WatchCall> self = std::move(self_);
  }

 private:
  WatchCall(HealthState& state, OpenStreams& streams) : state_(state), streams_(streams) {}

  void Update(HealthCheckResponse::ServingStatus status) {
    {
      MutexLock lock(mutex_);
      latest_ = status;
    }
    Advance();
  }

  void End(const grpc::Status& status) {
    {
      MutexLock lock(mutex_);
      if (!ended_) end_status_ = status;
      ended_ = true;
    }
    Advance();
  }

  // The last status is still written when the server ends the stream: a watcher learns NOT_SERVING
  // before its stream is gone.
  void Advance() {
    mutex_.lock();
    if (!finished_ && !writing_ && latest_ != written_ && !broken()) {
      writing_ = true;
      written_ = latest_;
      response_ = Reply(latest_);
      ++starting_;
      mutex_.unlock();  // the write may run its reaction on this thread
      StartWrite(&response_);
      mutex_.lock();
      --starting_;
    }
    const bool finish =
        ended_ && !finished_ && !writing_ && starting_ == 0 && (latest_ == written_ || broken());
    finished_ = finished_ || finish;
    const grpc::Status status = end_status_;
    mutex_.unlock();
    if (finish) Finish(status);
  }
  // Nobody reads any more.
  bool broken() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ && end_status_.error_code() != grpc::StatusCode::UNAVAILABLE;
  }

  HealthState& state_;
  OpenStreams& streams_;
  std::shared_ptr<WatchCall> self_;
  int subscription_ = 0;
  grpc::ByteBuffer response_;  // of the write in flight

  Mutex mutex_;
  HealthCheckResponse::ServingStatus latest_ ABSL_GUARDED_BY(mutex_) = HealthCheckResponse::UNKNOWN;
  HealthCheckResponse::ServingStatus written_ ABSL_GUARDED_BY(mutex_) =
      HealthCheckResponse::UNKNOWN;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;  // threads inside StartWrite; Finish waits for them
  grpc::Status end_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* wire,
                                               grpc::ByteBuffer* response) {
  auto* reactor = context->DefaultReactor();
  HealthCheckRequest request;
  grpc::Status status = ParseNameMessage(*wire, request);
  if (status.ok() && !IsKnown(request.service())) {
    status = {grpc::StatusCode::NOT_FOUND, "unknown service '" + request.service() +
                                               "'; known: '' and 'attnd.v1.AttentionService'"};
  }
  if (status.ok()) *response = Reply(ToProto(state_.Get()));
  reactor->Finish(status);
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(grpc::CallbackServerContext*,
                                                                 const grpc::ByteBuffer* wire) {
  return WatchCall::Start(state_, streams_, *wire);
}

}  // namespace attnd
