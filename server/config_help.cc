// The two readable forms of the flag table: --help and docs/configuration.md.
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/server_config.h"
#include "server/server_flags.h"

namespace attnd {
namespace {

constexpr std::size_t kHelpWidth = 100;
constexpr std::size_t kHelpIndent = 8;

void AppendWrapped(const std::string& text, std::string& help) {
  std::string line(kHelpIndent - 1, ' ');
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (line.size() + 1 + word.size() > kHelpWidth) {
      absl::StrAppend(&help, line, "\n");
      line.assign(kHelpIndent - 1, ' ');
    }
    absl::StrAppend(&line, " ", word);
  }
  absl::StrAppend(&help, line, "\n");
}

std::string DefaultText(const ServerFlag& flag) {
  const std::string text = ServerFlagText(flag, ServerConfig());
  return text.empty() ? "none" : text;
}

}  // namespace

std::string ServerHelp() {
  std::string help =
      "attnd: transformer attention as a service\n"
      "\n"
      "Usage: attnd [flags]\n"
      "\n"
      "Durations are written like 250ms, 5s, 10m or 1h, sizes like 512MiB or 4GiB. A switch "
      "stands\n"
      "alone or with =false. Every flag but the first three may stand in the file of --config too\n"
      "(name: value); the command line wins.\n"
      "\n"
      "  --config PATH\n"
      "        YAML file with values for the flags below.\n"
      "  -h, --help\n"
      "        Print this and exit.\n"
      "  --version\n"
      "        Print version and commit and exit.\n";
  std::string_view group;
  for (const ServerFlag& flag : ServerFlags()) {
    if (group != flag.group) {
      group = flag.group;
      absl::StrAppend(&help, "\n", flag.group, "\n");
    }
    absl::StrAppend(&help, "  --", flag.name, "=", ServerFlagPlaceholder(flag),
                    "  (default: ", DefaultText(flag), ")\n");
    AppendWrapped(flag.meaning, help);
  }
  return help;
}

std::string FlagsAsMarkdown() {
  std::string page =
      "# Configuration\n"
      "\n"
      "This page is generated from the table of flags: `ninja docs` writes it and a test "
      "compares.\n"
      "\n"
      "Each name is a flag of `attnd` (`--max_queue_requests=1000`) and a key of the YAML file "
      "that\n"
      "`--config` names (`max_queue_requests: 1000`). A flag wins over the file, the file over "
      "the\n"
      "default. Unknown names, values out of range and contradictions end the start with an error\n"
      "that names the flag, or the file, line and key.\n"
      "\n"
      "Durations carry a unit (`250ms`, `5s`, `10m`, `1h`, `1d`), sizes are bytes or carry one\n"
      "(`512MiB`, `4GiB`; `MB` and `GB` are powers of 1000). Switches take `true` or `false` "
      "(`on`,\n"
      "`yes`, `1` and `off`, `no`, `0` mean the same); on the command line a switch stands alone "
      "or\n"
      "with `=false`. `--help` prints this table, `--version` version and commit.\n";
  std::string_view group;
  for (const ServerFlag& flag : ServerFlags()) {
    if (group != flag.group) {
      group = flag.group;
      absl::StrAppend(&page, "\n## ", flag.group, "\n\n",
                      "| name | value | default | meaning |\n|---|---|---|---|\n");
    }
    const std::string placeholder = absl::StrReplaceAll(ServerFlagPlaceholder(flag), {{"|", ", "}});
    absl::StrAppend(&page, "| `", flag.name, "` | ", absl::AsciiStrToLower(placeholder), " | `",
                    DefaultText(flag), "` | ", flag.meaning, " |\n");
  }
  return page;
}

}  // namespace attnd
