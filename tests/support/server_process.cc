#include "tests/support/server_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

extern char** environ;

namespace attnd::testing {

ServerProcess::ServerProcess(const std::string& binary, const std::vector<std::string>& flags,
                             const std::vector<std::string>& launcher) {
  std::vector<std::string> arguments = {binary,
                                        "--listen=127.0.0.1:0",
                                        "--admin_listen=127.0.0.1:0",
                                        "--device=cpu",
                                        "--threads=1",
                                        "--cache_bytes=64MiB",
                                        "--workspace_bytes=64MiB",
                                        "--measure_ceilings=false"};
  for (const auto& flag : flags) {
    // A later value would be an error: the defaults above give way.
    const std::string name = flag.substr(0, flag.find('='));
    std::erase_if(arguments, [&name](const std::string& argument) {
      return argument.starts_with(name + "=");
    });
    arguments.push_back(flag);
  }
  arguments.insert(arguments.begin(), launcher.begin(), launcher.end());
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  if (posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  log_pipe_ = ends[0];
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (log_pipe_ >= 0) close(log_pipe_);
}

bool ServerProcess::ReadMore() {
  char bytes[4096];
  const ssize_t count = read(log_pipe_, bytes, sizeof bytes);
  if (count <= 0) return false;
  log_.append(bytes, static_cast<std::size_t>(count));
  return true;
}

std::optional<std::string> ServerProcess::AwaitServing() {
  constexpr char kKey[] = " serving listen=";
  std::size_t found = std::string::npos;
  do {
    found = log_.find(kKey);
    if (found != std::string::npos && log_.find('\n', found) != std::string::npos) {
      const std::size_t begin = found + sizeof kKey - 1;
      return log_.substr(begin, log_.find(' ', begin) - begin);
    }
  } while (ReadMore());
  return std::nullopt;
}

std::string ServerProcess::admin_address() const {
  constexpr char kKey[] = " admin=";
  const std::size_t begin = log_.find(kKey) + sizeof kKey - 1;
  return log_.substr(begin, log_.find(' ', begin) - begin);
}

void ServerProcess::Signal(int signal) const { kill(pid_, signal); }

int ServerProcess::AwaitExit() {
  while (ReadMore()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::int64_t ServerProcess::StatusBytes(const std::string& key) const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (!line.starts_with(key)) continue;
    std::int64_t kibibytes = 0;
    std::istringstream(line.substr(key.size())) >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

std::int64_t ServerProcess::peak_resident_bytes() const { return StatusBytes("VmHWM:"); }

std::int64_t ServerProcess::resident_bytes() const { return StatusBytes("VmRSS:"); }

double ServerProcess::cpu_seconds() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string line;
  std::getline(file, line);
  // After the name in parentheses; time in user and in system mode are the fields 14 and 15.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace attnd::testing
