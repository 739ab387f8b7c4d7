#include "server/sequence_store.h"

#include <sys/random.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/error_status.h"
#include "server/sequence_pages.h"
#include "server/sequence_shape.h"

namespace attnd {
namespace {

constexpr std::size_t kServerKeyBytes = 4;
constexpr std::size_t kPrefixBytes = 8;
constexpr std::int32_t kDefaultListSize = 100;
constexpr std::size_t kRandomWords = 512;

// FNV-1a: must not change between builds, ids outlive them.
std::string ServerKey(std::string_view server_name) {
  std::uint32_t hash = 2166136261U;
  for (const char c : server_name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  std::string key(kServerKeyBytes, '\0');
  std::memcpy(key.data(), &hash, kServerKeyBytes);
  return key;
}

SequenceKey KeyOf(std::string_view sequence_id) {
  SequenceKey key;
  std::memcpy(key.data(), sequence_id.data() + kPrefixBytes, sizeof(key));
  return key;
}

absl::Status NotFound(v1::Reason reason, std::string_view message) {
  return ErrorStatus(absl::StatusCode::kNotFound, reason, "sequence_id", message);
}

}  // namespace

SequenceStore::SequenceStore(Options options, PagePool& pool, HostCache* host_cache)
    : options_(std::move(options)),
      id_prefix_(ServerKey(options_.server_name) + options_.start_key),
      pool_(pool),
      host_cache_(host_cache) {
  assert(options_.start_key.size() == kPrefixBytes - kServerKeyBytes);
  for (const std::string& peer : options_.peers) {
    const std::size_t equals = peer.find('=');
    if (equals == std::string::npos) continue;
    std::string name = peer.substr(0, equals);
    std::string key = ServerKey(name);
    peers_[std::move(key)] = {std::move(name), peer.substr(equals + 1)};
  }
}

absl::StatusOr<Sequence*> SequenceStore::Find(std::string_view tenant,
                                              std::string_view sequence_id) const {
  if (sequence_id.size() != kSequenceIdBytes) {
    return InvalidField("sequence_id", absl::StrCat(sequence_id.size(), " bytes"),
                        absl::StrCat(kSequenceIdBytes, " bytes"));
  }
  if (sequence_id.substr(0, kPrefixBytes) == id_prefix_) {
    const SequenceKey key = KeyOf(sequence_id);
    const auto found = live_.find(key);
    if (found == live_.end()) return NotLive(tenant, key);
    if (found->second->tenant != tenant) {
      return NotFound(v1::REASON_UNKNOWN_SEQUENCE, "no such sequence");
    }
    return found->second;
  }
  const std::string server_key(sequence_id.substr(0, kServerKeyBytes));
  if (server_key == id_prefix_.substr(0, kServerKeyBytes)) {
    return NotFound(v1::REASON_SERVER_RESTARTED,
                    "the sequence was lost when this server restarted");
  }
  v1::ErrorDetail detail;
  detail.set_reason(v1::REASON_OTHER_SERVER);
  detail.set_field("sequence_id");
  detail.set_step_index(-1);
  const auto peer = peers_.find(server_key);
  if (peer != peers_.end()) {
    detail.set_server(peer->second.first);
    detail.set_address(peer->second.second);
  }
  return ErrorStatus(absl::StatusCode::kFailedPrecondition, detail,
                     "the sequence belongs to another server");
}

absl::Status SequenceStore::NotLive(std::string_view tenant, const SequenceKey& key) const {
  const auto ending = endings_.find(key);
  if (ending == endings_.end() || ending->second.tenant != tenant) {
    return NotFound(v1::REASON_UNKNOWN_SEQUENCE, "no such sequence");
  }
  switch (ending->second.reason) {
    case SequenceEnd::kDeleted:
      return NotFound(v1::REASON_DELETED, "the sequence was deleted");
    case SequenceEnd::kExpired:
      return NotFound(v1::REASON_EXPIRED, "the sequence's lease ended");
    case SequenceEnd::kEvicted:
      return NotFound(v1::REASON_EVICTED, "the server took the sequence's pages");
  }
  return NotFound(v1::REASON_UNKNOWN_SEQUENCE, "no such sequence");
}

std::string SequenceStore::IdOf(const Sequence& sequence) const {
  std::string id = id_prefix_;
  id.append(reinterpret_cast<const char*>(sequence.key.data()), sizeof(sequence.key));
  return id;
}

SequenceKey SequenceStore::NewKey() {
  if (random_words_.size() < 2) {
    random_words_.resize(kRandomWords);
    auto* bytes = reinterpret_cast<char*>(random_words_.data());
    std::size_t filled = 0;
    while (filled < kRandomWords * sizeof(std::uint64_t)) {
      const ssize_t got = getrandom(bytes + filled, kRandomWords * 8 - filled, 0);
      if (got > 0) filled += static_cast<std::size_t>(got);  // EINTR: again
    }
  }
  SequenceKey key{random_words_[random_words_.size() - 1], random_words_[random_words_.size() - 2]};
  random_words_.resize(random_words_.size() - 2);
  return key;
}

absl::Status SequenceStore::CheckSlots() const {
  if (static_cast<std::int64_t>(owned_.size()) < options_.max_sequences) return absl::OkStatus();
  return ErrorStatus(absl::StatusCode::kResourceExhausted, v1::REASON_QUOTA, "",
                     absl::StrCat("the server holds ", owned_.size(), " sequences, its limit"));
}

absl::Status SequenceStore::TakeReserve(Sequence& sequence, std::int64_t reserve_tokens) {
  const std::int64_t page_tokens = sequence.shape->page_layout.page_tokens;
  sequence.reserve_pages = (reserve_tokens + page_tokens - 1) / page_tokens;
  if (sequence.reserve_pages == 0) return absl::OkStatus();
  const auto layers = static_cast<std::int64_t>(sequence.layers.size());
  const int page_class = sequence.shape->page_class;
  // Division: the product of two client values may not fit.
  if (host_cache_ != nullptr && sequence.reserve_pages <= pool_.Capacity(page_class) / layers) {
    host_cache_->MakeRoom(page_class, sequence.reserve_pages * layers, /*ticket=*/0);
  }
  const std::int64_t available = pool_.Available(page_class);
  if (sequence.reserve_pages > available / layers) {
    return ErrorStatus(absl::StatusCode::kResourceExhausted, v1::REASON_CACHE_FULL,
                       "reserve_tokens",
                       absl::StrCat("needs ", sequence.reserve_pages, " pages in each of ", layers,
                                    " layers, ", available, " are free"));
  }
  for (LayerState& layer : sequence.layers) {
    pool_.Allocate(sequence.shape->page_class, sequence.reserve_pages, layer.reserve);
    pool_.CountReserved(sequence.shape->page_class, sequence.reserve_pages);
  }
  return absl::OkStatus();
}

Sequence& SequenceStore::Adopt(std::unique_ptr<Sequence> sequence,
                               std::optional<Clock::Duration> lease, Clock::TimePoint now) {
  Sequence& adopted = *sequence;
  owned_.emplace(&adopted, std::move(sequence));
  adopted.key = NewKey();
  live_.emplace(adopted.key, &adopted);
  keys_of_tenant_[adopted.tenant].insert(adopted.key);
  adopted.lease_timer = Clock::kNever;
  SetLease(adopted, lease, now);
  return adopted;
}

absl::StatusOr<Sequence*> SequenceStore::Create(const CreateSequenceSpec& spec,
                                                Clock::TimePoint now) {
  if (absl::Status slots = CheckSlots(); !slots.ok()) return slots;
  absl::StatusOr<std::shared_ptr<const SequenceShape>> shape = MakeSequenceShape(
      spec, {options_.page_tokens, options_.max_tokens, options_.window_slack_tokens}, pool_);
  if (!shape.ok()) return shape.status();
  auto sequence = std::make_unique<Sequence>();
  sequence->tenant = spec.tenant;
  sequence->shape = *std::move(shape);
  sequence->creation_key = spec.creation_key;
  sequence->layers.resize(static_cast<std::size_t>(spec.num_layers));
  if (absl::Status reserve = TakeReserve(*sequence, spec.reserve_tokens); !reserve.ok()) {
    return reserve;
  }
  return &Adopt(std::move(sequence), spec.lease, now);
}

absl::Status SequenceStore::CheckFork(const Sequence& parent, const ForkSequenceSpec& spec,
                                      bool projected) const {
  if (spec.reserve_tokens > parent.shape->max_tokens) {
    return ErrorStatus(absl::StatusCode::kOutOfRange, v1::REASON_LIMIT, "reserve_tokens",
                       absl::StrCat("reserve_tokens ", spec.reserve_tokens, " is over max_tokens ",
                                    parent.shape->max_tokens));
  }
  if (!spec.num_tokens) return absl::OkStatus();
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < parent.layers.size(); ++i) {
    const LayerState& layer = parent.layers[i];
    const LayerProgress& progress = projected ? layer.projected : layer.applied;
    longest = std::max(longest, progress.length);
    if (!CanContinueFrom(Rules(parent, static_cast<std::int32_t>(i)), progress, *spec.num_tokens)) {
      return LayerStatus(absl::StatusCode::kFailedPrecondition, v1::REASON_WINDOW_PASSED,
                         "num_tokens", progress,
                         absl::StrCat("cannot go on from ", *spec.num_tokens,
                                      " tokens: a layer's window has "
                                      "freed those below ",
                                      progress.freed_tokens));
    }
  }
  if (*spec.num_tokens <= longest) return absl::OkStatus();
  return LayerStatus(
      absl::StatusCode::kOutOfRange, v1::REASON_LIMIT, "num_tokens", {longest, 0, 0},
      absl::StrCat("num_tokens ", *spec.num_tokens, " is more than the longest layer's ", longest));
}

absl::StatusOr<Sequence*> SequenceStore::Fork(Sequence& parent, const ForkSequenceSpec& spec,
                                              Clock::TimePoint now) {
  if (absl::Status slots = CheckSlots(); !slots.ok()) return slots;
  if (absl::Status check = CheckFork(parent, spec, /*projected=*/false); !check.ok()) return check;
  const std::int64_t page_tokens = parent.shape->page_layout.page_tokens;

  // Every page becomes shared, so the parent's reservation must be made whole from free pages.
  std::int64_t parent_short = 0;
  for (const LayerState& layer : parent.layers) {
    parent_short += std::max<std::int64_t>(
        0, parent.reserve_pages - static_cast<std::int64_t>(layer.reserve.size()));
  }
  const std::int64_t child_pages = (spec.reserve_tokens + page_tokens - 1) / page_tokens *
                                   static_cast<std::int64_t>(parent.layers.size());
  if (host_cache_ != nullptr) {
    host_cache_->MakeRoom(parent.shape->page_class, parent_short + child_pages, /*ticket=*/0,
                          &parent);
  }
  const std::int64_t available = pool_.Available(parent.shape->page_class);
  if (parent_short > available || child_pages > available - parent_short) {
    return ErrorStatus(
        absl::StatusCode::kResourceExhausted, v1::REASON_CACHE_FULL, "reserve_tokens",
        absl::StrCat("needs ", parent_short + child_pages, " free pages, has ", available));
  }
  for (LayerState& layer : parent.layers) {
    const std::int64_t missing =
        parent.reserve_pages - static_cast<std::int64_t>(layer.reserve.size());
    if (missing <= 0) continue;
    pool_.Allocate(parent.shape->page_class, missing, layer.reserve);
    pool_.CountReserved(parent.shape->page_class, missing);
  }

  auto child = std::make_unique<Sequence>();
  child->tenant = parent.tenant;
  child->shape = parent.shape;
  child->creation_key = spec.creation_key;
  child->last_truncate = parent.last_truncate;
  child->layers.resize(parent.layers.size());
  if (absl::Status reserve = TakeReserve(*child, spec.reserve_tokens); !reserve.ok()) {
    return reserve;
  }
  for (std::size_t i = 0; i < parent.layers.size(); ++i) {
    const LayerState& from = parent.layers[i];
    LayerState& to = child->layers[i];
    to.applied = from.applied;
    if (spec.num_tokens) to.applied.length = std::min(from.applied.length, *spec.num_tokens);
    to.projected = to.applied;
    const std::int64_t kept =
        (to.applied.length + page_tokens - 1) / page_tokens - to.applied.freed_tokens / page_tokens;
    to.pages.assign(from.pages.begin(), from.pages.begin() + std::max<std::int64_t>(0, kept));
    for (const std::uint32_t page : to.pages) pool_.AddReference(page);
  }
  RestartLease(parent, now);
  return &Adopt(std::move(child), spec.lease, now);
}

void SequenceStore::End(Sequence& sequence, SequenceEnd reason) {
  sequence.ended = true;
  live_.erase(sequence.key);
  const auto keys = keys_of_tenant_.find(sequence.tenant);
  keys->second.erase(sequence.key);
  if (keys->second.empty()) keys_of_tenant_.erase(keys);
  if (!sequence.creation_key.empty()) {
    creations_.erase({sequence.tenant, sequence.creation_key});
  }
  endings_[sequence.key] = {sequence.tenant, reason};
  ending_order_.push_back(sequence.key);
  if (ending_order_.size() > kRememberedEndings) {
    endings_.erase(ending_order_.front());
    ending_order_.pop_front();
  }
}

void SequenceStore::Free(Sequence& sequence) {
  ReleaseAllPages(sequence, pool_);
  owned_.erase(&sequence);
}

absl::StatusOr<SequenceStore::Creation*> SequenceStore::FindCreation(
    const std::string& tenant, const std::string& key, const std::string& request_bytes) {
  const auto found = creations_.find({tenant, key});
  if (found == creations_.end()) return nullptr;
  if (found->second.request_bytes != request_bytes) {
    return ErrorStatus(absl::StatusCode::kAlreadyExists, v1::REASON_CREATION_KEY, "creation_key",
                       "the creation key was used with another request");
  }
  return &found->second;
}

SequenceStore::Creation& SequenceStore::AddCreation(const std::string& tenant,
                                                    const std::string& key,
                                                    const std::string& request_bytes) {
  Creation& creation = creations_[{tenant, key}];
  creation.request_bytes = request_bytes;
  return creation;
}

std::optional<SequenceStore::Creation> SequenceStore::TakeCreation(const std::string& tenant,
                                                                   const std::string& key) {
  const auto found = creations_.find({tenant, key});
  if (found == creations_.end()) return std::nullopt;
  Creation creation = std::move(found->second);
  creations_.erase(found);
  return creation;
}

SequenceInfo SequenceStore::Describe(const Sequence& sequence, Clock::TimePoint now) const {
  const SequenceShape& shape = *sequence.shape;
  SequenceInfo info;
  info.sequence_id = IdOf(sequence);
  info.num_layers = shape.num_layers;
  info.num_heads = shape.num_heads;
  info.num_kv_heads = shape.num_kv_heads;
  info.head_dim = shape.head_dim;
  info.data_type = shape.data_type;
  info.kv_data_type = shape.kv_data_type;
  info.max_tokens = shape.max_tokens;
  for (const LayerState& layer : sequence.layers) {
    info.layer_tokens.push_back(layer.applied.length);
    info.layer_epochs.push_back(layer.applied.epoch);
    info.host_pages += static_cast<std::int64_t>(layer.host_pages.size());
    info.device_pages += static_cast<std::int64_t>(layer.pages.size() + layer.reserve.size());
    for (const std::uint32_t page : layer.pages) {
      if (pool_.References(page) > 1) ++info.shared_pages;
    }
  }
  info.lease_remaining = std::max(Clock::Duration{0}, sequence.lease_deadline - now);
  return info;
}

absl::StatusOr<SequenceList> SequenceStore::List(const std::string& tenant, std::int32_t page_size,
                                                 const std::string& page_token,
                                                 Clock::TimePoint now) const {
  SequenceList list;
  SequenceKey after{};
  if (!page_token.empty()) {
    const std::string bytes = absl::HexStringToBytes(page_token);
    if (page_token.size() != 2 * sizeof(after) || absl::BytesToHexString(bytes) != page_token) {
      return InvalidField("page_token", "another string",
                          "empty or the next_page_token of a reply");
    }
    std::memcpy(after.data(), bytes.data(), sizeof(after));
  }
  const auto keys = keys_of_tenant_.find(tenant);
  if (keys == keys_of_tenant_.end()) return list;
  auto next = page_token.empty() ? keys->second.begin() : keys->second.upper_bound(after);
  const std::int32_t limit = page_size == 0 ? kDefaultListSize : page_size;
  for (std::int32_t i = 0; i < limit && next != keys->second.end(); ++i, ++next) {
    list.sequences.push_back(Describe(*live_.at(*next), now));
    after = *next;
  }
  if (next != keys->second.end()) {
    list.next_page_token = absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(after.data()), sizeof(after)));
  }
  return list;
}

}  // namespace attnd
