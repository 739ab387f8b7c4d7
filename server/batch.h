// One ragged launch: what the scheduler packs and a backend runs.
//
// A Batch describes work, it holds no tensor bytes: items point into the requests' own tensors
// (TensorSlice), into their output buffers and into page tables that the batch keeps. Everything
// pointed to stays alive until the backend has called `done`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention_kernels.h"
#include "server/attention_request.h"

namespace attnd {

// Head shape, types and kinds of options: requests of one class may share a launch. Option values
// travel per item and do not split classes.
struct ShapeClass {
  kernels::DataType data_type = kernels::DataType::kFp32;
  kernels::DataType kv_data_type = kernels::DataType::kFp32;
  std::int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int32_t page_tokens = 0;  // 0: contiguous keys and values (Attend)
  // kFeatureWindow, kFeatureSoftCap, kFeatureAlibi, kFeatureSinks, kFeatureBias. Not RoPE: rotation
  // is done per item, outside the attention kernel.
  std::uint32_t feature_kinds = 0;
  kernels::Operation operation = kernels::Operation::kPrefill;  // kPrefill, kDecode or kNaive
  bool partial = false;

  bool operator==(const ShapeClass&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const ShapeClass& c) {
    return H::combine(std::move(state), c.data_type, c.kv_data_type, c.num_heads, c.num_kv_heads,
                      c.head_dim, c.page_tokens, c.feature_kinds, c.operation, c.partial);
  }
};

// The table row that serves a class on a device: the operation's own family first, then the exact
// row. Null: no such kernel.
const kernels::KernelRow* FindRow(const ShapeClass& shape, const kernels::DeviceLimits& device);

// `size_bytes` bytes of a tensor from `offset_bytes` on; they may span pieces.
struct TensorSlice {
  const TensorView* tensor = nullptr;  // null: absent
  std::int64_t offset_bytes = 0, size_bytes = 0;
};

// Contiguous copies that a backend keeps with a request from one launch to the next: an Attend
// sequence served in chunks copies its keys and values once. The backend fills what is null.
struct StagedTensors {
  struct Tensor {
    std::shared_ptr<void> memory;  // null where `data` points into the request itself
    const std::byte* data = nullptr;
  };
  Tensor k, v, bias;
};

// One sequence of the launch. The backend resolves the slices into the pointers that are null.
struct BatchItem {
  bool attends = false, appends = false;
  TensorSlice q, k, v, bias;
  kernels::AttentionSequence attention;  // without q, contiguous k and v, bias
  kernels::AppendSequence append;        // without k and v
  kernels::RopeParams rope;              // rotates q (append.rope rotates k)
  StagedTensors* staged = nullptr;       // Attend in several launches: copies go here
  std::int64_t bias_first_row = 0;       // of this launch's first query, within `bias`
  std::size_t page_table_offset = 0;     // into Batch::page_tables
};

// A page that is copied before the launch, in order: a shared one, whose copy the launch writes to,
// or one that moves to host memory or back (host_cache.h).
struct PageCopy {
  enum class Kind : std::uint8_t { kInPool, kToHost, kFromHost };
  std::uint32_t from = 0, to = 0;  // offsets / kPageUnitBytes in the pool, or in host memory
  Kind kind = Kind::kInPool;
  std::int32_t bytes = 0;  // of a moving page; kInPool: 0, it has the batch's page size
};

// What the backend did, for answers and rates.
struct BatchReport {
  std::vector<const char*> kernels;  // in order, no repeats
  std::int32_t num_splits = 0;
};

struct Batch {
  ShapeClass shape;
  kernels::PageLayout page_layout;  // paged classes
  kernels::PlanOptions plan_options;
  std::vector<PageCopy> copies;
  std::vector<BatchItem> items;
  std::vector<std::uint32_t> page_tables;
  // Some item overwrites cached rows (a rollback), which an earlier batch may still read: a backend
  // that computes again after a batch has passed finishes the earlier ones first.
  bool rewrites = false;
  BatchReport report;

  // Empties the batch and keeps its capacity.
  void Reset();
  // Points the items' page tables into page_tables; called once, after the last item.
  void BindPageTables();
};

// Where in a request one item's rows lie, and which part of it this launch covers.
struct ItemRows {
  std::int64_t first_row = 0;     // of the item, in the request's q (Decode: in k and v as well)
  std::int64_t first_kv_row = 0;  // of the item in k and v (Attend)
  std::int32_t chunk_begin = 0;   // the launch covers [chunk_begin, chunk_begin + chunk_rows)
  std::int32_t chunk_rows = 0;
};

// The kernel's view of the options that a sequence or layer was created with. Pointers refer to
// `values`, which must outlive the result.
struct ResolvedOptions {
  float softmax_scale = 1;
  float logits_soft_cap = 0;
  std::int64_t window_left = kernels::kUnlimitedWindow, window_right = kernels::kUnlimitedWindow;
  const float* alibi_slopes = nullptr;
  const float* sink_logits = nullptr;
  std::uint32_t feature_kinds = 0;
};
ResolvedOptions ResolveOptions(const AttentionOptionValues& values, std::int32_t head_dim);
kernels::RopeParams ResolveRope(const RopeOptionValues& values);

// Reply memory of one request; uninitialised, every row is written by a kernel or by FillRows.
OutputBuffer AllocateOutput(std::int64_t size_bytes);
struct RequestOutputs {
  OutputBuffer o, lse;
  std::int64_t o_row_bytes = 0, lse_row_bytes = 0;
};
RequestOutputs AllocateOutputs(const AttentionRequest& request, std::int64_t rows);
// Rows that no kernel computes: o = 0, lse = -infinity.
void FillEmptyRows(const RequestOutputs& outputs, std::int64_t first_row, std::int64_t num_rows);

// Fills an Attend item: contiguous keys and values.
void PackAttend(const AttentionRequest& request, const AttendSequence& sequence,
                const ResolvedOptions& options, const ItemRows& rows, const RequestOutputs& outputs,
                StagedTensors& staged, BatchItem& item);

// How a Decode item's chunk stands on its layer.
struct StepView {
  std::int64_t query_position = 0;    // of the chunk's first row
  std::int64_t append_position = 0;   // of the chunk's first new token
  std::int64_t first_page_token = 0;  // token that row 0 of the page table stands for
  std::int64_t visible_end = 0;       // queries see cached tokens below this
  bool causal = true;
  bool appends = false;
};
// Fills a Decode item; the page table itself is appended to batch.page_tables by the caller.
void PackStep(const AttentionRequest& request, const ShapeClass& shape,
              const ResolvedOptions& options, const kernels::RopeParams& rope, const ItemRows& rows,
              const StepView& view, const RequestOutputs& outputs, BatchItem& item);

}  // namespace attnd
