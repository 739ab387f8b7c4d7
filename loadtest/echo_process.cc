#include "loadtest/echo_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loadtest/echo_server.h"

extern char** environ;

namespace attnd::loadtest {
namespace {

absl::Status Failed(const char* action, int error) {
  return absl::UnavailableError(absl::StrCat("echo process: ", action, ": ", std::strerror(error)));
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

absl::StatusOr<std::unique_ptr<EchoProcess>> EchoProcess::Start(const std::string& program,
                                                                const Scenario& scenario) {
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
  const int error =
      Spawn({program, "echo", "--scenario", ScenarioSpec(scenario)}, input[0], output[1], child);
  close(input[0]);
  close(output[1]);
  if (error != 0) {
    close(input[1]);
    close(output[0]);
    return Failed("start", error);
  }
  std::unique_ptr<EchoProcess> process(new EchoProcess(child, input[1], output[0]));
  process->target_ = process->ReadLine();
  if (process->target_.empty()) return absl::UnavailableError("the echo process did not come up");
  return process;
}

std::string EchoProcess::ReadLine() {
  std::string line;
  char letter = 0;
  while (read(from_child_, &letter, 1) == 1 && letter != '\n') line.push_back(letter);
  return line;
}

EchoProcess::Bytes EchoProcess::Stop() {
  if (child_ == 0) return {};
  close(to_child_);
  long long request = 0;
  long long reply = 0;
  const std::string sizes = ReadLine();
  if (std::sscanf(sizes.c_str(), "%lld %lld", &request, &reply) != 2) request = reply = 0;
  close(from_child_);
  waitpid(std::exchange(child_, 0), nullptr, 0);
  return {request, reply};
}

EchoProcess::~EchoProcess() { Stop(); }

int ServeEcho(const Scenario& scenario) {
  const auto echo = EchoServer::Start(scenario);
  if (!echo.ok()) {
    std::fprintf(stderr, "%s\n", std::string(echo.status().message()).c_str());
    return 1;
  }
  std::printf("%s\n", (*echo)->target().c_str());
  std::fflush(stdout);
  char ignored = 0;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  std::printf("%lld %lld\n", static_cast<long long>((*echo)->request_bytes()),
              static_cast<long long>((*echo)->reply_bytes()));
  return 0;
}

}  // namespace attnd::loadtest
