// Recorded arrivals and lengths of requests to a language model, in the formats that public traces
// come in. Texts and users are not in them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/arrival_process.h"

namespace attnd::loadtest {

struct TraceRecord {
  std::chrono::nanoseconds arrival{0};  // from the first record
  std::int64_t prompt_tokens = 1;       // >= 1
  std::int64_t output_tokens = 1;       // >= 1
  // Names of the prompt's blocks, from its start; equal ones in two records are equal prompts up to
  // there. The last block may be cut short by the prompt's end.
  std::vector<std::int64_t> blocks;
  std::int64_t block_tokens = 512;
};
using Trace = std::vector<TraceRecord>;

// Azure's LLM inference traces: CSV with the columns TIMESTAMP (date and time), ContextTokens,
// GeneratedTokens; lines end with or without a carriage return.
absl::StatusOr<Trace> ParseAzureTrace(std::string_view text);

// Mooncake's traces: a JSON object a line with timestamp (milliseconds), input_length,
// output_length, and where it has them hash_ids, the names of the prompt's blocks of 512 tokens.
absl::StatusOr<Trace> ParseMooncakeTrace(std::string_view text);

// By the file's name: .csv or .jsonl. An error names the file and the line.
absl::StatusOr<Trace> ReadTrace(const std::string& path);

// How many of the record's blocks are whole.
std::size_t WholeBlocks(const TraceRecord& record);

struct TraceScale {
  double speed = 1;        // > 0; 2: gaps half as long
  double lengths = 1;      // > 0; of prompts, outputs and blocks, rounded, at least 1
  std::int64_t limit = 0;  // only so many records from the start; 0: all
};
// Pure.
Trace Scaled(const Trace& trace, const TraceScale& scale);

// The arrivals of the trace in turn, then none for longer than any run lasts.
std::unique_ptr<ArrivalProcess> TraceArrivals(const Trace& trace);

}  // namespace attnd::loadtest
