// What scraping costs requests, in wall time. The figures are those of a quiet machine (3 % of
// throughput, 10 % of p99, 100 ms a scrape); five times that is allowed here.
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/local_server.h"
#include "tests/support/raw_connection.h"

namespace attnd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr double kAllowance = 5;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Load {
  double calls_per_second = 0, p99_seconds = 0;
};

// Two callers, as fast as they are answered.
Load Saturate(LocalServer& local) {
  constexpr milliseconds kDuration{500};
  std::vector<std::vector<double>> latencies(2);
  std::vector<std::thread> callers;
  const auto end = steady_clock::now() + kDuration;
  for (auto& mine : latencies) {
    callers.emplace_back([&local, &mine, end] {
      const auto request = AttendRequestOf(16, 64, 1);
      while (steady_clock::now() < end) {
        const auto begin = steady_clock::now();
        grpc::ClientContext context;
        v1::AttendResponse response;
        EXPECT_TRUE(local.stub->Attend(&context, request, &response).ok());
        mine.push_back(std::chrono::duration<double>(steady_clock::now() - begin).count());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::vector<double> all = latencies[0];
  all.insert(all.end(), latencies[1].begin(), latencies[1].end());
  const auto p99 = all.begin() + static_cast<std::ptrdiff_t>(all.size() * 99 / 100);
  std::nth_element(all.begin(), p99, all.end());
  return {static_cast<double>(all.size()) / std::chrono::duration<double>(kDuration).count(), *p99};
}

// One generation on a stream of its own, step after step: p99 of its steps, in seconds.
double DecodeP99(LocalServer& local, const std::string& id) {
  constexpr milliseconds kDuration{500};
  grpc::ClientContext context;
  const auto stream = local.stub->DecodeStream(&context);
  std::vector<double> latencies;
  const auto end = steady_clock::now() + kDuration;
  while (steady_clock::now() < end) {
    // The same token again: the cache stays as it is.
    const v1::DecodeRequest request = DecodeRequestOf(id, 0, 1);
    const auto begin = steady_clock::now();
    v1::DecodeResponse response;
    if (!stream->Write(request) || !stream->Read(&response)) break;
    EXPECT_EQ(response.status().code(), 0) << response.status().message();
    latencies.push_back(std::chrono::duration<double>(steady_clock::now() - begin).count());
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  const auto p99 = latencies.begin() + static_cast<std::ptrdiff_t>(latencies.size() * 99 / 100);
  std::nth_element(latencies.begin(), p99, latencies.end());
  return *p99;
}

// Asks 20 times a second. Two more scrapers hang: one that does not ask, one that does not read.
class Scrapers {
 public:
  explicit Scrapers(int port) : silent_(port), unread_(port) {
    unread_.Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    thread_ = std::thread([this, port] {
      while (!stop_) {
        const auto begin = steady_clock::now();
        const auto page = httplib::Client("127.0.0.1", port).Get("/metrics");
        EXPECT_TRUE(page && page->status == 200);
        seconds_.push_back(std::chrono::duration<double>(steady_clock::now() - begin).count());
        std::this_thread::sleep_until(begin + milliseconds(50));
      }
    });
  }
  // How long each scrape took.
  std::vector<double> Stop() {
    stop_ = true;
    thread_.join();
    return seconds_;
  }

 private:
  RawConnection silent_, unread_;
  std::atomic<bool> stop_{false};
  std::vector<double> seconds_;
  std::thread thread_;
};

TEST(ScrapeCostTest, ScrapesCostRequestsNextToNothing) {
  LocalServer local;
  Saturate(local);  // warm
  std::vector<double> throughput, p99, scrape_seconds;
  for (int round = 0; round < 21; ++round) {  // short blocks in turn: a noisy machine hits both
    const Load quiet = Saturate(local);
    Scrapers scrapers(local.server->admin_port());
    const Load scraped = Saturate(local);
    for (const double seconds : scrapers.Stop()) scrape_seconds.push_back(seconds);
    throughput.push_back(scraped.calls_per_second / quiet.calls_per_second);
    p99.push_back(scraped.p99_seconds / quiet.p99_seconds);
  }
  RecordProperty("throughput_ratio", std::to_string(Median(throughput)));
  RecordProperty("p99_ratio", std::to_string(Median(p99)));
  RecordProperty("scrape_seconds", std::to_string(Median(scrape_seconds)));
  std::printf("throughput x %.3f, p99 x %.3f, scrape %.1f ms (worst %.1f)\n", Median(throughput),
              Median(p99), Median(scrape_seconds) * 1e3,
              *std::max_element(scrape_seconds.begin(), scrape_seconds.end()) * 1e3);
  EXPECT_GE(Median(throughput), 1 - 0.03 * kAllowance);
  EXPECT_LE(Median(p99), 1 + 0.10 * kAllowance);
  EXPECT_LE(Median(scrape_seconds), 0.1);
  EXPECT_LE(*std::max_element(scrape_seconds.begin(), scrape_seconds.end()), 0.1 * kAllowance);
  EXPECT_GT(scrape_seconds.size(), 50U);
}

// Limits of a quiet machine: 20 ms a scrape, and a p99 that scrapes do not change (10 %).
TEST(ScrapeCostTest, TenThousandSequencesMakeScrapesNoSlower) {
  constexpr int kSequences = 10'000;
  ServerConfig config = SmallConfig();
  config.cache_bytes = std::int64_t{512} << 20;
  LocalServer local(config);
  std::string id;
  for (int i = 0; i < kSequences; ++i) {
    id = local.CreateSequence();
    grpc::ClientContext context;
    v1::DecodeResponse response;
    ASSERT_TRUE(local.stub->Decode(&context, DecodeRequestOf(id, 0, 1), &response).ok());
  }
  const auto snapshot = local.server->GetSnapshot();
  ASSERT_EQ(snapshot.sequences_idle, kSequences);
  ASSERT_GE(snapshot.pages_used, kSequences) << "each of them holds a page";
  DecodeP99(local, id);  // warm
  std::vector<double> ratios, p99, scrape_seconds;
  for (int round = 0; round < 21; ++round) {
    const double quiet = DecodeP99(local, id);
    Scrapers scrapers(local.server->admin_port());
    const double scraped = DecodeP99(local, id);
    for (const double seconds : scrapers.Stop()) scrape_seconds.push_back(seconds);
    ratios.push_back(scraped / quiet);
    p99.push_back(quiet);
  }
  const double worst = *std::max_element(scrape_seconds.begin(), scrape_seconds.end());
  std::printf("p99 of a step %.0f us, x %.3f with scrapes; scrape %.2f ms (worst %.1f)\n",
              Median(p99) * 1e6, Median(ratios), Median(scrape_seconds) * 1e3, worst * 1e3);
  EXPECT_LE(Median(ratios), 1 + 0.10 * kAllowance);
  EXPECT_LE(Median(scrape_seconds), 0.02);
  EXPECT_LE(worst, 0.02 * kAllowance);
  EXPECT_GT(scrape_seconds.size(), 50U);
}

}  // namespace
}  // namespace attnd::testing
