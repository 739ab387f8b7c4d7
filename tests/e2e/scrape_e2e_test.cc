// Scrapes that neither block requests nor are blocked by them, whatever scrapers and the device do.
#include <arpa/inet.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/exposition_parser.h"
#include "tests/support/local_server.h"

namespace attnd {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::AttendRequestOf;
using testing::Exposition;
using testing::LocalServer;
using testing::ParseExposition;

Exposition Scrape(const AttndServer& server) {
  httplib::Client client("127.0.0.1", server.admin_port());
  const auto answer = client.Get("/metrics");
  EXPECT_TRUE(answer);
  if (!answer) return {};
  Exposition page = ParseExposition(answer->body);
  EXPECT_EQ(page.errors, std::vector<std::string>{});
  return page;
}

grpc::Status Attend(const LocalServer& local) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(30));
  v1::AttendResponse response;
  return local.stub->Attend(&context, AttendRequestOf(1, 4, 1), &response);
}

class ScrapeE2eTest : public ::testing::Test {
 protected:
  // A scraper that asks and then does not read, or does not even ask.
  struct StuckScraper {
    StuckScraper(int port, bool asks) : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
      const int receive_buffer_bytes = 2048;
      setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<std::uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      EXPECT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
      if (asks) {
        EXPECT_EQ(send(socket, request.data(), request.size(), 0),
                  static_cast<ssize_t>(request.size()));
      }
    }
    ~StuckScraper() { close(socket); }
    StuckScraper(const StuckScraper&) = delete;
    StuckScraper& operator=(const StuckScraper&) = delete;
    const int socket;
  };

  LocalServer local_;
};

TEST_F(ScrapeE2eTest, IsAnsweredWhileTheDeviceHangs) {
  local_.backend.Hold();
  auto first = std::async(std::launch::async, [this] { return Attend(local_); });
  local_.backend.AwaitBatches(1);
  const auto start = steady_clock::now();
  EXPECT_EQ(Scrape(*local_.server).Value("attnd_running_requests"), 1);
  EXPECT_LT(steady_clock::now() - start, seconds(2));
  local_.backend.Release();
  EXPECT_TRUE(first.get().ok());
}

TEST_F(ScrapeE2eTest, NeitherDelaysNorFailsRequestsWhateverScrapersDo) {
  std::atomic<bool> stop{false};
  std::atomic<int> bad{0};
  std::atomic<int> good{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back([&] {
      while (!stop.load()) ++(Attend(local_).ok() ? good : bad);
    });
  }
  const StuckScraper silent(local_.server->admin_port(), false);
  const StuckScraper unread(local_.server->admin_port(), true);
  for (int scrape = 0; scrape < 20; ++scrape) {
    const int before = good.load();
    const auto start = steady_clock::now();
    EXPECT_GE(Scrape(*local_.server).Sum("attnd_requests_total"), before);
    EXPECT_LT(steady_clock::now() - start, seconds(1));
    const auto give_up = start + seconds(10);
    while (good.load() == before && steady_clock::now() < give_up) std::this_thread::yield();
    EXPECT_GT(good.load(), before);
  }
  stop.store(true);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(bad, 0);
}

}  // namespace
}  // namespace attnd
