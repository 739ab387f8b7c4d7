#include "server/sequence_validation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "server/error_status.h"

namespace attnd {
namespace {

constexpr RequestLimits kLimits{
    .max_tokens = 4096, .max_steps = 8, .max_heads = 64, .max_layers = 32};

v1::CreateSequenceRequest ValidCreate() {
  v1::CreateSequenceRequest request;
  request.set_num_layers(4);
  request.set_num_heads(8);
  request.set_num_kv_heads(2);
  request.set_head_dim(64);
  request.set_data_type(v1::DATA_TYPE_BF16);
  return request;
}

std::string Refusal(const absl::Status& status) {
  if (status.ok()) return "OK";
  const auto detail = ErrorDetailOf(status);
  return absl::StatusCodeToString(status.code()) + " " +
         v1::Reason_Name(detail.reason()).substr(7) + " " + detail.field();
}

struct Case {
  const char* description;
  std::function<void(v1::CreateSequenceRequest&)> change;
  std::string refusal;
};

void ExpectRefusals(const std::vector<Case>& cases) {
  for (const auto& [description, change, refusal] : cases) {
    SCOPED_TRACE(description);
    auto request = ValidCreate();
    change(request);
    EXPECT_EQ(Refusal(ValidateCreateSequence(request, kLimits, "tenant").status()), refusal);
  }
}

TEST(SequenceValidationTest, FillsASpecAndItsDefaults) {
  auto request = ValidCreate();
  auto& named = *request.add_layer_groups();
  named.add_layers(1);
  named.add_layers(3);
  named.mutable_options()->set_window_left(128);
  named.mutable_rope()->set_theta(10'000);
  request.add_layer_groups()->mutable_rope()->add_inverse_frequencies(1);
  request.mutable_layer_groups(1)->mutable_rope()->set_rotary_dim(2);
  request.set_creation_key("0123456789abcdef");
  request.mutable_lease()->set_seconds(5);
  const auto spec = ValidateCreateSequence(request, kLimits, "tenant");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->tenant, "tenant");
  EXPECT_EQ(spec->num_layers, 4);
  EXPECT_EQ(spec->kv_data_type, kernels::DataType::kBf16) << "as data_type";
  EXPECT_EQ(spec->max_tokens, 0) << "the most that fits";
  EXPECT_EQ(spec->lease, std::chrono::seconds(5));
  ASSERT_EQ(spec->layer_groups.size(), 2U);
  EXPECT_EQ(spec->layer_groups[0].layers, (std::vector<std::int32_t>{1, 3}));
  EXPECT_TRUE(spec->layer_groups[0].options.causal) << "implied";
  EXPECT_EQ(spec->layer_groups[0].rope->rotary_dim, 64) << "head_dim";
  EXPECT_EQ(spec->layer_groups[0].rope->position_scale, 1);
  EXPECT_EQ(spec->layer_groups[0].rope->amplitude, 1);
  EXPECT_EQ(spec->layer_groups[1].rope->inverse_frequencies.size(), 1U);
  EXPECT_EQ(spec->request_bytes, request.SerializeAsString());
}

TEST(SequenceValidationTest, RefusesHeadShapesThatDoNotFit) {
  const std::string invalid = "INVALID_ARGUMENT INVALID_FIELD ";
  ExpectRefusals(
      {{"no layers", [](auto& r) { r.set_num_layers(0); }, invalid + "num_layers"},
       {"negative layers", [](auto& r) { r.set_num_layers(-4); }, invalid + "num_layers"},
       {"33 layers", [](auto& r) { r.set_num_layers(33); }, "OUT_OF_RANGE LIMIT num_layers"},
       {"no heads", [](auto& r) { r.set_num_heads(0); }, invalid + "num_heads"},
       {"72 heads", [](auto& r) { r.set_num_heads(72); }, "OUT_OF_RANGE LIMIT num_heads"},
       {"no kv heads", [](auto& r) { r.set_num_kv_heads(0); }, invalid + "num_kv_heads"},
       {"33 over 2", [](auto& r) { r.set_num_heads(33); }, invalid + "num_kv_heads"},
       {"2 over 4", [](auto& r) { r.set_num_heads(2), r.set_num_kv_heads(4); },
        invalid + "num_kv_heads"},
       {"no head_dim", [](auto& r) { r.set_head_dim(0); }, invalid + "head_dim"},
       {"head_dim 257", [](auto& r) { r.set_head_dim(257); }, invalid + "head_dim"},
       {"head_dim 256", [](auto& r) { r.set_head_dim(256); }, "OK"},
       {"no type", [](auto& r) { r.clear_data_type(); }, invalid + "data_type"},
       {"quantised queries", [](auto& r) { r.set_data_type(v1::DATA_TYPE_INT8); },
        invalid + "data_type"},
       {"the same cache type", [](auto& r) { r.set_kv_data_type(v1::DATA_TYPE_BF16); }, "OK"},
       {"a quantised cache", [](auto& r) { r.set_kv_data_type(v1::DATA_TYPE_INT8); },
        "UNIMPLEMENTED UNSUPPORTED kv_data_type"},
       {"another cache type", [](auto& r) { r.set_kv_data_type(v1::DATA_TYPE_FP32); },
        "UNIMPLEMENTED UNSUPPORTED kv_data_type"}});
}

TEST(SequenceValidationTest, RefusesTokensKeysAndLeasesOutOfRange) {
  const std::string invalid = "INVALID_ARGUMENT INVALID_FIELD ";
  ExpectRefusals(
      {{"the limit", [](auto& r) { r.set_max_tokens(4096); }, "OK"},
       {"beyond it", [](auto& r) { r.set_max_tokens(4097); }, "OUT_OF_RANGE LIMIT max_tokens"},
       {"negative capacity", [](auto& r) { r.set_max_tokens(-1); }, invalid + "max_tokens"},
       {"reserve all", [](auto& r) { r.set_max_tokens(10), r.set_reserve_tokens(10); }, "OK"},
       {"reserve more", [](auto& r) { r.set_max_tokens(10), r.set_reserve_tokens(11); },
        invalid + "reserve_tokens"},
       {"negative reserve", [](auto& r) { r.set_reserve_tokens(-1); }, invalid + "reserve_tokens"},
       {"lease 0", [](auto& r) { r.mutable_lease(); }, invalid + "lease"},
       {"negative lease", [](auto& r) { r.mutable_lease()->set_nanos(-1); }, invalid + "lease"},
       {"short key", [](auto& r) { r.set_creation_key("123"); }, invalid + "creation_key"},
       {"long key", [](auto& r) { r.set_creation_key(std::string(17, 'k')); },
        invalid + "creation_key"}});
}

TEST(SequenceValidationTest, RefusesLayerGroupsThatOverlap) {
  const auto groups = [](std::vector<std::vector<int>> layers) {
    return [layers](v1::CreateSequenceRequest& request) {
      for (const auto& group : layers) {
        request.add_layer_groups()->mutable_layers()->Assign(group.begin(), group.end());
      }
    };
  };
  const std::string invalid = "INVALID_ARGUMENT INVALID_FIELD layer_groups";
  ExpectRefusals({{"named and the rest", groups({{0, 2}, {}}), "OK"},
                  {"twice in one", groups({{0, 0}}), invalid + "[0].layers[1]"},
                  {"in two", groups({{0, 2}, {1, 2}}), invalid + "[1].layers[1]"},
                  {"out of range", groups({{4}}), invalid + "[0].layers[0]"},
                  {"negative", groups({{-1}}), invalid + "[0].layers[0]"},
                  {"two for the rest", groups({{}, {}}), invalid + "[1].layers"}});
}

TEST(SequenceValidationTest, RefusesGroupOptionsOutOfRange) {
  const auto options = [](auto set) {
    return [set](v1::CreateSequenceRequest& request) {
      set(*request.add_layer_groups()->mutable_options());
    };
  };
  const auto rope = [](auto set) {
    return [set](v1::CreateSequenceRequest& request) {
      auto& rope_options = *request.add_layer_groups()->mutable_rope();
      rope_options.set_theta(10'000);
      set(rope_options);
    };
  };
  const std::string in_options = "INVALID_ARGUMENT INVALID_FIELD layer_groups[0].options.";
  const std::string in_rope = "INVALID_ARGUMENT INVALID_FIELD layer_groups[0].rope.";
  ExpectRefusals(
      {{"window_right", options([](auto& o) { o.set_window_right(0); }),
        in_options + "window_right"},
       {"window_left", options([](auto& o) { o.set_window_left(-2); }), in_options + "window_left"},
       {"1 sink", options([](auto& o) { o.add_sink_logits(1); }), in_options + "sink_logits"},
       {"theta 0", rope([](auto& r) { r.set_theta(0); }), in_rope + "theta"},
       {"theta NaN", rope([](auto& r) { r.set_theta(NAN); }), in_rope + "theta"},
       {"theta Inf", rope([](auto& r) { r.set_theta(INFINITY); }), in_rope + "theta"},
       {"odd rotary_dim", rope([](auto& r) { r.set_rotary_dim(3); }), in_rope + "rotary_dim"},
       {"rotary_dim 66", rope([](auto& r) { r.set_rotary_dim(66); }), in_rope + "rotary_dim"},
       {"negative rotary_dim", rope([](auto& r) { r.set_rotary_dim(-2); }), in_rope + "rotary_dim"},
       {"1 frequency", rope([](auto& r) { r.add_inverse_frequencies(1); }),
        in_rope + "inverse_frequencies"},
       {"frequency NaN", rope([](auto& r) { r.set_rotary_dim(2), r.add_inverse_frequencies(NAN); }),
        in_rope + "inverse_frequencies[0]"},
       {"frequencies instead of theta",
        rope([](auto& r) { r.set_rotary_dim(2), r.add_inverse_frequencies(1), r.set_theta(0); }),
        "OK"},
       {"position_scale 0", rope([](auto& r) { r.set_position_scale(0); }),
        in_rope + "position_scale"},
       {"amplitude NaN", rope([](auto& r) { r.set_amplitude(NAN); }), in_rope + "amplitude"},
       {"odd head_dim", [&](auto& r) { r.set_head_dim(33), rope([](auto&) {})(r); },
        in_rope + "rotary_dim"}});
}

TEST(SequenceValidationTest, RefusesUnknownFieldsAtAnyDepth) {
  const auto unknown = [](google::protobuf::Message& message) {
    message.GetReflection()->MutableUnknownFields(&message)->AddVarint(99, 1);
  };
  ExpectRefusals({{"request", [&](auto& r) { unknown(r); },
                   "UNIMPLEMENTED UNKNOWN_FIELD CreateSequenceRequest.99"},
                  {"group", [&](auto& r) { unknown(*r.add_layer_groups()); },
                   "UNIMPLEMENTED UNKNOWN_FIELD LayerGroup.99"},
                  {"options", [&](auto& r) { unknown(*r.add_layer_groups()->mutable_options()); },
                   "UNIMPLEMENTED UNKNOWN_FIELD AttentionOptions.99"},
                  {"rope", [&](auto& r) { unknown(*r.add_layer_groups()->mutable_rope()); },
                   "UNIMPLEMENTED UNKNOWN_FIELD RopeOptions.99"},
                  {"enum value", [](auto& r) { r.set_data_type(static_cast<v1::DataType>(9)); },
                   "UNIMPLEMENTED UNKNOWN_FIELD CreateSequenceRequest.5"}});
}

TEST(SequenceValidationTest, ChecksForks) {
  v1::ForkSequenceRequest request;
  EXPECT_EQ(Refusal(ValidateForkSequence(request, "t").status()),
            "INVALID_ARGUMENT INVALID_FIELD sequence_id");
  request.set_sequence_id("id");
  const auto whole = ValidateForkSequence(request, "t");
  ASSERT_TRUE(whole.ok());
  EXPECT_FALSE(whole->num_tokens.has_value());
  request.set_num_tokens(0);
  EXPECT_EQ(ValidateForkSequence(request, "t")->num_tokens, 0);
  request.set_num_tokens(-1);
  EXPECT_EQ(Refusal(ValidateForkSequence(request, "t").status()),
            "INVALID_ARGUMENT INVALID_FIELD num_tokens");
  request.set_num_tokens(1);
  request.set_reserve_tokens(-1);
  EXPECT_EQ(Refusal(ValidateForkSequence(request, "t").status()),
            "INVALID_ARGUMENT INVALID_FIELD reserve_tokens");
}

TEST(SequenceValidationTest, ChecksBulkIdsAndPages) {
  v1::DeleteSequencesRequest request;
  for (int i = 0; i < 8; ++i) request.add_sequence_ids("id");
  EXPECT_EQ(Refusal(ValidateSequenceIds(request.sequence_ids(), kLimits)), "OK");
  request.add_sequence_ids("id");
  EXPECT_EQ(Refusal(ValidateSequenceIds(request.sequence_ids(), kLimits)),
            "OUT_OF_RANGE LIMIT sequence_ids");
  request.clear_sequence_ids();
  request.add_sequence_ids("");
  EXPECT_EQ(Refusal(ValidateSequenceIds(request.sequence_ids(), kLimits)),
            "INVALID_ARGUMENT INVALID_FIELD sequence_ids[0]");
  EXPECT_EQ(*ValidatePageSize(0), 100);
  EXPECT_EQ(*ValidatePageSize(1000), 1000);
  EXPECT_FALSE(ValidatePageSize(1001).ok());
  EXPECT_FALSE(ValidatePageSize(-1).ok());
}

}  // namespace
}  // namespace attnd
