#include "tests/kernels/prefill_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/cpu/element.h"
#include "kernels/cpu/prefill.h"

namespace attnd::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kGap = 3;  // elements between rows of contiguous tensors that belong to nobody

float RoundTo(DataType type, float value) {
  float stored = 0;
  StoreElement(&stored, type, 0, value);
  return LoadElement(&stored, type, 0);
}

struct AlignedDelete {
  void operator()(std::byte* memory) const { std::free(memory); }
};

}  // namespace

struct PrefillCase::Tensors {
  std::vector<std::byte> q, k, v, o;
  std::vector<float> lse, slopes, sinks, bias;
  std::vector<std::uint32_t> page_table;
};

PrefillCase::PrefillCase(const CaseSpec& spec) : spec_(spec) {
  std::mt19937 random(spec.seed);
  std::vector<std::uint32_t> free_pages = MakePool(random);
  for (const SequenceSpec& sequence : spec.sequences) AddSequence(sequence, free_pages, random);
  params_.data_type = params_.kv_data_type = spec.type;
  params_.num_heads = spec.num_heads;
  params_.num_kv_heads = spec.num_kv_heads;
  params_.head_dim = spec.head_dim;
  params_.partial = spec.partial;
  params_.sequences = sequences_.data();
  params_.num_sequences = static_cast<int>(sequences_.size());
  params_.pool = pool_.data();
  params_.pool_bytes = static_cast<std::int64_t>(pool_.size());
  Fill(random);
}

std::vector<std::uint32_t> PrefillCase::MakePool(std::mt19937& random) {
  const CaseSpec& spec = spec_;
  PageLayout& layout = params_.page_layout;
  layout.data_type = spec.type;
  layout.page_tokens = std::max(1, spec.page_tokens);
  layout.num_kv_heads = spec.num_kv_heads;
  layout.head_dim = spec.head_dim;
  layout.padded_head_dim = PaddedHeadDim(spec.head_dim);

  int num_pages = 1;  // page 0 belongs to nobody
  for (const SequenceSpec& s : spec.sequences) {
    num_pages += (s.kv_length + layout.page_tokens - 1) / layout.page_tokens;
  }
  std::vector<std::uint32_t> free_pages(num_pages - 1);
  std::iota(free_pages.begin(), free_pages.end(), 1U);
  std::shuffle(free_pages.begin(), free_pages.end(), random);
  if (spec.page_tokens > 0) {
    pool_.resize(num_pages * layout.page_bytes());
    for (std::size_t i = 0; i < pool_.size() / ElementBytes(spec.type); ++i) {
      StoreElement(pool_.data(), spec.type, static_cast<std::int64_t>(i), kNan);
    }
  }
  return free_pages;
}

void PrefillCase::AddSequence(const SequenceSpec& spec, std::vector<std::uint32_t>& free_pages,
                              std::mt19937& random) {
  const int element = ElementBytes(spec_.type);
  auto t = std::make_shared<Tensors>();
  AttentionSequence a;
  const std::int64_t row = spec_.head_dim + kGap;
  a.q_head_stride = a.o_head_stride = row;
  a.q_token_stride = a.o_token_stride = row * spec_.num_heads;
  a.kv.k_head_stride = a.kv.v_head_stride = row;
  a.kv.k_token_stride = a.kv.v_token_stride = row * spec_.num_kv_heads;
  t->q.resize(std::max<std::int64_t>(1, spec.query_length * a.q_token_stride) * element);
  t->o.resize(std::max<std::int64_t>(1, spec.query_length * a.o_token_stride) * 4);
  t->lse.resize(static_cast<std::size_t>(spec.query_length) * spec_.num_heads + 1);
  a.q = t->q.data();
  a.o = t->o.data();
  a.lse = t->lse.data();
  if (spec_.page_tokens > 0) {
    const PageLayout& layout = params_.page_layout;
    const int pages = (spec.kv_length + layout.page_tokens - 1) / layout.page_tokens;
    for (int page = 0; page < pages; ++page) {
      t->page_table.push_back(
          static_cast<std::uint32_t>(free_pages.back() * layout.page_bytes() / kPageUnitBytes));
      free_pages.pop_back();
    }
    t->page_table.push_back(kInvalidPage);
    a.kv.page_table = t->page_table.data();
  } else {
    const std::int64_t bytes =
        std::max<std::int64_t>(1, spec.kv_length * a.kv.k_token_stride) * element;
    t->k.resize(bytes);
    t->v.resize(bytes);
    a.kv.k = t->k.data();
    a.kv.v = t->v.data();
  }
  SetOptions(spec, *t, a, random);
  tensors_.push_back(t);
  sequences_.push_back(a);
}

void PrefillCase::SetOptions(const SequenceSpec& spec, Tensors& tensors, AttentionSequence& a,
                             std::mt19937& random) const {
  std::uniform_real_distribution<float> uniform(-1, 1);
  a.query_length = spec.query_length;
  a.kv_length = spec.kv_length;
  a.key_position = spec.key_position;
  a.query_position =
      spec.query_position.value_or(spec.key_position + spec.kv_length - spec.query_length);
  a.causal = spec.causal;
  a.window_left = spec.window_left;
  a.window_right = spec.window_right;
  a.softmax_scale = spec.scale.value_or(1.0F / std::sqrt(static_cast<float>(spec_.head_dim)));
  a.logits_soft_cap = spec.soft_cap;
  for (int head = 0; head < spec_.num_heads; ++head) {
    tensors.slopes.push_back(std::exp2(-1.0F - static_cast<float>(head)));
    tensors.sinks.push_back(uniform(random) * 2);
  }
  if (spec.alibi) a.alibi_slopes = tensors.slopes.data();
  if (spec.sinks) a.sink_logits = tensors.sinks.data();
  if (!spec.bias) return;
  a.bias_row_stride = spec.kv_length + 5;
  a.bias_head_stride = a.bias_row_stride * spec.query_length;
  tensors.bias.resize(spec_.num_heads * a.bias_head_stride);
  for (float& value : tensors.bias) value = uniform(random) * 2;
  a.bias = tensors.bias.data();
}

void PrefillCase::Fill(std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (std::size_t i = 0; i < spec_.sequences.size(); ++i) {
    const auto sequence = static_cast<int>(i);
    const SequenceSpec& s = spec_.sequences[i];
    for (int dim = 0; dim < spec_.head_dim; ++dim) {
      for (int token = 0; token < s.query_length; ++token) {
        for (int head = 0; head < spec_.num_heads; ++head) {
          SetQ(sequence, token, head, dim, uniform(random) * spec_.amplitude);
        }
      }
      for (int key = 0; key < s.kv_length; ++key) {
        for (int head = 0; head < spec_.num_kv_heads; ++head) {
          SetK(sequence, key, head, dim, uniform(random) * spec_.amplitude);
          SetV(sequence, key, head, dim, uniform(random));
        }
      }
    }
  }
}

LaunchResult PrefillCase::Run(CpuTarget target, int num_threads) {
  for (const auto& t : tensors_) {
    std::fill(t->lse.begin(), t->lse.end(), kNan);
    std::memset(t->o.data(), 0xFF, t->o.size());
  }
  CpuExecutor executor(num_threads);
  const std::unique_ptr<std::byte, AlignedDelete> workspace(static_cast<std::byte*>(
      std::aligned_alloc(128, PrefillWorkspaceBytes(params_, target, num_threads))));
  const auto launch = target == CpuTarget::kAvx2     ? LaunchPrefillAvx2
                      : target == CpuTarget::kAvx512 ? LaunchPrefillAvx512
                                                     : LaunchPrefillAvx512Bf16;
  const LaunchResult result = launch(params_, LaunchPlan(), workspace.get(), executor);
  const std::size_t element = spec_.partial ? 4 : ElementBytes(spec_.type);
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const AttentionSequence& s = sequences_[i];
    for (std::int64_t row = 0; row < std::int64_t{s.query_length} * spec_.num_heads; ++row) {
      const std::byte* gap =
          tensors_[i]->o.data() + (row * s.o_head_stride + spec_.head_dim) * element;
      for (std::size_t byte = 0; byte < kGap * element; ++byte) {
        if (gap[byte] != std::byte{0xFF}) {
          ADD_FAILURE() << "sequence " << i << ": written past the end of row " << row;
          return result;
        }
      }
    }
  }
  return result;
}

void PrefillCase::SetQ(int sequence, int token, int head, int dim, float value) {
  oracle_rows_.clear();
  const AttentionSequence& s = sequences_[sequence];
  StoreElement(tensors_[sequence]->q.data(), spec_.type,
               token * s.q_token_stride + head * s.q_head_stride + dim, value);
}

namespace {

// Byte offset of element (key, head, 0) of K in the pool.
std::int64_t PoolOffset(const AttentionParams& params, const AttentionSequence& s, int key,
                        int head) {
  const PageLayout& layout = params.page_layout;
  return std::int64_t{s.kv.page_table[key / layout.page_tokens]} * kPageUnitBytes +
         head * layout.head_block_bytes() +
         std::int64_t{key % layout.page_tokens} * layout.padded_head_dim *
             ElementBytes(layout.data_type);
}

}  // namespace

void PrefillCase::SetK(int sequence, int key, int kv_head, int dim, float value) {
  oracle_rows_.clear();
  const AttentionSequence& s = sequences_[sequence];
  if (s.kv.page_table != nullptr) {
    std::byte* row = pool_.data() + PoolOffset(params_, s, key, kv_head);
    StoreElement(row, spec_.type, dim, value);
    for (int pad = spec_.head_dim; pad < params_.page_layout.padded_head_dim; ++pad) {
      StoreElement(row, spec_.type, pad, 0);
    }
    return;
  }
  StoreElement(tensors_[sequence]->k.data(), spec_.type,
               key * s.kv.k_token_stride + kv_head * s.kv.k_head_stride + dim, value);
}

void PrefillCase::SetV(int sequence, int key, int kv_head, int dim, float value) {
  oracle_rows_.clear();
  const AttentionSequence& s = sequences_[sequence];
  if (s.kv.page_table != nullptr) {
    std::byte* row =
        pool_.data() + PoolOffset(params_, s, key, kv_head) + params_.page_layout.v_offset_bytes();
    StoreElement(row, spec_.type, dim, value);
    for (int pad = spec_.head_dim; pad < params_.page_layout.padded_head_dim; ++pad) {
      StoreElement(row, spec_.type, pad, 0);
    }
    return;
  }
  StoreElement(tensors_[sequence]->v.data(), spec_.type,
               key * s.kv.v_token_stride + kv_head * s.kv.v_head_stride + dim, value);
}

void PrefillCase::SetBias(int sequence, int head, int row, int key, float value) {
  oracle_rows_.clear();
  const AttentionSequence& s = sequences_[sequence];
  tensors_[sequence]->bias[head * s.bias_head_stride + row * s.bias_row_stride + key] = value;
}

float PrefillCase::O(int sequence, int token, int head, int dim) const {
  const AttentionSequence& s = sequences_[sequence];
  return LoadElement(s.o, spec_.partial ? DataType::kFp32 : spec_.type,
                     token * s.o_token_stride + head * s.o_head_stride + dim);
}

float PrefillCase::Lse(int sequence, int token, int head) const {
  return sequences_[sequence].lse[std::int64_t{token} * spec_.num_heads + head];
}

float PrefillCase::Value(int sequence, char which, int token, int head, int dim) const {
  const AttentionSequence& s = sequences_[sequence];
  if (which == 'q') {
    return LoadElement(s.q, spec_.type, token * s.q_token_stride + head * s.q_head_stride + dim);
  }
  if (s.kv.page_table != nullptr) {
    const std::int64_t offset = PoolOffset(params_, s, token, head) +
                                (which == 'v' ? params_.page_layout.v_offset_bytes() : 0);
    return LoadElement(pool_.data() + offset, spec_.type, dim);
  }
  const std::int64_t index = which == 'k' ? token * s.kv.k_token_stride + head * s.kv.k_head_stride
                                          : token * s.kv.v_token_stride + head * s.kv.v_head_stride;
  return LoadElement(which == 'k' ? s.kv.k : s.kv.v, spec_.type, index + dim);
}

std::vector<double> PrefillCase::Scores(int sequence, int token, int head, bool single) const {
  const AttentionSequence& s = sequences_[sequence];
  const int kv_head = head / (spec_.num_heads / spec_.num_kv_heads);
  const std::int64_t position = s.query_position + token;
  std::vector<double> scores(s.kv_length, -kInfinity);
  for (int key = 0; key < s.kv_length; ++key) {
    const std::int64_t place = s.key_position + key;
    if (s.causal && place > position) continue;
    if (s.window_left != kUnlimitedWindow && place < position - s.window_left) continue;
    if (!s.causal && s.window_right != kUnlimitedWindow && place > position + s.window_right) {
      continue;
    }
    double score = 0;
    float single_score = 0;
    for (int dim = 0; dim < spec_.head_dim; ++dim) {
      const float q = Value(sequence, 'q', token, head, dim);
      const float k = Value(sequence, 'k', key, kv_head, dim);
      score += double{q} * double{k};
      single_score += q * k;
    }
    if (single) score = double{single_score};
    score *= double{s.softmax_scale};
    const double cap = s.logits_soft_cap;
    if (cap > 0) score = cap * std::tanh(score / cap);
    if (s.alibi_slopes != nullptr) {
      score -= double{s.alibi_slopes[head]} * static_cast<double>(std::abs(position - place));
    }
    if (s.bias != nullptr) {
      score += double{s.bias[head * s.bias_head_stride + token * s.bias_row_stride + key]};
    }
    scores[key] = score;
  }
  return scores;
}

const std::vector<double>& PrefillCase::Oracle(int sequence, int token, int head) const {
  std::vector<double>& row = oracle_rows_[{sequence, token, head}];
  if (!row.empty()) return row;
  const AttentionSequence& s = sequences_[sequence];
  const int kv_head = head / (spec_.num_heads / spec_.num_kv_heads);
  const std::vector<double> scores = Scores(sequence, token, head, false);
  const bool sink = s.sink_logits != nullptr && !spec_.partial;
  double max = sink ? double{s.sink_logits[head]} : -kInfinity;
  for (const double score : scores) max = std::isnan(score) ? score : std::max(max, score);
  row.assign(spec_.head_dim + 1, 0.0);
  if (max == -kInfinity) {
    row.back() = -kInfinity;
    return row;
  }
  double sum = sink ? std::exp(double{s.sink_logits[head]} - max) : 0.0;
  for (int key = 0; key < s.kv_length; ++key) {
    if (scores[key] == -kInfinity) continue;
    const double p = std::exp(scores[key] - max);
    sum += p;
    for (int dim = 0; dim < spec_.head_dim; ++dim) {
      row[dim] += p * double{Value(sequence, 'v', key, kv_head, dim)};
    }
  }
  for (int dim = 0; dim < spec_.head_dim; ++dim) row[dim] /= sum;
  row.back() = max + std::log(sum);
  return row;
}

std::vector<double> PrefillCase::Plain(int sequence, int token, int head) const {
  const AttentionSequence& s = sequences_[sequence];
  const int kv_head = head / (spec_.num_heads / spec_.num_kv_heads);
  const std::vector<double> scores = Scores(sequence, token, head, true);
  const bool sink = s.sink_logits != nullptr && !spec_.partial;
  float max = sink ? s.sink_logits[head] : -std::numeric_limits<float>::infinity();
  for (const double score : scores) max = std::max(max, static_cast<float>(score));
  std::vector<float> p(scores.size());
  float sum = sink ? std::exp(s.sink_logits[head] - max) : 0.0F;
  for (std::size_t key = 0; key < scores.size(); ++key) {
    p[key] = scores[key] == -kInfinity ? 0 : std::exp(static_cast<float>(scores[key]) - max);
    sum += p[key];
  }
  const DataType type = spec_.partial ? DataType::kFp32 : spec_.type;
  std::vector<double> row(spec_.head_dim + 1, 0.0);
  for (int dim = 0; dim < spec_.head_dim; ++dim) {
    float value = 0;
    for (int key = 0; key < s.kv_length; ++key) {
      if (p[key] != 0) {
        value += RoundTo(spec_.type, p[key] / sum) * Value(sequence, 'v', key, kv_head, dim);
      }
    }
    row[dim] = RoundTo(type, value);
  }
  row.back() = max + std::log(sum);
  return row;
}

HeadError PrefillCase::WorstHead(int sequence, bool plain) const {
  const AttentionSequence& s = sequences_[sequence];
  HeadError worst;
  for (int head = 0; head < spec_.num_heads; ++head) {
    double difference = 0;
    double magnitude = 0;
    for (int token = 0; token < s.query_length; ++token) {
      const std::vector<double> expected = Oracle(sequence, token, head);
      std::vector<double> got = expected;
      if (plain) {
        got = Plain(sequence, token, head);
      } else {
        for (int dim = 0; dim < spec_.head_dim; ++dim) got[dim] = O(sequence, token, head, dim);
        got.back() = Lse(sequence, token, head);
      }
      for (int dim = 0; dim < spec_.head_dim; ++dim) {
        if (std::isfinite(expected[dim]) != std::isfinite(got[dim])) return {kInfinity, kInfinity};
        if (!std::isfinite(expected[dim])) continue;
        difference += (got[dim] - expected[dim]) * (got[dim] - expected[dim]);
        magnitude += expected[dim] * expected[dim];
      }
      if (std::isfinite(expected.back())) {
        worst.lse =
            std::max(worst.lse, std::isfinite(got.back()) ? std::abs(got.back() - expected.back())
                                                          : kInfinity);
      } else if (!std::isnan(expected.back()) && got.back() != expected.back()) {
        worst.lse = kInfinity;
      }
    }
    const double error =
        magnitude > 0 ? std::sqrt(difference / magnitude) : (difference > 0 ? kInfinity : 0.0);
    worst.relative_l2 = std::max(worst.relative_l2, error);
  }
  return worst;
}

}  // namespace attnd::kernels
