// The device that servers of a test run on: the CPU, or what the environment variable
// ATTND_TEST_DEVICE names. Where that device is not there, every test of the program is skipped and
// says why.
#pragma once

#include <memory>
#include <string>

#include "server/attention_backend.h"
#include "server/clock.h"
#include "server/metrics.h"
#include "server/server_config.h"

namespace attnd::testing {

std::string TestDevice();

// A backend on it. Uses threads, cache_bytes and workspace_bytes of `config`, none of them 0. Fails
// the test, and gives null, where it cannot be made.
std::unique_ptr<AttentionBackend> MakeTestBackend(const ServerConfig& config, const Clock& clock,
                                                  Metrics& metrics);

}  // namespace attnd::testing
