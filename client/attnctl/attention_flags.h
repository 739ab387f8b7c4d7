// Flags of AttentionOptions and ExecutionOptions, shared by `attend` and `sequences create`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"

namespace attnd::client::attnctl {

// The flags fill `options` while the command line is parsed; unset ones stay unset. window_right
// and causal belong to Attend alone (`for_sequences` false).
void AddAttentionFlags(CLI::App& command, v1::AttentionOptions& options, bool for_sequences);

// --algorithm, --alone, --priority.
void AddExecutionFlags(CLI::App& command, v1::ExecutionOptions& execution);

}  // namespace attnd::client::attnctl
