// The sockets on which the gRPC port listens. Owns them, and the path of a unix socket.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/listen_address.h"

namespace attnd {

class ListeningSockets {
 public:
  // Listens on every address that the host stands for: several where a name has several, and both
  // families for 0.0.0.0 and [::] where the machine has both. Never shared with another process.
  // The path of a unix socket is taken over where no server answers on it any more. The error tells
  // what the system says.
  static absl::StatusOr<ListeningSockets> Open(const ListenAddress& address);

  ListeningSockets(ListeningSockets&& other) noexcept;
  ListeningSockets& operator=(ListeningSockets&& other) = delete;
  // Closes. Removes the path of a unix socket while it is still the one made here.
  ~ListeningSockets();

  // Non-blocking; at least one.
  const std::vector<int>& descriptors() const { return descriptors_; }
  // The real one; 0 for a unix socket.
  int port() const { return port_; }

 private:
  ListeningSockets() = default;
  absl::Status OpenUnix(const std::string& path);
  absl::Status OpenTcp(const std::string& host, int port);

  std::vector<int> descriptors_;
  int port_ = 0;
  std::string path_;  // empty for TCP, and until it has been made
  dev_t path_device_ = 0;
  ino_t path_inode_ = 0;
};

}  // namespace attnd
