// What waits for a launch, in the form the policy reads, with the two tables that the entries refer
// to: tenants (who has used how much) and shape classes (which kernel row, how fast).
//
// Not thread-safe: the scheduler's mutex guards it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/attention_kernels.h"
#include "server/batch_policy.h"
#include "server/work_item.h"

namespace attnd {

class ShapeClassTable {
 public:
  explicit ShapeClassTable(const kernels::DeviceLimits& device);
  // Index of the class, with one more user; Leave ends the use. UNIMPLEMENTED (listing the rows)
  // where no kernel serves the class. Beyond kMaxClasses the slot of an unused class is taken over,
  // so that clients cannot make the table grow for ever.
  absl::StatusOr<std::uint32_t> Enter(const ShapeClass& shape);
  void Leave(std::uint32_t index) { --users_[index]; }
  const ShapeClass& shape(std::uint32_t index) const { return shapes_[index]; }
  const kernels::KernelRow& row(std::uint32_t index) const { return *rows_[index]; }

  absl::Span<const double> work_per_second() const { return work_per_second_; }
  // A launch of this class did `work` in `seconds`.
  void Measure(std::uint32_t index, double work, double seconds);

 private:
  static constexpr std::size_t kMaxClasses = 4096;
  std::uint32_t NewSlot();
  kernels::DeviceLimits device_;
  absl::flat_hash_map<ShapeClass, std::uint32_t> index_;
  std::vector<ShapeClass> shapes_;
  std::vector<const kernels::KernelRow*> rows_;
  std::vector<double> work_per_second_;
  std::vector<bool> measured_;
  std::vector<std::int64_t> users_;
  std::size_t hand_ = 0;  // where the search for an unused slot goes on
  double estimate_;       // for classes that have not run yet
};

class TenantTable {
 public:
  // Counts a request of the tenant; Leave ends it.
  std::uint32_t Enter(const std::string& tenant);
  void Leave(std::uint32_t index);
  void Charge(std::uint32_t index, double work);
  absl::Span<const double> used() const { return used_; }

 private:
  double LeastActive() const;
  std::uint32_t NewSlot();
  absl::flat_hash_map<std::string, std::uint32_t> index_;
  std::vector<std::string> names_;
  std::vector<double> used_;
  std::vector<std::int64_t> requests_;
  // Tenants without requests, longest idle first. They keep what they have used until their slot
  // is taken over, or a tenant that sends one huge request at a time would start level each time.
  static constexpr std::size_t kRememberedTenants = 1024;
  std::deque<std::uint32_t> idle_;
  std::vector<bool> in_idle_;
};

class ReadyQueue {
 public:
  // Puts an item that may run into its group's entry, or holds it back while its request has
  // enough prefill items queued.
  void Add(WorkItem& item, const ShapeClassTable& classes);
  // Takes a ready item out again, wherever it stands in its group.
  void Remove(WorkItem& item, const ShapeClassTable& classes);
  absl::Span<const QueueEntry> entries() const { return entries_; }

 private:
  void Insert(WorkItem& item, const ShapeClass& shape);
  void Erase(WorkItem& item, const ShapeClass& shape);
  void Refresh(WorkGroup& group, double work_change, std::int64_t token_change);
  std::vector<QueueEntry> entries_;
};

// What remains of an item, as the policy counts it.
PrefillWork RemainingWork(const WorkItem& item, const ShapeClass& shape);

}  // namespace attnd
