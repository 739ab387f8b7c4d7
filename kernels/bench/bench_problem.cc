#include "kernels/bench/bench_problem.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/cpu/element.h"
#include "kernels/cpu/exact.h"

namespace attnd::kernels::bench {
namespace {

constexpr int kSampleRows = 4;  // of each sequence and head

// Uniform values of variance 1, as normalised activations have.
void Fill(std::byte* data, DataType type, std::int64_t count, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    const auto unit = static_cast<float>(state >> 40U) * 0x1p-24F;
    StoreElement(data, type, i, (2 * unit - 1) * 1.7320508F);
  }
}

}  // namespace

void BenchProblem::FreeAligned::operator()(std::byte* memory) const { std::free(memory); }

BenchProblem::Buffer BenchProblem::Allocate(std::int64_t bytes) {
  // Huge pages, as the server's page pool and the read ceiling have them: with small ones a cache
  // read in page order is bound by address translation.
  constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
  const std::int64_t alignment = bytes < kHugePage ? 128 : kHugePage;
  const std::int64_t padded = (bytes + alignment - 1) / alignment * alignment;
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(alignment, padded)));
  if (alignment == kHugePage) madvise(buffer.get(), padded, MADV_HUGEPAGE);  // advice only
  std::memset(buffer.get(), 0, padded);
  return buffer;
}

BenchProblem::BenchProblem(const BenchCase& bench_case) : case_(bench_case) {
  const DataType type = case_.data_type;
  const std::int64_t element = ElementBytes(type);
  const std::int64_t q_row = std::int64_t{case_.num_heads} * case_.head_dim;
  const std::int64_t kv_row = std::int64_t{case_.num_kv_heads} * case_.head_dim;
  const std::int64_t queries = std::int64_t{case_.num_sequences} * case_.query_length;
  const std::int64_t keys = std::int64_t{case_.num_sequences} * case_.kv_length;
  q_ = Allocate(queries * q_row * element);
  o_ = Allocate(queries * q_row * element);
  Fill(q_.get(), type, queries * q_row, 1);

  const int pages = MakePages();
  if (case_.page_tokens == 0) {
    k_ = Allocate(keys * kv_row * element);
    v_ = Allocate(keys * kv_row * element);
    Fill(k_.get(), type, keys * kv_row, 4);
    Fill(v_.get(), type, keys * kv_row, 5);
  }

  for (int i = 0; i < case_.num_sequences; ++i) {
    AttentionSequence sequence;
    sequence.q = q_.get() + i * case_.query_length * q_row * element;
    sequence.o = o_.get() + i * case_.query_length * q_row * element;
    sequence.q_token_stride = sequence.o_token_stride = q_row;
    sequence.q_head_stride = sequence.o_head_stride = case_.head_dim;
    if (case_.page_tokens > 0) {
      sequence.kv.page_table = page_table_.data() + static_cast<std::size_t>(i) * pages;
    } else {
      sequence.kv.k = k_.get() + i * case_.kv_length * kv_row * element;
      sequence.kv.v = v_.get() + i * case_.kv_length * kv_row * element;
      sequence.kv.k_token_stride = sequence.kv.v_token_stride = kv_row;
      sequence.kv.k_head_stride = sequence.kv.v_head_stride = case_.head_dim;
    }
    sequence.query_length = case_.query_length;
    sequence.kv_length = case_.kv_length;
    sequence.query_position = case_.kv_length - case_.query_length;
    sequence.causal = case_.causal;
    if (case_.window_left >= 0) sequence.window_left = case_.window_left;
    sequence.softmax_scale = 1.0F / std::sqrt(static_cast<float>(case_.head_dim));
    sequences_.push_back(sequence);
  }
  params_.data_type = params_.kv_data_type = type;
  params_.num_heads = case_.num_heads;
  params_.num_kv_heads = case_.num_kv_heads;
  params_.head_dim = case_.head_dim;
  params_.sequences = sequences_.data();
  params_.num_sequences = case_.num_sequences;
}

int BenchProblem::MakePages() {
  PageLayout& layout = params_.page_layout;
  layout.data_type = case_.data_type;
  layout.page_tokens = std::max(1, case_.page_tokens);
  layout.num_kv_heads = case_.num_kv_heads;
  layout.head_dim = case_.head_dim;
  layout.padded_head_dim = PaddedHeadDim(case_.head_dim);
  const int pages = (case_.kv_length + layout.page_tokens - 1) / layout.page_tokens;
  if (case_.page_tokens == 0) return pages;
  params_.pool_bytes = layout.page_bytes() * pages * case_.num_sequences;
  pool_ = Allocate(params_.pool_bytes);
  params_.pool = pool_.get();
  Fill(pool_.get(), case_.data_type, params_.pool_bytes / ElementBytes(case_.data_type), 2);
  page_table_.resize(static_cast<std::size_t>(pages) * case_.num_sequences);
  std::iota(page_table_.begin(), page_table_.end(), 0U);
  if (!case_.ascending_pages) {
    std::shuffle(page_table_.begin(), page_table_.end(), std::mt19937(3));
  }
  for (std::uint32_t& page : page_table_) {
    page = static_cast<std::uint32_t>(page * layout.page_bytes() / kPageUnitBytes);
  }
  return pages;
}

double BenchProblem::Error() const {
  const DataType type = case_.data_type;
  std::vector<float> row(case_.head_dim);
  double difference = 0;
  double magnitude = 0;
  for (int i = 0; i < case_.num_sequences; ++i) {
    for (int head = 0; head < case_.num_heads; ++head) {
      for (int sample = 0; sample < std::min(kSampleRows, case_.query_length); ++sample) {
        // Spread over the rows, the last one among them.
        const int token = case_.query_length - 1 -
                          static_cast<int>(std::int64_t{sample} * case_.query_length / kSampleRows);
        // A copy of the sequence whose o is one row, in FP32.
        AttentionParams exact = params_;
        AttentionSequence sequence = sequences_[i];
        exact.partial = true;
        exact.sequences = &sequence;
        exact.num_sequences = 1;
        sequence.o = row.data() - std::int64_t{token} * case_.head_dim;
        sequence.o_token_stride = case_.head_dim;
        sequence.o_head_stride = 0;
        ExactRows(exact, 0, head, token, token + 1);
        const std::int64_t first =
            token * sequences_[i].o_token_stride + head * sequences_[i].o_head_stride;
        for (int dim = 0; dim < case_.head_dim; ++dim) {
          const double got = LoadElement(sequences_[i].o, type, first + dim);
          difference += (got - row[dim]) * (got - row[dim]);
          magnitude += double{row[dim]} * row[dim];
        }
      }
    }
  }
  const double error = std::sqrt(difference / magnitude);
  return std::isnan(error) ? HUGE_VAL : error;
}

double BenchProblem::Tolerance() const {
  if (case_.data_type == DataType::kFp32) return 1e-5;
  return case_.data_type == DataType::kFp16 ? 1e-3 : 8e-3;
}

}  // namespace attnd::kernels::bench
