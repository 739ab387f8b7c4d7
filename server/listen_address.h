// The addresses that the server's ports are given as: "host:port", "[ipv6]:port" or "unix:/path".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace attnd {

struct ListenAddress {
  std::string host;       // without brackets; empty for a unix socket
  int port = 0;           // 0: any free one
  std::string unix_path;  // empty for TCP

  // As it was given, with the real port filled in by the caller.
  std::string ToString() const;
  // Reachable from this machine only: a unix socket, localhost, 127.0.0.0/8 or ::1.
  bool LocalOnly() const;
};

// The error says what is wrong and what is needed; the caller adds the flag's name.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text);

// True where two servers on these addresses would want the same socket: equal paths, or equal ports
// with equal hosts or one of them a wildcard. Port 0 clashes with nothing.
bool SameSocket(const ListenAddress& a, const ListenAddress& b);

}  // namespace attnd
