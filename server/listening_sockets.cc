#include "server/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::Status SystemError(int error) { return absl::UnavailableError(std::strerror(error)); }

sockaddr_un UnixName(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  return name;
}

// Removes what a server that was killed has left at `path`; an error where something else is there.
absl::Status ClearPath(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();  // nothing there
  if (!S_ISSOCK(info.st_mode)) {
    return absl::UnavailableError("the path exists and is not a socket");
  }
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return SystemError(errno);
  const sockaddr_un name = UnixName(path);
  const int result = connect(probe, reinterpret_cast<const sockaddr*>(&name), sizeof name);
  const int error = errno;
  close(probe);
  if (result == 0) return absl::UnavailableError("another server answers on the socket");
  if (error != ECONNREFUSED) return SystemError(error);
  return unlink(path.c_str()) == 0 ? absl::OkStatus() : SystemError(errno);
}

// A non-blocking socket that listens; -1 and errno where it cannot.
int ListenOn(const sockaddr* name, socklen_t size) {
  const int listener = socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return -1;
  const int on = 1, off = 0;
  // A restart passes over connections in TIME_WAIT; the port stays closed to other processes.
  if (name->sa_family != AF_UNIX) setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // [::] takes IPv4 too, also where the system's default is another one.
  if (name->sa_family == AF_INET6) {
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (bind(listener, name, size) == 0 && listen(listener, SOMAXCONN) == 0) return listener;
  const int error = errno;
  close(listener);
  errno = error;
  return -1;
}

absl::StatusOr<Addresses> Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return Addresses(found, &freeaddrinfo);
}

void SetPort(sockaddr& name, int port) {
  const auto network_order = htons(static_cast<std::uint16_t>(port));
  if (name.sa_family == AF_INET) reinterpret_cast<sockaddr_in&>(name).sin_port = network_order;
  if (name.sa_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(name).sin6_port = network_order;
}

int PortOf(int listener) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&name), &size) != 0) return 0;
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(name).sin_port);
}

}  // namespace

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const ListenAddress& address) {
  ListeningSockets sockets;
  absl::Status status;
  if (!address.unix_path.empty()) {
    status = sockets.OpenUnix(address.unix_path);
  } else if (address.host == "0.0.0.0" || address.host == "::") {
    status = sockets.OpenTcp("::", address.port);
    // A machine without IPv6.
    if (!status.ok()) status = sockets.OpenTcp("0.0.0.0", address.port);
  } else {
    status = sockets.OpenTcp(address.host, address.port);
  }
  if (!status.ok()) return status;
  return sockets;
}

absl::Status ListeningSockets::OpenUnix(const std::string& path) {
  if (absl::Status status = ClearPath(path); !status.ok()) return status;
  const sockaddr_un name = UnixName(path);
  const int listener = ListenOn(reinterpret_cast<const sockaddr*>(&name), sizeof name);
  if (listener < 0) return SystemError(errno);
  descriptors_.push_back(listener);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return SystemError(errno);
  path_ = path;
  path_device_ = info.st_dev;
  path_inode_ = info.st_ino;
  return absl::OkStatus();
}

absl::Status ListeningSockets::OpenTcp(const std::string& host, int port) {
  const auto addresses = Resolve(host, port);
  if (!addresses.ok()) return addresses.status();
  int error = EAFNOSUPPORT;
  for (addrinfo* each = addresses->get(); each != nullptr; each = each->ai_next) {
    // The port that the first address was given holds for the others too.
    if (port_ != 0) SetPort(*each->ai_addr, port_);
    const int listener = ListenOn(each->ai_addr, each->ai_addrlen);
    if (listener >= 0) {
      descriptors_.push_back(listener);
      port_ = PortOf(listener);
      continue;
    }
    error = errno;
    // A name may have addresses of a family that this machine lacks; any other failure counts.
    if (error != EAFNOSUPPORT) break;
  }
  if (!descriptors_.empty() && error == EAFNOSUPPORT) return absl::OkStatus();
  for (const int descriptor : descriptors_) close(descriptor);
  descriptors_.clear();
  port_ = 0;
  return SystemError(error);
}

ListeningSockets::ListeningSockets(ListeningSockets&& other) noexcept
    : descriptors_(std::exchange(other.descriptors_, {})),
      port_(other.port_),
      path_(std::exchange(other.path_, {})),
      path_device_(other.path_device_),
      path_inode_(other.path_inode_) {}

ListeningSockets::~ListeningSockets() {
  for (const int descriptor : descriptors_) close(descriptor);
  struct stat info {};
  if (!path_.empty() && lstat(path_.c_str(), &info) == 0 && info.st_dev == path_device_ &&
      info.st_ino == path_inode_) {
    unlink(path_.c_str());
  }
}

}  // namespace attnd
