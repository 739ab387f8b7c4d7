// Channels of one client and raw calls over them: bytes in, bytes and status out, no retry.
//
// Thread-safe. gRPC's own retries are off (its replay buffer ends at 256 KiB, and it would hide
// pushback from us), reconnects are tried at least once a second, and replies of any size are
// accepted.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "client/poller.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"

namespace attnd::client {

struct TransportOptions {
  std::string target = "127.0.0.1:8001";  // host:port or unix:/path
  int connections = 1;  // TCP connections, calls go round; each has its own HTTP/2 stream limit
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: plain text
  std::vector<std::pair<std::string, std::string>>
      metadata;  // sent with every call, lower-case keys
};

struct RawReply {
  absl::Status status;  // with the server's ErrorDetail as payload (call_error.h)
  std::optional<std::int64_t> pushback_ms;
  grpc::ByteBuffer body;  // valid when status is OK
};

// Keeps gRPC initialised for the rest of the process: see transport.cc. The first Transport does
// it; for processes that only serve.
void HoldGrpc();

// Full method names, "/attnd.v1.AttentionService/<method>".
std::string MethodPath(const char* method);

class Transport {
 public:
  using Done = absl::AnyInvocable<void(RawReply)>;

  explicit Transport(const TransportOptions& options);
  // Cancels what is in flight and waits until every `done` has returned. Streams have ended before.
  // Not on a thread of this transport: it joins them.
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // `done` runs exactly once, on a thread of this transport: it must not block, and an exception
  // out of it ends the process. `connection` is taken modulo the number of connections; -1: the
  // next one.
  void StartUnary(const std::string& path, grpc::ByteBuffer request,
                  std::chrono::system_clock::time_point deadline, Done done, int connection = -1);

  // Calls in flight end CANCELLED.
  void CancelAll();

  // True once a connection stands; false after `timeout`.
  bool WaitForConnected(std::chrono::nanoseconds timeout);

  int connections() const { return static_cast<int>(connections_.size()); }

  // A stream, not started, with the metadata of the options. Its operations' tags are
  // Poller::Waiters, which run on a thread of this transport.
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> PrepareStream(grpc::ClientContext& context,
                                                                      const std::string& path,
                                                                      int connection);

 private:
  class UnaryCall;
  struct Connection {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<grpc::GenericStub> stub;
    Poller* poller = nullptr;
  };

  void PrepareContext(grpc::ClientContext& context) const;
  Connection& connection(int number);
  void Finish(UnaryCall* call);

  std::vector<std::pair<std::string, std::string>> metadata_;
  // One for each connection, but no more than half the processors. More than one of them take
  // turns, which costs: only where there is enough for each.
  std::vector<std::unique_ptr<Poller>> pollers_;
  std::vector<Connection> connections_;
  std::atomic<unsigned> next_{0};
  std::mutex mutex_;
  std::condition_variable idle_;
  std::unordered_set<UnaryCall*> live_;  // guarded by mutex_
  bool closing_ = false;                 // guarded by mutex_
};

// The status of a finished call: code, text, and the ErrorDetail from `grpc-status-details-bin`.
absl::Status StatusFromGrpc(const grpc::Status& status);

// What the trailers of a finished call say about repeating it; a value that is no number counts as
// "never", like in gRPC.
std::optional<std::int64_t> PushbackOf(const grpc::ClientContext& context);

}  // namespace attnd::client
