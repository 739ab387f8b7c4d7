#include "server/bind_failure.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace attnd {

std::string BindFailure(const ListenAddress& address) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return gai_strerror(error);
  }
  std::string failure = "the port cannot be bound";
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int probe = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol);
    if (probe < 0) continue;
    // As servers do, so that connections in TIME_WAIT are not taken for a listener.
    const int on = 1;
    setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(probe, each->ai_addr, each->ai_addrlen) != 0 || listen(probe, 1) != 0) {
      failure = std::strerror(errno);
    }
    close(probe);
  }
  freeaddrinfo(found);
  return failure;
}

}  // namespace attnd
