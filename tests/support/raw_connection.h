// A TCP connection without a protocol.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace attnd::testing {

class RawConnection {
 public:
  // A socket of this machine that is not connected yet.
  RawConnection() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit RawConnection(int port) : RawConnection() { Connect(port); }
  RawConnection(RawConnection&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  RawConnection& operator=(RawConnection&&) = delete;
  ~RawConnection() {
    if (socket_ >= 0) close(socket_);
  }

  bool Connect(int port) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = htons(static_cast<std::uint16_t>(port));
    connected_ = connect(socket_, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
    return connected_;
  }
  bool connected() const { return connected_; }
  void Send(const std::string& bytes) const {
    EXPECT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  // Waits until the peer has closed it (what the peer sends before is passed over); false: it has
  // not within `timeout_ms`.
  bool AwaitClosed(int timeout_ms) const {
    pollfd polled{socket_, POLLIN, 0};
    while (poll(&polled, 1, timeout_ms) > 0) {
      char bytes[256];
      if (recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT) <= 0) return true;
    }
    return false;
  }

 private:
  int socket_;
  bool connected_ = false;
};

}  // namespace attnd::testing
