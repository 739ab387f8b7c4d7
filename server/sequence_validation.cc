#include "server/sequence_validation.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "server/error_status.h"
#include "server/option_validation.h"
#include "server/tensor_validation.h"
#include "server/unknown_fields.h"

namespace attnd {
namespace {

constexpr std::size_t kCreationKeyBytes = 16;
constexpr std::int32_t kDefaultPageSize = 100, kMaxPageSize = 1000;

absl::Status CheckCount(const char* field, std::int64_t got, std::int64_t limit) {
  if (got < 1) return InvalidField(field, absl::StrCat(got), absl::StrCat("1 to ", limit));
  if (got > limit) return OverLimit(field, got, limit);
  return absl::OkStatus();
}

absl::Status CheckCreationKey(const std::string& key) {
  if (key.empty() || key.size() == kCreationKeyBytes) return absl::OkStatus();
  return InvalidField("creation_key", absl::StrCat(key.size(), " bytes"),
                      absl::StrCat(kCreationKeyBytes, " bytes or none"));
}

absl::Status CheckHeadShape(const v1::CreateSequenceRequest& request, const RequestLimits& limits) {
  for (const auto& status :
       {CheckCount("num_layers", request.num_layers(), limits.max_layers),
        CheckCount("num_heads", request.num_heads(), limits.max_heads),
        CheckCount("num_kv_heads", request.num_kv_heads(), limits.max_heads)}) {
    if (!status.ok()) return status;
  }
  if (request.num_heads() % request.num_kv_heads() != 0) {
    return InvalidField("num_kv_heads", absl::StrCat(request.num_kv_heads()),
                        absl::StrCat("a divisor of num_heads ", request.num_heads()));
  }
  if (request.head_dim() < 1 || request.head_dim() > kernels::kMaxHeadDim) {
    return InvalidField("head_dim", absl::StrCat(request.head_dim()),
                        absl::StrCat("1 to ", kernels::kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::Status ReadTypes(const v1::CreateSequenceRequest& request, CreateSequenceSpec& spec) {
  switch (request.data_type()) {
    case v1::DATA_TYPE_FP32:
      spec.data_type = kernels::DataType::kFp32;
      break;
    case v1::DATA_TYPE_FP16:
      spec.data_type = kernels::DataType::kFp16;
      break;
    case v1::DATA_TYPE_BF16:
      spec.data_type = kernels::DataType::kBf16;
      break;
    default:
      return InvalidField("data_type", v1::DataType_Name(request.data_type()),
                          "DATA_TYPE_FP32, DATA_TYPE_FP16 or DATA_TYPE_BF16");
  }
  spec.kv_data_type = spec.data_type;
  if (request.kv_data_type() == v1::DATA_TYPE_UNSPECIFIED ||
      request.kv_data_type() == request.data_type()) {
    return absl::OkStatus();
  }
  return ErrorStatus(
      absl::StatusCode::kUnimplemented, v1::REASON_UNSUPPORTED, "kv_data_type",
      absl::StrCat("kv_data_type: this server keeps caches in the data_type of their queries (",
                   v1::DataType_Name(request.data_type()), "), not in ",
                   v1::DataType_Name(request.kv_data_type())));
}

// Each layer stands in one group; one group may name none and takes the rest.
class LayerCensus {
 public:
  explicit LayerCensus(std::int32_t num_layers) : named_(num_layers, false) {}

  absl::Status Add(const std::string& group, const v1::LayerGroup& proto) {
    if (proto.layers().empty()) {
      if (catch_all_) {
        return InvalidField(absl::StrCat(group, ".layers"), "a second group without layers",
                            "one such group at most");
      }
      catch_all_ = true;
    }
    for (int i = 0; i < proto.layers_size(); ++i) {
      const std::string field = absl::StrCat(group, ".layers[", i, "]");
      const std::int32_t layer = proto.layers(i);
      if (layer < 0 || layer >= static_cast<std::int32_t>(named_.size())) {
        return InvalidField(field, absl::StrCat(layer),
                            absl::StrCat("0 to ", named_.size() - 1, " (num_layers - 1)"));
      }
      if (named_[layer]) {
        return InvalidField(field, absl::StrCat(layer, ", which has a group already"),
                            "each layer in one group");
      }
      named_[layer] = true;
    }
    return absl::OkStatus();
  }

 private:
  std::vector<bool> named_;
  bool catch_all_ = false;
};

absl::StatusOr<LayerGroupValues> ReadLayerGroup(const std::string& field,
                                                const v1::LayerGroup& proto,
                                                const v1::CreateSequenceRequest& request) {
  LayerGroupValues group;
  group.layers.assign(proto.layers().begin(), proto.layers().end());
  if (proto.options().has_window_right()) {
    return InvalidField(absl::StrCat(field, ".options.window_right"),
                        absl::StrCat(proto.options().window_right()),
                        "unset: causal is implied in sequences");
  }
  auto options = ValidateAttentionOptions(absl::StrCat(field, ".options"), proto.options(),
                                          request.num_heads());
  if (!options.ok()) return options.status();
  group.options = *std::move(options);
  group.options.causal = true;
  if (proto.has_rope()) {
    auto rope = ValidateRopeOptions(absl::StrCat(field, ".rope"), proto.rope(), request.head_dim());
    if (!rope.ok()) return rope.status();
    group.rope = *std::move(rope);
  }
  return group;
}

absl::Status ReadLayerGroups(const v1::CreateSequenceRequest& request, CreateSequenceSpec& spec) {
  LayerCensus census(request.num_layers());
  for (int i = 0; i < request.layer_groups_size(); ++i) {
    const std::string field = absl::StrCat("layer_groups[", i, "]");
    if (auto status = census.Add(field, request.layer_groups(i)); !status.ok()) return status;
    auto group = ReadLayerGroup(field, request.layer_groups(i), request);
    if (!group.ok()) return group.status();
    spec.layer_groups.push_back(*std::move(group));
  }
  return absl::OkStatus();
}

absl::Status ReadTokens(const v1::CreateSequenceRequest& request, const RequestLimits& limits,
                        CreateSequenceSpec& spec) {
  if (request.max_tokens() < 0) {
    return InvalidField("max_tokens", absl::StrCat(request.max_tokens()),
                        ">= 0 (0: the server's limit)");
  }
  if (request.max_tokens() > limits.max_tokens) {
    return OverLimit("max_tokens", request.max_tokens(), limits.max_tokens);
  }
  spec.max_tokens = request.max_tokens();
  const std::int64_t most = spec.max_tokens == 0 ? limits.max_tokens : spec.max_tokens;
  if (request.reserve_tokens() < 0 || request.reserve_tokens() > most) {
    return InvalidField("reserve_tokens", absl::StrCat(request.reserve_tokens()),
                        absl::StrCat("0 to max_tokens ", most));
  }
  spec.reserve_tokens = request.reserve_tokens();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CreateSequenceSpec> ValidateCreateSequence(const v1::CreateSequenceRequest& request,
                                                          const RequestLimits& limits,
                                                          std::string tenant) {
  CreateSequenceSpec spec;
  if (auto status = CheckKnownFields(request); !status.ok()) return status;
  if (auto status = CheckHeadShape(request, limits); !status.ok()) return status;
  if (auto status = ReadTypes(request, spec); !status.ok()) return status;
  if (auto status = ReadLayerGroups(request, spec); !status.ok()) return status;
  if (auto status = ReadTokens(request, limits, spec); !status.ok()) return status;
  if (auto status = CheckCreationKey(request.creation_key()); !status.ok()) return status;
  auto lease = ValidateLease(request.has_lease(), request.lease());
  if (!lease.ok()) return lease.status();
  spec.lease = *lease;
  spec.tenant = std::move(tenant);
  spec.num_layers = request.num_layers();
  spec.num_heads = request.num_heads();
  spec.num_kv_heads = request.num_kv_heads();
  spec.head_dim = request.head_dim();
  spec.creation_key = request.creation_key();
  // No map fields: the serialisation of equal messages is equal.
  spec.request_bytes = request.SerializeAsString();
  return spec;
}

absl::StatusOr<ForkSequenceSpec> ValidateForkSequence(const v1::ForkSequenceRequest& request,
                                                      std::string tenant) {
  if (request.sequence_id().empty()) {
    return InvalidField("sequence_id", "no bytes", "a sequence id");
  }
  if (request.num_tokens() < 0) {
    return InvalidField("num_tokens", absl::StrCat(request.num_tokens()), ">= 0");
  }
  if (request.reserve_tokens() < 0) {
    return InvalidField("reserve_tokens", absl::StrCat(request.reserve_tokens()), ">= 0");
  }
  if (auto status = CheckCreationKey(request.creation_key()); !status.ok()) return status;
  auto lease = ValidateLease(request.has_lease(), request.lease());
  if (!lease.ok()) return lease.status();
  ForkSequenceSpec spec;
  spec.tenant = std::move(tenant);
  spec.sequence_id = request.sequence_id();
  if (request.has_num_tokens()) spec.num_tokens = request.num_tokens();
  spec.reserve_tokens = request.reserve_tokens();
  spec.lease = *lease;
  spec.creation_key = request.creation_key();
  spec.request_bytes = request.SerializeAsString();
  return spec;
}

absl::StatusOr<std::int32_t> ValidatePageSize(std::int32_t page_size) {
  if (page_size < 0 || page_size > kMaxPageSize) {
    return InvalidField("page_size", absl::StrCat(page_size), absl::StrCat("0 to ", kMaxPageSize));
  }
  return page_size == 0 ? kDefaultPageSize : page_size;
}

absl::Status ValidateSequenceIds(const google::protobuf::RepeatedPtrField<std::string>& ids,
                                 const RequestLimits& limits) {
  if (ids.size() > limits.max_steps) {
    return OverLimit("sequence_ids", ids.size(), limits.max_steps);
  }
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i].empty()) {
      return InvalidField(absl::StrCat("sequence_ids[", i, "]"), "no bytes", "a sequence id");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Clock::Duration>> ValidateLease(
    bool present, const google::protobuf::Duration& lease) {
  if (!present) return std::optional<Clock::Duration>();
  auto duration = ValidatePositiveDuration("lease", lease);
  if (!duration.ok()) return duration.status();
  return std::optional<Clock::Duration>(*duration);
}

}  // namespace attnd
