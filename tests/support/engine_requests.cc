#include "tests/support/engine_requests.h"

#include <algorithm>
#include <cstring>

namespace attnd {

TensorView MakeTensor(const std::vector<float>& values, std::vector<std::int64_t> shape,
                      std::size_t piece_bytes) {
  TensorView view;
  view.present = true;
  view.shape = std::move(shape);
  view.size_bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  const std::size_t size = values.size() * sizeof(float);
  if (piece_bytes == 0) piece_bytes = std::max<std::size_t>(size, 1);
  auto pieces = std::make_shared<std::vector<std::vector<std::byte>>>();
  for (std::size_t offset = 0; offset < size; offset += piece_bytes) {
    const std::size_t count = std::min(piece_bytes, size - offset);
    pieces->emplace_back(bytes + offset, bytes + offset + count);
  }
  for (const auto& piece : *pieces) view.pieces.push_back({piece.data(), piece.size()});
  view.owner = pieces;
  return view;
}

RequestCompletion CatchAnswer(std::shared_ptr<Answer> answer) {
  return RequestCompletion([answer = std::move(answer)](AttentionResult result) {
    ++answer->count;
    answer->result = std::move(result);
  });
}

std::vector<float> Floats(const OutputBuffer& buffer) {
  std::vector<float> values(static_cast<std::size_t>(buffer.size_bytes) / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), buffer.data.get(), values.size() * sizeof(float));
  return values;
}

CreateSequenceSpec MakeSequenceSpec(const HeadShape& shape, std::int32_t num_layers) {
  CreateSequenceSpec spec;
  spec.tenant = "default";
  spec.num_layers = num_layers;
  spec.num_heads = shape.num_heads;
  spec.num_kv_heads = shape.num_kv_heads;
  spec.head_dim = shape.head_dim;
  spec.max_tokens = 4096;
  return spec;
}

namespace {

TensorView Constant(std::int64_t rows, std::int32_t heads, std::int32_t head_dim, float value) {
  return MakeTensor(std::vector<float>(static_cast<std::size_t>(rows * heads * head_dim), value),
                    {rows, heads, head_dim});
}

AttentionRequest MakeRequest(const HeadShape& shape, RequestKind kind) {
  AttentionRequest request;
  request.kind = kind;
  request.tenant = "default";
  request.num_heads = shape.num_heads;
  request.num_kv_heads = shape.num_kv_heads;
  request.head_dim = shape.head_dim;
  request.request_bytes = 1000;
  return request;
}

}  // namespace

AttentionRequest MakeDecode(const HeadShape& shape, std::vector<DecodeStep> steps, float value) {
  AttentionRequest request = MakeRequest(shape, RequestKind::kDecode);
  std::int64_t rows = 0;
  for (const DecodeStep& step : steps) rows += step.num_tokens;
  request.q = Constant(rows, shape.num_heads, shape.head_dim, value);
  request.k = Constant(rows, shape.num_kv_heads, shape.head_dim, value);
  request.v = Constant(rows, shape.num_kv_heads, shape.head_dim, value);
  request.steps = std::move(steps);
  return request;
}

DecodeStep MakeStep(std::string sequence_id, std::int64_t position, std::int32_t num_tokens,
                    std::uint64_t epoch, std::int32_t layer) {
  DecodeStep step;
  step.sequence_id = std::move(sequence_id);
  step.layer = layer;
  step.position = position;
  step.num_tokens = num_tokens;
  step.epoch = epoch;
  return step;
}

AttentionRequest MakeAttend(const HeadShape& shape, std::int32_t query_length,
                            std::int64_t kv_length, float value) {
  AttentionRequest request = MakeRequest(shape, RequestKind::kAttend);
  request.q = Constant(query_length, shape.num_heads, shape.head_dim, value);
  request.k = Constant(kv_length, shape.num_kv_heads, shape.head_dim, value);
  request.v = Constant(kv_length, shape.num_kv_heads, shape.head_dim, value);
  request.attend_sequences.push_back({query_length, kv_length, kv_length - query_length, 0});
  return request;
}

}  // namespace attnd
