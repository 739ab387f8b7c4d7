#include "server/page_copy.h"

namespace attnd {
namespace {

// Null: outside.
std::byte* At(std::byte* memory, std::int64_t memory_bytes, std::uint32_t place,
              std::int64_t bytes) {
  const std::int64_t offset = std::int64_t{place} * kernels::kPageUnitBytes;
  return memory != nullptr && offset <= memory_bytes - bytes ? memory + offset : nullptr;
}

}  // namespace

absl::StatusOr<PagePlaces> PlacesOf(const PageCopy& copy, const kernels::PageLayout& layout,
                                    const BackendLimits& limits) {
  using Kind = PageCopy::Kind;
  const std::int64_t bytes = copy.kind == Kind::kInPool ? layout.page_bytes() : copy.bytes;
  const auto in_pool = [&](std::uint32_t place) {
    return At(limits.pool, limits.pool_bytes, place, bytes);
  };
  const auto on_host = [&](std::uint32_t place) {
    return At(limits.host_pool, limits.host_pool_bytes, place, bytes);
  };
  PagePlaces places;
  places.from = copy.kind == Kind::kFromHost ? on_host(copy.from) : in_pool(copy.from);
  places.to = copy.kind == Kind::kToHost ? on_host(copy.to) : in_pool(copy.to);
  places.bytes = static_cast<std::size_t>(bytes);
  if (places.from == nullptr || places.to == nullptr) {
    return absl::InternalError("page copy: a page lies outside the pool");
  }
  return places;
}

}  // namespace attnd
