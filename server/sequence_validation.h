// Requests of the sequence rpcs -> values, or a status that names the field, what it got and what
// it needs. What needs the sequence itself (its length, its epochs, its lease) is the scheduler's.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "server/request_validation.h"
#include "server/sequence_types.h"

namespace attnd {

// UNIMPLEMENTED for unknown fields and enum values at any depth, and for cache types that are not
// offered.
absl::StatusOr<CreateSequenceSpec> ValidateCreateSequence(const v1::CreateSequenceRequest& request,
                                                          const RequestLimits& limits,
                                                          std::string tenant);
absl::StatusOr<ForkSequenceSpec> ValidateForkSequence(const v1::ForkSequenceRequest& request,
                                                      std::string tenant);

// 0 becomes the default page of 100.
absl::StatusOr<std::int32_t> ValidatePageSize(std::int32_t page_size);

// Ids of a bulk rpc: at most limits.max_steps, none empty.
absl::Status ValidateSequenceIds(const google::protobuf::RepeatedPtrField<std::string>& ids,
                                 const RequestLimits& limits);
absl::StatusOr<std::optional<Clock::Duration>> ValidateLease(
    bool present, const google::protobuf::Duration& lease);

}  // namespace attnd
