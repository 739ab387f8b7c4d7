// What the subcommands of attnctl share: the flags that say where the server is, how results are
// printed, and exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/attention_client.h"
#include "nlohmann/json.hpp"

namespace attnd::client::attnctl {

inline constexpr int kExitOk = 0;
inline constexpr int kExitRefused = 1;   // the server refused, or a comparison failed
inline constexpr int kExitUsage = 2;     // flags and files
inline constexpr int kExitNoServer = 3;  // not reachable, or no answer in time

inline constexpr double kLongestTimeoutSeconds = 1e9;  // longer ones are cut: they would overflow

struct Session {
  std::string server = "127.0.0.1:8001";
  std::string admin = "127.0.0.1:8002";
  double timeout_seconds = 30;
  std::string tenant, route, token;
  bool json = false;
  // What the chosen subcommand does; set while the command line is parsed.
  std::function<int()> run;

  ClientOptions MakeClientOptions() const;
  CallOptions call() const;
};

// Each adds one subcommand.
void AddInfo(CLI::App& app, Session& session);
void AddAttend(CLI::App& app, Session& session);
void AddDecode(CLI::App& app, Session& session);
void AddSequences(CLI::App& app, Session& session);
void AddMerge(CLI::App& app, Session& session);
void AddDrain(CLI::App& app, Session& session);

// The error on standard error (with --json as an object on standard output too); its exit code.
int Fail(const Session& session, const absl::Status& status);
// For errors of flags and files.
int FailUsage(const Session& session, const absl::Status& status);

void PrintJson(const nlohmann::json& value);
nlohmann::json ErrorJson(const absl::Status& status);
// A protobuf message with its own field names; bytes in base64, 64-bit integers as text.
nlohmann::json MessageJson(const google::protobuf::Message& message);

// Sequence ids are typed and printed in hexadecimal.
std::string HexFromId(const std::string& sequence_id);
absl::StatusOr<std::string> IdFromHex(const std::string& hex);

// Runs in an empty Duration where `seconds` is 0.
void SetDuration(double seconds, google::protobuf::Duration& duration);
double SecondsOf(const google::protobuf::Duration& duration);

}  // namespace attnd::client::attnctl
