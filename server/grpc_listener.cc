#include "server/grpc_listener.h"

#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/listen_address.h"
#include "server/listening_sockets.h"

namespace attnd {
namespace {

// A peer that is gone without a FIN (power, network) holds streams and their work no longer than
// this; 2 hours are gRPC's default.
constexpr int kKeepaliveMs = 30'000, kKeepaliveTimeoutMs = 20'000;
// Clients may ping this often, gRPC's default of 5 minutes would disconnect those that check their
// connection every 10 seconds.
constexpr int kMinClientPingMs = 5'000;
// A connection that has not begun to speak HTTP/2 by then gives its place away; 2 minutes are
// gRPC's default.
constexpr int kHandshakeMs = 10'000;

// Messages that are on their way, beside those that wait in the queue.
constexpr std::int64_t kLeastTransitBytes = std::int64_t{64} << 20;
constexpr std::int64_t kTransitMessages = 4;

absl::Status CannotListen(const std::string& address, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("--listen: cannot listen on ", address, ": ", why));
}

// As gRPC does for connections that it accepts itself: small messages go out at once, and data that
// a peer does not acknowledge ends the connection like a ping that it does not answer.
void TuneConnection(int connection) {
  const int on = 1;
  const unsigned unacknowledged_ms = kKeepaliveTimeoutMs;
  // Fails on unix sockets, which need neither.
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(connection, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms,
             sizeof unacknowledged_ms);
}

void SetLimits(const ServerConfig& config, grpc::ServerBuilder& builder) {
  // gRPC 1.51 receives a message whole before it looks at its size: its limit would save nothing,
  // and refuse without a reason, a count or a log line. ServiceState::CheckMessageBytes refuses.
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);  // replies are bounded by their requests
  // Over the quota gRPC ends streams, RESOURCE_EXHAUSTED, and closes connections.
  grpc::ResourceQuota quota("attnd");
  quota.Resize(static_cast<std::size_t>(
      config.max_queue_bytes +
      std::max(kLeastTransitBytes, kTransitMessages * config.max_message_bytes)));
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_concurrent_streams);
  // A call's window stays at 64 KiB until its message is read, and covers the message then. With
  // the probe it grows with what the connection has carried: so much of a refused call arrives all
  // the same, in buffers that it shares with messages that wait.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, config.bdp_probe ? 1 : 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, config.max_header_bytes);
  // The size limit holds for messages as received: half a MiB of deflated zeros would become half a
  // GiB. Compressed messages are refused, and never inflated.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinClientPingMs);
}

// gRPC 1.51 sends what a socket does not take at once with the help of a thread that waits 10 s for
// events, and its shutdown joins that thread: a client that stopped reading would hold up the end
// of the process by as much. Held for the life of the process, gRPC never shuts down.
void HoldGrpc() {
  [[maybe_unused]] static const bool held = [] {
    grpc_init();
    return true;
  }();
}

}  // namespace

absl::StatusOr<GrpcListener> Listen(const ServerConfig& config,
                                    const std::vector<grpc::Service*>& services) {
  auto parsed = ParseListenAddress(config.listen);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: ", parsed.status().message()));
  }
  ListenAddress address = *std::move(parsed);
  if (address.host == "localhost") address.host = "127.0.0.1";  // and not ::1 where it comes first
  auto sockets = ListeningSockets::Open(address);
  if (!sockets.ok()) {
    return CannotListen(config.listen, std::string(sockets.status().message()));
  }
  GrpcListener listener;
  address.port = listener.port = sockets->port();
  listener.address = address.ToString();

  HoldGrpc();
  grpc::ServerBuilder builder;
  SetLimits(config, builder);
  for (grpc::Service* service : services) builder.RegisterService(service);
  using From = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_side =
      builder.experimental().AddExternalConnectionAcceptor(From::FROM_FD,
                                                           grpc::InsecureServerCredentials());
  listener.server = builder.BuildAndStart();
  if (listener.server == nullptr) return CannotListen(config.listen, "gRPC does not start");
  auto acceptor = ConnectionAcceptor::Start(
      *std::move(sockets), config.max_connections, [grpc_side](int from, int connection) {
        TuneConnection(connection);
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
        parameters.listener_fd = from;
        parameters.fd = connection;
        grpc_side->HandleNewConnection(&parameters);
      });
  if (!acceptor.ok()) return CannotListen(config.listen, std::string(acceptor.status().message()));
  listener.acceptor = *std::move(acceptor);
  return listener;
}

}  // namespace attnd
