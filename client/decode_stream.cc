#include "client/decode_stream.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "client/call_error.h"
#include "client/poller.h"
#include "client/stream_ledger.h"
#include "client/wire_encoder.h"
#include "grpcpp/generic/generic_stub.h"

namespace attnd::client {
namespace {

// How long the server may take to end a stream that we have closed.
constexpr Duration kGracefulEnd = std::chrono::seconds(1);

// What the end of a stream says about its unanswered requests. The transport reports a lost peer as
// UNAVAILABLE, but a reset stream as CANCELLED, INTERNAL or UNKNOWN, and a server that stops may
// end it with OK: all of these are a broken stream, unless the service itself says more.
absl::Status BreakStatus(const absl::Status& status) {
  if (DetailOf(status).has_value()) return status;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return absl::UnavailableError("the server ended the stream");
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return absl::UnavailableError(status.message());
    default:
      return status;
  }
}

}  // namespace

// State shared by the stream's owner, its timer thread and the current gRPC stream.
class DecodeStream::Core : public std::enable_shared_from_this<Core> {
 public:
  explicit Core(DecodeStreamOptions options)
      : options_(std::move(options)), transport_(options_.transport) {
    options_.transport.reset();
  }

  void Start() {
    timer_thread_ = std::thread([this] { RunTimerThread(); });
  }
  void Close();
  void Cancel();
  void Submit(DecodeRequest request, Callback done, std::optional<Duration> timeout);

  // Events of the current gRPC stream.
  void OnStarted(StreamCall* call, bool ok);
  void OnReply(StreamCall* call, const grpc::ByteBuffer& wire);
  void OnReadsEnded(StreamCall* call);
  void OnWritten(StreamCall* call, bool ok);
  bool Writing(const StreamCall* call) const;
  void OnEnded(StreamCall* call, const absl::Status& status,
               std::optional<std::int64_t> pushback_ms);
  // The last sign of a gRPC stream: it is destroyed.
  void OnDestroyed();

  std::int64_t in_flight() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ledger_.size();
  }
  std::int64_t reopened() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return opened_ > 0 ? opened_ - 1 : 0;
  }

 private:
  // Opens the stream and starts the next write where either is due. Needs mutex_.
  void Pump(StreamLedger::Answers& answers);
  void RunTimerThread();
  // Releases `lock` and runs the callbacks.
  void Deliver(std::unique_lock<std::mutex>& lock, StreamLedger::Answers answers);

  DecodeStreamOptions options_;  // constant after construction, without the transport
  // Released by Close, on the owner's thread: a transport that dies on a thread of its own would
  // wait for that very thread to end.
  std::shared_ptr<Transport> transport_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  StreamLedger ledger_;         // guarded by mutex_, like everything below
  StreamCall* call_ = nullptr;  // deletes itself after OnEnded
  TimePoint reopen_at_{};
  TimePoint timer_thread_until_ = TimeSource::kNever;
  int failures_in_a_row_ = 0;
  int callbacks_running_ = 0;
  int live_calls_ = 0;
  std::int64_t opened_ = 0;
  bool closed_ = false;
  std::thread timer_thread_;
};

// One gRPC stream. At most one read and one write are under way at a time. Public members need the
// core's mutex; what follows an operation runs on the transport's thread, one after the other.
class DecodeStream::StreamCall final {
 public:
  StreamCall(std::shared_ptr<Core> core, Transport& transport, int connection)
      : core_(std::move(core)),
        stream_(transport.PrepareStream(context_, MethodPath("DecodeStream"), connection)) {
    stream_->StartCall(Poller::TagOf(start_));
  }

  bool can_write() const { return !writing_ && !reads_ended_; }
  void Write(const grpc::ByteBuffer& wire) {
    writing_ = true;
    stream_->Write(wire, Poller::TagOf(write_));
  }
  void HalfClose() {
    writing_ = true;
    stream_->WritesDone(Poller::TagOf(write_));
  }
  void Cancel() { context_.TryCancel(); }
  void Read() { stream_->Read(&incoming_, Poller::TagOf(read_)); }
  void MarkWritten() { writing_ = false; }
  void EndReads() {
    reads_ended_ = true;
    stream_->Finish(&status_, Poller::TagOf(finish_));
  }
  bool writing() const { return writing_; }

 private:
  // Leads to a member of the call.
  class Operation final : public Poller::Waiter {
   public:
    using Completed = void (StreamCall::*)(bool ok);
    Operation(StreamCall& call, Completed completed) : call_(call), completed_(completed) {}
    void OnCompleted(bool ok) override { (call_.*completed_)(ok); }

   private:
    StreamCall& call_;
    const Completed completed_;
  };

  void OnStarted(bool ok) { core_->OnStarted(this, ok); }
  void OnRead(bool ok) {
    if (!ok) {
      core_->OnReadsEnded(this);
      return;
    }
    grpc::ByteBuffer wire;
    wire.Swap(&incoming_);
    Read();
    core_->OnReply(this, wire);
  }
  void OnWritten(bool ok) {
    core_->OnWritten(this, ok);
    if (finished_) End();
  }
  void OnFinished(bool) {
    finished_ = true;
    // A write under way fails soon: the stream goes after it.
    if (!core_->Writing(this)) End();
  }
  void End() {
    core_->OnEnded(this, StatusFromGrpc(status_),
                   status_.ok() ? std::nullopt : PushbackOf(context_));
    const std::shared_ptr<Core> core = core_;
    delete this;
    core->OnDestroyed();
  }

  const std::shared_ptr<Core> core_;
  grpc::ClientContext context_;
  Operation start_{*this, &StreamCall::OnStarted};
  Operation read_{*this, &StreamCall::OnRead};
  Operation write_{*this, &StreamCall::OnWritten};
  Operation finish_{*this, &StreamCall::OnFinished};
  grpc::ByteBuffer incoming_;
  grpc::Status status_;
  bool writing_ = true;  // until it has started
  bool reads_ended_ = false;
  bool finished_ = false;
  const std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;  // of the context's call
};

void DecodeStream::Core::Submit(DecodeRequest request, Callback done,
                                std::optional<Duration> timeout) {
  StreamLedger::Answers answers;
  std::unique_lock<std::mutex> lock(mutex_);
  const TimePoint now = options_.time->Now();
  const Duration limit = timeout.value_or(options_.default_timeout);
  const TimePoint deadline = limit < TimeSource::kNever - now ? now + limit : TimeSource::kNever;
  ledger_.Add(std::move(request), deadline, std::move(done));
  Pump(answers);
  // Waking the timer thread costs a switch: only when it would sleep past the new deadline.
  if (ledger_.NextTimer() < timer_thread_until_ || reopen_at_ > now) changed_.notify_all();
  Deliver(lock, std::move(answers));
}

void DecodeStream::Core::Pump(StreamLedger::Answers& answers) {
  if (closed_ || !ledger_.has_unsent()) return;
  const TimePoint now = options_.time->Now();
  if (call_ == nullptr) {
    if (now < reopen_at_) return;
    ++opened_;
    ++live_calls_;
    call_ = new StreamCall(shared_from_this(), *transport_, options_.connection);
  }
  while (call_->can_write()) {
    const std::optional<StreamLedger::Outgoing> next = ledger_.TakeNext(now);
    if (!next.has_value()) return;
    absl::StatusOr<grpc::ByteBuffer> wire = EncodeDecodeRequest(*next->request, next->id);
    if (wire.ok()) {
      call_->Write(*wire);
    } else {
      ledger_.Fail(next->id, wire.status(), answers);
    }
  }
}

void DecodeStream::Core::OnStarted(StreamCall* call, bool ok) {
  StreamLedger::Answers answers;
  std::unique_lock<std::mutex> lock(mutex_);
  call->MarkWritten();
  if (ok) {
    call->Read();
    if (call == call_) Pump(answers);
  } else {
    call->EndReads();
  }
  Deliver(lock, std::move(answers));
}

void DecodeStream::Core::OnReply(StreamCall* call, const grpc::ByteBuffer& wire) {
  absl::StatusOr<DecodeReply> reply = DecodeDecodeReply(wire, options_.reply_tensors);
  StreamLedger::Answers answers;
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_ || call != call_) return;
  if (reply.ok()) {
    failures_in_a_row_ = 0;
    ledger_.OnReply(*std::move(reply), options_.time->Now(), *options_.retry, answers);
    if (ledger_.NextTimer() < timer_thread_until_) changed_.notify_all();
  } else {
    // Which request it answers is unknown, and so is what else is wrong on this stream.
    ledger_.FailAll(reply.status(), answers);
    call->Cancel();
  }
  Deliver(lock, std::move(answers));
}

void DecodeStream::Core::OnReadsEnded(StreamCall* call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  call->EndReads();
}

void DecodeStream::Core::OnWritten(StreamCall* call, bool ok) {
  StreamLedger::Answers answers;
  std::unique_lock<std::mutex> lock(mutex_);
  call->MarkWritten();
  // After a failed write the stream's end follows.
  if (ok) Pump(answers);
  Deliver(lock, std::move(answers));
}

bool DecodeStream::Core::Writing(const StreamCall* call) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return call->writing();
}

void DecodeStream::Core::OnEnded(StreamCall* call, const absl::Status& status,
                                 std::optional<std::int64_t> pushback_ms) {
  StreamLedger::Answers answers;
  std::unique_lock<std::mutex> lock(mutex_);
  if (call == call_) call_ = nullptr;
  changed_.notify_all();
  if (closed_ || ledger_.size() == 0) {
    // Idle: the next request opens a stream at once.
    reopen_at_ = TimePoint{};
    return;
  }
  const absl::Status broken = BreakStatus(status);
  ledger_.OnBroken(broken);
  const TimePoint now = options_.time->Now();
  const std::optional<TimePoint> next = options_.retry->NextAttempt(
      {broken, pushback_ms, ++failures_in_a_row_}, now, TimeSource::kNever);
  reopen_at_ = next.value_or(now);
  if (!next.has_value()) {
    failures_in_a_row_ = 0;
    ledger_.FailAll(broken, answers);
  }
  Deliver(lock, std::move(answers));
}

void DecodeStream::Core::OnDestroyed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --live_calls_;
  changed_.notify_all();
}

void DecodeStream::Core::Deliver(std::unique_lock<std::mutex>& lock,
                                 StreamLedger::Answers answers) {
  if (answers.empty()) {
    lock.unlock();
    return;
  }
  ++callbacks_running_;
  lock.unlock();
  for (StreamLedger::Answer& answer : answers) answer.done(std::move(answer.result));
  lock.lock();
  --callbacks_running_;
  // Only Close waits for this; the timer thread would wake for each answer.
  if (closed_) changed_.notify_all();
  lock.unlock();
}

void DecodeStream::Core::RunTimerThread() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closed_) {
    StreamLedger::Answers answers;
    const TimePoint now = options_.time->Now();
    ledger_.RunTimers(now, answers);
    Pump(answers);
    if (!answers.empty()) {
      Deliver(lock, std::move(answers));
      lock.lock();
      continue;
    }
    timer_thread_until_ = ledger_.NextTimer();
    if (call_ == nullptr && ledger_.has_unsent()) {
      timer_thread_until_ = std::min(timer_thread_until_, reopen_at_);
    }
    options_.time->WaitUntil(lock, changed_, timer_thread_until_);
  }
}

void DecodeStream::Core::Cancel() {
  StreamLedger::Answers answers;
  std::unique_lock<std::mutex> lock(mutex_);
  ledger_.FailAll(absl::CancelledError("the stream was cancelled"), answers);
  if (call_ != nullptr) call_->Cancel();
  Deliver(lock, std::move(answers));
}

void DecodeStream::Core::Close() {
  StreamLedger::Answers answers;
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  const bool idle = ledger_.size() == 0;
  ledger_.FailAll(absl::CancelledError("the stream was closed"), answers);
  if (call_ != nullptr) {
    if (idle && call_->can_write()) {
      call_->HalfClose();
    } else {
      call_->Cancel();
    }
  }
  Deliver(lock, std::move(answers));
  timer_thread_.join();
  lock.lock();
  // Real time on purpose: the server's end of the stream does not follow an injected clock.
  const auto ended = [this] { return call_ == nullptr; };
  if (!changed_.wait_for(lock, kGracefulEnd, ended)) call_->Cancel();
  changed_.wait(lock, [this] { return live_calls_ == 0 && callbacks_running_ == 0; });
  transport_.reset();
}

DecodeStream::DecodeStream(DecodeStreamOptions options)
    : core_(std::make_shared<Core>(std::move(options))) {
  core_->Start();
}

DecodeStream::~DecodeStream() { core_->Close(); }

void DecodeStream::Cancel() { core_->Cancel(); }

void DecodeStream::Submit(DecodeRequest request, Callback done, std::optional<Duration> timeout) {
  core_->Submit(std::move(request), std::move(done), timeout);
}

std::future<absl::StatusOr<DecodeResult>> DecodeStream::Submit(DecodeRequest request,
                                                               std::optional<Duration> timeout) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<DecodeResult>>>();
  std::future<absl::StatusOr<DecodeResult>> future = promise->get_future();
  Submit(
      std::move(request),
      [promise](absl::StatusOr<DecodeResult> result) { promise->set_value(std::move(result)); },
      timeout);
  return future;
}

std::int64_t DecodeStream::in_flight() const { return core_->in_flight(); }
std::int64_t DecodeStream::reopened() const { return core_->reopened(); }

}  // namespace attnd::client
