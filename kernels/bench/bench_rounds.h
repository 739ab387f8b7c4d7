// Blocks of calls of several sides in turn, so that a busy machine cannot favour one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace attnd::kernels::bench {

struct MeasureOptions {
  double seconds = 3;  // of each case, about
  int min_rounds = 5;  // blocks of every side at least
  double block_seconds = 0.03;
  // The machine's ceilings are measured for so long in every round too, so that a drifting clock or
  // a busy neighbour moves both; 0: those of the start hold.
  double ceiling_seconds = 0;
  std::int64_t max_naive_bytes = std::int64_t{4} << 30;  // naive is not run above this workspace
};

struct Timing {
  double ms = 0;      // median over blocks
  double spread = 0;  // (third quartile - first) / median
};

// Something that is timed in blocks of calls.
struct Side {
  std::function<double(int calls)> run;  // returns seconds
  int calls = 1;                         // of one block
  std::vector<double> ms;                // of one call, a block each
};

Timing Summarise(std::vector<double> ms);

// Blocks of all sides in turn, another side first each round and every other round backwards, so
// that no side always follows the one that heats the machine most; `before_round` (may be empty)
// before each.
void RunRounds(std::vector<Side*>& sides, const MeasureOptions& options,
               const std::function<void()>& before_round);

}  // namespace attnd::kernels::bench
