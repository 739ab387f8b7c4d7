// What the status page shows, picked out of the metric families by name: the page and a scrape of
// the same moment tell the same figures.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"

namespace attnd {

// Counters since the start of the process.
struct KernelTotals {
  std::string kernel, device;
  double launches = 0, busy_seconds = 0, hbm_bytes = 0, flops = 0;
};

// Of a histogram; counts has one entry more than bounds: what lies above the last one.
struct Distribution {
  std::vector<double> bounds;
  std::vector<double> counts;  // of each bin, not cumulative
  double sum = 0;

  double count() const;
  double mean() const;  // 0 without values
  // The bound that at least `share` of the values do not exceed; infinite above the last bound.
  // Negative without values.
  double UpperBound(double share) const;
  // This minus an earlier state of the same histogram; of this where `earlier` is empty.
  Distribution Since(const Distribution& earlier) const;
};

// A figure of the device that a roof of the roofline may stand for.
struct Ceiling {
  std::string family;
  std::map<std::string, std::string> labels;
  double value = 0;
};

struct StatusTotals {
  std::vector<KernelTotals> kernels;            // by name
  std::map<std::string, Distribution> latency;  // seconds, by method; only those that were called
  std::map<std::string, Distribution> stages;   // seconds, by stage; only those that were passed
  Distribution batch_sequences, batch_tokens;
  // Sums of a family by one label, without those that are 0.
  std::map<std::string, double> answers_by_code, rejected_by_reason, sequences_by_state,
      ended_by_reason, cache_bytes_by_state, cache_pages_by_state, host_bytes_by_state,
      moved_bytes_by_direction;
  // attnd_device_*_bytes_per_second and attnd_device_*_flops_per_second.
  std::vector<Ceiling> ceilings;
  // Families without labels that hold a gauge, name without the prefix attnd_.
  std::map<std::string, double> gauges;
};

// Pure. A family that is missing leaves its part empty.
StatusTotals ReadStatusTotals(std::span<const prometheus::MetricFamily> families);

}  // namespace attnd
