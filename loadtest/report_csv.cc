// Reports as CSV: a line a run, or a line a side of each comparison; what one has not is empty.
#include <array>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "loadtest/report.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

using Json = nlohmann::json;

constexpr std::array kColumns{"date",
                              "name",
                              "side",
                              "loop",
                              "offered_requests_per_second",
                              "sent",
                              "ok",
                              "failed",
                              "skipped",
                              "ok_requests_per_second",
                              "ok_tokens_per_second",
                              "p50_us",
                              "p90_us",
                              "p99_us",
                              "p99_9_us",
                              "max_us",
                              "schedule_lag_p99_us",
                              "queue_p50_us",
                              "kernel_p50_us",
                              "mean_batch_requests",
                              "within_slo_ratio",
                              "failures"};
using Row = std::map<std::string, std::string>;

// Quoted where a reader would otherwise see another cell.
std::string Cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::string TextOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void Take(Row& row, const Json& from, const std::vector<std::string>& names,
          const std::string& prefix = "") {
  for (const std::string& name : names) {
    if (from.contains(name)) row[prefix + name] = TextOf(from[name]);
  }
}

std::string FailuresText(const Json& failures) {
  std::vector<std::string> parts;
  for (const auto& [code, count] : failures.items()) {
    parts.push_back(absl::StrCat(code, " ", TextOf(count)));
  }
  return absl::StrJoin(parts, "; ");
}

Row RunRow(const Json& run) {
  Row row;
  const Json& result = run["result"];
  Take(row, run, {"name", "loop", "offered_requests_per_second", "within_slo_ratio"});
  Take(row, result,
       {"sent", "ok", "failed", "skipped", "ok_requests_per_second", "ok_tokens_per_second",
        "mean_batch_requests"});
  Take(row, result["latency"], {"p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"});
  Take(row, result["schedule_lag"], {"p99_us"}, "schedule_lag_");
  Take(row, result["queue_time"], {"p50_us"}, "queue_");
  Take(row, result["kernel_time"], {"p50_us"}, "kernel_");
  row["failures"] = FailuresText(result["failures"]);
  return row;
}

Row SideRow(const Json& scenario, const char* side) {
  Row row;
  const Json& measured = scenario[side];
  Take(row, scenario, {"name"});
  Take(row, measured, {"sent", "ok", "p50_us", "p99_us", "kernel_p50_us", "mean_batch_requests"});
  row["side"] = side;
  row["loop"] = "closed";
  row["ok_tokens_per_second"] = TextOf(measured["tokens_per_second"]);
  row["failures"] = FailuresText(measured["failures"]);
  return row;
}

Row FloorRow(const Json& floor) {
  Row row;
  Take(row, floor, {"name"});
  Take(row, floor["latency"], {"p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"});
  row["side"] = "floor";
  row["loop"] = "closed";
  row["ok_requests_per_second"] = TextOf(floor["requests_per_second"]);
  return row;
}

std::vector<Row> RowsOf(const Json& report) {
  std::vector<Row> rows;
  if (report.contains("run")) {
    rows.push_back(RunRow(report["run"]));
    if (report["run"].contains("floor")) rows.push_back(FloorRow(report["run"]["floor"]));
  }
  if (report.contains("floors")) {
    for (const Json& floor : report["floors"]) rows.push_back(FloorRow(floor));
  }
  if (report.contains("scenarios")) {
    for (const Json& scenario : report["scenarios"]) {
      for (const char* side : {"fused", "naive", "alone", "naive_alone"}) {
        if (scenario.contains(side)) rows.push_back(SideRow(scenario, side));
      }
      rows.push_back(FloorRow(scenario["floor"]));
    }
  }
  return rows;
}

}  // namespace

std::string ReportCsv(const Json& report) {
  std::string text = absl::StrJoin(kColumns, ",") + "\n";
  for (Row& row : RowsOf(report)) {
    row["date"] = report.contains("date") ? TextOf(report["date"]) : "";
    std::vector<std::string> cells;
    for (const char* column : kColumns) cells.push_back(Cell(row[column]));
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

}  // namespace attnd::loadtest
