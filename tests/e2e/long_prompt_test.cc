// A long prompt beside a running generation, in wall time. That decode steps go between the
// prompt's chunks is shown by counting in scheduler_test; here is what a user sees: how much of its
// rate the generation keeps (wanted: a quarter), its longest step (a chunk and 50 ms), and how much
// longer the prompt takes (twice). Medians; the figures are printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/local_server.h"

namespace attnd::testing {
namespace {

using std::chrono::steady_clock;

constexpr int kHeads = 8, kKvHeads = 2, kDim = 128;
constexpr std::int64_t kPrompt = 4'096;
constexpr std::uint16_t kHalf = 0x3F00;  // 0.5 in BF16

double Seconds(steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Fill(v1::Tensor& tensor, std::int64_t tokens, int heads) {
  const std::vector<std::uint16_t> values(tokens * heads * kDim, kHalf);
  tensor.set_data_type(v1::DATA_TYPE_BF16);
  for (const std::int64_t size : {tokens, std::int64_t{heads}, std::int64_t{kDim}}) {
    tensor.add_shape(size);
  }
  tensor.set_data(values.data(), values.size() * sizeof(std::uint16_t));
}

v1::DecodeRequest StepOf(const std::string& id, std::int64_t position, std::int64_t tokens) {
  v1::DecodeRequest request;
  v1::Step& step = *request.add_steps();
  step.set_sequence_id(id);
  step.set_position(position);
  step.set_num_tokens(static_cast<std::int32_t>(tokens));
  Fill(*request.mutable_q(), tokens, kHeads);
  Fill(*request.mutable_k(), tokens, kKvHeads);
  Fill(*request.mutable_v(), tokens, kKvHeads);
  return request;
}

std::string Create(LocalServer& local) {
  v1::CreateSequenceRequest request;
  request.set_num_layers(1);
  request.set_num_heads(kHeads);
  request.set_num_kv_heads(kKvHeads);
  request.set_head_dim(kDim);
  request.set_data_type(v1::DATA_TYPE_BF16);
  grpc::ClientContext context;
  v1::CreateSequenceResponse response;
  EXPECT_TRUE(local.stub->CreateSequence(&context, request, &response).ok());
  return response.sequence_id();
}

// Every value is 0.5, so every answer is.
void ExpectHalves(const v1::Tensor& o, std::int64_t tokens) {
  ASSERT_EQ(o.data().size(), static_cast<std::size_t>(tokens * kHeads * kDim) * 2);
  const auto* values = reinterpret_cast<const std::uint16_t*>(o.data().data());
  EXPECT_TRUE(std::all_of(values, values + tokens * kHeads * kDim,
                          [](std::uint16_t value) { return value == kHalf; }));
}

double PrefillSeconds(LocalServer& local) {
  const auto request = StepOf(Create(local), 0, kPrompt);
  const auto begin = steady_clock::now();
  grpc::ClientContext context;
  v1::DecodeResponse response;
  const auto status = local.stub->Decode(&context, request, &response);
  const double seconds = Seconds(steady_clock::now() - begin);
  EXPECT_TRUE(status.ok()) << status.error_message();
  ExpectHalves(response.o(), kPrompt);
  return seconds;
}

// One step after the other.
class Generation {
 public:
  explicit Generation(LocalServer& local) : local_(local), id_(Create(local)) {
    grpc::ClientContext context;
    v1::DecodeResponse response;
    EXPECT_TRUE(local.stub->Decode(&context, StepOf(id_, 0, kPrompt), &response).ok());
  }
  struct Pace {
    double steps_per_second = 0, longest_step = 0;
  };
  template <typename Condition>
  Pace RunWhile(Condition condition) {
    Pace pace;
    const auto begin = steady_clock::now();
    int steps = 0;
    while (condition()) {
      const auto step_begin = steady_clock::now();
      grpc::ClientContext context;
      v1::DecodeResponse response;
      // Overwrites one token, so that every step has as much to read.
      auto request = StepOf(id_, kPrompt, 1);
      request.mutable_steps(0)->set_epoch(++epoch_);
      EXPECT_TRUE(local_.stub->Decode(&context, request, &response).ok());
      ExpectHalves(response.o(), 1);
      pace.longest_step = std::max(pace.longest_step, Seconds(steady_clock::now() - step_begin));
      ++steps;
    }
    pace.steps_per_second = steps / Seconds(steady_clock::now() - begin);
    return pace;
  }

 private:
  LocalServer& local_;
  const std::string id_;
  std::uint64_t epoch_ = 0;
};

TEST(LongPromptTest, AGenerationGoesOnBesideALongPrompt) {
  ServerConfig config = SmallConfig();
  config.threads = 2;
  LocalServer local(config);
  Generation generation(local);
  PrefillSeconds(local);  // warm: the rate of such prompts is known
  std::vector<double> rate, longest, prompt;
  for (int round = 0; round < 5; ++round) {
    const double alone = PrefillSeconds(local);
    const auto until = steady_clock::now() + std::chrono::milliseconds(300);
    const auto undisturbed = generation.RunWhile([until] { return steady_clock::now() < until; });
    std::atomic<bool> ended{false};
    double beside = 0;
    std::thread prefill([&] {
      beside = PrefillSeconds(local);
      ended = true;
    });
    const auto disturbed = generation.RunWhile([&ended] { return !ended; });
    prefill.join();
    rate.push_back(disturbed.steps_per_second / undisturbed.steps_per_second);
    longest.push_back(disturbed.longest_step);
    prompt.push_back(beside / alone);
  }
  std::printf("rate x %.2f, longest step %.0f ms, prompt x %.2f\n", Median(rate),
              Median(longest) * 1e3, Median(prompt));
  EXPECT_GE(Median(rate), 0.25);
  const double chunk_seconds = std::chrono::duration<double>(config.prefill_chunk_time).count();
  EXPECT_LE(Median(longest), chunk_seconds + 0.05);
  EXPECT_LE(Median(prompt), 2);
}

}  // namespace
}  // namespace attnd::testing
