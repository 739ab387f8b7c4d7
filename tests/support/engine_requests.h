// Requests for tests of the engine: tensors made of floats, answers caught in a struct.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/attention_request.h"
#include "server/sequence_types.h"

namespace attnd {

// An FP32 tensor that owns its bytes. `piece_bytes` > 0: cut into pieces of that size, each in
// memory of its own, as they arrive from the wire.
TensorView MakeTensor(const std::vector<float>& values, std::vector<std::int64_t> shape,
                      std::size_t piece_bytes = 0);

// Where a request's answer lands. Shared, so that it outlives the test's stack if it must.
struct Answer {
  int count = 0;  // calls of on_done: 1 when all is well
  AttentionResult result;
  bool done() const { return count > 0; }
};
RequestCompletion CatchAnswer(std::shared_ptr<Answer> answer);

// The FP32 values of an output buffer.
std::vector<float> Floats(const OutputBuffer& buffer);

// Head shape of the engine tests.
struct HeadShape {
  std::int32_t num_heads = 2, num_kv_heads = 1, head_dim = 32;
};

CreateSequenceSpec MakeSequenceSpec(const HeadShape& shape, std::int32_t num_layers = 1);

// A Decode request for `steps`: every element of row r of q, k and v is value(r).
AttentionRequest MakeDecode(const HeadShape& shape, std::vector<DecodeStep> steps,
                            float value = 1.0F);
DecodeStep MakeStep(std::string sequence_id, std::int64_t position, std::int32_t num_tokens = 1,
                    std::uint64_t epoch = 0, std::int32_t layer = 0);

// One Attend sequence with equal elements.
AttentionRequest MakeAttend(const HeadShape& shape, std::int32_t query_length,
                            std::int64_t kv_length, float value = 1.0F);

}  // namespace attnd
