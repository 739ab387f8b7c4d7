// An attention problem of the kernel tests, computed by a running server through gRPC.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/attention_client.h"
#include "tests/support/attention_problem.h"

namespace attnd::testing {

v1::DataType WireType(kernels::DataType type);

// values[tokens][heads][head_dim] rounded to `type`.
client::Tensor WireTensor(kernels::DataType type, std::int64_t tokens, int heads, int head_dim,
                          const std::vector<float>& values);

// All sequences in one ragged Attend request, lse asked for. Options are the first one's; a bias is
// sent where there is one sequence.
client::AttendRequest AttendRequestFor(const ProblemShape& shape,
                                       const std::vector<ProblemSequence>& sequences);

// One output a sequence of such a request's answer.
std::vector<ProblemOutput> SplitAnswer(const ProblemShape& shape,
                                       const std::vector<ProblemSequence>& sequences,
                                       const client::Tensor& o, const client::Tensor& lse);

// Attends through `client` and checks every sequence against float64. Empty: right.
std::string CheckServed(client::AttentionClient& client, const ProblemShape& shape,
                        const std::vector<ProblemSequence>& sequences,
                        const v1::ExecutionOptions& execution = {});

// A one-layer sequence with the problem's options.
v1::CreateSequenceRequest SequenceRequestFor(const ProblemShape& shape,
                                             const ProblemSequence& sequence);

// Rows [begin, begin + num_tokens) of a sequence whose queries and keys have the same length, as
// one decode step.
client::DecodeRequest StepFor(const ProblemShape& shape, const ProblemSequence& sequence,
                              const std::string& sequence_id, std::int64_t begin, int num_tokens);

// Feeds the (causal, self-attending) sequence to the server in chunks and checks all rows together.
std::string CheckCached(client::AttentionClient& client, const ProblemShape& shape,
                        const ProblemSequence& sequence, const std::vector<int>& chunks);

}  // namespace attnd::testing
