#include "tests/support/served_problem.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

namespace attnd::testing {
namespace {

void SetOptions(const ProblemSequence& sequence, bool cached, v1::AttentionOptions& options) {
  if (sequence.scale) options.set_softmax_scale(*sequence.scale);
  options.set_causal(sequence.causal && !cached);
  if (sequence.window_left >= 0) {
    options.set_window_left(static_cast<std::int32_t>(sequence.window_left));
  }
  if (sequence.window_right >= 0) {
    options.set_window_right(static_cast<std::int32_t>(sequence.window_right));
  }
  options.set_logits_soft_cap(sequence.soft_cap);
  options.mutable_alibi_slopes()->Assign(sequence.alibi_slopes.begin(),
                                         sequence.alibi_slopes.end());
  options.mutable_sink_logits()->Assign(sequence.sink_logits.begin(), sequence.sink_logits.end());
}

std::vector<double> DoublesOf(const client::Tensor& tensor) {
  const auto values = client::FloatsFromTensor(tensor);
  EXPECT_TRUE(values.ok()) << values.status();
  return values.ok() ? std::vector<double>(values->begin(), values->end()) : std::vector<double>();
}

std::vector<float> Rows(const std::vector<float>& values, std::int64_t begin, std::int64_t count,
                        std::int64_t row_size) {
  return {values.begin() + begin * row_size, values.begin() + (begin + count) * row_size};
}

void Append(const std::vector<double>& from, std::vector<double>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

v1::DataType WireType(kernels::DataType type) {
  if (type == kernels::DataType::kFp32) return v1::DATA_TYPE_FP32;
  return type == kernels::DataType::kFp16 ? v1::DATA_TYPE_FP16 : v1::DATA_TYPE_BF16;
}

client::Tensor WireTensor(kernels::DataType type, std::int64_t tokens, int heads, int head_dim,
                          const std::vector<float>& values) {
  auto tensor = client::TensorFromFloats(WireType(type), {tokens, heads, head_dim}, values);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  return tensor.ok() ? *std::move(tensor) : client::Tensor{};
}

client::AttendRequest AttendRequestFor(const ProblemShape& shape,
                                       const std::vector<ProblemSequence>& sequences) {
  client::AttendRequest request;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
  std::int64_t query_tokens = 0;
  std::int64_t kv_tokens = 0;
  for (const ProblemSequence& sequence : sequences) {
    q.insert(q.end(), sequence.q.begin(), sequence.q.end());
    k.insert(k.end(), sequence.k.begin(), sequence.k.end());
    v.insert(v.end(), sequence.v.begin(), sequence.v.end());
    query_tokens += sequence.query_length;
    kv_tokens += sequence.kv_length;
    if (sequences.size() > 1) {
      request.query_lengths.push_back(sequence.query_length);
      request.kv_lengths.push_back(static_cast<std::int32_t>(sequence.kv_length));
    }
    if (sequence.query_position) request.query_positions.push_back(*sequence.query_position);
    if (sequence.key_position != 0) request.key_positions.push_back(sequence.key_position);
  }
  request.q = WireTensor(shape.type, query_tokens, shape.num_heads, shape.head_dim, q);
  request.k = WireTensor(shape.type, kv_tokens, shape.num_kv_heads, shape.head_dim, k);
  request.v = WireTensor(shape.type, kv_tokens, shape.num_kv_heads, shape.head_dim, v);
  const std::vector<float>& bias = sequences.front().bias;
  if (!bias.empty()) {
    const auto heads = static_cast<std::int64_t>(bias.size()) / (query_tokens * kv_tokens);
    auto tensor =
        client::TensorFromFloats(v1::DATA_TYPE_FP32, {heads, query_tokens, kv_tokens}, bias);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    if (tensor.ok()) request.bias = *std::move(tensor);
  }
  SetOptions(sequences.front(), false, request.options);
  request.partial = shape.partial;
  request.return_lse = true;
  return request;
}

std::vector<ProblemOutput> SplitAnswer(const ProblemShape& shape,
                                       const std::vector<ProblemSequence>& sequences,
                                       const client::Tensor& o, const client::Tensor& lse) {
  const std::vector<double> o_values = DoublesOf(o);
  const std::vector<double> lse_values = DoublesOf(lse);
  std::vector<ProblemOutput> outputs;
  std::ptrdiff_t row = 0;
  for (const ProblemSequence& sequence : sequences) {
    const std::ptrdiff_t end = row + std::ptrdiff_t{sequence.query_length} * shape.num_heads;
    outputs.push_back(
        {{o_values.begin() + row * shape.head_dim, o_values.begin() + end * shape.head_dim},
         {lse_values.begin() + row, lse_values.begin() + end}});
    row = end;
  }
  return outputs;
}

std::string CheckServed(client::AttentionClient& client, const ProblemShape& shape,
                        const std::vector<ProblemSequence>& sequences,
                        const v1::ExecutionOptions& execution) {
  client::AttendRequest request = AttendRequestFor(shape, sequences);
  request.execution = execution;
  const auto result = client.Attend(request);
  if (!result.ok()) return result.status().ToString();
  const std::vector<ProblemOutput> outputs = SplitAnswer(shape, sequences, result->o, result->lse);
  AttentionProblem problem(shape, sequences);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string fault = CheckOutput(problem, static_cast<int>(i), outputs[i]);
    if (!fault.empty()) return fault;
  }
  return {};
}

v1::CreateSequenceRequest SequenceRequestFor(const ProblemShape& shape,
                                             const ProblemSequence& sequence) {
  v1::CreateSequenceRequest request;
  request.set_num_layers(1);
  request.set_num_heads(shape.num_heads);
  request.set_num_kv_heads(shape.num_kv_heads);
  request.set_head_dim(shape.head_dim);
  request.set_data_type(WireType(shape.type));
  SetOptions(sequence, true, *request.add_layer_groups()->mutable_options());
  return request;
}

client::DecodeRequest StepFor(const ProblemShape& shape, const ProblemSequence& sequence,
                              const std::string& sequence_id, std::int64_t begin, int num_tokens) {
  client::DecodeRequest request;
  v1::Step step;
  step.set_sequence_id(sequence_id);
  step.set_position(begin);
  step.set_num_tokens(num_tokens);
  request.steps.push_back(step);
  const auto rows = [&](const std::vector<float>& values, int heads) {
    return WireTensor(shape.type, num_tokens, heads, shape.head_dim,
                      Rows(values, begin, num_tokens, std::int64_t{heads} * shape.head_dim));
  };
  request.q = rows(sequence.q, shape.num_heads);
  request.k = rows(sequence.k, shape.num_kv_heads);
  request.v = rows(sequence.v, shape.num_kv_heads);
  request.return_lse = true;
  return request;
}

std::string CheckCached(client::AttentionClient& client, const ProblemShape& shape,
                        const ProblemSequence& sequence, const std::vector<int>& chunks) {
  const auto created = client.CreateSequence(SequenceRequestFor(shape, sequence));
  if (!created.ok()) return created.status().ToString();
  ProblemOutput whole;
  std::int64_t begin = 0;
  for (const int num_tokens : chunks) {
    const auto result =
        client.Decode(StepFor(shape, sequence, created->sequence_id(), begin, num_tokens));
    if (!result.ok()) return result.status().ToString();
    Append(DoublesOf(result->o), whole.o);
    Append(DoublesOf(result->lse), whole.lse);
    begin += num_tokens;
  }
  v1::DeleteSequencesRequest end;
  end.add_sequence_ids(created->sequence_id());
  const auto deleted = client.DeleteSequences(end);
  if (!deleted.ok()) return deleted.status().ToString();
  AttentionProblem problem(shape, {sequence});
  return CheckOutput(problem, 0, whole);
}

}  // namespace attnd::testing
