// attnd: flags -> configuration -> server -> signals -> exit code.
//
// 0: stopped on request. 1: could not serve, or a second signal. 2: bad flags or configuration,
// also where only the build or the machine shows it.
// 3: the device has failed; a new process may find it well again.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "server/allocator_settings.h"
#include "server/attnd_server.h"
#include "server/freed_memory.h"
#include "server/library_logs.h"
#include "server/logging.h"
#include "server/quiet_time.h"
#include "server/server_config.h"

namespace {

constexpr int kExitCannotServe = 1, kExitBadConfig = 2, kExitDeviceFault = 3;
constexpr attnd::Milliseconds kPollTime{250};

// Processor time of this process.
attnd::Clock::Duration ProcessTime() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

// Write end of the pipe that takes signals to their reader; set before the handler is.
int g_stop_pipe = -1;

// Async-signal-safe. (Blocking the signals and waiting for them does not work: libraries start
// threads when they are loaded, before main could block anything.)
void OnStopSignal(int signal) {
  const auto byte = static_cast<char>(signal);
  [[maybe_unused]] const ssize_t written = write(g_stop_pipe, &byte, 1);
}

// The descriptor from which one byte, the signal's number, can be read for each that has come.
int CatchStopSignals() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    std::perror("attnd: pipe2");
    std::exit(kExitCannotServe);
  }
  g_stop_pipe = ends[1];
  struct sigaction action {};
  action.sa_handler = &OnStopSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return ends[0];
}

// Says why, and ends the process though its threads still run. A log that nobody reads must not
// keep it from ending.
[[noreturn]] void ExitAtOnce(attnd::LogLevel level, const char* why) {
  const auto logged = std::async(std::launch::async, [=] { attnd::Log(level, why); });
  logged.wait_for(std::chrono::milliseconds(500));
  _exit(kExitCannotServe);
}

// The first signal asks for a stop, the second one ends the process at once, whatever it is doing.
class StopSignals {
 public:
  // Reads `pipe` for the rest of the process, which this must not be outlived by.
  explicit StopSignals(int pipe) {
    std::thread([this, pipe] {
      const int first = Next(pipe);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        signal_ = first;
      }
      came_.notify_one();
      Next(pipe);
      ExitAtOnce(attnd::LogLevel::kWarn, "second signal: exiting at once");
    }).detach();
  }

  // The signal; 0 where none has come in that time.
  int Await(attnd::Milliseconds time) {
    std::unique_lock<std::mutex> lock(mutex_);
    came_.wait_for(lock, time, [this] { return signal_ != 0; });
    return signal_;
  }

 private:
  static int Next(int pipe) {
    char byte = 0;
    while (read(pipe, &byte, 1) < 0 && errno == EINTR) {
    }
    return byte;
  }

  std::mutex mutex_;
  std::condition_variable came_;
  int signal_ = 0;  // guarded by mutex_
};

// The signal, or 0 where the device failed first. Between looks at the device, memory that a busy
// time has left behind is given back.
int AwaitStop(StopSignals& signals, const attnd::AttndServer& server) {
  attnd::QuietTime quiet(attnd::SteadyClock().Now(), ProcessTime());
  for (;;) {
    if (const int signal = signals.Await(kPollTime); signal != 0) return signal;
    if (server.DeviceFailed()) return 0;
    if (!quiet.Begins(attnd::SteadyClock().Now(), ProcessTime())) continue;
    attnd::ReleaseFreedMemory();
    quiet.Skip(ProcessTime());
  }
}

// A launch that never returns must not keep the process from ending.
void ExitAfter(attnd::Milliseconds limit) {
  std::thread([limit] {
    std::this_thread::sleep_for(limit);
    ExitAtOnce(attnd::LogLevel::kError, "not stopped within --stop_limit: exiting");
  }).detach();
}

int Serve(const attnd::ServerConfig& config, StopSignals& signals) {
  auto server = attnd::AttndServer::Start(config);
  if (!server.ok()) {
    attnd::Log(attnd::LogLevel::kError, "cannot start",
               {{"error", std::string(server.status().message())}});
    return server.status().code() == absl::StatusCode::kInvalidArgument ? kExitBadConfig
                                                                        : kExitCannotServe;
  }
  if (!(*server)->WaitUntilReady().ok()) return kExitCannotServe;
  const int signal = AwaitStop(signals, **server);
  if (signal != 0) {
    attnd::Log(attnd::LogLevel::kInfo, "signal received", {{"signal", signal}});
  } else {
    attnd::Log(attnd::LogLevel::kError, "the device has failed: stopping, exit code 3");
  }
  ExitAfter(config.stop_limit);
  (*server)->Stop();
  return signal != 0 ? 0 : kExitDeviceFault;
}

}  // namespace

int main(int argc, char** argv) {
  attnd::SetUpAllocator();
  const int stop_pipe = CatchStopSignals();
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
  static auto* const signals = new StopSignals(stop_pipe);  // its thread is never joined
  return Serve(parsed->config, *signals);
}
