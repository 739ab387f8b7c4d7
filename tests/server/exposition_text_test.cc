// The page that scrapers read, compared with the library's own.
#include "server/exposition_text.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "prometheus/text_serializer.h"

namespace attnd {
namespace {

using prometheus::ClientMetric, prometheus::MetricFamily, prometheus::MetricType;

MetricFamily Family(MetricType type) { return {"attnd_things", "Things.", type, {}}; }

ClientMetric Gauge(double value, std::vector<ClientMetric::Label> labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  return metric;
}

std::string GaugeText(double value) {
  MetricFamily family = Family(MetricType::Gauge);
  family.metric.push_back(Gauge(value));
  const std::string text = ExpositionText(std::vector{family});
  const std::string head = "# HELP attnd_things Things.\n# TYPE attnd_things gauge\nattnd_things ";
  EXPECT_EQ(text.substr(0, head.size()), head);
  EXPECT_EQ(text.back(), '\n');
  return text.substr(head.size(), text.size() - head.size() - 1);
}

TEST(ExpositionTextTest, NumbersReadBackTheSame) {
  EXPECT_EQ(GaugeText(0), "0");
  EXPECT_EQ(GaugeText(1'048'576), "1048576");
  EXPECT_EQ(GaugeText(1e15), "1000000000000000");
  EXPECT_EQ(GaugeText(-3), "-3");
  EXPECT_EQ(GaugeText(0.00002), "2e-05");
  EXPECT_EQ(GaugeText(0.1), "0.1");
  for (const double value : {1.0 / 3, 1e300, 5e-324, 1.7e18, 123456.789}) {
    EXPECT_EQ(std::strtod(GaugeText(value).c_str(), nullptr), value) << GaugeText(value);
  }
}

TEST(ExpositionTextTest, WhatIsNoNumberHasItsName) {
  EXPECT_EQ(GaugeText(std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(GaugeText(std::numeric_limits<double>::infinity()), "+Inf");
  EXPECT_EQ(GaugeText(-std::numeric_limits<double>::infinity()), "-Inf");
}

// Byte for byte, where the numbers are whole.
TEST(ExpositionTextTest, IsThePageOfTheLibrary) {
  std::vector<MetricFamily> families = {Family(MetricType::Gauge), Family(MetricType::Counter),
                                        Family(MetricType::Histogram)};
  families[0].metric = {Gauge(1, {{"a", "plain"}, {"b", "a \"word\" \\ and\nline, \xC3\xA9"}}),
                        Gauge(2)};
  families[1].metric.emplace_back().counter.value = 12;
  ClientMetric& histogram = families[2].metric.emplace_back();
  histogram.label = {{"method", "Attend"}};
  histogram.histogram.sample_count = 7;
  histogram.histogram.sample_sum = 0.5;
  histogram.histogram.bucket = {{3, 0.25}, {7, std::numeric_limits<double>::infinity()}};
  families[2].metric.push_back(histogram);
  families[2].metric.back().label.clear();
  EXPECT_EQ(ExpositionText(families), prometheus::TextSerializer().Serialize(families));
}

// As the format wants it; the library writes help as it is.
TEST(ExpositionTextTest, HelpStaysOnItsLine) {
  MetricFamily family = Family(MetricType::Gauge);
  family.help = "A backslash \\, a \"quote\"\nand a new line.";
  EXPECT_EQ(ExpositionText(std::vector{family}),
            "# HELP attnd_things A backslash \\\\, a \"quote\"\\nand a new line.\n"
            "# TYPE attnd_things gauge\n");
}

TEST(ExpositionTextTest, FamiliesWithoutMetricsHaveTheirHeadOnly) {
  EXPECT_EQ(ExpositionText(std::vector{Family(MetricType::Counter)}),
            "# HELP attnd_things Things.\n# TYPE attnd_things counter\n");
  EXPECT_EQ(ExpositionText({}), "");
}

}  // namespace
}  // namespace attnd
