// The echo server in a process of its own, as attnd is: inside one process gRPC's threads serve
// both ends, and a small call takes a third of the time that it takes between two.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "loadtest/child_process.h"
#include "loadtest/scenario.h"

namespace attnd::loadtest {

// Not thread-safe. The child ends with its parent, whatever that dies of: it waits for the end of
// its standard input.
class EchoProcess {
 public:
  // Runs `program echo --scenario ...`, which calls ServeEcho. UNAVAILABLE: it did not come up.
  static absl::StatusOr<std::unique_ptr<EchoProcess>> Start(const std::string& program,
                                                            const Scenario& scenario);
  ~EchoProcess();
  EchoProcess(const EchoProcess&) = delete;
  EchoProcess& operator=(const EchoProcess&) = delete;

  const std::string& target() const { return target_; }

  struct Bytes {
    std::int64_t request = 0, reply = 0;
  };
  // Stops the child and returns the size of its last request and of its replies.
  Bytes Stop();

 private:
  explicit EchoProcess(std::unique_ptr<ChildProcess> child) : child_(std::move(child)) {}

  std::unique_ptr<ChildProcess> child_;  // null once stopped
  std::string target_;
};

// The child's side: prints its address, serves until standard input ends, prints the sizes. An exit
// code.
int ServeEcho(const Scenario& scenario);

}  // namespace attnd::loadtest
