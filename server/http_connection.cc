#include "server/http_connection.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace attnd {
namespace {

using std::chrono::milliseconds;

// How soon a waiting read notices a stop.
constexpr milliseconds kStopPoll{50};

void SplitAddress(const sockaddr_storage& address, socklen_t size, std::string& ip, int& port) {
  char host[NI_MAXHOST] = "";
  char service[NI_MAXSERV] = "0";
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, service,
                  sizeof service, NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
    ip = host;
    port = std::atoi(service);
  }
}

}  // namespace

bool DeadlineStream::WaitFor(short events) const {
  const bool reading = events == POLLIN;
  while (!(reading && stopping_.load(std::memory_order_relaxed))) {
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waited{socket_, events, 0};
    const int ready = poll(&waited, 1, static_cast<int>(std::min(left, kStopPoll).count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

bool DeadlineStream::is_readable() const { return WaitFor(POLLIN); }
bool DeadlineStream::is_writable() const { return WaitFor(POLLOUT); }

ssize_t DeadlineStream::read(char* data, std::size_t size) {
  while (WaitFor(POLLIN)) {
    const ssize_t received = recv(socket_, data, size, MSG_DONTWAIT);
    if (received >= 0 || (errno != EAGAIN && errno != EINTR)) return received;
  }
  return -1;
}

ssize_t DeadlineStream::write(const char* data, std::size_t size) {
  while (WaitFor(POLLOUT)) {
    const ssize_t sent = send(socket_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0 || (errno != EAGAIN && errno != EINTR)) return sent;
  }
  return -1;
}

void DeadlineStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    SplitAddress(address, size, ip, port);
  }
}

void DeadlineStream::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    SplitAddress(address, size, ip, port);
  }
}

ConnectionWorkers::ConnectionWorkers(int num_threads) {
  threads_.reserve(static_cast<std::size_t>(num_threads));
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

ConnectionWorkers::~ConnectionWorkers() { Shutdown(); }

void ConnectionWorkers::Enqueue(std::function<void()> job) {
  MutexLock lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

void ConnectionWorkers::Shutdown() {
  {
    MutexLock lock(mutex_);
    shutdown_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ConnectionWorkers::Work() {
  while (true) {
    std::function<void()> job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !shutdown_) changed_.wait(mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace attnd
