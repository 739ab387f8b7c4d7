// Which keys a query row sees. Causal masks and windows always leave one interval of keys, so every
// kernel, the cost model and the reference share this one function.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention_params.h"

namespace attnd::kernels {

// Key indices [begin, end) of a sequence; begin == end when no key is visible.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

// Keys that query row `row` of `sequence` may see, before scores of -inf hide any more.
inline KeyRange VisibleKeys(const AttentionSequence& sequence, std::int64_t row) {
  // The query's place, counted from key 0. Windows are compared, never added to it before the
  // comparison: they may be as large as their type.
  const std::int64_t place = sequence.query_position + row - sequence.key_position;
  KeyRange range{0, sequence.kv_length};
  if (sequence.causal) {
    range.end = std::min(range.end, place + 1);
  } else if (sequence.window_right != kUnlimitedWindow &&
             sequence.window_right < range.end - 1 - place) {
    range.end = place + sequence.window_right + 1;
  }
  if (sequence.window_left != kUnlimitedWindow && place > sequence.window_left) {
    range.begin = place - sequence.window_left;
  }
  if (range.end <= range.begin) return {0, 0};
  return range;
}

// Union of VisibleKeys over rows [row_begin, row_end): the intervals move right by one key a row,
// so the union is an interval too.
inline KeyRange VisibleKeys(const AttentionSequence& sequence, std::int64_t row_begin,
                            std::int64_t row_end) {
  KeyRange all{0, 0};
  // Rows before the first key or past the last window see nothing; ends are enough otherwise.
  std::int64_t first = row_begin;
  std::int64_t last = row_end - 1;
  while (first <= last && VisibleKeys(sequence, first).size() == 0) ++first;
  while (last >= first && VisibleKeys(sequence, last).size() == 0) --last;
  if (first > last) return all;
  all.begin = VisibleKeys(sequence, first).begin;
  all.end = VisibleKeys(sequence, last).end;
  return all;
}

}  // namespace attnd::kernels
