#include "kernels/naive/naive_plan.h"

#include <algorithm>

namespace attnd::kernels::naive {
namespace {

// A sequence whose products keep the card busy alone is not worth a copy of its K and V; smaller
// ones are launch-bound and go together.
constexpr std::int64_t kAloneScores = std::int64_t{1} << 24;
// Scores of one chunk at most, unless one sequence has more.
constexpr std::int64_t kChunkScores = std::int64_t{1} << 28;
// Padding may add a quarter to the scores that the sequences have.
constexpr double kMaxPadding = 1.25;

std::int64_t Align(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

std::int64_t Scores(const AttentionParams& params, const AttentionSequence& sequence) {
  return std::int64_t{params.num_heads} * sequence.query_length * sequence.kv_length;
}

std::int32_t RoundUp(std::int64_t value, int granule) {
  return static_cast<std::int32_t>((value + granule - 1) / granule * granule);
}

}  // namespace

NaivePlan PlanNaive(const AttentionParams& params) {
  NaivePlan plan;
  const int chunk_elements = 16 / ElementBytes(params.data_type);
  plan.width = RoundUp(params.head_dim, chunk_elements);
  for (int i = 0; i < params.num_sequences;) {
    const AttentionSequence& first = params.sequences[i];
    NaiveChunk chunk{i, 0,    first.query_length, static_cast<std::int32_t>(first.kv_length),
                     0, false};
    std::int64_t real = 0;
    for (; i < params.num_sequences; ++i) {
      const AttentionSequence& next = params.sequences[i];
      const std::int64_t rows = std::max(chunk.query_rows, next.query_length);
      const std::int64_t keys = std::max<std::int64_t>(chunk.keys, next.kv_length);
      const std::int64_t padded = (chunk.num_sequences + 1) * rows * keys * params.num_heads;
      const std::int64_t with_next = real + Scores(params, next);
      if (chunk.num_sequences > 0 &&
          (padded > kChunkScores || Scores(params, next) >= kAloneScores ||
           static_cast<double>(padded) > kMaxPadding * static_cast<double>(with_next))) {
        break;
      }
      real = with_next;
      chunk.query_rows = static_cast<std::int32_t>(rows);
      chunk.keys = static_cast<std::int32_t>(keys);
      ++chunk.num_sequences;
      if (real >= kAloneScores && chunk.num_sequences == 1) {
        ++i;
        break;
      }
    }
    const KvView& kv = params.sequences[chunk.first_sequence].kv;
    chunk.keys_in_place = chunk.num_sequences == 1 && kv.page_table == nullptr;
    chunk.pitch = RoundUp(chunk.keys, 8);
    if (chunk.query_rows == 0) continue;
    plan.chunks.push_back(chunk);
    plan.scratch = std::max(plan.scratch, LayOut(params, plan, chunk).bytes);
  }
  return plan;
}

NaiveScratch LayOut(const AttentionParams& params, const NaivePlan& plan, const NaiveChunk& chunk) {
  const std::int64_t element = ElementBytes(params.data_type);
  const std::int64_t matrices = std::int64_t{chunk.num_sequences} * params.num_kv_heads;
  const std::int64_t rows = matrices * (params.num_heads / params.num_kv_heads) * chunk.query_rows;
  const std::int64_t gathered = chunk.keys_in_place ? 0 : matrices * chunk.keys * plan.width;
  NaiveScratch scratch;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t at = scratch.bytes;
    scratch.bytes += Align(bytes);
    return at;
  };
  scratch.q = take(rows * plan.width * element);
  scratch.k = take(gathered * element);
  scratch.v = take(gathered * element);
  scratch.s = take(rows * chunk.pitch * 4);
  scratch.p = take(rows * chunk.pitch * element);
  scratch.o = take(rows * plan.width * (params.partial ? 4 : element));
  return scratch;
}

}  // namespace attnd::kernels::naive
