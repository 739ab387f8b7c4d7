// Another process of this program, talked to by lines on its standard input and output.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace attnd::loadtest {

// Used by one thread, but for Terminate.
class ChildProcess {
 public:
  // The first argument is the program's path.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::vector<std::string>& arguments);
  // Closes its input and waits for its end.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Without the line's end; empty when the child has closed its output.
  std::string ReadLine();
  void WriteLine(std::string_view line);
  void CloseInput();
  // SIGTERM: an interrupt from the keyboard reaches every process by itself. Thread-safe.
  void Terminate() const;
  // Of an ended child: its exit code, or 128 and its signal.
  int Wait();

 private:
  ChildProcess(pid_t child, int to_child, int from_child)
      : child_(child), to_child_(to_child), from_child_(from_child) {}

  const pid_t child_;
  int to_child_;  // -1: closed
  const int from_child_;
  bool waited_ = false;
  int exit_code_ = 0;
};

}  // namespace attnd::loadtest
