#include "server/exposition_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace attnd {
namespace {

using prometheus::ClientMetric, prometheus::MetricFamily, prometheus::MetricType;

// A page of a server with a few kernels; growing in steps would copy it several times.
constexpr std::size_t kUsualPageBytes = 160 * 1024;
// Below 2^53 every whole number is exact.
constexpr double kMaxExactWhole = 9007199254740992.0;

void AppendWhole(std::int64_t value, std::string& text) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  text.append(digits.data(), end);
}

void AppendNumber(double value, std::string& text) {
  if (std::isnan(value)) {
    text += "NaN";
  } else if (std::isinf(value)) {
    text += value > 0 ? "+Inf" : "-Inf";
  } else if (value == std::trunc(value) && std::abs(value) < kMaxExactWhole) {
    AppendWhole(static_cast<std::int64_t>(value), text);
  } else {
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    text.append(digits.data(), end);
  }
}

void AppendEscaped(std::string_view value, bool in_quotes, std::string& text) {
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\\' || (c == '"' && in_quotes)) {
      text += '\\';
      text += c;
    } else {
      text += c;
    }
  }
}

// a="1",b="2"
std::string LabelText(const std::vector<ClientMetric::Label>& labels) {
  std::string text;
  for (const ClientMetric::Label& label : labels) {
    if (!text.empty()) text += ',';
    text += label.name;
    text += "=\"";
    AppendEscaped(label.value, /*in_quotes=*/true, text);
    text += '"';
  }
  return text;
}

void AppendSeries(std::string_view name, std::string_view suffix, std::string_view labels,
                  std::string& text) {
  text += name;
  text += suffix;
  if (!labels.empty()) {
    text += '{';
    text += labels;
    text += '}';
  }
  text += ' ';
}

void AppendHistogram(std::string_view name, std::string_view labels,
                     const ClientMetric::Histogram& histogram, std::string& text) {
  AppendSeries(name, "_count", labels, text);
  AppendWhole(static_cast<std::int64_t>(histogram.sample_count), text);
  text += '\n';
  AppendSeries(name, "_sum", labels, text);
  AppendNumber(histogram.sample_sum, text);
  text += '\n';
  for (const ClientMetric::Bucket& bucket : histogram.bucket) {
    text += name;
    text += "_bucket{";
    text += labels;
    text += labels.empty() ? "le=\"" : ",le=\"";
    AppendNumber(bucket.upper_bound, text);
    text += "\"} ";
    AppendWhole(static_cast<std::int64_t>(bucket.cumulative_count), text);
    text += '\n';
  }
}

const char* TypeName(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Histogram:
      return "histogram";
    default:
      return nullptr;
  }
}

void AppendFamily(const MetricFamily& family, const char* type, std::string& text) {
  text += "# HELP ";
  text += family.name;
  text += ' ';
  AppendEscaped(family.help, /*in_quotes=*/false, text);
  text += "\n# TYPE ";
  text += family.name;
  text += ' ';
  text += type;
  text += '\n';
  for (const ClientMetric& metric : family.metric) {
    const std::string labels = LabelText(metric.label);
    if (family.type == MetricType::Histogram) {
      AppendHistogram(family.name, labels, metric.histogram, text);
      continue;
    }
    AppendSeries(family.name, "", labels, text);
    AppendNumber(family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value,
                 text);
    text += '\n';
  }
}

}  // namespace

std::string ExpositionText(std::span<const MetricFamily> families) {
  std::string text;
  text.reserve(kUsualPageBytes);
  for (const MetricFamily& family : families) {
    if (const char* type = TypeName(family.type)) AppendFamily(family, type, text);
  }
  return text;
}

}  // namespace attnd
