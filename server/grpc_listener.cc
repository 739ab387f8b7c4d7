#include "server/grpc_listener.h"

#include <grpcpp/security/server_credentials.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/bind_failure.h"
#include "server/listen_address.h"

namespace attnd {
namespace {

// A peer that is gone without a FIN (power, network) holds streams and their work no longer than
// this; 2 hours are gRPC's default.
constexpr int kKeepaliveMs = 30'000, kKeepaliveTimeoutMs = 20'000;
// Clients may ping this often, gRPC's default of 5 minutes would disconnect those that check their
// connection every 10 seconds.
constexpr int kMinClientPingMs = 5'000;

absl::Status CannotListen(const std::string& address, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("--listen: cannot listen on ", address, ": ", why));
}

// gRPC unlinks whatever lies at the path before it binds, also the socket of a running server.
absl::Status CheckUnixPath(const std::string& path, const std::string& address) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();  // nothing there
  if (!S_ISSOCK(info.st_mode)) {
    return CannotListen(address, "the path exists and is not a socket");
  }
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return CannotListen(address, std::strerror(errno));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  const int result = connect(probe, reinterpret_cast<const sockaddr*>(&name), sizeof name);
  const int error = errno;
  close(probe);
  if (result == 0) return CannotListen(address, "another server answers on the socket");
  if (error == ECONNREFUSED) return absl::OkStatus();  // left behind by a server that was killed
  return CannotListen(address, std::strerror(error));
}

void SetLimits(const ServerConfig& config, grpc::ServerBuilder& builder) {
  constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::min<std::int64_t>(config.max_message_bytes, kIntMax)));
  builder.SetMaxSendMessageSize(-1);  // replies are bounded by their requests
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, config.max_header_bytes);
  // By default Linux spreads connections over all processes that listen on a port.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // The size limit holds for messages as received: half a MiB of deflated zeros would become half a
  // GiB. Compressed messages are refused, and never inflated.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinClientPingMs);
}

}  // namespace

absl::StatusOr<GrpcListener> Listen(const ServerConfig& config,
                                    const std::vector<grpc::Service*>& services) {
  auto parsed = ParseListenAddress(config.listen);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: ", parsed.status().message()));
  }
  ListenAddress address = *std::move(parsed);
  if (!address.unix_path.empty()) {
    if (auto status = CheckUnixPath(address.unix_path, config.listen); !status.ok()) return status;
  }
  // Resolved to one address: of two (127.0.0.1 and ::1) gRPC would be content with one.
  if (address.host == "localhost") address.host = "127.0.0.1";

  grpc::ServerBuilder builder;
  SetLimits(config, builder);
  for (grpc::Service* service : services) builder.RegisterService(service);
  int port = 0;
  builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &port);
  GrpcListener listener;
  listener.server = builder.BuildAndStart();
  if (listener.server == nullptr || port == 0) {
    return CannotListen(config.listen, address.unix_path.empty() ? BindFailure(address)
                                                                 : "the socket cannot be bound");
  }
  if (address.unix_path.empty()) address.port = listener.port = port;
  listener.address = address.ToString();
  return listener;
}

}  // namespace attnd
