#include "tests/support/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/element.h"
#include "tests/support/plain_attention.h"
#include "tests/support/random_tensors.h"

namespace attnd {

using kernels::DataType;
using kernels::ElementBytes;

namespace {

constexpr int kGuardBytes = 4096;
constexpr auto kGuardByte = std::byte{0xA5};
constexpr auto kNanByte = std::byte{0xFF};  // all bits set is a NaN in FP32, FP16 and BF16
constexpr int kSparePages = 3;              // never handed to a sequence

// Memory between guards.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t size) : bytes_(size + 2 * kGuardBytes, kGuardByte) {}
  std::byte* data() { return bytes_.data() + kGuardBytes; }
  const std::byte* data() const { return bytes_.data() + kGuardBytes; }
  std::size_t size() const { return bytes_.size() - 2 * kGuardBytes; }
  void Poison() { std::fill_n(data(), size(), kNanByte); }
  bool Intact() const {
    const auto is_guard = [](std::byte b) { return b == kGuardByte; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuardBytes, is_guard) &&
           std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), is_guard);
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

struct AttentionProblem::Buffers {
  Buffers(std::size_t o_bytes, std::size_t lse_bytes) : o(o_bytes), lse(lse_bytes) {}
  std::vector<std::byte> q, k, v;
  std::vector<std::uint32_t> page_table;
  GuardedBytes o, lse;
  std::optional<kernels::ReferenceOutput> reference;
  std::optional<ProblemOutput> plain;
};

ProblemSequence SeededSequence(const ProblemShape& shape, int query_length, std::int64_t kv_length,
                               std::uint64_t seed, double amplitude) {
  ProblemSequence sequence;
  sequence.query_length = query_length;
  sequence.kv_length = kv_length;
  const std::int64_t q_size = std::int64_t{query_length} * shape.num_heads * shape.head_dim;
  const std::int64_t kv_size = kv_length * shape.num_kv_heads * shape.head_dim;
  sequence.q = RandomValues(1000 * seed + 1, q_size, amplitude);
  sequence.k = RandomValues(1000 * seed + 2, kv_size, amplitude);
  sequence.v = RandomValues(1000 * seed + 3, kv_size, 1);
  return sequence;
}

AttentionProblem::AttentionProblem(const ProblemShape& shape,
                                   std::vector<ProblemSequence> sequences)
    : shape_(shape), specs_(std::move(sequences)) {
  const std::int64_t element = ElementBytes(shape.type);
  params_.data_type = params_.kv_data_type = shape.type;
  params_.num_heads = shape.num_heads;
  params_.num_kv_heads = shape.num_kv_heads;
  params_.head_dim = shape.head_dim;
  params_.partial = shape.partial;
  sequences_.resize(specs_.size());
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::int64_t rows = std::int64_t{specs_[i].query_length} * shape.num_heads;
    buffers_.push_back(std::make_unique<Buffers>(
        rows * shape.head_dim * (shape.partial ? 4 : element), rows * sizeof(float)));
    BuildQueries(static_cast<int>(i));
    SetOptions(static_cast<int>(i));
    if (shape.page_tokens == 0) BuildContiguous(static_cast<int>(i));
  }
  if (shape.page_tokens != 0) BuildPool();
  params_.sequences = sequences_.data();
  params_.num_sequences = static_cast<int>(sequences_.size());
}

AttentionProblem::~AttentionProblem() = default;

void AttentionProblem::BuildQueries(int index) {
  const ProblemSequence& spec = specs_[index];
  Buffers& buffers = *buffers_[index];
  kernels::AttentionSequence& sequence = sequences_[index];
  const std::int64_t rows = std::int64_t{spec.query_length} * shape_.num_heads;
  const std::int64_t q_row = shape_.head_dim + shape_.row_padding;
  buffers.q.assign(rows * q_row * ElementBytes(shape_.type), kNanByte);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (int dim = 0; dim < shape_.head_dim; ++dim) {
      kernels::StoreElement(buffers.q.data(), shape_.type, row * q_row + dim,
                            spec.q[row * shape_.head_dim + dim]);
    }
  }
  sequence.q = buffers.q.data();
  sequence.q_head_stride = q_row;
  sequence.q_token_stride = q_row * shape_.num_heads;
  sequence.o = buffers.o.data();
  sequence.o_head_stride = shape_.head_dim;
  sequence.o_token_stride = std::int64_t{shape_.num_heads} * shape_.head_dim;
  sequence.lse = reinterpret_cast<float*>(buffers.lse.data());
}

void AttentionProblem::SetOptions(int index) {
  const ProblemSequence& spec = specs_[index];
  kernels::AttentionSequence& sequence = sequences_[index];
  sequence.query_length = spec.query_length;
  sequence.kv_length = spec.kv_length;
  sequence.key_position = spec.key_position;
  sequence.query_position =
      spec.query_position.value_or(spec.key_position + spec.kv_length - spec.query_length);
  sequence.causal = spec.causal;
  sequence.window_left = spec.window_left;
  sequence.window_right = spec.window_right;
  sequence.softmax_scale =
      spec.scale.value_or(1.0F / std::sqrt(static_cast<float>(shape_.head_dim)));
  sequence.logits_soft_cap = spec.soft_cap;
  sequence.alibi_slopes = spec.alibi_slopes.empty() ? nullptr : spec.alibi_slopes.data();
  sequence.sink_logits = spec.sink_logits.empty() ? nullptr : spec.sink_logits.data();
  if (!spec.bias.empty()) {
    const std::int64_t plane = spec.query_length * spec.kv_length;
    sequence.bias = spec.bias.data();
    sequence.bias_row_stride = spec.kv_length;
    sequence.bias_head_stride = static_cast<std::int64_t>(spec.bias.size()) > plane ? plane : 0;
  }
}

void AttentionProblem::BuildContiguous(int sequence) {
  const ProblemSequence& spec = specs_[sequence];
  if (spec.kv_length == 0) return;
  Buffers& buffers = *buffers_[sequence];
  kernels::KvView& kv = sequences_[sequence].kv;
  const std::int64_t row = shape_.head_dim + shape_.row_padding;
  const std::int64_t token_stride = shape_.heads_first ? row : row * shape_.num_kv_heads;
  const std::int64_t head_stride = shape_.heads_first ? row * spec.kv_length : row;
  const std::int64_t bytes = spec.kv_length * shape_.num_kv_heads * row * ElementBytes(shape_.type);
  buffers.k.assign(bytes, kNanByte);
  buffers.v.assign(bytes, kNanByte);
  kv.k = buffers.k.data();
  kv.v = buffers.v.data();
  kv.k_token_stride = kv.v_token_stride = token_stride;
  kv.k_head_stride = kv.v_head_stride = head_stride;
  std::int64_t index = 0;
  for (std::int64_t token = 0; token < spec.kv_length; ++token) {
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      for (int dim = 0; dim < shape_.head_dim; ++dim, ++index) {
        const std::int64_t at = token * token_stride + head * head_stride + dim;
        kernels::StoreElement(buffers.k.data(), shape_.type, at, spec.k[index]);
        kernels::StoreElement(buffers.v.data(), shape_.type, at, spec.v[index]);
      }
    }
  }
}

void AttentionProblem::BuildPool() {
  kernels::PageLayout& layout = params_.page_layout;
  layout.data_type = shape_.type;
  layout.page_tokens = shape_.page_tokens;
  layout.num_kv_heads = shape_.num_kv_heads;
  layout.head_dim = shape_.head_dim;
  layout.padded_head_dim = kernels::PaddedHeadDim(shape_.head_dim);
  std::vector<std::uint32_t> pages;
  std::int64_t num_pages = kSparePages;
  const auto pages_of = [&](const ProblemSequence& spec) {
    return (spec.kv_length + shape_.page_tokens - 1) / shape_.page_tokens;
  };
  for (const ProblemSequence& spec : specs_) num_pages += pages_of(spec);
  for (std::int64_t page = 0; page < num_pages; ++page) {
    pages.push_back(
        static_cast<std::uint32_t>(page * layout.page_bytes() / kernels::kPageUnitBytes));
  }
  SplitMix64 random(shape_.page_seed);
  for (std::size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[random.Next() % i]);
  pool_.assign(num_pages * layout.page_bytes(), kNanByte);
  params_.pool = pool_.data();
  params_.pool_bytes = static_cast<std::int64_t>(pool_.size());

  kernels::CpuExecutor executor(1);
  auto next = pages.begin();
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const ProblemSequence& spec = specs_[i];
    std::vector<std::uint32_t>& table = buffers_[i]->page_table;
    const std::int64_t count = pages_of(spec);
    table.assign(next, next + count);
    next += count;
    table.insert(table.end(), 4, kernels::kInvalidPage);
    sequences_[i].kv.page_table = table.data();
    if (spec.kv_length == 0) continue;
    const std::int64_t elements = spec.kv_length * shape_.num_kv_heads * shape_.head_dim;
    std::vector<std::byte> k(elements * ElementBytes(shape_.type));
    std::vector<std::byte> v(k.size());
    for (std::int64_t at = 0; at < elements; ++at) {
      kernels::StoreElement(k.data(), shape_.type, at, spec.k[at]);
      kernels::StoreElement(v.data(), shape_.type, at, spec.v[at]);
    }
    kernels::AppendSequence append;
    append.k = k.data();
    append.v = v.data();
    append.num_tokens = static_cast<int>(spec.kv_length);
    append.page_table = table.data();
    kernels::AppendParams appends{&append, 1, layout, pool_.data(), params_.pool_bytes};
    if (kernels::LaunchAppend(appends, executor).status != kernels::LaunchStatus::kOk) std::abort();
  }
}

kernels::LaunchResult AttentionProblem::Run(const kernels::KernelRow& row,
                                            const RunSettings& settings) {
  for (auto& buffers : buffers_) {
    buffers->o.Poison();
    buffers->lse.Poison();
  }
  return LaunchRow(*this, row, settings, plan_);
}

std::vector<MemoryRegion> AttentionProblem::Regions() {
  std::vector<MemoryRegion> regions;
  const auto add = [&](auto& values) {
    if (values.empty()) return;
    regions.push_back(
        {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(values[0]), false});
  };
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    Buffers& buffers = *buffers_[i];
    ProblemSequence& spec = specs_[i];
    add(buffers.q);
    add(buffers.k);
    add(buffers.v);
    add(buffers.page_table);
    add(spec.bias);
    add(spec.alibi_slopes);
    add(spec.sink_logits);
    for (GuardedBytes* output : {&buffers.o, &buffers.lse}) {
      regions.push_back({output->data() - kGuardBytes, output->size() + 2 * kGuardBytes, true});
    }
  }
  add(pool_);
  return regions;
}

ProblemOutput AttentionProblem::Output(int sequence) const {
  const Buffers& buffers = *buffers_[sequence];
  const DataType type = shape_.partial ? DataType::kFp32 : shape_.type;
  ProblemOutput output;
  const auto elements = static_cast<std::int64_t>(buffers.o.size()) / ElementBytes(type);
  for (std::int64_t i = 0; i < elements; ++i) {
    output.o.push_back(kernels::ReferenceElement(buffers.o.data(), type, i));
  }
  for (std::size_t i = 0; i < buffers.lse.size() / sizeof(float); ++i) {
    output.lse.push_back(kernels::ReferenceElement(buffers.lse.data(), DataType::kFp32,
                                                   static_cast<std::int64_t>(i)));
  }
  return output;
}

std::vector<std::byte> AttentionProblem::OutputBits(int sequence) const {
  const Buffers& buffers = *buffers_[sequence];
  std::vector<std::byte> bits(buffers.o.data(), buffers.o.data() + buffers.o.size());
  bits.insert(bits.end(), buffers.lse.data(), buffers.lse.data() + buffers.lse.size());
  return bits;
}

bool AttentionProblem::GuardsIntact() const {
  return std::all_of(buffers_.begin(), buffers_.end(), [](const auto& buffers) {
    return buffers->o.Intact() && buffers->lse.Intact();
  });
}

const kernels::ReferenceOutput& AttentionProblem::Reference(int sequence) {
  Buffers& buffers = *buffers_[sequence];
  if (!buffers.reference) buffers.reference = kernels::ReferenceAttention(params_, sequence);
  return *buffers.reference;
}

double AttentionProblem::MaxValue(int sequence) const {
  double largest = 0;
  for (const float value : specs_[sequence].v) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(double{value}));
  }
  return largest;
}

std::byte* AttentionProblem::CacheElement(int sequence, std::int64_t token, int kv_head, int dim,
                                          bool value) {
  Buffers& buffers = *buffers_[sequence];
  const std::int64_t element = ElementBytes(shape_.type);
  if (shape_.page_tokens != 0) {
    const kernels::PageLayout& layout = params_.page_layout;
    const std::int64_t page = buffers.page_table[token / layout.page_tokens];
    return pool_.data() + page * kernels::kPageUnitBytes + (value ? layout.v_offset_bytes() : 0) +
           kv_head * layout.head_block_bytes() +
           (token % layout.page_tokens * layout.padded_head_dim + dim) * element;
  }
  const kernels::KvView& kv = sequences_[sequence].kv;
  std::byte* base = value ? buffers.v.data() : buffers.k.data();
  return base + (token * kv.k_token_stride + kv_head * kv.k_head_stride + dim) * element;
}

void AttentionProblem::ForgetAnswers(int sequence) {
  buffers_[sequence]->reference.reset();
  buffers_[sequence]->plain.reset();
}

void AttentionProblem::SetKey(int sequence, std::int64_t token, int kv_head, int dim, float value) {
  ForgetAnswers(sequence);
  kernels::StoreElement(CacheElement(sequence, token, kv_head, dim, false), shape_.type, 0, value);
}

void AttentionProblem::SetValue(int sequence, std::int64_t token, int kv_head, int dim,
                                float value) {
  ForgetAnswers(sequence);
  specs_[sequence].v[(token * shape_.num_kv_heads + kv_head) * shape_.head_dim + dim] = value;
  kernels::StoreElement(CacheElement(sequence, token, kv_head, dim, true), shape_.type, 0, value);
}

void AttentionProblem::FillUnusedSlots(float value) {
  for (int i = 0; i < num_sequences(); ++i) {
    const std::int64_t end =
        (specs_[i].kv_length + shape_.page_tokens - 1) / shape_.page_tokens * shape_.page_tokens;
    for (std::int64_t token = specs_[i].kv_length; token < end; ++token) {
      for (int head = 0; head < shape_.num_kv_heads; ++head) {
        for (int dim = 0; dim < params_.page_layout.padded_head_dim; ++dim) {
          kernels::StoreElement(CacheElement(i, token, head, dim, false), shape_.type, 0, value);
          kernels::StoreElement(CacheElement(i, token, head, dim, true), shape_.type, 0, value);
        }
      }
    }
  }
}

std::vector<std::uint32_t>& AttentionProblem::PageTable(int sequence) {
  return buffers_[sequence]->page_table;
}

const ProblemOutput& AttentionProblem::Plain(int sequence) {
  Buffers& buffers = *buffers_[sequence];
  if (!buffers.plain) buffers.plain = PlainAttention(params_, sequence);
  return *buffers.plain;
}

}  // namespace attnd
