#include "server/server_info.h"

#include <google/protobuf/util/time_util.h>

#include <utility>

#include "kernels/attention_kernels.h"
#include "kernels/naive_library.h"
#include "server/wire_types.h"

namespace attnd {
namespace {

using google::protobuf::util::TimeUtil;

constexpr kernels::DataType kAllTypes[] = {kernels::DataType::kFp32, kernels::DataType::kFp16,
                                           kernels::DataType::kBf16, kernels::DataType::kInt8,
                                           kernels::DataType::kFp8E4m3};

constexpr std::pair<kernels::Feature, const char*> kFeatureNames[] = {
    {kernels::kFeatureCausal, "causal"},    {kernels::kFeatureWindow, "window"},
    {kernels::kFeatureSoftCap, "soft_cap"}, {kernels::kFeatureAlibi, "alibi"},
    {kernels::kFeatureSinks, "sinks"},      {kernels::kFeatureBias, "bias"},
    {kernels::kFeatureLse, "lse"},          {kernels::kFeaturePartial, "partial"},
    {kernels::kFeaturePaged, "paged"},      {kernels::kFeatureRope, "rope"},
};

bool ServedBy(const kernels::KernelRow& row, const kernels::DeviceLimits& device) {
  if (row.device != device.kind) return false;
  if (row.operation == kernels::Operation::kNaive && kernels::NaiveFault(device.kind) != nullptr) {
    return false;
  }
  if (device.kind == kernels::DeviceKind::kCpu) {
    return kernels::CpuTargetSupported(row.cpu_target) && row.cpu_target <= device.cpu_target;
  }
  return row.first_cc <= device.compute_capability && device.compute_capability <= row.last_cc;
}

v1::KernelRow ToProto(const kernels::KernelRow& row) {
  v1::KernelRow proto;
  proto.set_name(row.name);
  proto.set_first_cc(row.first_cc);
  proto.set_last_cc(row.last_cc);
  proto.set_head_dim(row.max_head_dim);
  for (const auto type : kAllTypes) {
    if ((row.data_types & kernels::TypeBit(type)) != 0) proto.add_types(ToProtoType(type));
  }
  for (const auto& [feature, name] : kFeatureNames) {
    if ((row.features & feature) != 0) proto.add_options(name);
  }
  return proto;
}

v1::Device ToProto(const BackendLimits& limits) {
  v1::Device device;
  device.set_name(limits.description);
  device.set_backend(limits.device.kind == kernels::DeviceKind::kCpu ? "cpu" : "cuda");
  device.set_kernel_arch(limits.kernel_arch);
  device.set_memory_bytes(limits.memory_bytes);
  device.set_uuid(limits.uuid);
  device.set_datasheet_bytes_per_second(limits.datasheet_bytes_per_second);
  return device;
}

}  // namespace

v1::GetServerInfoResponse FixedServerInfo(const ServerConfig& config, const BuildInfo& build,
                                          const BackendLimits& device,
                                          const RequestLimits& limits) {
  v1::GetServerInfoResponse info;
  info.set_version(build.version);
  info.set_commit(build.commit);
  info.set_server(config.server_name);
  if (config.allow_comparison) info.add_features("comparison");
  if (config.batch_invariant) info.add_features("batch_invariant");
  *info.add_devices() = ToProto(device);
  for (const kernels::KernelRow& row : kernels::KernelTable()) {
    if (ServedBy(row, device.device)) *info.add_kernels() = ToProto(row);
  }
  v1::Limits& proto = *info.mutable_limits();
  proto.set_max_message_bytes(config.max_message_bytes);
  proto.set_max_tokens(limits.max_tokens);
  proto.set_max_steps(limits.max_steps);
  proto.set_max_in_flight_per_stream(config.max_in_flight_per_stream);
  *proto.mutable_max_lease() = TimeUtil::MillisecondsToDuration(config.max_lease.count());
  proto.set_max_heads(static_cast<std::int32_t>(limits.max_heads));
  proto.set_max_layers(static_cast<std::int32_t>(limits.max_layers));
  proto.set_window_slack_tokens(config.window_slack_tokens);
  return info;
}

void FillCacheInfo(const Scheduler::Snapshot& snapshot, v1::CacheInfo& cache) {
  cache.set_pages(snapshot.slabs_total);
  cache.set_free_pages(snapshot.slabs_free);
  cache.set_page_bytes(snapshot.slabs_total == 0 ? 0 : snapshot.pool_bytes / snapshot.slabs_total);
}

}  // namespace attnd
