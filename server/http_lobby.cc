#include "server/http_lobby.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kEndOfHead = "\r\n\r\n";
constexpr int kMaxEvents = 64;

}  // namespace

HttpLobby::~HttpLobby() {
  Stop();
  if (epoll_ >= 0) close(epoll_);
  if (wake_ >= 0) close(wake_);
}

absl::Status HttpLobby::Start() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_;
  if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot watch connections: ", std::strerror(errno)));
  }
  thread_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

void HttpLobby::Enter(int socket, TimePoint deadline) {
  Bring({socket, {deadline, steady_clock::now(), /*lingers=*/false}});
}

void HttpLobby::Linger(int socket, TimePoint deadline) {
  shutdown(socket, SHUT_WR);
  Bring({socket, {deadline, steady_clock::now(), /*lingers=*/true}});
  --away_;
}

void HttpLobby::Gone() { --away_; }

void HttpLobby::Stop() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (const Newcomer& newcomer : newcomers_) close(newcomer.socket);
    newcomers_.clear();
  }
  stop_.store(true);
  if (!thread_.joinable()) return;
  Wake();
  thread_.join();
  while (!guests_.empty()) Close(guests_.begin()->first);
}

void HttpLobby::Bring(Newcomer newcomer) {
  {
    MutexLock lock(mutex_);
    if (closed_) {
      close(newcomer.socket);
      return;
    }
    newcomers_.push_back(newcomer);
  }
  Wake();
}

void HttpLobby::Wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

void HttpLobby::Watch() {
  std::array<epoll_event, kMaxEvents> events;
  while (!stop_.load()) {
    const int count = epoll_wait(epoll_, events.data(), kMaxEvents,
                                 MillisecondsToNextDeadline(steady_clock::now()));
    for (int i = 0; i < count; ++i) {
      const int socket = events[static_cast<std::size_t>(i)].data.fd;
      if (socket != wake_) {
        const std::uint32_t flags = events[static_cast<std::size_t>(i)].events;
        OnEvent(socket, (flags & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
        continue;
      }
      std::uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t drained = read(wake_, &wakes, sizeof wakes);
    }
    // After the events: a descriptor that was closed and is in use again must not get the old
    // one's.
    AdmitNewcomers();
    CloseOverdue(steady_clock::now());
  }
}

void HttpLobby::AdmitNewcomers() {
  std::vector<Newcomer> newcomers;
  {
    MutexLock lock(mutex_);
    newcomers.swap(newcomers_);
  }
  for (const Newcomer& newcomer : newcomers) Admit(newcomer);
}

void HttpLobby::Admit(const Newcomer& newcomer) {
  MakeRoom();
  // Edge-triggered: half a request is looked at once, not for as long as it lies there.
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.fd = newcomer.socket;
  if (guests_.size() + away_.load() >= kMaxConnections ||
      epoll_ctl(epoll_, EPOLL_CTL_ADD, newcomer.socket, &event) != 0) {
    close(newcomer.socket);
    return;
  }
  guests_.emplace(newcomer.socket, newcomer.guest);
}

void HttpLobby::MakeRoom() {
  if (guests_.empty() || guests_.size() + away_.load() < kMaxConnections) return;
  const auto oldest = std::min_element(
      guests_.begin(), guests_.end(),
      [](const auto& a, const auto& b) { return a.second.entered < b.second.entered; });
  Close(oldest->first);
}

void HttpLobby::CloseOverdue(TimePoint now) {
  std::vector<int> overdue;
  for (const auto& [socket, guest] : guests_) {
    if (guest.deadline <= now) overdue.push_back(socket);
  }
  for (const int socket : overdue) {
    // What a slow reader has not fetched would stay in the kernel for minutes. An answer that has
    // arrived must not be destroyed, though.
    int unsent_bytes = 0;
    if (ioctl(socket, SIOCOUTQ, &unsent_bytes) == 0 && unsent_bytes > 0) {
      const linger reset{1, 0};
      setsockopt(socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    Close(socket);
  }
}

int HttpLobby::MillisecondsToNextDeadline(TimePoint now) const {
  TimePoint next = TimePoint::max();
  for (const auto& [socket, guest] : guests_) next = std::min(next, guest.deadline);
  if (next == TimePoint::max()) return -1;
  return static_cast<int>(
      std::clamp<std::int64_t>(std::chrono::ceil<milliseconds>(next - now).count(), 0, 60'000));
}

void HttpLobby::OnEvent(int socket, bool ended) {
  const auto found = guests_.find(socket);
  if (found == guests_.end()) return;
  if (!found->second.lingers) return OnRequestBytes(socket, found->second, ended);
  std::array<char, 4096> unread;
  ssize_t received = 0;
  do {
    received = recv(socket, unread.data(), unread.size(), MSG_DONTWAIT);
  } while (received > 0 || (received < 0 && errno == EINTR));
  if (received == 0 || errno != EAGAIN) Close(socket);
}

void HttpLobby::OnRequestBytes(int socket, const Guest& guest, bool ended) {
  std::array<char, kMaxHeadBytes> arrived;
  const ssize_t size = recv(socket, arrived.data(), arrived.size(), MSG_PEEK | MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return Close(socket);
  const std::string_view bytes(arrived.data(), static_cast<std::size_t>(size));
  const std::size_t end = bytes.find(kEndOfHead);
  if (end != std::string_view::npos) {
    const TimePoint deadline = guest.deadline;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
    guests_.erase(socket);
    ++away_;
    return arrived_(socket, deadline, bytes.substr(0, end));
  }
  // A peer that has ended its side will not send the rest.
  if (ended || bytes.size() == arrived.size()) Close(socket);
}

void HttpLobby::Close(int socket) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
  close(socket);
  guests_.erase(socket);
}

}  // namespace attnd
