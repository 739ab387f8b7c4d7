// The whole path on tensors that came out of a real model: what the server answers is what the
// model itself computed (tests/data/minilm_l6.safetensors, written by scripts/capture_qkv.py).
//
// The model's own output is that of a plain unfused FP32 pipeline. Correct means an error against
// float64 of at most twice that pipeline's, so both are compared with attention in float64 on the
// captured q, k, v.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "client/attention_client.h"
#include "client/safetensors.h"
#include "gtest/gtest.h"
#include "server/attnd_server.h"

namespace attnd {
namespace {

constexpr int kNumLayers = 6, kNumHeads = 12, kHeadDim = 32;

// One layer of the capture: values [token][head][dim].
struct Layer {
  client::Tensor q, k, v;
  std::vector<float> model_output;
  std::vector<double> expected;  // attention in float64
  std::int32_t tokens = 0;
};

std::size_t At(std::int32_t token, int head, int dim) {
  return (static_cast<std::size_t>(token) * kNumHeads + static_cast<std::size_t>(head)) * kHeadDim +
         static_cast<std::size_t>(dim);
}

// softmax(q k^T / sqrt(d)) v of one query row, every key visible.
void AttendRow(const Layer& layer, const std::vector<float>& q, const std::vector<float>& k,
               const std::vector<float>& v, std::int32_t token, int head,
               std::vector<double>& output) {
  std::vector<double> weights(static_cast<std::size_t>(layer.tokens));
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int32_t key = 0; key < layer.tokens; ++key) {
    double dot = 0;
    for (int d = 0; d < kHeadDim; ++d) {
      dot += double{q[At(token, head, d)]} * double{k[At(key, head, d)]};
    }
    weights[static_cast<std::size_t>(key)] = dot / std::sqrt(double{kHeadDim});
    largest = std::max(largest, weights[static_cast<std::size_t>(key)]);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (int d = 0; d < kHeadDim; ++d) {
    double total = 0;
    for (std::int32_t key = 0; key < layer.tokens; ++key) {
      total += weights[static_cast<std::size_t>(key)] * double{v[At(key, head, d)]};
    }
    output[At(token, head, d)] = total / sum;
  }
}

Layer ReadLayer(const client::Safetensors& capture, int index) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  Layer layer{.q = capture.Find(prefix + "q").value(),
              .k = capture.Find(prefix + "k").value(),
              .v = capture.Find(prefix + "v").value(),
              .model_output = client::FloatsFromTensor(capture.Find(prefix + "o").value()).value(),
              .expected = {},
              .tokens = 0};
  layer.tokens = static_cast<std::int32_t>(layer.q.shape.at(0));
  EXPECT_EQ(layer.q.shape, (std::vector<std::int64_t>{layer.tokens, kNumHeads, kHeadDim}));
  layer.expected.resize(layer.model_output.size());
  const auto q = client::FloatsFromTensor(layer.q).value();
  const auto k = client::FloatsFromTensor(layer.k).value();
  const auto v = client::FloatsFromTensor(layer.v).value();
  for (std::int32_t token = 0; token < layer.tokens; ++token) {
    for (int head = 0; head < kNumHeads; ++head) {
      AttendRow(layer, q, k, v, token, head, layer.expected);
    }
  }
  return layer;
}

double LargestError(const std::vector<float>& got, const std::vector<double>& expected) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(double{got[i]} - expected[i]);
    if (!(error <= largest)) largest = error;  // a NaN stays
  }
  return largest;
}

// Half a unit in the last place of the largest output: no FP32 output can be asked to be closer.
double Floor(const std::vector<double>& expected) {
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  return largest * std::numeric_limits<float>::epsilon() / 2;
}

class RealModelTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto capture =
        client::ReadSafetensors(std::string(ATTND_TEST_DATA) + "/minilm_l6.safetensors");
    ASSERT_TRUE(capture.ok()) << capture.status();
    for (int index = 0; index < kNumLayers; ++index) layers_.push_back(ReadLayer(*capture, index));

    ServerConfig config;
    config.listen = "127.0.0.1:0";
    config.admin_listen = "127.0.0.1:0";
    config.cache_bytes = std::int64_t{64} << 20;
    config.measure_ceilings = false;
    config.lame_duck = Milliseconds(0);
    auto server = AttndServer::Start(config);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_TRUE(server_->WaitUntilReady().ok());
    client_ = std::make_unique<client::AttentionClient>(
        client::ClientOptions{.transport = {.target = server_->address()}});
  }

  // As close to float64 as the contract asks, and so as close to the model as that allows.
  void ExpectModelOutput(const Layer& layer, const client::Tensor& o, const std::string& what) {
    const auto got = client::FloatsFromTensor(o);
    ASSERT_TRUE(got.ok()) << what << ": " << got.status();
    ASSERT_EQ(got->size(), layer.expected.size()) << what;
    const double model_error = LargestError(layer.model_output, layer.expected);
    EXPECT_LE(LargestError(*got, layer.expected), 2 * model_error + Floor(layer.expected)) << what;
  }

  std::vector<Layer> layers_;
  std::unique_ptr<AttndServer> server_;
  std::unique_ptr<client::AttentionClient> client_;
};

TEST_F(RealModelTest, CaptureIsAttentionOfThatModel) {
  for (const Layer& layer : layers_) {
    // A score is a sum of kHeadDim products and an output a sum over the tokens: each rounding is
    // half an epsilon of a term, scores move weights by as much relative to themselves. Scores of
    // this model stay below 64.
    const double bound = (64.0 * kHeadDim + layer.tokens) * std::numeric_limits<float>::epsilon();
    double largest = 0;
    for (const double value : layer.expected) largest = std::max(largest, std::abs(value));
    EXPECT_LE(LargestError(layer.model_output, layer.expected), bound * largest);
    EXPECT_GT(largest, 0.1) << "an empty capture proves nothing";
  }
}

TEST_F(RealModelTest, AttendGivesTheModelsOutput) {
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_[index];
    client::AttendRequest request{.q = layer.q, .k = layer.k, .v = layer.v};
    for (const auto algorithm : {v1::ALGORITHM_FUSED, v1::ALGORITHM_NAIVE}) {
      request.execution.set_algorithm(algorithm);
      const auto result = client_->Attend(request);
      ASSERT_TRUE(result.ok()) << result.status();
      ExpectModelOutput(layer, result->o,
                        "layer " + std::to_string(index) + " " + v1::Algorithm_Name(algorithm));
    }
  }
}

// The model's attention looks both ways. Keys and values go to the cache first; then the queries
// attend to all of them, without a causal mask.
TEST_F(RealModelTest, CachedKeysAndValuesGiveTheModelsOutput) {
  v1::CreateSequenceRequest create;
  create.set_num_layers(kNumLayers);
  create.set_num_heads(kNumHeads);
  create.set_num_kv_heads(kNumHeads);
  create.set_head_dim(kHeadDim);
  create.set_data_type(v1::DATA_TYPE_FP32);
  const auto sequence = client_->CreateSequence(create);
  ASSERT_TRUE(sequence.ok()) << sequence.status();

  for (int index = 0; index < kNumLayers; ++index) {
    const Layer& layer = layers_[static_cast<std::size_t>(index)];
    v1::Step step;
    step.set_sequence_id(sequence->sequence_id());
    step.set_layer(index);
    step.set_num_tokens(layer.tokens);
    const auto appended = client_->Decode({.steps = {step}, .k = layer.k, .v = layer.v});
    ASSERT_TRUE(appended.ok()) << appended.status();

    step.set_position(layer.tokens);
    const auto result = client_->Decode({.steps = {step}, .q = layer.q});
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_TRUE(result->failed_steps.empty());
    ExpectModelOutput(layer, result->o, "layer " + std::to_string(index));
  }
}

}  // namespace
}  // namespace attnd
