#include "server/sequence_shape.h"

#include "absl/strings/str_cat.h"
#include "server/error_status.h"

namespace attnd {
namespace {

// 16 to 64 tokens by shape, so that a page is near 64 KiB; fewer only where a page of 16 would not
// fit a slab.
std::int32_t DefaultPageTokens(kernels::PageLayout layout) {
  constexpr std::int64_t kComfortableBytes = 64 * 1024;
  for (const std::int32_t tokens : {64, 32, 16}) {
    layout.page_tokens = tokens;
    if (layout.page_bytes() <= kComfortableBytes) return tokens;
  }
  while (layout.page_tokens > 1 && layout.page_bytes() > PagePool::kSlabBytes) {
    layout.page_tokens /= 2;
  }
  return layout.page_tokens;
}

void AssignGroups(const CreateSequenceSpec& spec, SequenceShape& shape) {
  constexpr std::uint16_t kUnnamed = 0xFFFF;
  shape.group_of_layer.assign(static_cast<std::size_t>(spec.num_layers), kUnnamed);
  std::uint16_t catch_all = kUnnamed;
  for (const LayerGroupValues& group : spec.layer_groups) {
    const auto index = static_cast<std::uint16_t>(shape.groups.size());
    auto& options = shape.groups.emplace_back(std::make_unique<LayerOptions>());
    options->values = group.options;
    options->rope_values = group.rope;
    if (group.layers.empty()) catch_all = index;
    for (const std::int32_t layer : group.layers) {
      shape.group_of_layer[static_cast<std::size_t>(layer)] = index;
    }
  }
  for (std::uint16_t& group : shape.group_of_layer) {
    if (group != kUnnamed) continue;
    if (catch_all == kUnnamed) {
      catch_all = static_cast<std::uint16_t>(shape.groups.size());
      shape.groups.push_back(std::make_unique<LayerOptions>());
    }
    group = catch_all;
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SequenceShape>> MakeSequenceShape(
    const CreateSequenceSpec& spec, int page_tokens, PagePool& pool) {
  auto shape = std::make_shared<SequenceShape>();
  shape->num_layers = spec.num_layers;
  shape->num_heads = spec.num_heads;
  shape->num_kv_heads = spec.num_kv_heads;
  shape->head_dim = spec.head_dim;
  shape->data_type = spec.data_type;
  shape->kv_data_type = spec.kv_data_type;
  shape->max_tokens = spec.max_tokens;

  kernels::PageLayout& layout = shape->page_layout;
  layout.data_type = spec.kv_data_type;
  layout.num_kv_heads = spec.num_kv_heads;
  layout.head_dim = spec.head_dim;
  layout.padded_head_dim = kernels::PaddedHeadDim(spec.head_dim);
  layout.page_tokens = page_tokens != 0 ? page_tokens : DefaultPageTokens(layout);
  if (layout.page_bytes() > PagePool::kSlabBytes) {
    return ErrorStatus(
        absl::StatusCode::kOutOfRange, v1::REASON_LIMIT, "num_kv_heads",
        absl::StrCat("a page of ", layout.page_tokens, " tokens takes ", layout.page_bytes(),
                     " bytes, at most ", PagePool::kSlabBytes, " are possible"));
  }
  shape->page_class = pool.ClassOf(layout.page_bytes());

  AssignGroups(spec, *shape);
  for (const auto& options : shape->groups) {
    options->values.causal = true;
    options->options = ResolveOptions(options->values, spec.head_dim);
    if (options->rope_values) options->rope = ResolveRope(*options->rope_values);
  }
  return std::shared_ptr<const SequenceShape>(std::move(shape));
}

}  // namespace attnd
