// The attnd binary as a child process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace attnd::testing {

class ServerProcess {
 public:
  // Starts `binary` with small settings, free ports and `flags`. Its log goes to a pipe.
  // `launcher`, where there is one, is a command that becomes the one that follows it: {"prlimit",
  // "--nofile=9"}.
  ServerProcess(const std::string& binary, const std::vector<std::string>& flags,
                const std::vector<std::string>& launcher = {});
  // Kills it if it still runs.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Reads the log until the server serves: its address. Nothing where the process ends before.
  std::optional<std::string> AwaitServing();
  // host:port of the admin port of a server that serves.
  std::string admin_address() const;
  void Signal(int signal) const;
  // Reads the log to its end: the exit code, or 128 + the signal that ended the process.
  int AwaitExit();
  // All that AwaitServing and AwaitExit have read.
  const std::string& log() const { return log_; }

  std::int64_t peak_resident_bytes() const;
  std::int64_t resident_bytes() const;
  double cpu_seconds() const;
  pid_t pid() const { return pid_; }

 private:
  // False at the end of the log.
  bool ReadMore();
  // A line of /proc/<pid>/status that counts kB.
  std::int64_t StatusBytes(const std::string& key) const;

  pid_t pid_ = 0;
  int log_pipe_ = -1;
  std::string log_;
};

}  // namespace attnd::testing
