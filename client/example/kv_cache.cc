// A KV cache on the server: create it, append a prompt, step through a generation, delete it.
//
//   kv_cache [127.0.0.1:8001]
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "client/attention_client.h"

namespace {

namespace client = attnd::client;
namespace v1 = attnd::v1;

constexpr int kHeads = 8, kKvHeads = 2, kHeadDim = 64, kPromptTokens = 100, kSteps = 16;

// [tokens, heads, head_dim] of what a model would have computed.
client::Tensor RandomTensor(int tokens, int heads) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(tokens) * heads * kHeadDim);
  for (float& value : values) value = normal(random);
  return *client::TensorFromFloats(v1::DATA_TYPE_BF16, {tokens, heads, kHeadDim}, values);
}

// Appends `tokens` new keys and values at `position` and attends to all cached ones.
absl::StatusOr<client::DecodeResult> Append(client::AttentionClient& attnd, const std::string& id,
                                            int position, int tokens) {
  client::DecodeRequest request;
  v1::Step& step = request.steps.emplace_back();
  step.set_sequence_id(id);
  step.set_position(position);
  step.set_num_tokens(tokens);
  request.q = RandomTensor(tokens, kHeads);
  request.k = RandomTensor(tokens, kKvHeads);
  request.v = RandomTensor(tokens, kKvHeads);
  return attnd.Decode(request);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "kv_cache: %s\n", client::ErrorText(status).c_str());
  return 1;
}

int Run(const std::string& server) {
  client::AttentionClient attnd({.transport = {.target = server}});
  v1::CreateSequenceRequest shape;
  shape.set_num_layers(1);
  shape.set_num_heads(kHeads);
  shape.set_num_kv_heads(kKvHeads);
  shape.set_head_dim(kHeadDim);
  shape.set_data_type(v1::DATA_TYPE_BF16);
  const auto created = attnd.CreateSequence(shape);
  if (!created.ok()) return Fail(created.status());
  const std::string& id = created->sequence_id();

  int cached = 0;
  for (int step = 0; step <= kSteps; ++step) {
    const int tokens = step == 0 ? kPromptTokens : 1;
    const auto result = Append(attnd, id, cached, tokens);
    if (!result.ok()) return Fail(result.status());
    cached += tokens;
  }
  v1::DeleteSequencesRequest remove;
  remove.add_sequence_ids(id);
  if (const auto removed = attnd.DeleteSequences(remove); !removed.ok()) {
    return Fail(removed.status());
  }
  std::printf("%d tokens were cached\n", cached);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Run(argc > 1 ? argv[1] : "127.0.0.1:8001"); }
