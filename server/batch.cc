#include "server/batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "kernels/naive_library.h"

namespace attnd {
namespace {

using kernels::ElementBytes;
using kernels::Operation;

// Reply rows start on a cache line, so that kernels may store whole vectors.
constexpr std::align_val_t kOutputAlignment{64};

TensorSlice Rows(const TensorView& tensor, std::int64_t first, std::int64_t count,
                 std::int64_t row_bytes) {
  return {&tensor, first * row_bytes, count * row_bytes};
}

void PackQueries(const AttentionRequest& request, std::int32_t num_heads, std::int32_t head_dim,
                 const ResolvedOptions& options, const ItemRows& rows,
                 const RequestOutputs& outputs, BatchItem& item) {
  const std::int64_t first_row = rows.first_row + rows.chunk_begin;
  const std::int64_t row_elements = std::int64_t{num_heads} * head_dim;
  item.attends = true;
  item.q =
      Rows(request.q, first_row, rows.chunk_rows, row_elements * ElementBytes(request.data_type));
  kernels::AttentionSequence& attention = item.attention;
  attention.q_token_stride = row_elements;
  attention.q_head_stride = head_dim;
  attention.o = outputs.o.data.get() + first_row * outputs.o_row_bytes;
  attention.o_token_stride = row_elements;
  attention.o_head_stride = head_dim;
  if (outputs.lse.data) {
    attention.lse =
        reinterpret_cast<float*>(outputs.lse.data.get() + first_row * outputs.lse_row_bytes);
  }
  attention.query_length = rows.chunk_rows;
  attention.window_left = options.window_left;
  attention.softmax_scale = options.softmax_scale;
  attention.logits_soft_cap = options.logits_soft_cap;
  attention.alibi_slopes = options.alibi_slopes;
  attention.sink_logits = options.sink_logits;
}

}  // namespace

const kernels::KernelRow* FindRow(const ShapeClass& shape, const kernels::DeviceLimits& device) {
  kernels::KernelKey key;
  key.data_type = shape.data_type;
  key.kv_data_type = shape.kv_data_type;
  key.head_dim = shape.head_dim;
  // Rotation is done apart (RotateQueries, LaunchAppend), so no row has to offer it. Causal and LSE
  // may be wanted by any item of a class.
  key.features = shape.feature_kinds | kernels::kFeatureCausal | kernels::kFeatureLse;
  if (shape.partial) key.features |= kernels::kFeaturePartial;
  if (shape.page_tokens != 0) key.features |= kernels::kFeaturePaged;
  key.operation = shape.operation;
  // Naive is other people's libraries, which an installation may lack.
  if (shape.operation == Operation::kNaive && kernels::NaiveFault(device.kind) != nullptr) {
    return nullptr;
  }
  const kernels::KernelRow* row = kernels::FindKernel(key, device);
  if (row == nullptr && shape.operation == Operation::kDecode) {
    key.operation = Operation::kPrefill;
    row = kernels::FindKernel(key, device);
  }
  if (row == nullptr && shape.operation != Operation::kNaive) {
    key.operation = Operation::kExact;
    row = kernels::FindKernel(key, device);
  }
  return row;
}

void Batch::Reset() {
  copies.clear();
  items.clear();
  page_tables.clear();
  rewrites = false;
  report.kernels.clear();
  report.num_splits = 0;
  plan_options = {};
}

void Batch::BindPageTables() {
  if (shape.page_tokens == 0) return;
  for (BatchItem& item : items) {
    const std::uint32_t* table = page_tables.data() + item.page_table_offset;
    item.attention.kv.page_table = table;
    item.append.page_table = table;
  }
}

ResolvedOptions ResolveOptions(const AttentionOptionValues& values, std::int32_t head_dim) {
  ResolvedOptions options;
  options.softmax_scale =
      values.softmax_scale.value_or(1.0F / std::sqrt(static_cast<float>(head_dim)));
  options.logits_soft_cap = values.logits_soft_cap;
  if (values.window_left) options.window_left = *values.window_left;
  if (values.window_right && !values.causal) options.window_right = *values.window_right;
  if (values.window_left || values.window_right) options.feature_kinds |= kernels::kFeatureWindow;
  if (values.logits_soft_cap != 0) options.feature_kinds |= kernels::kFeatureSoftCap;
  if (!values.alibi_slopes.empty()) {
    options.alibi_slopes = values.alibi_slopes.data();
    options.feature_kinds |= kernels::kFeatureAlibi;
  }
  if (!values.sink_logits.empty()) {
    options.sink_logits = values.sink_logits.data();
    options.feature_kinds |= kernels::kFeatureSinks;
  }
  return options;
}

kernels::RopeParams ResolveRope(const RopeOptionValues& values) {
  kernels::RopeParams rope;
  rope.enabled = true;
  rope.theta = values.theta;
  rope.rotary_dim = values.rotary_dim;
  rope.interleaved = values.interleaved;
  rope.position_scale = values.position_scale;
  rope.amplitude = values.amplitude;
  if (!values.inverse_frequencies.empty()) {
    rope.inverse_frequencies = values.inverse_frequencies.data();
  }
  return rope;
}

OutputBuffer AllocateOutput(std::int64_t size_bytes) {
  OutputBuffer buffer;
  buffer.size_bytes = size_bytes;
  auto* memory = static_cast<std::byte*>(::operator new(
      static_cast<std::size_t>(std::max<std::int64_t>(size_bytes, 1)), kOutputAlignment));
  buffer.data = std::shared_ptr<std::byte[]>(
      memory, [](std::byte* bytes) { ::operator delete(bytes, kOutputAlignment); });
  return buffer;
}

RequestOutputs AllocateOutputs(const AttentionRequest& request, std::int64_t rows) {
  RequestOutputs outputs;
  if (!request.q.present) return outputs;
  const int element_bytes = request.partial ? 4 : ElementBytes(request.data_type);
  outputs.o_row_bytes = std::int64_t{request.num_heads} * request.head_dim * element_bytes;
  outputs.o = AllocateOutput(rows * outputs.o_row_bytes);
  if (request.return_lse || request.partial) {
    outputs.lse_row_bytes = std::int64_t{request.num_heads} * 4;
    outputs.lse = AllocateOutput(rows * outputs.lse_row_bytes);
  }
  return outputs;
}

void FillEmptyRows(const RequestOutputs& outputs, std::int64_t first_row, std::int64_t num_rows) {
  if (outputs.o.data) {
    std::memset(outputs.o.data.get() + first_row * outputs.o_row_bytes, 0,
                static_cast<std::size_t>(num_rows * outputs.o_row_bytes));
  }
  if (outputs.lse.data) {
    auto* lse =
        reinterpret_cast<float*>(outputs.lse.data.get() + first_row * outputs.lse_row_bytes);
    std::fill_n(lse, num_rows * outputs.lse_row_bytes / 4, -std::numeric_limits<float>::infinity());
  }
}

void PackAttend(const AttentionRequest& request, const AttendSequence& sequence,
                const ResolvedOptions& options, const ItemRows& rows, const RequestOutputs& outputs,
                StagedTensors& staged, BatchItem& item) {
  PackQueries(request, request.num_heads, request.head_dim, options, rows, outputs, item);
  if (rows.chunk_rows < sequence.query_length) item.staged = &staged;
  const std::int64_t kv_row_elements = std::int64_t{request.num_kv_heads} * request.head_dim;
  const std::int64_t kv_row_bytes = kv_row_elements * ElementBytes(request.data_type);
  item.k = Rows(request.k, rows.first_kv_row, sequence.kv_length, kv_row_bytes);
  item.v = Rows(request.v, rows.first_kv_row, sequence.kv_length, kv_row_bytes);
  kernels::AttentionSequence& attention = item.attention;
  attention.kv.k_token_stride = attention.kv.v_token_stride = kv_row_elements;
  attention.kv.k_head_stride = attention.kv.v_head_stride = request.head_dim;
  attention.kv_length = sequence.kv_length;
  attention.query_position = sequence.query_position + rows.chunk_begin;
  attention.key_position = sequence.key_position;
  attention.causal = request.options.causal;
  attention.window_right = options.window_right;
  if (request.bias.present) {
    // The whole bias is one slice: a chunk's rows of all heads are not contiguous in it.
    item.bias = {&request.bias, 0, request.bias.size_bytes};
    item.bias_first_row = rows.chunk_begin;
    const std::int64_t query_rows = sequence.query_length;
    attention.bias_row_stride = sequence.kv_length;
    attention.bias_head_stride = request.bias.shape[0] == 1 ? 0 : query_rows * sequence.kv_length;
  }
}

void PackStep(const AttentionRequest& request, const ShapeClass& shape,
              const ResolvedOptions& options, const kernels::RopeParams& rope, const ItemRows& rows,
              const StepView& view, const RequestOutputs& outputs, BatchItem& item) {
  if (request.q.present) {
    PackQueries(request, shape.num_heads, shape.head_dim, options, rows, outputs, item);
    item.rope = rope;
    kernels::AttentionSequence& attention = item.attention;
    attention.query_position = view.query_position;
    attention.key_position = view.first_page_token;
    attention.kv_length = std::max<std::int64_t>(0, view.visible_end - view.first_page_token);
    attention.causal = view.causal;
  }
  if (view.appends) {
    item.appends = true;
    const std::int64_t kv_row_bytes =
        std::int64_t{shape.num_kv_heads} * shape.head_dim * ElementBytes(request.data_type);
    const std::int64_t first_row = rows.first_row + rows.chunk_begin;
    item.k = Rows(request.k, first_row, rows.chunk_rows, kv_row_bytes);
    item.v = Rows(request.v, first_row, rows.chunk_rows, kv_row_bytes);
    item.append.num_tokens = rows.chunk_rows;
    item.append.first_token = view.append_position - view.first_page_token;
    item.append.first_position = view.append_position;
    item.append.rope = rope;
  }
}

}  // namespace attnd
