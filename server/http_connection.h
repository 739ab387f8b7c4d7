// What the HTTP library lacks for a port that a slow or hostile peer may reach: a time limit over a
// whole connection and a bound on accepted connections. The library's own limits are per read and
// per write, so that a peer that sends one byte at a time holds a thread for hours.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"

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

  // After the answer: ends our side and reads what the peer still sends until it closes, so that
  // unread bytes do not turn the close into a reset that destroys the answer under way.
  void FinishAndLinger();

 private:
  bool WaitFor(short events) const;

  const int socket_;
  const TimePoint deadline_;
  const std::atomic<bool>& stopping_;
};

// A fixed number of threads and a bounded queue of connections. When it is full the accepting
// thread waits: further connections stay in the kernel's backlog and take no descriptor.
class ConnectionWorkers final : public httplib::TaskQueue {
 public:
  ConnectionWorkers(int num_threads, std::size_t max_queued);

  void enqueue(std::function<void()> job) override;
  // Serves what is queued and joins the threads.
  void shutdown() override;

 private:
  void Work();

  const std::size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace attnd
