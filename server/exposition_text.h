// Prometheus text exposition, format 0.0.4, of counters, gauges and histograms. The library's own
// serializer writes through a stream: three quarters of what a scrape cost, on cores that requests
// need.
#pragma once

#include <span>
#include <string>

#include "prometheus/metric_family.h"

namespace attnd {

// Families of other types are left out. Whole numbers are written without exponent, others with the
// fewest digits that read back the same.
std::string ExpositionText(std::span<const prometheus::MetricFamily> families);

}  // namespace attnd
