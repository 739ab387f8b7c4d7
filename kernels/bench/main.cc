// attnbench: times every kernel of this machine against naive attention, a peer and the machine's
// own ceilings. Results are checked before they are timed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/bench/bench_case.h"
#include "kernels/bench/bench_measure.h"
#include "kernels/bench/bench_peer.h"
#include "kernels/bench/bench_report.h"
#include "kernels/bench/build_commit.h"
#include "kernels/bench/cuda_bench.h"

namespace attnd::kernels::bench {
namespace {

struct Options {
  std::string device = "cpu";
  std::string filter;
  std::string cpu_target = "auto";
  std::string json_file;
  std::string python = "python3";
  std::string peer_script;
  int num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bool ceilings_only = false;
  bool list = false;
  bool peers = false;
  bool traffic = false;
  double ceiling_seconds = 0.5;
  double naive_gib = 4;
  MeasureOptions measure;
};

void AddFlags(CLI::App& app, Options& options) {
  app.add_option("--device", options.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--ceilings", options.ceilings_only, "Measure the machine's ceilings and stop");
  app.add_flag("--list", options.list, "Print the names of the cases and stop");
  app.add_option("--filter", options.filter,
                 "Only cases whose name matches this regular expression");
  app.add_option("--threads", options.num_threads, "Threads of every side")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--cpu_target", options.cpu_target, "auto, scalar, avx2, avx512 or avx512_bf16")
      ->capture_default_str();
  app.add_option("--json", options.json_file,
                 "Write one JSON line a kernel and case to this file; the first line is the run");
  app.add_flag("--peers", options.peers, "Time PyTorch's attention in the same run");
  app.add_flag("--traffic", options.traffic,
               "CUDA: launch every row once on a grid of shapes and write the bytes of the cost "
               "model (scripts/check_hbm_model.sh)");
  app.add_option("--python", options.python, "Python that has torch")->capture_default_str();
  app.add_option("--peer_script", options.peer_script,
                 "The peer's script; unset: the device's own in the source tree");
  app.add_option("--seconds", options.measure.seconds, "Time of each case, about")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", options.measure.min_rounds, "Blocks of every side, at least")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--ceiling_seconds", options.ceiling_seconds,
                 "Time of each ceiling at the start; a tenth of it in every round of a case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max_naive_gib", options.naive_gib,
                 "Naive is not run where it needs more memory than this")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

std::string Command(int argc, char** argv) {
  std::string command = "attnbench";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return command;
}

// What the user named and is not there is found before anything is measured.
struct Sides {
  std::ofstream json_file;  // closed: no file is wanted
  std::unique_ptr<BenchPeer> peer;
};

Sides OpenSides(const Options& options) {
  Sides sides;
  if (!options.json_file.empty()) {
    sides.json_file.open(options.json_file);
    if (!sides.json_file) throw std::invalid_argument("--json: cannot write " + options.json_file);
  }
  if (options.peers) {
    sides.peer = std::make_unique<BenchPeer>(
        options.python, options.peer_script,
        std::vector<std::string>{"--threads", std::to_string(options.num_threads)});
    std::printf("peer: %s\n", sides.peer->name().c_str());
  }
  return sides;
}

// Returns the number of cases that were wrong.
int RunCases(const Options& options, const std::vector<BenchCase>& cases, const RunInfo& run,
             const DeviceLimits& limits, CpuExecutor& executor, Sides& sides) {
  std::ofstream& json_file = sides.json_file;
  if (json_file.is_open()) json_file << RunLine(run) << std::endl;
  std::printf("%s\n", TableHeader().c_str());
  int num_wrong = 0;
  for (const BenchCase& bench_case : cases) {
    try {
      const CaseResult result = MeasureCase(bench_case, limits, executor, run.ceilings,
                                            options.measure, sides.peer.get());
      std::printf("%s\n", TableRow(result).c_str());
      for (const std::string& line : ResultLines(result, run)) json_file << line << std::endl;
    } catch (const std::exception& error) {
      std::printf("%-53s WRONG: %s\n", bench_case.Name().c_str(), error.what());
      ++num_wrong;
    }
    std::fflush(stdout);
  }
  return num_wrong;
}

std::regex Filter(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    throw std::invalid_argument("--filter: '" + text +
                                "' is no regular expression: " + error.what());
  }
}

std::vector<BenchCase> CasesOf(const Options& options) {
  const std::regex filter = Filter(options.filter);
  std::vector<BenchCase> cases;
  for (const BenchCase& bench_case : AllCases()) {
    if (std::regex_search(bench_case.Name(), filter)) cases.push_back(bench_case);
  }
  return cases;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Times attnd's kernels. Every result is checked first.", "attnbench");
  AddFlags(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.peer_script.empty()) {
    options.peer_script = std::string(ATTND_PEER_FOLDER) +
                          (options.device == "cuda" ? "/torch_cuda_sdpa.py" : "/torch_cpu_sdpa.py");
  }
  if (options.device == "cuda") {
    return RunCudaBench({options.filter, options.json_file, options.python, options.peer_script,
                         Command(argc, argv), options.peers, options.list, options.ceilings_only,
                         options.traffic, options.ceiling_seconds, options.measure});
  }
  options.measure.ceiling_seconds = options.ceiling_seconds / 10;
  options.measure.max_naive_bytes = static_cast<std::int64_t>(options.naive_gib * (1 << 30));

  DeviceLimits limits;
  limits.num_threads = options.num_threads;
  if (!ParseCpuTarget(options.cpu_target.c_str(), limits.cpu_target)) {
    std::fprintf(stderr,
                 "attnbench: --cpu_target '%s' is none of auto, scalar, avx2, avx512, "
                 "avx512_bf16\n",
                 options.cpu_target.c_str());
    return 2;
  }
  if (limits.cpu_target == CpuTarget::kAuto) limits.cpu_target = BestCpuTarget();
  if (!CpuTargetSupported(limits.cpu_target)) {
    std::fprintf(stderr, "attnbench: this machine does not have %s\n", options.cpu_target.c_str());
    return 2;
  }
  const std::vector<BenchCase> cases = CasesOf(options);
  if (options.list) {
    for (const BenchCase& bench_case : cases) std::printf("%s\n", bench_case.Name().c_str());
    return 0;
  }
  if (cases.empty() && !options.ceilings_only) {
    std::fprintf(stderr, "attnbench: no case matches '%s' (see --list)\n", options.filter.c_str());
    return 2;
  }
  Sides sides;
  if (!options.ceilings_only) sides = OpenSides(options);
  CpuExecutor executor(options.num_threads);
  RunInfo run{BuildCommit(),
              Command(argc, argv),
              DeviceName(),
              UtcNow(),
              CpuTargetName(limits.cpu_target),
              options.num_threads,
              MeasureCpuCeilings(limits.cpu_target, executor, options.ceiling_seconds)};
  std::printf("%s\n", CeilingsText(run).c_str());
  if (options.ceilings_only) return 0;
  return RunCases(options, cases, run, limits, executor, sides) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace attnd::kernels::bench

int main(int argc, char** argv) {
  try {
    return attnd::kernels::bench::Main(argc, argv);
  } catch (const std::invalid_argument& error) {  // a flag, or what it names
    std::fprintf(stderr, "attnbench: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attnbench: %s\n", error.what());
    return 1;
  }
}
