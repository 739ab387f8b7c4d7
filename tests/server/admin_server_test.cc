#include "server/admin_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http_lobby.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

// A TCP connection to the port on which the test sends and reads bytes itself.
class RawConnection {
 public:
  explicit RawConnection(int port, int receive_buffer_bytes = 0)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof receive_buffer_bytes);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~RawConnection() { close(socket_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool Send(const std::string& text) {
    return send(socket_, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  // Everything until the peer closes.
  std::string ReadAll() {
    std::string all;
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(socket_, buffer, sizeof buffer, 0)) > 0;) {
      all.append(buffer, static_cast<std::size_t>(n));
    }
    return all;
  }

 private:
  const int socket_;
};

class AdminServerTest : public ::testing::Test {
 protected:
  void Start(milliseconds io_timeout = milliseconds(2000), int num_threads = 8) {
    AdminOptions options;
    options.listen = "127.0.0.1:0";
    options.io_timeout = io_timeout;
    options.num_threads = num_threads;
    AdminCallbacks callbacks;
    callbacks.metrics_text = [this] { return metrics_text_; };
    callbacks.readiness = [this] {
      return ready_ ? AdminCallbacks::Readiness{true, ""}
                    : AdminCallbacks::Readiness{false, "self-test has not passed"};
    };
    callbacks.begin_drain = [this] { ++drains_; };
    callbacks.status_json = [] { return std::string(R"({"time":1})"); };
    auto server = AdminServer::Start(options, std::move(callbacks));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_read_timeout(10);
    return client;
  }

  std::string metrics_text_ = "# HELP a A.\n# TYPE a gauge\na 1\n";
  std::atomic<bool> ready_{true};
  std::atomic<int> drains_{0};
  std::unique_ptr<AdminServer> server_;
};

TEST_F(AdminServerTest, TellsTheRealPort) {
  Start();
  EXPECT_GT(server_->port(), 0);
  EXPECT_EQ(server_->address(), "127.0.0.1:" + std::to_string(server_->port()));
}

TEST_F(AdminServerTest, ServesMetricsWithTheirContentType) {
  Start();
  const auto answer = Client().Get("/metrics");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, metrics_text_);
  EXPECT_EQ(answer->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
}

TEST_F(AdminServerTest, SpendsNoTimeOnCompression) {
  metrics_text_ = std::string(100'000, '#') + "\n";
  Start();
  const auto answer =
      Client().Get("/metrics", httplib::Headers{{"Accept-Encoding", "br, gzip, deflate"}});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->get_header_value("Content-Encoding"), "");
  EXPECT_EQ(answer->get_header_value("Content-Length"), "100001");
  EXPECT_EQ(answer->body, metrics_text_);
  EXPECT_EQ(Client().Head("/metrics")->get_header_value("Content-Length"), "100001");
}

// The library's own ranges read memory behind the page.
TEST_F(AdminServerTest, ARangeIsAnsweredWithTheWholePage) {
  Start();
  EXPECT_EQ(Client().Head("/metrics")->get_header_value("Accept-Ranges"), "none");
  for (const char* path : {"/metrics", "/statusz", "/healthz"}) {
    const std::string whole = Client().Get(path)->body;
    for (const char* range : {"0-10", "-5", "0-99999", "100000-", "99998-99999", "0-1,3-4"}) {
      const auto answer =
          Client().Get(path, httplib::Headers{{"Range", std::string("bytes=") + range}});
      ASSERT_TRUE(answer) << path << " " << range;
      EXPECT_EQ(answer->status, 200) << path << " " << range;
      EXPECT_EQ(answer->body, whole) << path << " " << range;
      EXPECT_FALSE(answer->has_header("Content-Range")) << path << " " << range;
    }
  }
}

TEST_F(AdminServerTest, SaysSoWhenMetricsAreMissing) {
  metrics_text_.clear();
  Start();
  EXPECT_EQ(Client().Get("/metrics")->status, 500);
}

TEST_F(AdminServerTest, IsReadyOnlyWhileServing) {
  Start();
  ready_ = false;
  const auto refused = Client().Get("/readyz");
  EXPECT_EQ(refused->status, 503);
  EXPECT_THAT(refused->body, HasSubstr("self-test has not passed"));
  EXPECT_EQ(Client().Get("/healthz")->status, 200);
  ready_ = true;
  EXPECT_EQ(Client().Get("/readyz")->status, 200);
}

TEST_F(AdminServerTest, ServesThePageAndItsData) {
  Start();
  const auto page = Client().Get("/statusz");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_THAT(page->body, ::testing::StartsWith("<!doctype html>"));
  EXPECT_THAT(page->body, ::testing::EndsWith("</html>\n"));
  const auto data = Client().Get("/statusz.json");
  EXPECT_EQ(data->get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(data->body, R"({"time":1})");
}

// It works without a network, and what a page of another site asks stays unanswered by the browser.
TEST_F(AdminServerTest, ThePageAsksNobodyElse) {
  Start();
  const auto page = Client().Get("/statusz");
  const std::string policy = page->get_header_value("Content-Security-Policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, HasSubstr("connect-src 'self'"));
  EXPECT_EQ(page->get_header_value("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(page->get_header_value("Access-Control-Allow-Origin"), "");
  EXPECT_THAT(page->body, ::testing::Not(HasSubstr("https:")));
}

TEST_F(AdminServerTest, DrainsByPostOnly) {
  Start();
  const auto refused = Client().Get("/drain");
  EXPECT_EQ(refused->status, 405);
  EXPECT_EQ(refused->get_header_value("Allow"), "POST");
  EXPECT_EQ(Client().Put("/drain", "", "text/plain")->status, 405);
  EXPECT_EQ(drains_, 0);
  EXPECT_EQ(Client().Post("/drain")->status, 202);
  EXPECT_EQ(Client().Post("/drain", "a body nobody reads", "text/plain")->status, 202);
  EXPECT_EQ(drains_, 2);
}

TEST_F(AdminServerTest, DrainsByAPostWithoutALengthAtOnce) {
  Start();
  RawConnection connection(server_->port());
  ASSERT_TRUE(connection.Send("POST /drain HTTP/1.1\r\nHost: x\r\n\r\n"));
  const auto start = steady_clock::now();
  const std::string answer = connection.ReadAll();
  EXPECT_THAT(answer, HasSubstr("202"));
  EXPECT_LT(steady_clock::now() - start, milliseconds(1500));
}

TEST_F(AdminServerTest, RefusesADrainFromAWebPage) {
  Start();
  const auto refused = Client().Post("/drain", httplib::Headers{{"Origin", "http://example.com"}});
  EXPECT_EQ(refused->status, 403);
  EXPECT_EQ(drains_, 0);
}

TEST_F(AdminServerTest, ListsItsPagesAndRefusesOthers) {
  Start();
  EXPECT_THAT(Client().Get("/")->body, HasSubstr("/metrics"));
  EXPECT_EQ(Client().Get("/metrics/x")->status, 404);
  EXPECT_EQ(Client().Get("/../etc/passwd")->status, 404);
  EXPECT_EQ(Client().Post("/metrics")->status, 405);
  EXPECT_EQ(Client().Head("/healthz")->status, 200);
}

TEST_F(AdminServerTest, AnswersAnErrorWhenACallbackThrows) {
  AdminCallbacks callbacks;
  callbacks.metrics_text = []() -> std::string { throw std::runtime_error("secret"); };
  AdminOptions options;
  options.listen = "127.0.0.1:0";
  auto server = AdminServer::Start(options, std::move(callbacks));
  ASSERT_TRUE(server.ok());
  httplib::Client client("127.0.0.1", (*server)->port());
  const auto answer = client.Get("/metrics");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 500);
  EXPECT_EQ(answer->body, "internal error\n");
}

TEST_F(AdminServerTest, SurvivesGarbage) {
  Start(milliseconds(300));
  for (const std::string garbage :
       {"\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01\x02", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}) {
    RawConnection connection(server_->port());
    connection.Send(garbage);
    connection.ReadAll();
  }
  EXPECT_EQ(Client().Get("/healthz")->status, 200);
}

TEST_F(AdminServerTest, NamesATakenPort) {
  Start();
  AdminOptions options;
  options.listen = server_->address();
  const auto second = AdminServer::Start(options, {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().ToString(), HasSubstr(server_->address()));
  EXPECT_THAT(second.status().ToString(), HasSubstr("Address already in use"));
}

TEST_F(AdminServerTest, NamesAnAddressThatIsNotOfThisMachine) {
  AdminOptions options;
  options.listen = "192.0.2.1:0";  // reserved for documentation
  const auto server = AdminServer::Start(options, {});
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.status().ToString(), HasSubstr("192.0.2.1"));
  EXPECT_THAT(server.status().ToString(), HasSubstr("Cannot assign requested address"));
}

TEST_F(AdminServerTest, RefusesAddressesItCannotServe) {
  for (const char* listen :
       {"", "8002", "unix:/tmp/admin", "127.0.0.1:99999", "no.such.host.invalid:0"}) {
    AdminOptions options;
    options.listen = listen;
    EXPECT_FALSE(AdminServer::Start(options, {}).ok()) << listen;
  }
}

TEST_F(AdminServerTest, DoesNotShareThePortWithSomeoneWhoWould) {
  Start();
  const int intruder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(intruder, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_NE(bind(intruder, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(intruder);
}

TEST_F(AdminServerTest, StartsAgainAtOnceOnAPortWithOldConnections) {
  for (int round = 0; round < 5; ++round) {
    Start();
    EXPECT_EQ(Client().Get("/healthz")->status, 200);
    const std::string address = server_->address();
    // The server closes first, so the port has a connection in TIME_WAIT.
    server_.reset();
    AdminOptions options;
    options.listen = address;
    const auto again = AdminServer::Start(options, {});
    EXPECT_TRUE(again.ok()) << again.status();
  }
}

TEST_F(AdminServerTest, CutsASilentConnection) {
  Start(milliseconds(300));
  RawConnection silent(server_->port());
  const auto start = steady_clock::now();
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_LT(steady_clock::now() - start, milliseconds(2500));
}

TEST_F(AdminServerTest, CutsAConnectionThatSendsByteByByte) {
  Start(milliseconds(400));
  RawConnection slow(server_->port());
  const auto start = steady_clock::now();
  const std::string request = "GET /metrics HTTP/1.1\r\nX: " + std::string(1000, 'x');
  for (const char byte : request) {
    if (!slow.Send(std::string(1, byte))) break;
    std::this_thread::sleep_for(milliseconds(50));
    if (steady_clock::now() - start > milliseconds(5000)) break;
  }
  EXPECT_LT(steady_clock::now() - start, milliseconds(3000));
}

TEST_F(AdminServerTest, ServesOthersWhileScrapersAreSlowOrSilentAndCutsThem) {
  metrics_text_ = std::string(16 << 20, '#') + "\n";  // more than socket buffers hold
  Start(milliseconds(1000), /*num_threads=*/4);
  RawConnection silent(server_->port());
  RawConnection slow(server_->port(), /*receive_buffer_bytes=*/4096);
  ASSERT_TRUE(slow.Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
  for (int i = 0; i < 10; ++i) {
    const auto start = steady_clock::now();
    EXPECT_EQ(Client().Get("/healthz")->status, 200);
    EXPECT_LT(steady_clock::now() - start, milliseconds(800));  // below the slow one's limit
  }
  std::this_thread::sleep_for(milliseconds(1200));
  EXPECT_LT(slow.ReadAll().size(), metrics_text_.size());
}

TEST_F(AdminServerTest, ServesMoreConnectionsThanThreadsAndQueueOnceSilentOnesAreCut) {
  Start(milliseconds(200), /*num_threads=*/2);
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(std::make_unique<RawConnection>(server_->port()));
  EXPECT_EQ(Client().Get("/healthz")->status, 200);
}

// Silent ones, and those that have sent half a request.
TEST_F(AdminServerTest, HalfOpenConnectionsDelayNobody) {
  Start(milliseconds(60'000), /*num_threads=*/1);
  std::vector<std::unique_ptr<RawConnection>> half_open;
  const auto connect = steady_clock::now();
  for (int i = 0; i < 50; ++i) {
    half_open.push_back(std::make_unique<RawConnection>(server_->port()));
    if (i % 2 == 0) {
      EXPECT_TRUE(half_open.back()->Send("GET /healthz HTTP/1.1\r\nHost: x"));
    }
  }
  EXPECT_LT(steady_clock::now() - connect, milliseconds(1000)) << "a SYN was sent twice";
  for (int i = 0; i < 10; ++i) {
    const auto start = steady_clock::now();
    EXPECT_EQ(Client().Get("/healthz")->status, 200);
    EXPECT_EQ(Client().Get("/metrics")->status, 200);
    EXPECT_LT(steady_clock::now() - start, milliseconds(2000));
  }
  ASSERT_TRUE(half_open.front()->Send("\r\n\r\n"));
  EXPECT_THAT(half_open.front()->ReadAll(), HasSubstr("200"));
}

TEST_F(AdminServerTest, BeyondTheLimitTheOldestSilentConnectionIsClosed) {
  Start(milliseconds(60'000));
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (std::size_t i = 0; i < HttpLobby::kMaxConnections + 10; ++i) {
    silent.push_back(std::make_unique<RawConnection>(server_->port()));
  }
  const auto start = steady_clock::now();
  EXPECT_EQ(silent.front()->ReadAll(), "");
  EXPECT_EQ(Client().Get("/healthz")->status, 200);
  ASSERT_TRUE(silent.back()->Send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_THAT(silent.back()->ReadAll(), HasSubstr("200"));
  EXPECT_LT(steady_clock::now() - start, milliseconds(10'000));
}

TEST_F(AdminServerTest, ScrapersThatDoNotReadHoldNoThread) {
  metrics_text_ = std::string(200'000, '#') + "\n";
  Start(milliseconds(60'000), /*num_threads=*/1);
  std::vector<std::unique_ptr<RawConnection>> unread;
  for (int i = 0; i < 20; ++i) {
    unread.push_back(std::make_unique<RawConnection>(server_->port(), 4096));
    ASSERT_TRUE(unread.back()->Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
  }
  const auto start = steady_clock::now();
  EXPECT_EQ(Client().Get("/metrics")->body, metrics_text_);
  EXPECT_LT(steady_clock::now() - start, milliseconds(10'000));
}

TEST_F(AdminServerTest, RefusesAnEndlessHead) {
  Start(milliseconds(60'000));
  RawConnection endless(server_->port());
  ASSERT_TRUE(endless.Send("GET / HTTP/1.1\r\nX: " + std::string(HttpLobby::kMaxHeadBytes, 'x')));
  const auto start = steady_clock::now();
  EXPECT_EQ(endless.ReadAll(), "");
  EXPECT_LT(steady_clock::now() - start, milliseconds(10'000));
}

TEST_F(AdminServerTest, StopsAtOnceDespiteSilentConnections) {
  Start(milliseconds(60'000));
  RawConnection silent(server_->port());
  EXPECT_EQ(Client().Get("/healthz")->status, 200);
  const auto start = steady_clock::now();
  server_->Stop();
  server_->Stop();
  EXPECT_LT(steady_clock::now() - start, milliseconds(5000));
  EXPECT_FALSE(Client().Get("/healthz"));
}

TEST_F(AdminServerTest, StartsAndStopsWithoutARequest) {
  for (int i = 0; i < 20; ++i) {
    Start();
    server_.reset();
  }
}

TEST_F(AdminServerTest, AnswersManyScrapersAtOnce) {
  Start();
  std::vector<std::thread> scrapers;
  std::atomic<int> good{0};
  for (int i = 0; i < 16; ++i) {
    scrapers.emplace_back([this, &good] {
      for (int round = 0; round < 20; ++round) {
        const auto answer = Client().Get("/metrics");
        if (answer && answer->body == metrics_text_) ++good;
      }
    });
  }
  for (std::thread& scraper : scrapers) scraper.join();
  EXPECT_EQ(good, 320);
}

}  // namespace
}  // namespace attnd
