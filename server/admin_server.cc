#include "server/admin_server.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <iterator>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/bind_failure.h"
#include "server/http_connection.h"
#include "server/http_lobby.h"
#include "server/listen_address.h"
#include "server/status_page.h"

namespace attnd {
namespace {

// Short answers fit into a socket's buffer: their threads never wait for a peer.
constexpr int kShortAnswerThreads = 2;
constexpr int kBacklog = 128;
constexpr int kSendBufferBytes = 512 * 1024;
constexpr std::chrono::milliseconds kRebindInterval{100};
constexpr std::chrono::milliseconds kStopInterval{1};
constexpr char kPlainText[] = "text/plain; charset=utf-8";
constexpr char kExpositionText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kHtml[] = "text/html; charset=utf-8";
constexpr char kJson[] = "application/json";
// The page brings everything along and asks its own server only.
constexpr char kPagePolicy[] =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'";
constexpr std::string_view kPaths[] = {"/",        "/statusz", "/statusz.json", "/metrics",
                                       "/healthz", "/readyz",  "/drain"};
constexpr char kIndex[] =
    "attnd admin port\n"
    "\n"
    "GET  /statusz       the server at a glance, for a browser\n"
    "GET  /statusz.json  what that page shows\n"
    "GET  /metrics       Prometheus metrics\n"
    "GET  /healthz       200 while the process lives\n"
    "GET  /readyz        200 while requests are served, also while retiring, else 503 and why\n"
    "POST /drain         begin to retire: no new sequences; those that live go on\n";

// The library's default shares the port with any other process that asks for it (SO_REUSEPORT).
// SO_REUSEADDR only lets a restart pass over connections in TIME_WAIT. Connections inherit the send
// buffer, which takes a whole page: a scraper that reads slowly then holds no thread.
void ListenSocketOptions(socket_t socket) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
}

// Connections are taken into the lobby on the accepting thread.
class RunAtOnce final : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> job) override { job(); }
  void shutdown() override {}
};

// Answers of up to a few hundred KiB.
bool AsksForAPage(std::string_view head) {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  return line.find(" /metrics") != std::string_view::npos ||
         line.find(" /statusz") != std::string_view::npos;
}

void Answer(httplib::Response& response, int status, const std::string& text) {
  response.status = status;
  response.set_header("Accept-Ranges", "none");
  response.set_content(text, kPlainText);
}

// Through a content provider: a plain body would be compressed for whoever accepts it, and Brotli
// as the library sets it takes a quarter of a second of a core that kernels need for 100 KB.
void AnswerLong(httplib::Response& response, std::string content, const char* type) {
  response.status = 200;
  response.set_header("Accept-Ranges", "none");
  const auto text = std::make_shared<const std::string>(std::move(content));
  response.set_content_provider(
      text->size(), type, [text](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
        return sink.write(text->data() + offset, length);
      });
}

void AnswerMetrics(httplib::Response& response, std::string metrics_text) {
  if (metrics_text.empty()) return Answer(response, 500, "metrics are not available\n");
  AnswerLong(response, std::move(metrics_text), kExpositionText);
}

void AnswerStatus(httplib::Response& response, std::string content, const char* type) {
  response.set_header("Content-Security-Policy", kPagePolicy);
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Cache-Control", "no-store");
  AnswerLong(response, std::move(content), type);
}

}  // namespace

struct AdminServer::Impl final : httplib::Server {
  Impl(AdminOptions admin_options, ListenAddress listen_address, AdminCallbacks admin_callbacks)
      : options(std::move(admin_options)),
        address(std::move(listen_address)),
        callbacks(std::move(admin_callbacks)),
        short_answers(kShortAnswerThreads),
        pages(options.num_threads),
        lobby([this](int socket, HttpLobby::TimePoint deadline, std::string_view head) {
          ConnectionWorkers& workers = AsksForAPage(head) ? pages : short_answers;
          workers.Enqueue([this, socket, deadline] { Serve(socket, deadline); });
        }) {
    set_socket_options(ListenSocketOptions);
    new_task_queue = [] { return new RunAtOnce; };
    // Before routing, that is before a body is read: a POST without a length would otherwise be
    // read until the peer closes.
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      Route(request, response);
      return HandlerResponse::Handled;
    });
    set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
          Answer(response, 500, "internal error\n");
        });
  }

  void Route(const httplib::Request& request, httplib::Response& response);
  bool process_and_close_socket(socket_t socket) override;
  absl::Status Open();
  void Serve(int socket, HttpLobby::TimePoint deadline);
  void LengthenBacklog();
  void AcceptUntilStopped();
  void StopAccepting();

  const AdminOptions options;
  ListenAddress address;
  const AdminCallbacks callbacks;
  std::atomic<bool> stopping{false};
  std::atomic<bool> accept_ended{false};
  std::once_flag stop_once;
  ConnectionWorkers short_answers, pages;
  HttpLobby lobby;
  std::thread accept_thread;
};

void AdminServer::Impl::Route(const httplib::Request& request, httplib::Response& response) {
  const std::string& path = request.path;
  const bool is_drain = path == "/drain";
  if (std::find(std::begin(kPaths), std::end(kPaths), path) == std::end(kPaths)) {
    return Answer(response, 404, "not found; / lists what is here\n");
  }
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (is_drain ? request.method != "POST" : !reads) {
    response.set_header("Allow", is_drain ? "POST" : "GET, HEAD");
    return Answer(response, 405, absl::StrCat("use ", is_drain ? "POST" : "GET", " ", path, "\n"));
  }
  if (is_drain) {
    // Browsers send Origin with every cross-site POST: a web page must not drain a local server.
    if (request.has_header("Origin")) return Answer(response, 403, "not from a web page\n");
    callbacks.begin_drain();
    return Answer(response, 202, "draining\n");
  }
  if (path == "/") return Answer(response, 200, kIndex);
  if (path == "/healthz") return Answer(response, 200, "ok\n");
  if (path == "/metrics") return AnswerMetrics(response, callbacks.metrics_text());
  if (path == "/statusz") return AnswerStatus(response, std::string(StatusPage()), kHtml);
  if (path == "/statusz.json") return AnswerStatus(response, callbacks.status_json(), kJson);
  const AdminCallbacks::Readiness readiness = callbacks.readiness();
  Answer(response, readiness.ready ? 200 : 503,
         readiness.ready ? "ready\n" : absl::StrCat("not ready: ", readiness.reason, "\n"));
}

bool AdminServer::Impl::process_and_close_socket(socket_t socket) {
  lobby.Enter(socket, std::chrono::steady_clock::now() + options.io_timeout);
  return true;
}

void AdminServer::Impl::Serve(int socket, HttpLobby::TimePoint deadline) {
  DeadlineStream stream(socket, deadline, stopping);
  bool closed = false;
  // The library would serve ranges of a page, and read past its end for one that goes on there.
  const auto whole = [](httplib::Request& request) { request.ranges.clear(); };
  if (process_request(stream, /*close_connection=*/true, closed, whole)) {
    return lobby.Linger(socket, deadline);
  }
  close(socket);
  lobby.Gone();
}

absl::Status AdminServer::Impl::Open() {
  const bool any_port = address.port == 0;
  const int port = any_port ? bind_to_any_port(address.host)
                            : (bind_to_port(address.host, address.port) ? address.port : -1);
  if (port <= 0) {
    return absl::UnavailableError(absl::StrCat("admin port: cannot listen on ", address.ToString(),
                                               ": ", BindFailure(address)));
  }
  address.port = port;
  LengthenBacklog();
  if (absl::Status status = lobby.Start(); !status.ok()) return status;
  accept_thread = std::thread([this] { AcceptUntilStopped(); });
  return absl::OkStatus();
}

// The library's is 5: the sixth peer that connects at once would try again after a second.
void AdminServer::Impl::LengthenBacklog() {
  if (svr_sock_ != INVALID_SOCKET) ::listen(svr_sock_, kBacklog);
}

void AdminServer::Impl::AcceptUntilStopped() {
  // A signal that interrupted accept() would end the library's loop.
  sigset_t all_signals;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_BLOCK, &all_signals, nullptr);
  while (!stopping.load()) {
    listen_after_bind();
    // Not stopped: accept() failed (a network error that belongs to a peer is enough), and the
    // library has closed the port.
    while (!stopping.load() && !bind_to_port(address.host, address.port)) {
      std::this_thread::sleep_for(kRebindInterval);
    }
    LengthenBacklog();
  }
  accept_ended.store(true);
}

void AdminServer::Impl::StopAccepting() {
  stopping.store(true);
  // The library's stop() has no effect before its loop runs, and must not be called twice.
  while (!accept_ended.load()) {
    if (is_running() && svr_sock_ != INVALID_SOCKET) stop();
    std::this_thread::sleep_for(kStopInterval);
  }
  accept_thread.join();
  lobby.Stop();
  short_answers.Shutdown();
  pages.Shutdown();
}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const AdminOptions& options,
                                                                AdminCallbacks callbacks) {
  absl::StatusOr<ListenAddress> address = ParseListenAddress(options.listen);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("admin port: ", address.status().message()));
  }
  if (!address->unix_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("admin port: got ", options.listen, ", need host:port"));
  }
  auto impl = std::make_unique<Impl>(options, *std::move(address), std::move(callbacks));
  if (absl::Status status = impl->Open(); !status.ok()) return status;
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

AdminServer::AdminServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

AdminServer::~AdminServer() { Stop(); }

int AdminServer::port() const { return impl_->address.port; }

std::string AdminServer::address() const { return impl_->address.ToString(); }

void AdminServer::Stop() {
  std::call_once(impl_->stop_once, [this] { impl_->StopAccepting(); });
}

}  // namespace attnd
