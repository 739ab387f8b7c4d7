// A load run by several processes of attnload at once: one process's threads, and its one lock, are
// a limit of the load generator before they are one of the server.
//
// Each worker is this program with the same arguments and --worker. It takes its share of workers,
// rate and requests in flight, prepares, says that it is ready, waits for the word to go, runs, and
// prints its result on one line.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "loadtest/commands.h"
#include "loadtest/run_result.h"

namespace attnd::loadtest {

// What one of `processes` workers runs; the shares add up to the whole. Pure.
struct WorkerShare {
  int workers = 1;
  int max_in_flight = 1;
  double rate = 0;
  std::int64_t max_requests = 0;
  std::uint64_t seed = 1;
};
WorkerShare ShareOf(const CommonOptions& common, const LoadOptions& load, int worker);

// The parent: starts the workers, lets them go at one moment, merges their results.
absl::StatusOr<RunResult> RunWorkers(const CommonOptions& common, const LoadOptions& load);

// A worker's side. From now on the process is killed when its parent ends, however that comes;
// false: it has ended already.
bool EndWithParent();
// Tells that it is ready and waits. False: the parent is gone.
bool AwaitGo();
void TellResult(const RunResult& result);

// One line of text with everything that a result holds, and back.
std::string ResultToText(const RunResult& result);
absl::StatusOr<RunResult> ResultFromText(const std::string& text);

}  // namespace attnd::loadtest
