// What the HTTP library lacks for a port that a slow or hostile peer may reach: a time limit over a
// whole connection (its own limits are per read and per write, so that a peer that reads one byte
// at a time holds a thread for hours), and threads that outlive a loop of its.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/mutex.h"

namespace attnd {

// A connected socket whose reads and writes all end by one deadline. Reads also end when `stopping`
// turns true. Used by one thread; does not own the socket.
class DeadlineStream final : public httplib::Stream {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  DeadlineStream(int socket, TimePoint deadline, const std::atomic<bool>& stopping)
      : socket_(socket), deadline_(deadline), stopping_(stopping) {}

  bool is_readable() const override;
  bool is_writable() const override;
  // -1 when the deadline has passed.
  ssize_t read(char* data, std::size_t size) override;
  ssize_t write(const char* data, std::size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  bool WaitFor(short events) const;

  const int socket_;
  const TimePoint deadline_;
  const std::atomic<bool>& stopping_;
};

// A fixed number of threads. Whoever brings jobs bounds them. Thread-safe.
class ConnectionWorkers {
 public:
  explicit ConnectionWorkers(int num_threads);
  // Shuts down.
  ~ConnectionWorkers();

  void Enqueue(std::function<void()> job);
  // Runs what is queued and joins the threads. Idempotent.
  void Shutdown();

 private:
  void Work();

  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace attnd
