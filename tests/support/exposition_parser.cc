#include "tests/support/exposition_parser.h"

#include <charconv>
#include <cmath>
#include <set>
#include <utility>

namespace attnd::testing {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsName(std::string_view name, bool colon_allowed) {
  if (name.empty() || IsDigit(name[0])) return false;
  for (const char c : name) {
    if (!IsLetter(c) && !IsDigit(c) && c != '_' && !(colon_allowed && c == ':')) return false;
  }
  return true;
}

std::optional<double> ParseValue(std::string_view text) {
  if (text == "+Inf") return HUGE_VAL;
  if (text == "-Inf") return -HUGE_VAL;
  if (text == "NaN") return std::nan("");
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

class Parser {
 public:
  Exposition Parse(std::string_view text) {
    if (text.empty() || text.back() != '\n') Error("the last line does not end with a newline");
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      ++line_number_;
      Line(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    for (const ExpositionFamily& family : page_.families) CheckFamily(family);
    return std::move(page_);
  }

 private:
  void Error(const std::string& message) {
    page_.errors.push_back("line " + std::to_string(line_number_) + ": " + message);
  }

  void Line(std::string_view line) {
    if (line.empty()) return;
    if (line.substr(0, 7) == "# HELP ") return Comment(line.substr(7), true);
    if (line.substr(0, 7) == "# TYPE ") return Comment(line.substr(7), false);
    if (line[0] == '#') return;
    Sample(line);
  }

  void Comment(std::string_view rest, bool is_help) {
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) return Error("HELP or TYPE without a text");
    const std::string name(rest.substr(0, space));
    const std::string text(rest.substr(space + 1));
    if (!IsName(name, true)) return Error("bad metric name '" + name + "'");
    if (page_.families.empty() || page_.families.back().name != name) {
      if (!family_names_.insert(name).second) return Error("family " + name + " stands twice");
      page_.families.push_back({name, "", "", {}});
    }
    ExpositionFamily& family = page_.families.back();
    if (!family.samples.empty()) return Error("HELP or TYPE after samples of " + name);
    std::string& field = is_help ? family.help : family.type;
    if (!field.empty()) return Error((is_help ? "HELP of " : "TYPE of ") + name + " stands twice");
    field = text;
    if (!is_help && text != "counter" && text != "gauge" && text != "histogram") {
      Error("unknown type '" + text + "'");
    }
  }

  void Sample(std::string_view line) {
    ExpositionSample sample;
    std::size_t position = line.find_first_of("{ ");
    if (position == std::string_view::npos) return Error("a sample without a value");
    sample.name = line.substr(0, position);
    if (!IsName(sample.name, true)) return Error("bad metric name '" + sample.name + "'");
    if (line[position] == '{' && !ParseLabels(line, position, sample)) return;
    if (position >= line.size() || line[position] != ' ') return Error("no space before the value");
    const std::string_view number = line.substr(position + 1);
    const std::optional<double> value = ParseValue(number);
    if (!value) return Error("bad value '" + std::string(number) + "'");
    sample.value = *value;

    if (page_.families.empty() || !Belongs(sample.name, page_.families.back())) {
      return Error("sample " + sample.name + " stands outside of its family");
    }
    std::string series = sample.name;
    for (const auto& [name, label] : sample.labels) series += '\0' + name + '\0' + label;
    if (!series_.insert(series).second) return Error("series " + sample.name + " stands twice");
    page_.families.back().samples.push_back(std::move(sample));
  }

  // Moves `position` from '{' to behind '}'.
  bool ParseLabels(std::string_view line, std::size_t& position, ExpositionSample& sample) {
    ++position;
    while (position < line.size() && line[position] != '}') {
      const std::size_t equals = line.find('=', position);
      if (equals == std::string_view::npos || line.substr(equals + 1, 1) != "\"") {
        return Error("a label without a quoted value"), false;
      }
      const std::string name(line.substr(position, equals - position));
      if (!IsName(name, false)) return Error("bad label name '" + name + "'"), false;
      position = equals + 2;
      std::string value;
      while (position < line.size() && line[position] != '"') {
        char c = line[position++];
        if (c == '\\') {
          if (position == line.size()) return Error("an escape without a character"), false;
          c = line[position++];
          if (c != '\\' && c != '"' && c != 'n') return Error("unknown escape in a label"), false;
          if (c == 'n') c = '\n';
        }
        value += c;
      }
      if (position == line.size()) return Error("a label value without an end"), false;
      ++position;
      if (!sample.labels.emplace(name, value).second) {
        return Error("label " + name + " stands twice"), false;
      }
      if (line.substr(position, 1) == ",") ++position;
    }
    if (position == line.size()) return Error("labels without an end"), false;
    ++position;
    return true;
  }

  static bool Belongs(const std::string& sample, const ExpositionFamily& family) {
    if (family.type != "histogram") return sample == family.name;
    return sample == family.name + "_bucket" || sample == family.name + "_sum" ||
           sample == family.name + "_count";
  }

  void CheckFamily(const ExpositionFamily& family) {
    if (family.help.empty()) Error("family " + family.name + " has no HELP");
    if (family.type.empty()) Error("family " + family.name + " has no TYPE");
    if (family.type == "counter") {
      if (!EndsWith(family.name, "_total")) Error("counter " + family.name + " lacks _total");
      for (const ExpositionSample& sample : family.samples) {
        if (!(sample.value >= 0)) Error("counter " + family.name + " is negative or NaN");
      }
    }
    if (family.type == "histogram") CheckHistogram(family);
  }

  struct HistogramParts {
    double last_bound = -HUGE_VAL, last_count = 0;
    std::optional<double> infinite, count, sum;
  };

  void CheckHistogram(const ExpositionFamily& family) {
    std::map<std::map<std::string, std::string>, HistogramParts> histograms;
    for (const ExpositionSample& sample : family.samples) {
      auto labels = sample.labels;
      if (sample.name == family.name + "_sum") {
        histograms[labels].sum = sample.value;
        continue;
      }
      if (sample.name == family.name + "_count") {
        histograms[labels].count = sample.value;
        continue;
      }
      const auto le = labels.find("le");
      const std::optional<double> bound =
          le == labels.end() ? std::nullopt : ParseValue(le->second);
      if (!bound) {
        Error("bucket of " + family.name + " has no le");
        continue;
      }
      labels.erase("le");
      HistogramParts& parts = histograms[labels];
      if (!(*bound > parts.last_bound)) Error("bounds of " + family.name + " do not ascend");
      if (sample.value < parts.last_count) Error("buckets of " + family.name + " not cumulative");
      parts.last_bound = *bound;
      parts.last_count = sample.value;
      if (std::isinf(*bound)) parts.infinite = sample.value;
    }
    for (const auto& [labels, parts] : histograms) {
      if (!parts.infinite || !parts.count || *parts.infinite != *parts.count) {
        Error("the +Inf bucket of " + family.name + " differs from its count");
      }
      if (!parts.sum || !std::isfinite(*parts.sum)) Error("sum of " + family.name + " not finite");
    }
  }

  Exposition page_;
  int line_number_ = 0;
  std::set<std::string> family_names_, series_;
};

}  // namespace

std::optional<double> Exposition::Value(std::string_view name,
                                        const std::map<std::string, std::string>& labels) const {
  for (const ExpositionFamily& family : families) {
    for (const ExpositionSample& sample : family.samples) {
      if (sample.name == name && sample.labels == labels) return sample.value;
    }
  }
  return std::nullopt;
}

double Exposition::Sum(std::string_view name) const {
  double sum = 0;
  for (const ExpositionFamily& family : families) {
    for (const ExpositionSample& sample : family.samples) {
      if (sample.name == name) sum += sample.value;
    }
  }
  return sum;
}

Exposition ParseExposition(std::string_view text) { return Parser().Parse(text); }

}  // namespace attnd::testing
