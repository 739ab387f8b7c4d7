#include "loadtest/echo_process.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "loadtest/echo_server.h"

namespace attnd::loadtest {

absl::StatusOr<std::unique_ptr<EchoProcess>> EchoProcess::Start(const std::string& program,
                                                                const Scenario& scenario) {
  auto child = ChildProcess::Start({program, "echo", "--scenario", ScenarioSpec(scenario)});
  if (!child.ok()) return child.status();
  std::unique_ptr<EchoProcess> process(new EchoProcess(*std::move(child)));
  process->target_ = process->child_->ReadLine();
  if (process->target_.empty()) return absl::UnavailableError("the echo process did not come up");
  return process;
}

EchoProcess::Bytes EchoProcess::Stop() {
  if (child_ == nullptr) return {};
  const std::unique_ptr<ChildProcess> child = std::move(child_);
  child->CloseInput();
  long long request = 0;
  long long reply = 0;
  const std::string sizes = child->ReadLine();
  if (std::sscanf(sizes.c_str(), "%lld %lld", &request, &reply) != 2) request = reply = 0;
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
