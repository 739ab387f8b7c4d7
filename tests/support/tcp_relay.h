// A TCP connection to a server that a test can hold up, or cut as when the machine or the process
// at its other end dies. Serves one client connection.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>

namespace attnd::testing {

class TcpRelay {
 public:
  explicit TcpRelay(int server_port) : listener_(Socket()) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, Generic(address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, Generic(address), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    relaying_ = std::thread([this, server_port] { Relay(server_port); });
  }
  ~TcpRelay() {
    shutdown(listener_, SHUT_RDWR);  // where no client ever came
    Cut();
    relaying_.join();
    for (const int each : {listener_, client_.load(), server_.load()}) {
      if (each >= 0) close(each);
    }
  }
  TcpRelay(const TcpRelay&) = delete;
  TcpRelay& operator=(const TcpRelay&) = delete;

  const std::string& address() const { return address_; }
  // What the client sends from now on does not reach the server; answers still reach the client.
  void HoldRequests() { holding_requests_ = true; }
  // A client that stops reading: so many bytes still reach it.
  void HoldAnswersAfter(std::int64_t bytes) { answer_bytes_ = bytes; }
  // Both ends lose their connection; nothing more is passed on.
  void Cut() {
    holding_requests_ = false;
    answer_bytes_ = kAll;
    for (const int each : {client_.load(), server_.load()}) {
      if (each >= 0) shutdown(each, SHUT_RDWR);
    }
  }

 private:
  static int Socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }
  static sockaddr* Generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }
  void Relay(int server_port) {
    client_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client_ < 0) return;
    const int server = Socket();
    sockaddr_in address = Loopback(server_port);
    EXPECT_EQ(connect(server, Generic(address), sizeof address), 0);
    server_ = server;
    std::thread back([this] {
      Pump(server_, client_, [this](std::int64_t passed) { return passed >= answer_bytes_; });
    });
    Pump(client_, server_, [this](std::int64_t) { return holding_requests_.load(); });
    back.join();
  }
  // `held` says whether the next bytes wait, after so many.
  template <typename Held>
  static void Pump(int from, int to, Held held) {
    std::array<char, 16'384> buffer;
    std::int64_t passed = 0;
    for (ssize_t got = 0; (got = read(from, buffer.data(), buffer.size())) > 0;) {
      while (held(passed)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      for (ssize_t sent = 0; sent < got;) {
        const ssize_t part = send(to, buffer.data() + sent, got - sent, MSG_NOSIGNAL);
        if (part <= 0) return;
        sent += part;
      }
      passed += got;
    }
    shutdown(to, SHUT_RDWR);
  }

  const int listener_;
  std::atomic<int> client_{-1}, server_{-1};
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  std::atomic<bool> holding_requests_{false};
  std::atomic<std::int64_t> answer_bytes_{kAll};
  std::string address_;
  std::thread relaying_;
};

}  // namespace attnd::testing
