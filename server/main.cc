// attnd: flags -> configuration -> server -> signals -> exit code.
//
// 0: stopped on request. 1: could not serve, or a second signal. 2: bad flags or configuration.
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <future>
#include <thread>

#include "server/attnd_server.h"
#include "server/library_logs.h"
#include "server/logging.h"
#include "server/server_config.h"

namespace {

constexpr int kExitCannotServe = 1, kExitBadConfig = 2;

// Replies and staging buffers of many MiB come and go with every request. glibc would map, fault
// and unmap each of them above 32 MiB (0.7 GB/s instead of 2.4) and give memory back to the system
// at every pause.
void TuneAllocator() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 128 << 20);
  mallopt(M_ARENA_MAX, 4);
}

// Called before any other thread exists, so that all inherit the mask and only the signal thread
// sees these signals.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// The first signal fulfils the promise, the second ends the process at once.
void WaitForSignals(sigset_t signals, std::promise<int> first) {
  int signal = 0;
  sigwait(&signals, &signal);
  first.set_value(signal);
  sigwait(&signals, &signal);
  attnd::Log(attnd::LogLevel::kError, "second signal: exiting at once", {{"signal", signal}});
  _exit(kExitCannotServe);
}

// A launch that never returns must not keep the process from ending.
void ExitAfter(attnd::Milliseconds limit) {
  std::thread([limit] {
    std::this_thread::sleep_for(limit);
    attnd::Log(attnd::LogLevel::kError, "not stopped within --stop_limit: exiting");
    _exit(kExitCannotServe);
  }).detach();
}

int Serve(const attnd::ServerConfig& config, sigset_t signals) {
  std::promise<int> promise;
  auto signal = promise.get_future();
  std::thread(WaitForSignals, signals, std::move(promise)).detach();
  auto server = attnd::AttndServer::Start(config);
  if (!server.ok()) {
    attnd::Log(attnd::LogLevel::kError, "cannot start",
               {{"error", std::string(server.status().message())}});
    return kExitCannotServe;
  }
  if (!(*server)->WaitUntilReady().ok()) return kExitCannotServe;
  attnd::Log(attnd::LogLevel::kInfo, "signal received", {{"signal", signal.get()}});
  // Twice the part that Stop keeps for closing connections.
  ExitAfter(config.stop_limit + attnd::Milliseconds(2'000));
  (*server)->Stop();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  TuneAllocator();
  const sigset_t signals = BlockStopSignals();
  const auto parsed = attnd::ParseServerCommandLine(argc, argv);
  if (!parsed.ok()) {
    std::fprintf(stderr, "attnd: %s\n", std::string(parsed.status().message()).c_str());
    return kExitBadConfig;
  }
  if (parsed->exit_now) return 0;
  if (const auto status = attnd::SetUpLogging(parsed->config.log_level, parsed->config.log_format);
      !status.ok()) {
    std::fprintf(stderr, "attnd: %s\n", std::string(status.message()).c_str());
    return kExitBadConfig;
  }
  attnd::CaptureLibraryLogs();
  return Serve(parsed->config, signals);
}
