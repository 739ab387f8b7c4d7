#include "loadtest/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace attnd::loadtest {
namespace {

absl::Status Failed(const char* action, int error) {
  return absl::UnavailableError(
      absl::StrCat("another process: ", action, ": ", std::strerror(error)));
}

// Starts `arguments` with its standard input and output on these descriptors.
int Spawn(const std::vector<std::string>& arguments, int input, int output, pid_t& child) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  const int error = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& arguments) {
  // Ends close on exec: another child must not hold ours open.
  std::array<int, 2> input{};
  std::array<int, 2> output{};
  if (pipe2(input.data(), O_CLOEXEC) != 0) return Failed("pipe", errno);
  if (pipe2(output.data(), O_CLOEXEC) != 0) {
    const int error = errno;
    close(input[0]);
    close(input[1]);
    return Failed("pipe", error);
  }
  pid_t child = 0;
  const int error = Spawn(arguments, input[0], output[1], child);
  close(input[0]);
  close(output[1]);
  if (error != 0) {
    close(input[1]);
    close(output[0]);
    return Failed("start", error);
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(child, input[1], output[0]));
}

ChildProcess::~ChildProcess() {
  Wait();
  close(from_child_);
}

std::string ChildProcess::ReadLine() {
  std::string line;
  char letter = 0;
  while (read(from_child_, &letter, 1) == 1 && letter != '\n') line.push_back(letter);
  return line;
}

void ChildProcess::WriteLine(std::string_view line) {
  if (to_child_ < 0) return;
  const std::string text = std::string(line) + "\n";
  // A child that has ended shows in its output and its exit code.
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(to_child_, text.data() + written, text.size() - written);
    if (count <= 0) return;
    written += static_cast<std::size_t>(count);
  }
}

void ChildProcess::CloseInput() {
  if (to_child_ >= 0) close(std::exchange(to_child_, -1));
}

void ChildProcess::Terminate() const { kill(child_, SIGTERM); }

int ChildProcess::Wait() {
  CloseInput();
  if (waited_) return exit_code_;
  waited_ = true;
  int status = 0;
  while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

}  // namespace attnd::loadtest
