#include "loadtest/server_work.h"

#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/http_failure.h"

namespace attnd::loadtest {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kTimeout{5};
// Clocks of the server's host may be set meanwhile; a restart shows in more than that.
constexpr double kClockSlackSeconds = 1;

// Every number of `after` minus the one of the same name in `before`.
Json Difference(const Json& after, const Json& before) {
  Json difference = Json::object();
  for (const auto& [name, value] : after.items()) {
    if (value.is_number()) difference[name] = value.get<double>() - before.value(name, 0.0);
  }
  return difference;
}

Json KernelWork(const Json& before, const Json& after) {
  Json kernels = Json::array();
  for (const Json& kernel : after) {
    Json earlier = Json::object();
    for (const Json& each : before) {
      if (each["kernel"] == kernel["kernel"] && each["device"] == kernel["device"]) {
        earlier = each["total"];
      }
    }
    Json work = Difference(kernel["total"], earlier);
    if (work.value("launches", 0.0) <= 0) continue;
    work["kernel"] = kernel["kernel"];
    work["device"] = kernel["device"];
    kernels.push_back(std::move(work));
  }
  return kernels;
}

Json StageWork(const Json& before, const Json& after) {
  Json stages = Json::object();
  for (const auto& [stage, totals] : after.items()) {
    Json work = Difference(totals, before.value(stage, Json::object()));
    if (work.value("count", 0.0) > 0) stages[stage] = std::move(work);
  }
  return stages;
}

Json BatchWork(const Json& before, const Json& after) {
  auto counts = after["counts"].get<std::vector<double>>();
  const auto earlier = before["counts"].get<std::vector<double>>();
  for (std::size_t i = 0; i < counts.size() && i < earlier.size(); ++i) counts[i] -= earlier[i];
  return {{"bounds", after["bounds"]}, {"counts", counts}};
}

}  // namespace

absl::StatusOr<Json> ReadServerStatus(const std::string& admin) {
  httplib::Client client("http://" + admin);
  client.set_connection_timeout(kTimeout);
  client.set_read_timeout(kTimeout);
  const auto answer = client.Get("/statusz.json");
  if (!answer || answer->status != 200) {
    return absl::UnavailableError(absl::StrCat("--admin ", admin, ": /statusz.json: ",
                                               answer ? absl::StrCat("HTTP status ", answer->status)
                                                      : client::HttpFailure(answer.error())));
  }
  Json status = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  for (const char* part : {"kernels", "stages", "batches", "ceilings", "time", "uptime_seconds"}) {
    if (!status.is_object() || !status.contains(part)) {
      return absl::UnavailableError(
          absl::StrCat("--admin ", admin, ": /statusz.json has no '", part, "'"));
    }
  }
  return status;
}

absl::StatusOr<Json> ServerWork(const Json& before, const Json& after) {
  const double seconds = after["time"].get<double>() - before["time"].get<double>();
  const double uptime =
      after["uptime_seconds"].get<double>() - before["uptime_seconds"].get<double>();
  if (uptime < seconds - kClockSlackSeconds) {
    return absl::AbortedError("the server was started anew during the run");
  }
  return Json{
      {"seconds", seconds},
      {"kernels", KernelWork(before["kernels"], after["kernels"])},
      {"stages", StageWork(before["stages"], after["stages"])},
      {"batch_sequences", BatchWork(before["batches"]["sequences"], after["batches"]["sequences"])},
      {"ceilings", after["ceilings"]}};
}

}  // namespace attnd::loadtest
