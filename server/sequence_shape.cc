#include "server/sequence_shape.h"

#include <algorithm>
#include <string>
#include <utility>

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

// Pages that a sequence of `tokens` tokens in every layer holds.
std::int64_t PagesOf(const SequenceShape& shape, const ShapeLimits& limits,
                     const std::vector<std::int64_t>& layers_of_group, std::int64_t tokens) {
  const std::int64_t page_tokens = shape.page_layout.page_tokens;
  std::int64_t pages = 0;
  for (std::size_t i = 0; i < shape.groups.size(); ++i) {
    std::int64_t held = (tokens + page_tokens - 1) / page_tokens;
    const std::int64_t window = shape.groups[i]->options.window_left;
    if (window != kernels::kUnlimitedWindow) {
      // The window, the token itself and the slack, beginning anywhere in a page.
      const std::int64_t kept = window + 1 + limits.window_slack_tokens;
      held = std::min(held, (kept + page_tokens - 1) / page_tokens + 1);
    }
    pages += held * layers_of_group[i];
  }
  return pages;
}

// The most tokens, up to limits.max_tokens, of which an empty pool holds every layer.
std::int64_t MostTokens(const SequenceShape& shape, const ShapeLimits& limits,
                        const PagePool& pool) {
  std::vector<std::int64_t> layers_of_group(shape.groups.size(), 0);
  for (const std::uint16_t group : shape.group_of_layer) ++layers_of_group[group];
  const std::int64_t capacity = pool.Capacity(shape.page_class);
  std::int64_t fits = 0, too_many = limits.max_tokens + 1;
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    (PagesOf(shape, limits, layers_of_group, middle) <= capacity ? fits : too_many) = middle;
  }
  return fits;
}

absl::Status OutOfRange(const char* field, const std::string& message) {
  return ErrorStatus(absl::StatusCode::kOutOfRange, v1::REASON_LIMIT, field, message);
}

// Once all else of the shape is known.
absl::Status SetMaxTokens(const CreateSequenceSpec& spec, const ShapeLimits& limits,
                          const PagePool& pool, SequenceShape& shape) {
  const std::int64_t most = MostTokens(shape, limits, pool);
  const char* why = most == limits.max_tokens ? "the server's limit"
                                              : "what the cache holds of a sequence of this shape";
  if (most == 0) {
    return OutOfRange("num_layers", absl::StrCat("num_layers: got ", spec.num_layers,
                                                 ", the cache does not hold one token in each"));
  }
  if (spec.max_tokens > most) {
    return OutOfRange("max_tokens", absl::StrCat("max_tokens: got ", spec.max_tokens,
                                                 ", need at most ", most, ", ", why));
  }
  if (spec.reserve_tokens > most) {
    return OutOfRange("reserve_tokens", absl::StrCat("reserve_tokens: got ", spec.reserve_tokens,
                                                     ", need at most ", most, ", ", why));
  }
  shape.max_tokens = spec.max_tokens == 0 ? most : spec.max_tokens;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SequenceShape>> MakeSequenceShape(
    const CreateSequenceSpec& spec, const ShapeLimits& limits, PagePool& pool) {
  auto shape = std::make_shared<SequenceShape>();
  shape->num_layers = spec.num_layers;
  shape->num_heads = spec.num_heads;
  shape->num_kv_heads = spec.num_kv_heads;
  shape->head_dim = spec.head_dim;
  shape->data_type = spec.data_type;
  shape->kv_data_type = spec.kv_data_type;

  kernels::PageLayout& layout = shape->page_layout;
  layout.data_type = spec.kv_data_type;
  layout.num_kv_heads = spec.num_kv_heads;
  layout.head_dim = spec.head_dim;
  layout.padded_head_dim = kernels::PaddedHeadDim(spec.head_dim);
  layout.page_tokens = limits.page_tokens != 0 ? limits.page_tokens : DefaultPageTokens(layout);
  if (layout.page_bytes() > PagePool::kSlabBytes) {
    return OutOfRange(
        "num_kv_heads",
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
  if (absl::Status status = SetMaxTokens(spec, limits, pool, *shape); !status.ok()) return status;
  return std::shared_ptr<const SequenceShape>(std::move(shape));
}

}  // namespace attnd
