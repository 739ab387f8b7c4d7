#include "server/attnd_server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/naive_library.h"
#include "server/admin_server.h"
#include "server/attention_service.h"
#include "server/build_info.h"
#include "server/cpu_backend.h"
#include "server/cuda_device.h"
#include "server/cuda_memory_budget.h"
#include "server/device_report.h"
#include "server/device_sampler.h"
#include "server/device_selection.h"
#include "server/grpc_listener.h"
#include "server/health_service.h"
#include "server/health_state.h"
#include "server/listen_address.h"
#include "server/logging.h"
#include "server/machine_resources.h"
#include "server/metrics.h"
#include "server/nvml_library.h"
#include "server/open_streams.h"
#include "server/reflection_service.h"
#include "server/service_state.h"
#include "server/status_board.h"
#include "server/watchdog.h"

namespace attnd {
namespace {

// The end of stop_limit: its last part is for the process to go (threads, memory), at most a
// quarter of it; the part before for sending the last replies and closing connections.
constexpr Milliseconds kCloseTime{1'000}, kExitTime{1'000};

std::string RandomStartKey() {
  std::random_device random;
  const std::uint32_t word = random();
  std::string key(4, '\0');
  for (int i = 0; i < 4; ++i) key[i] = static_cast<char>(word >> (8 * i));
  return key;
}

kernels::CpuTarget TargetOf(const ServerConfig& config) {
  return config.cpu_target == kernels::CpuTarget::kAuto ? kernels::BestCpuTarget()
                                                        : config.cpu_target;
}

absl::StatusOr<DeviceChoice> ChooseDevice(const ServerConfig& config, CudaFacts& cuda) {
  // `cpu` loads no driver.
  if (config.device != "cpu") cuda = ReadCudaFacts();
  return ChooseDevice(config.device, config.kernel_arch, cuda,
                      CompiledArchitectures(kernels::KernelTable()));
}

void LogDevice(const ServerConfig& config, const DeviceChoice& device, const CudaFacts& cuda) {
  const DeviceReport report =
      ReportDevice(device, cuda, ReadNvmlFacts(config.nvml_library, device.gpu.uuid),
                   config.cache_bytes, FreeDeviceMemory(device.gpu.index).value_or(0));
  Log(LogLevel::kInfo, report.Text());
  if (!report.warning.empty()) Log(LogLevel::kWarn, report.warning);
}

// The GPU that serves; on the CPU none, unless a library is named on purpose: then its first one.
std::unique_ptr<DeviceSampler> StartSampler(const ServerConfig& config, const DeviceChoice& device,
                                            const Clock& clock) {
  const bool named = config.nvml_library != kNvmlLibrary;
  if (!device.cuda && !named) return nullptr;
  auto sensors = OpenNvmlSensors(config.nvml_library, device.gpu.uuid);
  if (sensors == nullptr) {
    Log(named ? LogLevel::kWarn : LogLevel::kInfo,
        "no NVML: memory, utilisation, clocks, power and temperature of the GPU are not exported",
        {{"nvml_library", config.nvml_library}});
    return nullptr;
  }
  return std::make_unique<DeviceSampler>(clock, device.cuda ? device.device_name : "nvml:0",
                                         std::move(sensors));
}

// What is 0 in the configuration, from the memory that holds the cache.
absl::StatusOr<ServerConfig> Resolve(const ServerConfig& config, const DeviceChoice& device) {
  if (!device.cuda) return ResolveDefaults(config, ReadMachineResources());
  const auto free_bytes = FreeDeviceMemory(device.gpu.index);
  if (!free_bytes.ok()) return free_bytes.status();
  return ResolveCudaDefaults(config, ReadMachineResources(), *free_bytes);
}

GaugeSnapshot Gauges(const Scheduler::Snapshot& snapshot) {
  GaugeSnapshot gauges;
  gauges.queue_requests = snapshot.queue_requests;
  gauges.queue_bytes = snapshot.queue_bytes;
  gauges.running_requests = snapshot.running_requests;
  gauges.running_batches = snapshot.running_batches;
  gauges.sequences_active = snapshot.sequences_active;
  gauges.sequences_idle = snapshot.sequences_idle;
  gauges.pages_used = snapshot.pages_used;
  gauges.pages_shared = snapshot.pages_shared;
  gauges.pages_free = snapshot.slabs_free;
  gauges.pool_bytes = snapshot.pool_bytes;
  gauges.used_bytes = snapshot.used_bytes;
  gauges.reserved_bytes = snapshot.reserved_bytes;
  gauges.host_bytes = snapshot.host_bytes;
  gauges.host_used_bytes = snapshot.host_used_bytes;
  gauges.moved_out_bytes = snapshot.moved_out_bytes;
  gauges.moved_in_bytes = snapshot.moved_in_bytes;
  return gauges;
}

}  // namespace

// Built top-down by member order; destroyed in reverse, after Stop.
struct AttndServer::Impl {
  Impl(ServerConfig resolved, DeviceChoice chosen, ServerHooks server_hooks)
      : config(std::move(resolved)),
        device(std::move(chosen)),
        hooks(std::move(server_hooks)),
        clock(hooks.clock != nullptr ? *hooks.clock : steady_clock),
        build(CurrentBuild(kernels::CpuTargetName(TargetOf(config)))),
        metrics(build, device.device_name, clock) {}

  absl::StatusOr<std::unique_ptr<AttentionBackend>> MakeBackend();
  absl::Status Assemble();
  void StartStatusBoard();
  absl::Status OpenPorts();
  void StartSelfTest();
  absl::Status SelfTest();
  ReadinessInputs ReadReadiness() const;
  GaugeSnapshot ReadGauges() const;
  void BeginRetire();
  void Stop();
  void CloseGrpc(std::chrono::steady_clock::time_point deadline);

  const ServerConfig config;
  const DeviceChoice device;
  const ServerHooks hooks;
  SteadyClock steady_clock;
  const Clock& clock;
  const BuildInfo build;
  Metrics metrics;
  AttentionBackend* real_backend = nullptr;  // inside `backend`, for measurements
  std::unique_ptr<AttentionBackend> backend;
  std::unique_ptr<Scheduler> scheduler;
  HealthState health;
  OpenStreams watches;  // and reflection streams
  std::unique_ptr<ServiceState> state;
  std::unique_ptr<AttentionService> attention_service;
  std::unique_ptr<HealthService> health_service;
  std::unique_ptr<ReflectionService> reflection_service;
  std::unique_ptr<Watchdog> watchdog;
  std::unique_ptr<DeviceSampler> sampler;  // null: nobody tells
  std::unique_ptr<StatusBoard> status_board;
  std::unique_ptr<AdminServer> admin;
  GrpcListener listener;

  std::atomic<bool> self_test_passed{false}, retiring{false}, stopping{false};
  std::promise<absl::Status> self_test_result;
  std::shared_future<absl::Status> self_test_done{self_test_result.get_future()};
  std::thread self_test_thread;
  std::once_flag stop_once;
};

absl::StatusOr<std::unique_ptr<AttentionBackend>> AttndServer::Impl::MakeBackend() {
  if (device.cuda) return MakeCudaBackend(config, device, metrics);
  auto cpu = CpuBackend::Create(config, clock, metrics);
  if (!cpu.ok()) return cpu.status();
  return std::unique_ptr<AttentionBackend>(*std::move(cpu));
}

absl::Status AttndServer::Impl::Assemble() {
  auto made = MakeBackend();
  if (!made.ok()) return made.status();
  backend = *std::move(made);
  real_backend = backend.get();
  metrics.SetBandwidth(BandwidthKind::kDatasheet, backend->limits().datasheet_bytes_per_second);
  if (hooks.wrap_backend) backend = hooks.wrap_backend(std::move(backend));
  scheduler = std::make_unique<Scheduler>(config, RandomStartKey(), clock, *backend, metrics);
  state = std::make_unique<ServiceState>(config, clock, *scheduler, metrics);
  attention_service = std::make_unique<AttentionService>(*state, build, backend->limits());
  health_service = std::make_unique<HealthService>(health, watches);
  reflection_service = std::make_unique<ReflectionService>(
      std::vector<std::string>{v1::AttentionService::service_full_name(),
                               grpc::health::v1::Health::service_full_name(),
                               grpc::reflection::v1alpha::ServerReflection::service_full_name()},
      watches);
  watchdog = std::make_unique<Watchdog>(
      clock, config.stall_limit, [this] { return ReadReadiness(); }, health);
  return absl::OkStatus();
}

void AttndServer::Impl::StartStatusBoard() {
  StatusFacts facts;
  facts.server_name = config.server_name;
  facts.device = backend->limits().description;
  facts.build = build;
  facts.flags = FlagsInEffect(config);
  status_board = std::make_unique<StatusBoard>(std::move(facts), clock, health,
                                               [this] { return metrics.Families(); });
}

absl::Status AttndServer::Impl::OpenPorts() {
  StartStatusBoard();
  AdminCallbacks callbacks;
  callbacks.metrics_text = [this] { return metrics.Expose(); };
  callbacks.readiness = [this] {
    const auto report = health.GetReport();
    return AdminCallbacks::Readiness{report.state == HealthState::State::kServing, report.reason};
  };
  callbacks.begin_drain = [this] { BeginRetire(); };
  callbacks.status_json = [this] { return status_board->Json(); };
  AdminOptions options;
  options.listen = config.admin_listen;
  auto admin_server = AdminServer::Start(options, std::move(callbacks));
  if (!admin_server.ok()) {
    return {admin_server.status().code(),
            absl::StrCat("--admin_listen: ", admin_server.status().message())};
  }
  admin = *std::move(admin_server);
  auto grpc_listener =
      Listen(config, {attention_service.get(), health_service.get(), reflection_service.get()});
  if (!grpc_listener.ok()) return grpc_listener.status();
  listener = *std::move(grpc_listener);
  metrics.SetGaugeSource([this] { return ReadGauges(); });
  return absl::OkStatus();
}

ReadinessInputs AttndServer::Impl::ReadReadiness() const {
  const Scheduler::Snapshot snapshot = scheduler->GetSnapshot();
  ReadinessInputs inputs;
  inputs.self_test_passed = self_test_passed;
  inputs.stopping = stopping;
  inputs.device_fault = snapshot.device_fault;
  inputs.work_in_flight = snapshot.running_batches > 0;
  inputs.last_completion = snapshot.last_completion;
  return inputs;
}

GaugeSnapshot AttndServer::Impl::ReadGauges() const {
  GaugeSnapshot gauges = Gauges(scheduler->GetSnapshot());
  gauges.open_streams = state->streams().count();
  const auto connections = listener.acceptor->counts();
  gauges.connections = connections.open;
  gauges.connections_refused = connections.refused;
  gauges.ready = health.Get() == HealthState::State::kServing;
  gauges.draining = retiring || stopping;
  if (sampler != nullptr) gauges.gpu = sampler->Latest();
  return gauges;
}

absl::Status AttndServer::Impl::SelfTest() {
  if (hooks.before_self_test) {
    if (auto status = hooks.before_self_test(); !status.ok()) return status;
  }
  if (config.measure_ceilings) {
    const double bytes_per_second = real_backend->MeasureReadBandwidth();
    metrics.SetBandwidth(BandwidthKind::kMeasured, bytes_per_second);
    attention_service->SetMeasuredBandwidth(bytes_per_second);
  }
  return backend->SelfTest();
}

void AttndServer::Impl::StartSelfTest() {
  self_test_thread = std::thread([this] {
    const absl::Status status = SelfTest();
    if (status.ok()) {
      state->SetReady();
      self_test_passed = true;
      watchdog->Evaluate();
      watchdog->Start();
      Log(LogLevel::kInfo, "serving",
          {{"listen", listener.address},
           {"admin", admin->address()},
           {"device", backend->limits().description},
           {"kernels", backend->limits().kernel_arch},
           {"threads", config.threads},
           {"cache_bytes", config.cache_bytes},
           {"max_tokens", state->limits().max_tokens}});
    } else {
      Log(LogLevel::kError, "self-test failed", {{"error", status.ToString()}});
    }
    self_test_result.set_value(status);
  });
}

void AttndServer::Impl::BeginRetire() {
  if (retiring.exchange(true)) return;
  Log(LogLevel::kInfo, "retiring: no new sequences");
  scheduler->BeginRetire();
}

void AttndServer::Impl::Stop() {
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = begin + config.stop_limit - std::min(kExitTime, config.stop_limit / 4);
  Log(LogLevel::kInfo, "stopping");
  stopping = true;
  state->BeginStop();
  scheduler->BeginStop();
  watchdog->Evaluate();
  if (self_test_thread.joinable()) self_test_thread.join();
  // Calls that clients start before they have heard of it get an answer, not a reset connection.
  std::this_thread::sleep_until(std::min(begin + config.lame_duck, deadline));
  const auto drain_time = deadline - kCloseTime - std::chrono::steady_clock::now();
  scheduler->Drain(std::max<Clock::Duration>(drain_time, Clock::Duration::zero()));
  state->streams().EndAll();
  watches.EndAll();
  CloseGrpc(deadline);
  watchdog->Stop();
  backend->Stop();
  status_board->Stop();
  metrics.SetGaugeSource({});
  if (sampler != nullptr) sampler->Stop();
  admin->Stop();
  Log(LogLevel::kInfo, "stopped",
      {{"seconds",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()}});
}

void AttndServer::Impl::CloseGrpc(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::clamp<std::chrono::steady_clock::duration>(
      deadline - std::chrono::steady_clock::now(), Milliseconds(0), kCloseTime);
  listener.acceptor->Stop();
  // What is still open near the end is cancelled. gRPC then waits until what it was writing has
  // been taken: at the end, connections whose clients do not read are cut.
  std::promise<void> closed;
  std::thread cut([this, left, all_closed = closed.get_future()] {
    if (all_closed.wait_for(left) != std::future_status::ready) listener.acceptor->CutOff();
  });
  listener.server->Shutdown(std::chrono::system_clock::now() + left * 3 / 4);
  listener.server->Wait();
  closed.set_value();
  cut.join();
}

AttndServer::AttndServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

AttndServer::~AttndServer() { Stop(); }

absl::StatusOr<std::unique_ptr<AttndServer>> AttndServer::Start(const ServerConfig& config,
                                                                ServerHooks hooks) {
  if (auto status = ValidateServerConfig(config); !status.ok()) return status;
  CudaFacts cuda;
  auto device = ChooseDevice(config, cuda);
  if (!device.ok()) return device.status();
  if (!device->notice.empty()) {
    Log(device->notice_is_error ? LogLevel::kError : LogLevel::kInfo, device->notice);
  }
  auto resolved = Resolve(config, *device);
  if (!resolved.ok()) return resolved.status();
  auto impl = std::make_unique<Impl>(*std::move(resolved), *std::move(device), std::move(hooks));
  if (auto status = impl->Assemble(); !status.ok()) return status;
  impl->sampler = StartSampler(impl->config, impl->device, impl->clock);
  if (impl->device.cuda) LogDevice(impl->config, impl->device, cuda);
  if (auto status = impl->OpenPorts(); !status.ok()) {
    if (impl->admin != nullptr) impl->admin->Stop();
    return status;
  }
  if (const auto address = ParseListenAddress(impl->config.listen);
      address.ok() && !address->LocalOnly()) {
    Log(LogLevel::kWarn, "reachable from other machines, without authentication or encryption",
        {{"listen", impl->listener.address}});
  }
  if (const char* fault = kernels::NaiveFault(impl->backend->limits().device.kind)) {
    Log(LogLevel::kInfo, "ALGORITHM_NAIVE is not served", {{"reason", fault}});
  }
  impl->StartSelfTest();
  return std::unique_ptr<AttndServer>(new AttndServer(std::move(impl)));
}

absl::Status AttndServer::WaitUntilReady() { return impl_->self_test_done.get(); }
const std::string& AttndServer::address() const { return impl_->listener.address; }
int AttndServer::port() const { return impl_->listener.port; }
int AttndServer::admin_port() const { return impl_->admin->port(); }
const ServerConfig& AttndServer::config() const { return impl_->config; }
void AttndServer::BeginRetire() { impl_->BeginRetire(); }
void AttndServer::Stop() {
  std::call_once(impl_->stop_once, [this] { impl_->Stop(); });
}
Scheduler::Snapshot AttndServer::GetSnapshot() const { return impl_->scheduler->GetSnapshot(); }
std::int64_t AttndServer::live_calls() const { return impl_->state->live_calls(); }
std::string AttndServer::MetricsText() const { return impl_->metrics.Expose(); }

}  // namespace attnd
