#include "server/attnd_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
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
#include <utility>

#include "server/allocator_settings.h"
#include "server/freed_memory.h"
#include "server/library_logs.h"
#include "server/logging.h"
#include "server/quiet_time.h"
#include "server/server_config.h"

namespace attnd {
namespace {

constexpr int kExitCannotServe = 1, kExitBadConfig = 2, kExitDeviceFault = 3;
constexpr Milliseconds kPollTime{250};

// Processor time of this process.
Clock::Duration ProcessTime() {
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
[[noreturn]] void ExitAtOnce(int code, LogLevel level, const char* why) {
  const auto logged = std::async(std::launch::async, [=] { Log(level, why); });
  logged.wait_for(std::chrono::milliseconds(500));
  _exit(code);
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
      ExitAtOnce(kExitCannotServe, LogLevel::kWarn, "second signal: exiting at once");
    }).detach();
  }

  // The signal; 0 where none has come in that time.
  int Await(Milliseconds time) {
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

// For how long the device has had work and completed none of it. Counted in looks, so that a
// process that was stopped itself does not take its device for a stuck one.
class StallTime {
 public:
  Clock::Duration Look(const Scheduler::Snapshot& snapshot, Clock::TimePoint now) {
    const bool stalled = snapshot.running_batches > 0 && snapshot.last_completion == completion_;
    stalled_ = stalled ? stalled_ + std::min<Clock::Duration>(now - looked_, 2 * kPollTime)
                       : Clock::Duration::zero();
    completion_ = snapshot.last_completion;
    looked_ = now;
    return stalled_;
  }

 private:
  Clock::TimePoint completion_{}, looked_{};
  Clock::Duration stalled_{0};
};

// The signal, or 0 where the device failed first or, with --stall_exit, made no progress for so
// long. Between looks at the device, memory that a busy time has left behind is given back.
int AwaitStop(StopSignals& signals, const AttndServer& server) {
  const Milliseconds stall_exit = server.config().stall_exit;
  StallTime stall;
  QuietTime quiet(SteadyClock().Now(), ProcessTime());
  for (;;) {
    if (const int signal = signals.Await(kPollTime); signal != 0) return signal;
    const Scheduler::Snapshot snapshot = server.GetSnapshot();
    if (snapshot.device_fault) {
      Log(LogLevel::kError, "the device has failed: stopping, exit code 3");
      return 0;
    }
    if (stall.Look(snapshot, SteadyClock().Now()) >= stall_exit && stall_exit.count() > 0) {
      Log(LogLevel::kError,
          "the device has completed nothing for --stall_exit: stopping, exit code 3");
      return 0;
    }
    if (!quiet.Begins(SteadyClock().Now(), ProcessTime())) continue;
    ReleaseFreedMemory();
    quiet.Skip(ProcessTime());
  }
}

// A launch that never returns must not keep the process from ending.
void ExitAfter(Milliseconds limit, int code) {
  std::thread([limit, code] {
    std::this_thread::sleep_for(limit);
    ExitAtOnce(code, LogLevel::kError, "not stopped within --stop_limit: exiting");
  }).detach();
}

int Serve(const ServerConfig& config, ServerHooks hooks, StopSignals& signals) {
  auto server = AttndServer::Start(config, std::move(hooks));
  if (!server.ok()) {
    Log(LogLevel::kError, "cannot start", {{"error", std::string(server.status().message())}});
    return server.status().code() == absl::StatusCode::kInvalidArgument ? kExitBadConfig
                                                                        : kExitCannotServe;
  }
  if (!(*server)->WaitUntilReady().ok()) return kExitCannotServe;
  const int signal = AwaitStop(signals, **server);
  if (signal != 0) Log(LogLevel::kInfo, "signal received", {{"signal", signal}});
  ExitAfter(config.stop_limit, signal != 0 ? kExitCannotServe : kExitDeviceFault);
  (*server)->Stop();
  return signal != 0 ? 0 : kExitDeviceFault;
}

}  // namespace

int RunAttnd(int argc, char** argv, ServerHooks hooks) {
  SetUpAllocator();
  const int stop_pipe = CatchStopSignals();
  const auto parsed = ParseServerCommandLine(argc, argv);
  if (!parsed.ok()) {
    std::fprintf(stderr, "attnd: %s\n", std::string(parsed.status().message()).c_str());
    return kExitBadConfig;
  }
  if (parsed->exit_now) return 0;
  if (const auto status = SetUpLogging(parsed->config.log_level, parsed->config.log_format);
      !status.ok()) {
    std::fprintf(stderr, "attnd: %s\n", std::string(status.message()).c_str());
    return kExitBadConfig;
  }
  CaptureLibraryLogs();
  static auto* const signals = new StopSignals(stop_pipe);  // its thread is never joined
  return Serve(parsed->config, std::move(hooks), *signals);
}

}  // namespace attnd
