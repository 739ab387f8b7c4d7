#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/attnctl/command.h"

namespace attnd::client::attnctl {
namespace {

std::string BytesText(double bytes) {
  if (bytes >= 1e9) return absl::StrFormat("%.1f GB", bytes / 1e9);
  if (bytes >= 1e6) return absl::StrFormat("%.1f MB", bytes / 1e6);
  return absl::StrFormat("%.0f bytes", bytes);
}

void PrintTable(const v1::GetServerInfoResponse& info) {
  std::printf("server    %s, version %s, commit %s\n", info.server().c_str(),
              info.version().c_str(), info.commit().c_str());
  std::printf("features  %s\n",
              info.features_size() == 0 ? "none" : absl::StrJoin(info.features(), ", ").c_str());
  for (const v1::Device& device : info.devices()) {
    const double measured = device.measured_read_bytes_per_second();
    std::printf("device    %s (%s, %s), memory %s, reads %s\n", device.name().c_str(),
                device.backend().c_str(), device.kernel_arch().c_str(),
                BytesText(static_cast<double>(device.memory_bytes())).c_str(),
                measured > 0 ? (BytesText(measured) + "/s").c_str() : "not measured");
  }
  const v1::CacheInfo& cache = info.cache();
  const auto page = static_cast<double>(cache.page_bytes());
  std::printf("cache     %lld of %lld pages of %s free (%s of %s)\n",
              static_cast<long long>(cache.free_pages()), static_cast<long long>(cache.pages()),
              BytesText(page).c_str(),
              BytesText(page * static_cast<double>(cache.free_pages())).c_str(),
              BytesText(page * static_cast<double>(cache.pages())).c_str());
  const v1::Limits& limits = info.limits();
  std::printf(
      "limits    message %s, %lld tokens a layer, %lld steps a request, %d heads, "
      "%d layers, lease %.0f s\n",
      BytesText(static_cast<double>(limits.max_message_bytes())).c_str(),
      static_cast<long long>(limits.max_tokens()), static_cast<long long>(limits.max_steps()),
      limits.max_heads(), limits.max_layers(), SecondsOf(limits.max_lease()));
  std::printf("kernels\n");
  for (const v1::KernelRow& row : info.kernels()) {
    std::vector<std::string> types;
    for (const int type : row.types()) {
      types.emplace_back(DataTypeName(static_cast<v1::DataType>(type)));
    }
    std::printf("  %-36s head_dim <= %-4d %-16s %s\n", row.name().c_str(), row.head_dim(),
                absl::StrJoin(types, ",").c_str(), absl::StrJoin(row.options(), ",").c_str());
  }
}

int Run(const Session& session) {
  AttentionClient client(session.MakeClientOptions());
  const auto info = client.GetServerInfo(session.call());
  if (!info.ok()) return Fail(session, info.status());
  if (session.json) {
    PrintJson(MessageJson(*info));
  } else {
    PrintTable(*info);
  }
  return kExitOk;
}

}  // namespace

void AddInfo(CLI::App& app, Session& session) {
  CLI::App* command =
      app.add_subcommand("info", "version, devices, kernels, limits and cache of the server");
  command->callback([&session] { session.run = [&session] { return Run(session); }; });
}

}  // namespace attnd::client::attnctl
