#include "server/server_config.h"

#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/build_info.h"
#include "server/config_file.h"
#include "server/listen_address.h"
#include "server/server_flags.h"

namespace attnd {
namespace {

absl::Status ForFlag(std::string_view name, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("--", std::string(name), ": ", status.message()));
}

absl::Status ForFlag(std::string_view name, std::string_view got, std::string_view need) {
  return ForFlag(name, absl::InvalidArgumentError(
                           absl::StrCat("got '", std::string(got), "', need ", std::string(need))));
}

bool IsList(const ServerFlag& flag) {
  return std::holds_alternative<std::vector<std::string> ServerConfig::*>(flag.field);
}

struct FlagText {
  const ServerFlag* flag;
  std::string text;
};

struct CommandLine {
  std::string config_path;
  bool help = false, version = false;
  std::vector<FlagText> flags;
};

absl::StatusOr<CommandLine> ReadCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", line.help);
  app.add_flag("--version", line.version);
  app.add_option("--config", line.config_path);
  std::vector<std::pair<const ServerFlag*, CLI::Option*>> options;
  for (const ServerFlag& flag : ServerFlags()) {
    const std::string name = absl::StrCat("--", flag.name);
    // A switch takes no separate value: --x or --x=false. Given twice, the last one counts; lists
    // add up.
    CLI::Option* option = std::holds_alternative<bool ServerConfig::*>(flag.field)
                              ? app.add_flag(name)
                              : app.add_option(name);
    if (IsList(flag)) {
      option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
    } else {
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
    options.emplace_back(&flag, option);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ArgumentMismatch& error) {  // "--threads: 1 required  missing"
    const std::string text = error.what();
    return absl::InvalidArgumentError(
        absl::StrCat(text.substr(0, text.find(':')), ": got no value, need one"));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), "; --help lists every flag"));
  }
  for (const auto& [flag, option] : options) {
    if (option->count() == 0) continue;
    const std::vector<std::string>& texts = option->results();
    line.flags.push_back({flag, IsList(*flag) ? absl::StrJoin(texts, ",") : texts.back()});
  }
  return line;
}

// "attnd.yaml:3" by the flag that is set there.
using FilePlaces = std::map<std::string, std::string>;

absl::Status ApplyFile(const std::string& path, ServerConfig& config, FilePlaces& places) {
  const auto entries = ReadConfigFile(path);
  if (!entries.ok()) return entries.status();
  for (const ConfigFileEntry& entry : *entries) {
    places[entry.key] = absl::StrCat(path, ":", entry.line);
    const std::string place = absl::StrCat(path, ":", entry.line, ": ", entry.key, ": ");
    const ServerFlag* flag = FindServerFlag(entry.key);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, "unknown key; --help lists every flag"));
    }
    if (absl::Status status = SetServerFlag(*flag, entry.value, config); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(place, status.message()));
    }
  }
  return absl::OkStatus();
}

// An error that holds for several flags together names them; those of the file stand somewhere.
absl::Status WithPlaces(const absl::Status& error, const FilePlaces& places) {
  std::string text(error.message());
  for (const auto& [name, place] : places) {
    const std::size_t found = error.message().find(absl::StrCat("--", name));
    const std::size_t end = found + 2 + name.size();
    if (found == absl::string_view::npos) continue;
    if (end < error.message().size() && error.message()[end] == '_') continue;  // a longer name
    absl::StrAppend(&text, "; ", name, " stands in ", place);
  }
  return absl::InvalidArgumentError(text);
}

absl::Status CheckAddresses(const ServerConfig& config) {
  const auto listen = ParseListenAddress(config.listen);
  if (!listen.ok()) return ForFlag("listen", listen.status());
  const auto admin = ParseListenAddress(config.admin_listen);
  if (!admin.ok()) return ForFlag("admin_listen", admin.status());
  if (!admin->unix_path.empty()) return ForFlag("admin_listen", config.admin_listen, "host:port");
  if (SameSocket(*listen, *admin)) {
    return ForFlag("admin_listen", config.admin_listen, "another port than that of --listen");
  }
  if (config.server_name.empty()) return ForFlag("server_name", "", "a name");
  for (const std::string& peer : config.peers) {
    const std::size_t equals = peer.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == peer.size()) {
      return ForFlag("peers", peer, "name=address, separated by commas");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRelations(const ServerConfig& config) {
  const auto text = [&config](const char* name) {
    return ServerFlagText(*FindServerFlag(name), config);
  };
  if ((config.page_tokens & (config.page_tokens - 1)) != 0) {
    return ForFlag("page_tokens", text("page_tokens"), "0 or a power of two");
  }
  constexpr std::int64_t kSlabBytes = std::int64_t{2} << 20;  // what the page pool is carved from
  if (config.cache_bytes != 0 && config.cache_bytes < kSlabBytes) {
    return ForFlag("cache_bytes", text("cache_bytes"), "0 or at least 2MiB");
  }
  if (config.host_cache_bytes != 0 && config.host_cache_bytes < kSlabBytes) {
    return ForFlag("host_cache_bytes", text("host_cache_bytes"), "0 or at least 2MiB");
  }
  if (config.default_lease > config.max_lease) {
    return ForFlag("default_lease", text("default_lease"),
                   absl::StrCat("at most --max_lease, ", text("max_lease")));
  }
  if (config.max_queue_bytes < config.max_message_bytes) {
    return ForFlag("max_queue_bytes", text("max_queue_bytes"),
                   absl::StrCat("at least --max_message_bytes, ", text("max_message_bytes")));
  }
  if (config.stop_limit <= config.lame_duck) {
    return ForFlag("stop_limit", text("stop_limit"),
                   absl::StrCat("more than --lame_duck, ", text("lame_duck")));
  }
  if (!kernels::CpuTargetSupported(config.cpu_target)) {
    return ForFlag("cpu_target", text("cpu_target"),
                   absl::StrCat("one that this machine has, at most ",
                                kernels::CpuTargetName(kernels::BestCpuTarget())));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParsedCommandLine> ParseServerCommandLine(int argc, const char* const* argv) {
  const auto line = ReadCommandLine(argc, argv);
  if (!line.ok()) return line.status();
  ParsedCommandLine parsed;
  if (line->help || line->version) {
    const BuildInfo build = CurrentBuild();
    const std::string text = line->help
                                 ? ServerHelp()
                                 : absl::StrCat("attnd ", build.version, " (", build.commit, ")\n");
    std::fwrite(text.data(), 1, text.size(), stdout);
    parsed.exit_now = true;
    return parsed;
  }
  FilePlaces places;
  if (!line->config_path.empty()) {
    if (absl::Status status = ApplyFile(line->config_path, parsed.config, places); !status.ok()) {
      return status;
    }
  }
  for (const FlagText& given : line->flags) {
    if (absl::Status status = SetServerFlag(*given.flag, given.text, parsed.config); !status.ok()) {
      return ForFlag(given.flag->name, status);
    }
    places.erase(given.flag->name);
  }
  if (absl::Status status = ValidateServerConfig(parsed.config); !status.ok()) {
    return WithPlaces(status, places);
  }
  return parsed;
}

absl::Status ValidateServerConfig(const ServerConfig& config) {
  for (const ServerFlag& flag : ServerFlags()) {
    if (absl::Status status = CheckServerFlag(flag, config); !status.ok()) {
      return ForFlag(flag.name, status);
    }
  }
  if (absl::Status status = CheckAddresses(config); !status.ok()) return status;
  return CheckRelations(config);
}

}  // namespace attnd
