#include "server/connection_acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/logging.h"
#include "server/mutex.h"
#include "server/open_connections.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// With all places taken, how long a connection waits for one at most. Bounds what looking for
// connections that were closed costs: with 16,384 of them (3 ms) a sixth of a core.
constexpr milliseconds kSweepInterval{20};
// Before accepting is tried again after the system could not.
constexpr milliseconds kBackOff{50};
// A server that refuses says so this often.
constexpr std::chrono::seconds kLogInterval{10};

int OpenReserve() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

struct ConnectionAcceptor::Impl {
  enum class Next : std::uint8_t { kWaitForConnection, kBackOff };

  Impl(ListeningSockets listening, std::int64_t max, Handler handle)
      : max_connections(max), handler(std::move(handle)), sockets(std::move(listening)) {
    for (const int descriptor : sockets->descriptors()) polled.push_back({descriptor, POLLIN, 0});
    polled.push_back({wake, POLLIN, 0});
  }
  ~Impl() {
    if (wake >= 0) close(wake);
    if (reserve >= 0) close(reserve);
  }

  void Run();
  bool Wait(nfds_t first, int timeout_ms);
  Next AcceptAll(int listener);
  bool HasPlace(bool wait);
  bool RefuseWithoutDescriptor(int listener);
  void Refuse(int connection, const char* why);

  const std::int64_t max_connections;
  const Handler handler;
  std::optional<ListeningSockets> sockets;  // until Stop
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::vector<pollfd> polled;  // the listeners, then `wake`
  // Given up for a moment to accept, and so to be able to refuse, where no descriptor is left.
  int reserve = OpenReserve();
  steady_clock::time_point last_sweep{};
  LogGate log_gate{kLogInterval};
  std::atomic<bool> stopping{false};

  mutable Mutex mutex;
  mutable OpenConnections open_connections ABSL_GUARDED_BY(mutex);
  std::int64_t refused ABSL_GUARDED_BY(mutex) = 0;

  std::thread thread;
};

// False: told to stop. Waits for polled[first] and those after it.
bool ConnectionAcceptor::Impl::Wait(nfds_t first, int timeout_ms) {
  poll(&polled[first], polled.size() - first, timeout_ms);
  return polled.back().revents == 0;
}

void ConnectionAcceptor::Impl::Run() {
  const nfds_t only_wake = polled.size() - 1;
  while (Wait(0, -1)) {
    for (nfds_t i = 0; i < only_wake; ++i) {
      if (polled[i].revents == 0 || AcceptAll(polled[i].fd) == Next::kWaitForConnection) continue;
      if (!Wait(only_wake, static_cast<int>(kBackOff.count()))) return;
    }
  }
}

ConnectionAcceptor::Impl::Next ConnectionAcceptor::Impl::AcceptAll(int listener) {
  bool may_wait = true;
  while (!stopping) {
    // Before accepting: until then a connection waits in the system's queue.
    const bool has_place = HasPlace(may_wait);
    may_wait = may_wait && has_place;
    const int connection = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection >= 0 && !has_place) {
      Refuse(connection, "--max_connections are open");
    } else if (connection >= 0) {
      {
        const MutexLock lock(mutex);
        open_connections.Add(connection);
      }
      handler(listener, connection);
    } else if (errno == EMFILE || errno == ENFILE) {
      if (!RefuseWithoutDescriptor(listener)) return Next::kBackOff;
    } else if (errno == EAGAIN) {
      break;
    } else if (errno == ENOBUFS || errno == ENOMEM) {
      return Next::kBackOff;
    }
    // Any other error belongs to a connection that is gone already.
  }
  return Next::kWaitForConnection;
}

// Where all places were taken a moment ago: waits until it may look again, or says no.
bool ConnectionAcceptor::Impl::HasPlace(bool wait) {
  {
    const MutexLock lock(mutex);
    if (open_connections.count() < max_connections) return true;
  }
  const auto since_sweep = steady_clock::now() - last_sweep;
  if (since_sweep < kSweepInterval) {
    if (!wait) return false;
    std::this_thread::sleep_for(kSweepInterval - since_sweep);
  }
  const MutexLock lock(mutex);
  open_connections.Sweep();
  last_sweep = steady_clock::now();
  return open_connections.count() < max_connections;
}

bool ConnectionAcceptor::Impl::RefuseWithoutDescriptor(int listener) {
  if (reserve >= 0) close(reserve);
  const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (connection >= 0) Refuse(connection, "no file descriptor is free");
  reserve = OpenReserve();
  return connection >= 0 && reserve >= 0;
}

void ConnectionAcceptor::Impl::Refuse(int connection, const char* why) {
  std::int64_t total = 0;
  {
    const MutexLock lock(mutex);
    total = ++refused;
  }
  close(connection);
  if (!log_gate.Admit(steady_clock::now())) return;
  Log(LogLevel::kWarn, "connections are refused", {{"why", why}, {"refused", total}});
}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Start(
    ListeningSockets sockets, std::int64_t max_connections, Handler handler) {
  auto impl = std::make_unique<Impl>(std::move(sockets), max_connections, std::move(handler));
  if (impl->wake < 0 || impl->reserve < 0) {
    return absl::UnavailableError("no file descriptor is free");
  }
  impl->thread = std::thread([raw = impl.get()] { raw->Run(); });
  return std::unique_ptr<ConnectionAcceptor>(new ConnectionAcceptor(std::move(impl)));
}

ConnectionAcceptor::ConnectionAcceptor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ConnectionAcceptor::~ConnectionAcceptor() { Stop(); }

void ConnectionAcceptor::Stop() {
  if (!impl_->thread.joinable()) return;
  impl_->stopping = true;
  eventfd_write(impl_->wake, 1);
  impl_->thread.join();
  impl_->sockets.reset();
}

void ConnectionAcceptor::CutOff() {
  const MutexLock lock(impl_->mutex);
  impl_->open_connections.ShutDown();
}

ConnectionAcceptor::Counts ConnectionAcceptor::counts() const {
  const MutexLock lock(impl_->mutex);
  impl_->open_connections.Sweep();
  return {impl_->open_connections.count(), impl_->refused};
}

}  // namespace attnd
