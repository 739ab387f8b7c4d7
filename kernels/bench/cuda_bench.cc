#include "kernels/bench/cuda_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/bench/bench_json.h"
#include "kernels/bench/bench_peer.h"
#include "kernels/bench/bench_report.h"
#include "kernels/bench/build_commit.h"
#include "kernels/bench/cuda_bench_problem.h"
#include "kernels/bench/cuda_traffic.h"

namespace attnd::kernels::bench {
namespace {

// What a decode step alone costs the host and whoever waits for it, with and without a graph:
// medians, host clock, microseconds.
struct StepCost {
  double launch_us = 0, graph_launch_us = 0;  // until the driver has taken it
  double step_us = 0, graph_step_us = 0;      // until its results are there
};

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// One row on every set of a problem, captured into graphs.
class GraphSide {
 public:
  GraphSide(const KernelRow& row, const CudaBenchProblem& problem, int graph_launches,
            cudaStream_t stream)
      : launches_(graph_launches), stream_(stream) {
    if (PrepareCudaRow(row) != LaunchStatus::kOk) {
      const char* fault = row.operation == Operation::kNaive ? CudaNaiveFault() : nullptr;
      throw std::runtime_error(std::string(row.name) + ": " +
                               (fault == nullptr ? "cannot be prepared" : fault));
    }
    for (int set = 0; set < problem.num_sets(); ++set) {
      plans_.push_back(PlanCudaAttention(row, problem.params(set), CurrentCard(), {}));
      const CudaPlan& plan = plans_.back();
      if (plan.attention.row == nullptr)
        throw std::runtime_error("the row does not serve the case");
      workspaces_.push_back(AllocateDevice(plan.attention.workspace_bytes));
      std::vector<std::byte> upload(static_cast<std::size_t>(plan.upload_bytes));
      EncodeCudaAttention(plan, problem.params(set), workspaces_.back().get(), upload.data());
      CheckCuda(cudaMemcpy(workspaces_.back().get(), upload.data(), upload.size(),
                           cudaMemcpyHostToDevice),
                "upload");
      Launch(set);  // outside a graph first: code is loaded at the first launch
    }
    CheckCuda(cudaStreamSynchronize(stream_), row.name);
    // Launches of a graph take the sets in turn.
    const int graphs = launches_ == 1 ? problem.num_sets() : 1;
    for (int graph = 0; graph < graphs; ++graph) Capture(graph);
    CheckCuda(cudaEventCreate(&begin_), "event");
    CheckCuda(cudaEventCreate(&end_), "event");
  }
  ~GraphSide() {
    for (cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  GraphSide(const GraphSide&) = delete;
  GraphSide& operator=(const GraphSide&) = delete;

  double Run(int calls) {
    Replay();  // not timed: the card comes from another process
    CheckCuda(cudaStreamSynchronize(stream_), "replay");
    CheckCuda(cudaEventRecord(begin_, stream_), "event");
    for (int i = 0; i < calls; ++i) Replay();
    CheckCuda(cudaEventRecord(end_, stream_), "event");
    CheckCuda(cudaEventSynchronize(end_), "replay");
    float ms = 0;
    CheckCuda(cudaEventElapsedTime(&ms, begin_, end_), "event");
    return ms * 1e-3 / launches_;
  }
  const LaunchPlan& plan() const { return plans_.front().attention; }

  StepCost MeasureStep() {
    cudaGraphExec_t graph = CaptureLaunches(0, 1);
    StepCost cost;
    std::tie(cost.launch_us, cost.step_us) = TimeSteps([&] { Launch(0); });
    std::tie(cost.graph_launch_us, cost.graph_step_us) =
        TimeSteps([&] { CheckCuda(cudaGraphLaunch(graph, stream_), "graph"); });
    cudaGraphExecDestroy(graph);
    return cost;
  }

 private:
  // Medians of `launch` alone and with what it started.
  template <class Function>
  std::pair<double, double> TimeSteps(const Function& launch) {
    using Clock = std::chrono::steady_clock;
    constexpr int kSteps = 201;
    std::vector<double> taken, done;
    for (int i = 0; i < kSteps; ++i) {
      const auto begin = Clock::now();
      launch();
      const auto launched = Clock::now();
      CheckCuda(cudaStreamSynchronize(stream_), "step");
      const auto end = Clock::now();
      taken.push_back(std::chrono::duration<double, std::micro>(launched - begin).count());
      done.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
    }
    for (std::vector<double>* values : {&taken, &done}) {
      std::nth_element(values->begin(), values->begin() + kSteps / 2, values->end());
    }
    return {taken[kSteps / 2], done[kSteps / 2]};
  }
  void Replay() {
    CheckCuda(cudaGraphLaunch(graphs_[static_cast<std::size_t>(next_)], stream_), "graph");
    next_ = (next_ + 1) % static_cast<int>(graphs_.size());
  }
  void Launch(int set) {
    const auto at = static_cast<std::size_t>(set) % plans_.size();
    if (LaunchCudaAttention(plans_[at], workspaces_[at].get(), stream_) != LaunchStatus::kOk) {
      throw std::runtime_error("a launch failed");
    }
  }
  void Capture(int first_set) { graphs_.push_back(CaptureLaunches(first_set, launches_)); }
  cudaGraphExec_t CaptureLaunches(int first_set, int launches) {
    CheckCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < launches; ++i) Launch(first_set + i);
    cudaGraph_t graph = nullptr;
    CheckCuda(cudaStreamEndCapture(stream_, &graph), "capture");
    cudaGraphExec_t executable = nullptr;
    CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "graph");
    cudaGraphDestroy(graph);
    return executable;
  }

  int launches_;
  cudaStream_t stream_;
  std::vector<CudaPlan> plans_;
  std::vector<DeviceBytes> workspaces_;
  std::vector<cudaGraphExec_t> graphs_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int next_ = 0;
};

struct Run {
  CudaBenchOptions options;
  DeviceLimits limits;
  std::string device;
  CudaCeilings ceilings;
  std::map<std::string, std::unique_ptr<BenchPeer>> peers;
  cudaStream_t stream = nullptr;
};

BenchPeer& Peer(Run& run, const std::string& name) {
  std::unique_ptr<BenchPeer>& peer = run.peers[name];
  if (peer == nullptr) {
    peer = std::make_unique<BenchPeer>(run.options.python, run.options.peer_script,
                                       std::vector<std::string>{"--backend", name});
  }
  return *peer;
}

const KernelRow& FindRow(const CudaBenchCase& bench_case, const AttentionParams& params,
                         Operation operation, int capability) {
  const BenchCase& shape = bench_case.shape;
  const DeviceLimits limits{DeviceKind::kCuda, capability, CpuTarget::kAuto, 1};
  const KernelRow* row = FindKernel(
      {operation, shape.data_type, shape.data_type, shape.head_dim, RequiredFeatures(params)},
      limits);
  if (row == nullptr) throw std::runtime_error("no row serves " + bench_case.Name());
  return *row;
}

Json Line(const Run& run, const CudaBenchCase& bench_case, const LaunchPlan& plan,
          const Timing& timing) {
  const KernelCost& cost = plan.cost;
  const bool turing = bench_case.arch == "sm75";
  const double rate =
      turing ? run.ceilings.m16n8k8_flops_per_second : run.ceilings.m16n8k16_flops_per_second;
  const double bytes = cost.min_read_bytes + cost.min_write_bytes;
  const double compute_ms = cost.flops / rate * 1e3;
  const double memory_ms = bytes / run.ceilings.read_bytes_per_second * 1e3;
  const double floor_ms = std::max(compute_ms, memory_ms);
  return {
      {"op", OperationName(plan.row->operation)},
      {"kernel", plan.row->name},
      {"device", run.device},
      {"case", bench_case.Name()},
      {"shape", ShapeJson(bench_case.shape)},
      {"dtype", TypeName(bench_case.shape.data_type)},
      {"graph_launches", bench_case.graph_launches},
      {"ms", Rounded(timing.ms)},
      {"spread", Rounded(timing.spread)},
      {"tflops", Rounded(cost.flops / timing.ms / 1e9)},
      {"gbps", Rounded(bytes / timing.ms / 1e6)},
      {"floor_ms", Rounded(floor_ms)},
      {"fraction_of_floor", Rounded(floor_ms / timing.ms)},
      {"binding_unit", memory_ms > compute_ms ? "memory_read" : (turing ? "m16n8k8" : "m16n8k16")},
      {"num_splits", plan.num_splits},
      {"workspace_bytes", plan.workspace_bytes}};
}

struct PeerResult {
  std::string name;
  double ms;
  std::int64_t extra_bytes;
};

void AddPeers(Json& line, const std::vector<PeerResult>& peers) {
  for (const PeerResult& peer : peers) {
    line[peer.name + "_ms"] = Rounded(peer.ms);
    if (peer.extra_bytes > 0) line[peer.name + "_extra_bytes"] = peer.extra_bytes;
  }
}

void CheckError(const char* row, const CudaBenchProblem& problem, Json& line) {
  const double error = problem.Error();
  if (!(error <= problem.Tolerance())) {
    throw std::runtime_error(std::string(row) + ": error " + std::to_string(error) + ", allowed " +
                             std::to_string(problem.Tolerance()));
  }
  line["error"] = Rounded(error);
}

// The lines of one case: our row's, then naive's where it was timed.
std::vector<Json> MeasureCase(Run& run, const CudaBenchCase& bench_case) {
  const CudaBenchProblem problem(bench_case);
  const int capability = bench_case.arch == "sm75" ? 75 : run.limits.compute_capability;
  const auto find = [&](Operation operation) -> const KernelRow& {
    return FindRow(bench_case, problem.params(0), operation, capability);
  };
  Json errors;
  GraphSide ours(find(bench_case.shape.operation), problem, bench_case.graph_launches, run.stream);
  CheckError(ours.plan().row->name, problem, errors);
  std::vector<Side> storage(2 + bench_case.peers.size());
  std::vector<Side*> sides = {&storage[0]};
  storage[0].run = [&](int calls) { return ours.Run(calls); };
  std::unique_ptr<GraphSide> naive;
  Json naive_errors;
  if (bench_case.with_naive) {
    naive = std::make_unique<GraphSide>(find(Operation::kNaive), problem, 1, run.stream);
    CheckError(naive->plan().row->name, problem, naive_errors);
    storage[1].run = [&](int calls) { return naive->Run(calls); };
    sides.push_back(&storage[1]);
  }
  for (std::size_t i = 0; run.options.peers && i < bench_case.peers.size(); ++i) {
    BenchPeer& peer = Peer(run, bench_case.peers[i]);
    if (!peer.Prepare(bench_case.shape, bench_case.graph_launches)) continue;
    storage[2 + i].run = [&peer](int calls) { return peer.Run(calls); };
    sides.push_back(&storage[2 + i]);
  }
  // For whoever watches the card's clocks meanwhile.
  const double began = UnixSeconds();
  RunRounds(sides, run.options.measure, nullptr);
  const double ended = UnixSeconds();

  std::vector<PeerResult> peers;
  for (std::size_t i = 0; i < bench_case.peers.size(); ++i) {
    if (storage[2 + i].ms.empty()) continue;
    peers.push_back({bench_case.peers[i], Summarise(storage[2 + i].ms).ms,
                     Peer(run, bench_case.peers[i]).extra_bytes()});
  }
  for (auto& [name, peer] : run.peers) peer->Release();
  std::vector<Json> lines = {Line(run, bench_case, ours.plan(), Summarise(storage[0].ms))};
  AddPeers(lines[0], peers);
  lines[0].update(errors);
  if (bench_case.shape.operation == Operation::kDecode) {
    const StepCost cost = ours.MeasureStep();
    lines[0]["launch_us"] = Rounded(cost.launch_us);
    lines[0]["graph_launch_us"] = Rounded(cost.graph_launch_us);
    lines[0]["step_us"] = Rounded(cost.step_us);
    lines[0]["graph_step_us"] = Rounded(cost.graph_step_us);
  }
  if (naive != nullptr) {
    lines.push_back(Line(run, bench_case, naive->plan(), Summarise(storage[1].ms)));
    AddPeers(lines[1], peers);
    lines[1].update(naive_errors);
    lines[0]["naive_ms"] = lines[1]["ms"];
    lines[0]["naive_workspace_bytes"] = naive->plan().workspace_bytes;
  }
  for (Json& line : lines) {
    line["began_unix_s"] = began;
    line["ended_unix_s"] = ended;
  }
  return lines;
}

void Print(const Json& line) {
  const double ms = line["ms"].get<double>();
  std::printf("%-46s %-26s %9.4f ms %7.1f TFLOP/s %7.0f GB/s %5.1f%%",
              line["case"].get<std::string>().c_str(), line["kernel"].get<std::string>().c_str(),
              ms, line["tflops"].get<double>(), line["gbps"].get<double>(),
              100 * line["fraction_of_floor"].get<double>());
  for (const char* side : {"flash", "efficient", "cudnn", "eager", "naive"}) {
    const auto other = line.find(std::string(side) + "_ms");
    if (other != line.end()) std::printf("  %s %.2fx", side, other->get<double>() / ms);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int RunCudaBench(const CudaBenchOptions& options) {
  if (options.traffic) return RunCudaTraffic(options);
  std::vector<CudaBenchCase> cases;
  for (const CudaBenchCase& bench_case : AllCudaCases()) {
    if (std::regex_search(bench_case.Name(), std::regex(options.filter)))
      cases.push_back(bench_case);
  }
  if (options.list) {
    for (const CudaBenchCase& bench_case : cases) std::printf("%s\n", bench_case.Name().c_str());
    return 0;
  }
  Run run;
  run.options = options;
  run.limits = CurrentCard();
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, 0), "device");
  run.device = properties.name;
  CheckCuda(cudaStreamCreate(&run.stream), "stream");
  run.ceilings = MeasureCudaCeilings(options.ceiling_seconds);
  const Json head = {{"commit", BuildCommit()},
                     {"command", options.command},
                     {"device", run.device},
                     {"date", UtcNow()},
                     {"compute_capability", run.limits.compute_capability},
                     {"multiprocessors", run.limits.num_threads},
                     {"read_gbps", Rounded(run.ceilings.read_bytes_per_second / 1e9)},
                     {"m16n8k8_tflops", Rounded(run.ceilings.m16n8k8_flops_per_second / 1e12)},
                     {"m16n8k16_tflops", Rounded(run.ceilings.m16n8k16_flops_per_second / 1e12)}};
  std::printf("%s\n", head.dump().c_str());
  if (options.ceilings_only) return 0;
  if (cases.empty()) {
    std::fprintf(stderr, "attnbench: no case matches '%s' (see --list)\n", options.filter.c_str());
    return 2;
  }
  std::ofstream json_file;
  if (!options.json_file.empty()) {
    json_file.open(options.json_file);
    if (!json_file) throw std::runtime_error("cannot write " + options.json_file);
    json_file << head.dump() << std::endl;
  }
  int wrong = 0;
  for (const CudaBenchCase& bench_case : cases) {
    try {
      const std::vector<Json> lines = MeasureCase(run, bench_case);
      Print(lines[0]);
      for (const Json& line : lines) {
        if (json_file.is_open()) json_file << line.dump() << std::endl;
      }
    } catch (const std::exception& error) {
      std::printf("%-46s WRONG: %s\n", bench_case.Name().c_str(), error.what());
      std::fflush(stdout);
      ++wrong;
    }
  }
  cudaStreamDestroy(run.stream);
  return wrong == 0 ? 0 : 1;
}

}  // namespace attnd::kernels::bench
