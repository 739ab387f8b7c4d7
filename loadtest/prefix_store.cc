#include "loadtest/prefix_store.h"

#include <algorithm>
#include <utility>

namespace attnd::loadtest {

std::optional<PrefixStore::Match> PrefixStore::Find(std::span<const std::int64_t> blocks) {
  const std::lock_guard lock(mutex_);
  // From the longest prefix down: a block's name stands for all before it too, but a name that a
  // trace uses twice must not pass another prompt's keys for this one's.
  for (std::size_t count = blocks.size(); count > 0; --count) {
    const auto holder = holders_.find(blocks[count - 1]);
    if (holder == holders_.end()) continue;
    const std::vector<std::int64_t>& held = holder->second->blocks;
    if (held.size() < count || !std::equal(blocks.begin(), blocks.begin() + count, held.begin())) {
      continue;
    }
    entries_.splice(entries_.begin(), entries_, holder->second);
    return Match{holder->second->sequence_id, count};
  }
  return std::nullopt;
}

std::vector<std::string> PrefixStore::Add(std::string sequence_id,
                                          std::span<const std::int64_t> blocks) {
  const std::lock_guard lock(mutex_);
  entries_.push_front({std::move(sequence_id), {blocks.begin(), blocks.end()}});
  num_blocks_ += static_cast<std::int64_t>(blocks.size());
  for (const std::int64_t block : blocks) holders_[block] = entries_.begin();
  std::vector<std::string> gone;
  while (num_blocks_ > max_blocks_) {
    gone.push_back(entries_.back().sequence_id);
    Remove(std::prev(entries_.end()));
  }
  return gone;
}

void PrefixStore::Forget(const std::string& sequence_id) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(),
                   [&sequence_id](const Entry& entry) { return entry.sequence_id == sequence_id; });
  if (found != entries_.end()) Remove(found);
}

std::vector<std::string> PrefixStore::TakeAll() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const Entry& entry : entries_) all.push_back(entry.sequence_id);
  entries_.clear();
  holders_.clear();
  num_blocks_ = 0;
  return all;
}

void PrefixStore::Remove(Entries::iterator entry) {
  num_blocks_ -= static_cast<std::int64_t>(entry->blocks.size());
  for (const std::int64_t block : entry->blocks) {
    const auto holder = holders_.find(block);
    if (holder != holders_.end() && holder->second == entry) holders_.erase(holder);
  }
  entries_.erase(entry);
}

}  // namespace attnd::loadtest
