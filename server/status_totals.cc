#include "server/status_totals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <tuple>

namespace attnd {
namespace {

using prometheus::ClientMetric, prometheus::MetricFamily, prometheus::MetricType;

std::string LabelOf(const ClientMetric& metric, std::string_view name) {
  for (const ClientMetric::Label& label : metric.label) {
    if (label.name == name) return label.value;
  }
  return {};
}

double ValueOf(const MetricFamily& family, const ClientMetric& metric) {
  return family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value;
}

Distribution DistributionOf(const ClientMetric& metric) {
  Distribution distribution;
  distribution.sum = metric.histogram.sample_sum;
  double below = 0;
  for (const ClientMetric::Bucket& bucket : metric.histogram.bucket) {
    const auto cumulative = static_cast<double>(bucket.cumulative_count);
    if (std::isfinite(bucket.upper_bound)) distribution.bounds.push_back(bucket.upper_bound);
    distribution.counts.push_back(cumulative - below);
    below = cumulative;
  }
  return distribution;
}

KernelTotals& KernelOf(std::vector<KernelTotals>& kernels, const ClientMetric& metric) {
  KernelTotals wanted;
  wanted.kernel = LabelOf(metric, "kernel");
  wanted.device = LabelOf(metric, "device");
  for (KernelTotals& each : kernels) {
    if (each.kernel == wanted.kernel && each.device == wanted.device) return each;
  }
  return kernels.emplace_back(std::move(wanted));
}

void AddByLabel(const MetricFamily& family, std::string_view label,
                std::map<std::string, double>& sums) {
  for (const ClientMetric& metric : family.metric) {
    const double value = ValueOf(family, metric);
    if (value != 0) sums[LabelOf(metric, label)] += value;
  }
}

// True where the family is of kernels.
bool AddKernels(const MetricFamily& family, std::vector<KernelTotals>& kernels) {
  const std::string_view name = family.name;
  for (const ClientMetric& metric : family.metric) {
    if (name == "attnd_kernel_duration_seconds") {
      KernelOf(kernels, metric).launches += static_cast<double>(metric.histogram.sample_count);
    } else if (name == "attnd_kernel_busy_seconds_total") {
      KernelOf(kernels, metric).busy_seconds += metric.counter.value;
    } else if (name == "attnd_kernel_hbm_bytes_total") {
      KernelOf(kernels, metric).hbm_bytes += metric.counter.value;
    } else if (name == "attnd_kernel_flops_total") {
      KernelOf(kernels, metric).flops += metric.counter.value;
    } else {
      return false;
    }
  }
  return true;
}

bool IsCeiling(std::string_view name) {
  return name.starts_with("attnd_device_") &&
         (name.ends_with("_bytes_per_second") || name.ends_with("_flops_per_second"));
}

void AddCeilings(const MetricFamily& family, std::vector<Ceiling>& ceilings) {
  for (const ClientMetric& metric : family.metric) {
    Ceiling& ceiling = ceilings.emplace_back();
    ceiling.family = family.name;
    ceiling.value = ValueOf(family, metric);
    for (const ClientMetric::Label& label : metric.label) ceiling.labels[label.name] = label.value;
  }
}

void AddDistributions(const MetricFamily& family, std::string_view label,
                      std::map<std::string, Distribution>& distributions) {
  for (const ClientMetric& metric : family.metric) {
    if (metric.histogram.sample_count == 0) continue;
    distributions[LabelOf(metric, label)] = DistributionOf(metric);
  }
}

}  // namespace

double Distribution::count() const {
  double total = 0;
  for (const double each : counts) total += each;
  return total;
}

double Distribution::mean() const {
  const double total = count();
  return total > 0 ? sum / total : 0;
}

double Distribution::UpperBound(double share) const {
  const double total = count();
  if (total <= 0) return -1;
  double below = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    below += counts[i];
    if (below >= share * total) return bounds[i];
  }
  return std::numeric_limits<double>::infinity();
}

Distribution Distribution::Since(const Distribution& earlier) const {
  Distribution difference = *this;
  if (earlier.counts.size() != counts.size()) return difference;
  for (std::size_t i = 0; i < counts.size(); ++i) difference.counts[i] -= earlier.counts[i];
  difference.sum -= earlier.sum;
  return difference;
}

StatusTotals ReadStatusTotals(std::span<const MetricFamily> families) {
  StatusTotals totals;
  for (const MetricFamily& family : families) {
    const std::string& name = family.name;
    if (name.starts_with("attnd_kernel_") && AddKernels(family, totals.kernels)) continue;
    if (IsCeiling(name)) {
      AddCeilings(family, totals.ceilings);
    } else if (name == "attnd_request_duration_seconds") {
      AddDistributions(family, "method", totals.latency);
    } else if (name == "attnd_stage_duration_seconds") {
      AddDistributions(family, "stage", totals.stages);
    } else if (name == "attnd_requests_total") {
      AddByLabel(family, "code", totals.answers_by_code);
    } else if (name == "attnd_rejected_total") {
      AddByLabel(family, "reason", totals.rejected_by_reason);
    } else if (name == "attnd_sequences") {
      AddByLabel(family, "state", totals.sequences_by_state);
    } else if (name == "attnd_sequences_ended_total") {
      AddByLabel(family, "reason", totals.ended_by_reason);
    } else if (name == "attnd_kv_cache_bytes") {
      AddByLabel(family, "state", totals.cache_bytes_by_state);
    } else if (name == "attnd_kv_cache_pages") {
      AddByLabel(family, "state", totals.cache_pages_by_state);
    } else if (name == "attnd_kv_cache_host_bytes") {
      AddByLabel(family, "state", totals.host_bytes_by_state);
    } else if (name == "attnd_kv_cache_moved_bytes_total") {
      AddByLabel(family, "direction", totals.moved_bytes_by_direction);
    } else if (family.metric.size() == 1 && family.type == MetricType::Histogram) {
      if (name == "attnd_batch_sequences") {
        totals.batch_sequences = DistributionOf(family.metric[0]);
      } else if (name == "attnd_batch_tokens") {
        totals.batch_tokens = DistributionOf(family.metric[0]);
      }
    } else if (family.metric.size() == 1 && family.metric[0].label.empty() &&
               family.type == MetricType::Gauge && name.starts_with("attnd_")) {
      totals.gauges[name.substr(std::string_view("attnd_").size())] = family.metric[0].gauge.value;
    }
  }
  std::sort(totals.kernels.begin(), totals.kernels.end(),
            [](const KernelTotals& one, const KernelTotals& other) {
              return std::tie(one.kernel, one.device) < std::tie(other.kernel, other.device);
            });
  return totals;
}

}  // namespace attnd
