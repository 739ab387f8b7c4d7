// What a load run asks of the server: the kind of call, its shape and how it is sent.
//
// Written as key=value pairs
// ("kind=decode,heads=32,kv_heads=8,head_dim=128,prompt=4096,workers=16") or as a YAML file: a list
// `scenarios:` of maps with the same keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"

namespace attnd::loadtest {

enum class Kind : std::uint8_t { kAttend, kDecode };
enum class CallMode : std::uint8_t { kUnary, kStream };

// Requests a second: a plan of more would be longer in the making than in the sending.
inline constexpr double kMaxRate = 1e6;

struct Scenario {
  std::string name;  // default: kind and shape
  Kind kind = Kind::kAttend;
  v1::DataType data_type = v1::DATA_TYPE_FP32;
  int heads = 8;
  int kv_heads = 0;  // 0: heads
  int head_dim = 64;
  int sequences = 1;  // in one request
  bool causal = true;
  int window = -1;  // earlier keys that stay visible; -1: all
  double soft_cap = 0;

  // kind=attend
  int tokens = 512;     // query tokens a sequence
  int kv_tokens = 0;    // 0: tokens
  std::string capture;  // a .safetensors file that holds the tensors instead of random ones,
  std::string prefix;   // under <prefix>q, <prefix>k and <prefix>v

  // kind=decode: after `steps` tokens a sequence goes back to its prompt (by epoch)
  int prompt = 1024;
  int steps = 64;
  int layers = 1;
  int step_tokens =
      1;             // query tokens a step and sequence: more check a draft, or continue a prompt
  int accepted = 0;  // of them stay, the rest is rolled back (by epoch); 0: all

  CallMode mode = CallMode::kUnary;  // stream: kind=decode only
  int connections = 1;
  int workers = 0;  // requests in flight in a closed loop; 0: 1 for attend, 8 for decode

  // How `attnload run` sends it where no flag says otherwise.
  double rate = 0;                   // requests a second of an open loop; 0: closed loop
  std::string arrivals = "poisson";  // poisson, constant, burst
  int max_in_flight = 256;           // open loop
};

// Checked and with its defaults filled in. INVALID_ARGUMENT names the key, what it got and what it
// needs.
absl::StatusOr<Scenario> ParseScenario(std::string_view text);
absl::StatusOr<std::vector<Scenario>> ReadScenarios(const std::string& yaml_path);

// Query tokens that one request answers.
std::int64_t TokensPerRequest(const Scenario& scenario);

// Key=value text of everything that shapes requests and replies (not the name, nor a capture, whose
// shape it tells instead): ParseScenario reads it back.
std::string ScenarioSpec(const Scenario& scenario);

// The keys and their meaning, for --help.
std::string ScenarioHelp();

}  // namespace attnd::loadtest
