// Accepts connections on a thread of its own and hands them over. gRPC 1.51 accepts nothing more
// once accept() has failed for want of a descriptor; this one refuses what it has no descriptor or
// no place for, and goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/listening_sockets.h"

namespace attnd {

// Thread-safe.
class ConnectionAcceptor {
 public:
  struct Counts {
    std::int64_t open = 0;
    std::int64_t refused = 0;  // since the start, for want of a place or of a descriptor
  };
  // Called on the acceptor's thread with a non-blocking connection, which it takes over and closes
  // without telling.
  using Handler = std::function<void(int listener, int connection)>;

  // Accepts until Stop. With max_connections open, further ones are closed. An error where no
  // descriptor is left to begin with.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Start(ListeningSockets sockets,
                                                                   std::int64_t max_connections,
                                                                   Handler handler);
  ~ConnectionAcceptor();  // stops
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  // Closes the listening sockets. Once it returns nothing is handed over any more. Connections that
  // were handed over are not touched. Idempotent, by one thread at a time.
  void Stop();

  // Shuts down the connections that are open, whoever holds them.
  void CutOff();

  // Looks at every connection.
  Counts counts() const;

 private:
  struct Impl;
  explicit ConnectionAcceptor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
