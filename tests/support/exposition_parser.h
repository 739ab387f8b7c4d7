// A strict parser of the Prometheus text exposition format 0.0.4: what a scraper may refuse is an
// error here. Beyond the grammar it checks what makes a page consistent: HELP and TYPE once and
// before the samples, families not split, no series twice, histograms cumulative with +Inf equal to
// the count, sums finite.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attnd::testing {

struct ExpositionSample {
  std::string name;
  std::map<std::string, std::string> labels;  // unescaped
  double value = 0;
};

struct ExpositionFamily {
  std::string name, type, help;
  std::vector<ExpositionSample> samples;
};

struct Exposition {
  std::vector<ExpositionFamily> families;
  std::vector<std::string> errors;  // "line 12: ..."; empty: a valid page

  // The sample with exactly these labels.
  std::optional<double> Value(std::string_view name,
                              const std::map<std::string, std::string>& labels = {}) const;
  // Over all label sets of the name.
  double Sum(std::string_view name) const;
};

Exposition ParseExposition(std::string_view text);

}  // namespace attnd::testing
