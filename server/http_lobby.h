// The connections of the admin port for which no thread works: those whose request is not complete,
// and those whose answer has been sent and whose peer has not closed. One thread watches all of
// them, so that a peer that says nothing, or half a request, or nothing more, costs a descriptor
// for a while and delays nobody. It never reads a request, it only looks at what has arrived.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/mutex.h"

namespace attnd {

class HttpLobby {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // A request has arrived: `head` is its first line and headers. The socket is the callee's, who
  // gives it back with Linger or closes it and says Gone. Runs on the lobby's thread: must not
  // wait.
  using Arrived = std::function<void(int socket, TimePoint deadline, std::string_view head)>;

  // Of connections in the lobby and away from it. Beyond it the one that has waited longest for its
  // peer is closed; where there is none, the new one.
  static constexpr std::size_t kMaxConnections = 128;
  // A longer head is refused by closing.
  static constexpr std::size_t kMaxHeadBytes = 8 * 1024;

  explicit HttpLobby(Arrived arrived) : arrived_(std::move(arrived)) {}
  // Stops.
  ~HttpLobby();
  HttpLobby(const HttpLobby&) = delete;
  HttpLobby& operator=(const HttpLobby&) = delete;

  absl::Status Start();
  // Takes a connected socket; at the deadline it is closed, whatever has arrived.
  void Enter(int socket, TimePoint deadline);
  // After the answer: ends our side and closes when the peer has closed or the deadline has come.
  // Closing at once would turn bytes that nobody has read into a reset, which destroys the answer.
  void Linger(int socket, TimePoint deadline);
  // A socket that was away has been closed.
  void Gone();
  // Closes what is in the lobby; no request arrives afterwards. Idempotent.
  void Stop();

 private:
  struct Guest {
    TimePoint deadline, entered;
    bool lingers = false;
  };
  struct Newcomer {
    int socket = -1;
    Guest guest;
  };

  void Watch();
  void AdmitNewcomers();
  void Admit(const Newcomer& newcomer);
  void MakeRoom();
  void CloseOverdue(TimePoint now);
  int MillisecondsToNextDeadline(TimePoint now) const;
  // `ended`: the peer sends no more.
  void OnEvent(int socket, bool ended);
  void OnRequestBytes(int socket, const Guest& guest, bool ended);
  void Close(int socket);
  void Bring(Newcomer newcomer);
  void Wake() const;

  const Arrived arrived_;
  int epoll_ = -1, wake_ = -1;
  std::thread thread_;
  std::unordered_map<int, Guest> guests_;  // the thread's
  std::atomic<std::size_t> away_{0};
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  std::vector<Newcomer> newcomers_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attnd
