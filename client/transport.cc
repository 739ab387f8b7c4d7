#include "client/transport.h"

#include <algorithm>
#include <climits>
#include <string_view>
#include <thread>

#include "absl/strings/numbers.h"
#include "attnd/v1/rpc_status.pb.h"
#include "client/call_error.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace attnd::client {
namespace {

constexpr int kFirstReconnectMs = 100;
// A restarted server is reached within this after it listens again.
constexpr int kMaxReconnectMs = 1000;
// How long one connection attempt may take; a dead host costs this and not gRPC's 20 s.
constexpr int kConnectAttemptMs = 3000;

grpc::ChannelArguments ArgumentsFor(int connection) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(INT_MAX);
  arguments.SetMaxSendMessageSize(INT_MAX);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectAttemptMs);
  // Equal arguments would share one connection: the number makes each channel its own.
  arguments.SetInt("attnd.connection", connection);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

int Processors() { return static_cast<int>(std::thread::hardware_concurrency()); }

}  // namespace

class Transport::UnaryCall final : public Poller::Waiter {
 public:
  UnaryCall(Transport& transport, Done done) : transport_(transport), done_(std::move(done)) {}

  grpc::ClientContext& context() { return context_; }
  void Start(Connection& connection, const std::string& path, const grpc::ByteBuffer& request) {
    call_ = connection.stub->PrepareUnaryCall(&context_, path, request, connection.poller->queue());
    call_->StartCall();
    call_->Finish(&body_, &status_, Poller::TagOf(*this));
  }

  void OnCompleted(bool) override {
    RawReply reply;
    reply.status = StatusFromGrpc(status_);
    if (!status_.ok()) reply.pushback_ms = PushbackOf(context_);
    reply.body.Swap(&body_);
    done_(std::move(reply));
    transport_.Finish(this);
  }

 private:
  Transport& transport_;
  Done done_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call_;
  grpc::ByteBuffer body_;
  grpc::Status status_;
};

// gRPC 1.51 writes what a socket does not take at once with the help of a thread that waits 10 s
// for events, and its shutdown joins that thread. Where the connection closes first (a message cut
// short) no event comes any more: the last channel of a process would take those 10 s to go. Held
// for the life of the process, gRPC never shuts down, and the thread ends by itself.
void HoldGrpc() {
  [[maybe_unused]] static const bool held = [] {
    grpc_init();
    return true;
  }();
}

std::string MethodPath(const char* method) {
  return std::string("/attnd.v1.AttentionService/") + method;
}

absl::Status StatusFromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  v1::RpcStatus envelope;
  v1::ErrorDetail detail;
  if (!status.error_details().empty() && envelope.ParseFromString(status.error_details()) &&
      envelope.details_size() > 0 && envelope.details(0).UnpackTo(&detail)) {
    return StatusWithDetail(code, detail, status.error_message());
  }
  return {code, status.error_message()};
}

std::optional<std::int64_t> PushbackOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  if (found == trailers.end()) return std::nullopt;
  std::int64_t milliseconds = 0;
  const absl::string_view text(found->second.data(), found->second.size());
  return absl::SimpleAtoi(text, &milliseconds) ? milliseconds : -1;
}

Transport::Transport(const TransportOptions& options) : metadata_(options.metadata) {
  HoldGrpc();
  const std::shared_ptr<grpc::ChannelCredentials> credentials =
      options.credentials ? options.credentials : grpc::InsecureChannelCredentials();
  const int connections = std::max(1, options.connections);
  const int pollers = std::min(connections, std::max(1, Processors() / 2));
  for (int i = 0; i < pollers; ++i) pollers_.push_back(std::make_unique<Poller>());
  for (int i = 0; i < connections; ++i) {
    Connection& connection = connections_.emplace_back();
    connection.channel = grpc::CreateCustomChannel(options.target, credentials, ArgumentsFor(i));
    connection.stub = std::make_unique<grpc::GenericStub>(connection.channel);
    connection.poller = pollers_[static_cast<std::size_t>(i % pollers)].get();
  }
}

Transport::~Transport() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  CancelAll();
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [this] { return live_.empty(); });
  lock.unlock();
  pollers_.clear();
}

void Transport::PrepareContext(grpc::ClientContext& context) const {
  for (const auto& [key, value] : metadata_) context.AddMetadata(key, value);
}

Transport::Connection& Transport::connection(int number) {
  const unsigned index =
      number >= 0 ? static_cast<unsigned>(number) : next_.fetch_add(1, std::memory_order_relaxed);
  return connections_[index % connections_.size()];
}

std::unique_ptr<grpc::GenericClientAsyncReaderWriter> Transport::PrepareStream(
    grpc::ClientContext& context, const std::string& path, int connection) {
  PrepareContext(context);
  Connection& chosen = this->connection(connection);
  return chosen.stub->PrepareCall(&context, path, chosen.poller->queue());
}

void Transport::StartUnary(const std::string& path, grpc::ByteBuffer request,
                           std::chrono::system_clock::time_point deadline, Done done,
                           int connection) {
  auto* call = new UnaryCall(*this, std::move(done));
  PrepareContext(call->context());
  if (deadline != std::chrono::system_clock::time_point::max()) {
    call->context().set_deadline(deadline);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    live_.insert(call);
    // A callback may start the next call while the destructor waits: it ends at once.
    if (closing_) call->context().TryCancel();
  }
  call->Start(this->connection(connection), path, request);
}

void Transport::Finish(UnaryCall* call) {
  // After `done`: the destructor must not return while a callback runs.
  const std::lock_guard<std::mutex> lock(mutex_);
  live_.erase(call);
  delete call;
  if (live_.empty()) idle_.notify_all();
}

void Transport::CancelAll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (UnaryCall* call : live_) call->context().TryCancel();
}

bool Transport::WaitForConnected(std::chrono::nanoseconds timeout) {
  return connections_.front().channel->WaitForConnected(
      std::chrono::system_clock::now() +
      std::chrono::duration_cast<std::chrono::microseconds>(timeout));
}

}  // namespace attnd::client
