#include "server/cuda_layout.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace attnd {
namespace {

constexpr std::int64_t RoundUp(std::int64_t bytes) {
  return (bytes + CudaLayout::kAlignment - 1) / CudaLayout::kAlignment * CudaLayout::kAlignment;
}

std::int32_t RowsOf(const BatchItem& item) {
  return item.attends ? item.attention.query_length : item.append.num_tokens;
}

// Device copies of what host pointers of the batch point to.
class Layouter {
 public:
  Layouter(const Batch& batch, std::byte* arena, CudaLayout& layout)
      : batch_(batch), arena_(arena), layout_(layout) {
    if (batch.page_tables.empty()) return;
    tables_ = layout.AddInput(batch.page_tables.data(),
                              static_cast<std::int64_t>(batch.page_tables.size()) * 4);
  }

  void Add(const ItemSpan& span) {
    const BatchItem& item = batch_.items[static_cast<std::size_t>(span.item)];
    if (item.appends) AddAppend(item, span);
    if (item.attends) AddAttention(item, span);
  }

 private:
  std::byte* At(std::int64_t offset) const { return arena_ + offset; }

  std::byte* Copy(const TensorSlice& slice) {
    if (slice.tensor == nullptr || slice.size_bytes == 0) return nullptr;
    const std::int64_t offset = layout_.AddInput(nullptr, slice.size_bytes);
    layout_.inputs.back().slice = slice;
    return At(offset);
  }

  // Rows [first, first + count) of `rows_in_all` in the slice.
  static TensorSlice Rows(const TensorSlice& slice, std::int64_t first, std::int64_t count,
                          std::int64_t rows_in_all) {
    if (slice.tensor == nullptr || rows_in_all == 0) return {};
    const std::int64_t row_bytes = slice.size_bytes / rows_in_all;
    return {slice.tensor, slice.offset_bytes + first * row_bytes, count * row_bytes};
  }

  // Option values belong to a request or to a layer: many items share them.
  const float* Shared(const float* values, std::int64_t count) {
    if (values == nullptr) return nullptr;
    const auto [found, added] = shared_.try_emplace(values, 0);
    if (added) found->second = layout_.AddInput(values, count * 4);
    return reinterpret_cast<const float*>(At(found->second));
  }

  const std::uint32_t* PageTable(const std::uint32_t* host) const {
    if (host == nullptr || batch_.page_tables.empty()) return nullptr;
    return reinterpret_cast<const std::uint32_t*>(At(tables_)) + (host - batch_.page_tables.data());
  }

  kernels::RopeParams Rope(kernels::RopeParams rope) {
    if (rope.enabled) {
      rope.inverse_frequencies = Shared(rope.inverse_frequencies, rope.rotary_dim / 2);
    }
    return rope;
  }

  void AddAppend(const BatchItem& item, const ItemSpan& span) {
    kernels::AppendSequence append = item.append;
    append.k = Copy(Rows(item.k, span.first_row, span.rows, item.append.num_tokens));
    append.v = Copy(Rows(item.v, span.first_row, span.rows, item.append.num_tokens));
    append.num_tokens = span.rows;
    append.first_token += span.first_row;
    append.first_position += span.first_row;
    append.page_table = PageTable(item.append.page_table);
    append.rope = Rope(item.append.rope);
    layout_.appends.push_back(append);
  }

  void AddAttention(const BatchItem& item, const ItemSpan& span) {
    kernels::AttentionSequence attention = item.attention;
    const std::int32_t rows_in_all = item.attention.query_length;
    std::byte* q = Copy(Rows(item.q, span.first_row, span.rows, rows_in_all));
    attention.q = q;
    attention.query_length = span.rows;
    attention.query_position += span.first_row;
    // Tokens that a later span appends are not there yet.
    if (item.appends) attention.kv_length -= rows_in_all - span.first_row - span.rows;
    if (batch_.shape.page_tokens == 0) {
      attention.kv.k = Copy(item.k);
      attention.kv.v = Copy(item.v);
    } else {
      attention.kv.page_table = PageTable(item.attention.kv.page_table);
    }
    if (item.bias.tensor != nullptr) {
      if (const std::byte* bias = Copy(item.bias); bias != nullptr) {
        attention.bias = reinterpret_cast<const float*>(bias) +
                         (item.bias_first_row + span.first_row) * attention.bias_row_stride;
      }
    }
    attention.alibi_slopes = Shared(attention.alibi_slopes, batch_.shape.num_heads);
    attention.sink_logits = Shared(attention.sink_logits, batch_.shape.num_heads);
    AddOutputs(item, span, attention);
    if (item.rope.enabled && q != nullptr) {
      layout_.rotations.push_back(
          {q, span.rows, rotated_rows_, attention.query_position, Rope(item.rope)});
      rotated_rows_ += span.rows;
    }
    layout_.sequences.push_back(attention);
  }

  // Offsets are counted from 0 here; MoveOutputs puts them at the end of the arena.
  void AddOutputs(const BatchItem& item, const ItemSpan& span,
                  kernels::AttentionSequence& attention) {
    const ShapeClass& shape = batch_.shape;
    const int element_bytes = shape.partial ? 4 : kernels::ElementBytes(shape.data_type);
    const std::int64_t row_bytes = attention.o_token_stride * element_bytes;
    attention.o =
        At(AddOutput(static_cast<std::byte*>(item.attention.o) + span.first_row * row_bytes,
                     span.rows * row_bytes));
    if (item.attention.lse == nullptr) return;
    float* lse = item.attention.lse + std::int64_t{span.first_row} * shape.num_heads;
    attention.lse = reinterpret_cast<float*>(At(AddOutput(
        reinterpret_cast<std::byte*>(lse), std::int64_t{span.rows} * shape.num_heads * 4)));
  }

  std::int64_t AddOutput(std::byte* to, std::int64_t size_bytes) {
    const std::int64_t offset = layout_.outputs_end;
    layout_.outputs.push_back({offset, size_bytes, to});
    layout_.outputs_end = RoundUp(offset + size_bytes);
    return offset;
  }

  const Batch& batch_;
  std::byte* arena_;
  CudaLayout& layout_;
  std::int64_t tables_ = 0;
  std::int32_t rotated_rows_ = 0;
  absl::flat_hash_map<const float*, std::int64_t> shared_;
};

void MoveOutputs(std::int64_t distance, CudaLayout& layout) {
  layout.outputs_begin = distance;
  layout.outputs_end += distance;
  for (ArenaOutput& output : layout.outputs) output.offset += distance;
  for (kernels::AttentionSequence& sequence : layout.sequences) {
    sequence.o = static_cast<std::byte*>(sequence.o) + distance;
    if (sequence.lse != nullptr) {
      sequence.lse =
          reinterpret_cast<float*>(reinterpret_cast<std::byte*>(sequence.lse) + distance);
    }
  }
}

}  // namespace

std::vector<ItemSpan> WholeItems(const Batch& batch) {
  std::vector<ItemSpan> spans;
  spans.reserve(batch.items.size());
  for (const BatchItem& item : batch.items) {
    spans.push_back({static_cast<std::int32_t>(spans.size()), 0, RowsOf(item)});
  }
  return spans;
}

bool HalveSpans(std::span<const ItemSpan> spans, std::vector<ItemSpan>& first,
                std::vector<ItemSpan>& second) {
  if (spans.size() > 1) {
    const auto half = spans.begin() + static_cast<std::ptrdiff_t>(spans.size() / 2);
    first.assign(spans.begin(), half);
    second.assign(half, spans.end());
    return true;
  }
  if (spans.empty() || spans[0].rows < 2) return false;
  ItemSpan begin = spans[0];
  ItemSpan end = spans[0];
  begin.rows /= 2;
  end.first_row += begin.rows;
  end.rows -= begin.rows;
  first.assign(1, begin);
  second.assign(1, end);
  return true;
}

std::int64_t CudaLayout::AddInput(const void* host, std::int64_t size_bytes) {
  ArenaInput& input = inputs.emplace_back();
  input.offset = RoundUp(inputs_end);
  input.size_bytes = size_bytes;
  input.host = static_cast<const std::byte*>(host);
  inputs_end = input.offset + size_bytes;
  return input.offset;
}

bool LayOut(const Batch& batch, std::span<const ItemSpan> spans, std::byte* arena,
            std::int64_t arena_bytes, CudaLayout& layout) {
  layout.inputs.clear();
  layout.outputs.clear();
  layout.sequences.clear();
  layout.appends.clear();
  layout.rotations.clear();
  layout.inputs_end = layout.outputs_begin = layout.outputs_end = 0;
  Layouter layouter(batch, arena, layout);
  for (const ItemSpan& span : spans) layouter.Add(span);
  const std::int64_t first_output =
      (arena_bytes - layout.outputs_end) / CudaLayout::kAlignment * CudaLayout::kAlignment;
  if (first_output < layout.inputs_end) return false;
  MoveOutputs(first_output, layout);
  return true;
}

}  // namespace attnd
