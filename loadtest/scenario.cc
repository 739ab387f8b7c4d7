#include "loadtest/scenario.h"

#include <yaml-cpp/yaml.h>

#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/file_bytes.h"
#include "client/tensor.h"

namespace attnd::loadtest {
namespace {

absl::Status Wrong(std::string_view key, std::string_view got, std::string_view need) {
  return absl::InvalidArgumentError(absl::StrCat("scenario key ", std::string(key), ": got '",
                                                 std::string(got), "', need ", std::string(need)));
}

struct Key {
  const char* name;
  const char* help;
  absl::Status (*set)(Scenario& scenario, const std::string& value);
};

// A setter for an integer member within [low, high].
template <int Scenario::*kMember, int kLow, int kHigh>
absl::Status SetInteger(Scenario& scenario, const std::string& value) {
  int number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < kLow || number > kHigh) {
    return Wrong("", value, absl::StrCat(kLow, " to ", kHigh));
  }
  scenario.*kMember = number;
  return absl::OkStatus();
}

template <std::string Scenario::*kMember>
absl::Status SetText(Scenario& scenario, const std::string& value) {
  scenario.*kMember = value;
  return absl::OkStatus();
}

absl::Status SetKind(Scenario& scenario, const std::string& value) {
  if (value != "attend" && value != "decode") return Wrong("", value, "attend or decode");
  scenario.kind = value == "attend" ? Kind::kAttend : Kind::kDecode;
  return absl::OkStatus();
}

absl::Status SetType(Scenario& scenario, const std::string& value) {
  const auto type = client::ParseDataType(value);
  if (!type.ok() ||
      (*type != v1::DATA_TYPE_FP32 && *type != v1::DATA_TYPE_FP16 && *type != v1::DATA_TYPE_BF16)) {
    return Wrong("", value, "fp32, fp16 or bf16");
  }
  scenario.data_type = *type;
  return absl::OkStatus();
}

absl::Status SetCausal(Scenario& scenario, const std::string& value) {
  if (!absl::SimpleAtob(value, &scenario.causal)) return Wrong("", value, "true or false");
  return absl::OkStatus();
}

absl::Status SetSoftCap(Scenario& scenario, const std::string& value) {
  if (!absl::SimpleAtod(value, &scenario.soft_cap) || !std::isfinite(scenario.soft_cap) ||
      scenario.soft_cap < 0) {
    return Wrong("", value, "0 or more");
  }
  return absl::OkStatus();
}

absl::Status SetRate(Scenario& scenario, const std::string& value) {
  if (!absl::SimpleAtod(value, &scenario.rate) || !std::isfinite(scenario.rate) ||
      scenario.rate < 0 || scenario.rate > kMaxRate) {
    return Wrong("", value, "0 to 1000000");
  }
  return absl::OkStatus();
}

absl::Status SetArrivals(Scenario& scenario, const std::string& value) {
  if (value != "poisson" && value != "constant" && value != "burst") {
    return Wrong("", value, "poisson, constant or burst");
  }
  scenario.arrivals = value;
  return absl::OkStatus();
}

absl::Status SetMode(Scenario& scenario, const std::string& value) {
  if (value != "unary" && value != "stream") return Wrong("", value, "unary or stream");
  scenario.mode = value == "unary" ? CallMode::kUnary : CallMode::kStream;
  return absl::OkStatus();
}

constexpr int kMaxTokens = 1 << 24;
constexpr std::array kKeys{
    Key{"name", "text in reports (default: kind and shape)", &SetText<&Scenario::name>},
    Key{"kind", "attend or decode", &SetKind},
    Key{"type", "fp32, fp16 or bf16 (fp32)", &SetType},
    Key{"heads", "query heads (8)", &SetInteger<&Scenario::heads, 1, 1024>},
    Key{"kv_heads", "KV heads (as heads)", &SetInteger<&Scenario::kv_heads, 0, 1024>},
    Key{"head_dim", "1 to 256 (64)", &SetInteger<&Scenario::head_dim, 1, 256>},
    Key{"sequences", "sequences in one request (1)", &SetInteger<&Scenario::sequences, 1, 4096>},
    Key{"causal", "attend: true or false (true)", &SetCausal},
    Key{"window", "earlier keys that stay visible (all)",
        &SetInteger<&Scenario::window, -1, kMaxTokens>},
    Key{"soft_cap", "logits soft cap (0: off)", &SetSoftCap},
    Key{"tokens", "attend: query tokens a sequence (512)",
        &SetInteger<&Scenario::tokens, 1, kMaxTokens>},
    Key{"kv_tokens", "attend: keys a sequence (as tokens)",
        &SetInteger<&Scenario::kv_tokens, 0, kMaxTokens>},
    Key{"capture", "attend: .safetensors file with q, k and v", &SetText<&Scenario::capture>},
    Key{"prefix", "attend: of the tensors' names in it", &SetText<&Scenario::prefix>},
    Key{"prompt", "decode: cached tokens at the start (1024)",
        &SetInteger<&Scenario::prompt, 0, kMaxTokens>},
    Key{"steps", "decode: tokens before a sequence goes back to its prompt (64)",
        &SetInteger<&Scenario::steps, 1, kMaxTokens>},
    Key{"layers", "decode: layers a sequence, one stepped a request (1)",
        &SetInteger<&Scenario::layers, 1, 1024>},
    Key{"step_tokens", "decode: query tokens a step and sequence (1)",
        &SetInteger<&Scenario::step_tokens, 1, 65536>},
    Key{"accepted", "decode: of them that stay, the rest is rolled back (all)",
        &SetInteger<&Scenario::accepted, 0, 65536>},
    Key{"mode", "decode: unary or stream (unary)", &SetMode},
    Key{"connections", "TCP connections (1)", &SetInteger<&Scenario::connections, 1, 256>},
    Key{"workers", "requests in flight, closed loop (attend 1, decode 8)",
        &SetInteger<&Scenario::workers, 0, 65536>},
    Key{"rate", "run: requests a second of an open loop (0: closed loop)", &SetRate},
    Key{"arrivals", "run: poisson, constant or burst (poisson)", &SetArrivals},
    Key{"max_in_flight", "run: most requests in flight in an open loop (256)",
        &SetInteger<&Scenario::max_in_flight, 1, 1 << 20>},
};

absl::Status Set(Scenario& scenario, const std::string& name, const std::string& value) {
  for (const Key& key : kKeys) {
    if (name != key.name) continue;
    absl::Status status = key.set(scenario, value);
    if (status.ok()) return status;
    // The setters do not know their key's name.
    const std::string text(status.message());
    return absl::InvalidArgumentError(
        absl::StrCat("scenario key ", name, text.substr(text.find(": got"))));
  }
  std::string names;
  for (const Key& key : kKeys) absl::StrAppend(&names, names.empty() ? "" : ", ", key.name);
  return absl::InvalidArgumentError(
      absl::StrCat("scenario key '", name, "' is not known; there are: ", names));
}

std::string DefaultName(const Scenario& scenario) {
  if (!scenario.capture.empty()) {
    return absl::StrCat("capture_", scenario.prefix.empty() ? "q_k_v" : scenario.prefix);
  }
  const std::string heads =
      absl::StrCat(scenario.heads, "x", scenario.kv_heads, "_d", scenario.head_dim, "_",
                   std::string(client::DataTypeName(scenario.data_type)));
  return scenario.kind == Kind::kAttend ? absl::StrCat("attend_", scenario.tokens, "_", heads)
                                        : absl::StrCat("decode_", scenario.prompt, "_", heads);
}

absl::StatusOr<Scenario> Completed(Scenario scenario) {
  if (scenario.kv_heads == 0) scenario.kv_heads = scenario.heads;
  if (scenario.kv_tokens == 0) scenario.kv_tokens = scenario.tokens;
  if (scenario.workers == 0) scenario.workers = scenario.kind == Kind::kAttend ? 1 : 8;
  if (scenario.accepted == 0) scenario.accepted = scenario.step_tokens;
  if (scenario.accepted > scenario.step_tokens) {
    return Wrong("accepted", absl::StrCat(scenario.accepted),
                 absl::StrCat("at most step_tokens = ", scenario.step_tokens));
  }
  if (scenario.steps < scenario.step_tokens) {
    return Wrong("steps", absl::StrCat(scenario.steps),
                 absl::StrCat("at least step_tokens = ", scenario.step_tokens));
  }
  if (scenario.heads % scenario.kv_heads != 0) {
    return Wrong("kv_heads", absl::StrCat(scenario.kv_heads),
                 absl::StrCat("a divisor of heads = ", scenario.heads));
  }
  if (scenario.mode == CallMode::kStream && scenario.kind != Kind::kDecode) {
    return Wrong("mode", "stream", "unary for kind=attend");
  }
  if (!scenario.capture.empty() && scenario.kind != Kind::kAttend) {
    return Wrong("capture", scenario.capture, "kind=attend");
  }
  if (scenario.name.empty()) scenario.name = DefaultName(scenario);
  return scenario;
}

}  // namespace

absl::StatusOr<Scenario> ParseScenario(std::string_view text) {
  Scenario scenario;
  const std::string whole(text);
  for (const auto part : absl::StrSplit(whole, ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> item = absl::StrSplit(part, absl::MaxSplits('=', 1));
    absl::Status status = Set(scenario, item.first, item.second);
    if (!status.ok()) return status;
  }
  return Completed(std::move(scenario));
}

absl::StatusOr<std::vector<Scenario>> ReadScenarios(const std::string& yaml_path) {
  const absl::StatusOr<client::FileBytes> file = client::ReadFileBytes(yaml_path);
  if (!file.ok()) return file.status();
  std::vector<Scenario> scenarios;
  // yaml-cpp reports by exception; none leaves this function.
  try {
    const YAML::Node root = YAML::Load(std::string(reinterpret_cast<const char*>(file->data.get()),
                                                   static_cast<std::size_t>(file->size)));
    const YAML::Node list = root["scenarios"];
    if (!list || !list.IsSequence()) {
      return absl::InvalidArgumentError(absl::StrCat(yaml_path, ": need a list `scenarios:`"));
    }
    for (const YAML::Node& node : list) {
      if (!node.IsMap()) {
        return absl::InvalidArgumentError(absl::StrCat(yaml_path, ": a scenario is no map"));
      }
      Scenario scenario;
      for (const auto& item : node) {
        absl::Status status =
            Set(scenario, item.first.as<std::string>(), item.second.as<std::string>());
        if (!status.ok()) {
          return absl::InvalidArgumentError(absl::StrCat(yaml_path, ": ", status.message()));
        }
      }
      absl::StatusOr<Scenario> completed = Completed(std::move(scenario));
      if (!completed.ok()) return completed.status();
      scenarios.push_back(*std::move(completed));
    }
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(yaml_path, ": ", error.what()));
  }
  if (scenarios.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(yaml_path, ": the list `scenarios:` is empty"));
  }
  return scenarios;
}

std::int64_t TokensPerRequest(const Scenario& scenario) {
  return scenario.kind == Kind::kAttend ? std::int64_t{scenario.sequences} * scenario.tokens
                                        : std::int64_t{scenario.sequences} * scenario.step_tokens;
}

std::string ScenarioSpec(const Scenario& scenario) {
  const bool attend = scenario.kind == Kind::kAttend;
  std::string text = absl::StrCat("kind=", attend ? "attend" : "decode",
                                  ",type=", std::string(client::DataTypeName(scenario.data_type)),
                                  ",heads=", scenario.heads, ",kv_heads=", scenario.kv_heads);
  absl::StrAppend(&text, ",head_dim=", scenario.head_dim, ",sequences=", scenario.sequences,
                  ",connections=", scenario.connections, ",workers=", scenario.workers);
  if (attend) {
    absl::StrAppend(&text, ",tokens=", scenario.tokens, ",kv_tokens=", scenario.kv_tokens,
                    ",causal=", scenario.causal ? "true" : "false");
  } else {
    absl::StrAppend(&text, ",prompt=", scenario.prompt, ",steps=", scenario.steps,
                    ",layers=", scenario.layers, ",step_tokens=", scenario.step_tokens,
                    ",accepted=", scenario.accepted,
                    ",mode=", scenario.mode == CallMode::kUnary ? "unary" : "stream");
  }
  return text;
}

std::string ScenarioHelp() {
  std::string text = "Scenario keys (key=value, separated by commas):\n";
  for (const Key& key : kKeys) {
    absl::StrAppend(&text, "  ", key.name, std::string(14 - std::string(key.name).size(), ' '),
                    key.help, "\n");
  }
  return text;
}

}  // namespace attnd::loadtest
