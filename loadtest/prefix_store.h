// Sequences kept for what other sessions' prompts share with them: which one holds the longest
// prefix of a prompt, and which ones go when room is short. Knows no server: whoever uses it makes
// and deletes the sequences.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace attnd::loadtest {

// Thread-safe.
class PrefixStore {
 public:
  struct Match {
    std::string sequence_id;
    std::size_t num_blocks = 0;
  };

  // `max_blocks`: of all sequences together, shared ones counted in each.
  explicit PrefixStore(std::int64_t max_blocks) : max_blocks_(max_blocks) {}

  // The sequence that holds most of `blocks` from their start, and how many. It counts as used.
  std::optional<Match> Find(std::span<const std::int64_t> blocks);
  // Keeps a sequence that holds `blocks`. Returns those that went to make room, least recently used
  // first; the new one itself where it is larger than the store.
  std::vector<std::string> Add(std::string sequence_id, std::span<const std::int64_t> blocks);
  // The server no longer has it.
  void Forget(const std::string& sequence_id);
  // Every sequence; the store is empty afterwards.
  std::vector<std::string> TakeAll();

 private:
  struct Entry {
    std::string sequence_id;
    std::vector<std::int64_t> blocks;
  };
  using Entries = std::list<Entry>;

  void Remove(Entries::iterator entry);  // needs mutex_

  const std::int64_t max_blocks_;
  std::mutex mutex_;
  Entries entries_;  // guarded by mutex_, like everything below; most recently used first
  std::int64_t num_blocks_ = 0;
  // The newest sequence that holds the block.
  std::map<std::int64_t, Entries::iterator> holders_;
};

}  // namespace attnd::loadtest
