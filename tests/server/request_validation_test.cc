#include "server/request_validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "server/error_status.h"
#include "tests/support/wire_messages.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr RequestLimits kLimits{.max_tokens = 4096, .max_steps = 8, .max_heads = 64};
constexpr std::int64_t kMinInt64 = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

void SetTensor(v1::Tensor& tensor, const std::vector<std::int64_t>& shape,
               v1::DataType type = v1::DATA_TYPE_FP16) {
  tensor.set_data_type(type);
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  std::int64_t bytes = type == v1::DATA_TYPE_FP32 ? 4 : 2;
  for (const auto dimension : shape) bytes *= dimension;
  tensor.set_data(std::string(bytes, '\x01'));
}

// 6 query and 10 kv tokens, 4 / 2 heads of 8.
v1::AttendRequest ValidAttend() {
  v1::AttendRequest request;
  SetTensor(*request.mutable_q(), {6, 4, 8});
  SetTensor(*request.mutable_k(), {10, 2, 8});
  SetTensor(*request.mutable_v(), {10, 2, 8});
  return request;
}

v1::DecodeRequest ValidDecode() {
  v1::DecodeRequest request;
  for (int i = 0; i < 3; ++i) {
    auto& step = *request.add_steps();
    step.set_sequence_id("sequence");
    step.set_layer(i);
    step.set_position(7);
    step.set_num_tokens(1);
  }
  SetTensor(*request.mutable_q(), {3, 4, 8});
  SetTensor(*request.mutable_k(), {3, 2, 8});
  SetTensor(*request.mutable_v(), {3, 2, 8});
  return request;
}

absl::StatusOr<AttentionRequest> Validate(const v1::AttendRequest& request,
                                          const RequestLimits& limits = kLimits,
                                          const CallTiming& timing = {}) {
  WireAttendRequest wire;
  EXPECT_TRUE(ParseAttendRequest(testing::SlicedMessage(request.SerializeAsString(), 65'536),
                                 limits.wire(), wire));
  return ValidateAttend(std::move(wire), limits, timing);
}

absl::StatusOr<AttentionRequest> Validate(const v1::DecodeRequest& request,
                                          const RequestLimits& limits = kLimits,
                                          const CallTiming& timing = {}) {
  WireDecodeRequest wire;
  EXPECT_TRUE(ParseDecodeRequest(testing::SlicedMessage(request.SerializeAsString(), 65'536),
                                 limits.wire(), wire));
  return ValidateDecode(std::move(wire), limits, timing);
}

// Code, reason and field of the refusal; "OK" where it was accepted.
std::string Refusal(const absl::Status& status) {
  if (status.ok()) return "OK";
  const auto detail = ErrorDetailOf(status);
  return absl::StatusCodeToString(status.code()) + " " +
         v1::Reason_Name(detail.reason()).substr(7) + " " + detail.field();
}

template <typename Request>
struct Case {
  const char* description;
  std::function<void(Request&)> change;
  std::string refusal;
};
using AttendCase = Case<v1::AttendRequest>;
using DecodeCase = Case<v1::DecodeRequest>;

template <typename Request>
void ExpectRefusals(const Request& valid, const std::vector<Case<Request>>& cases) {
  ASSERT_EQ(Refusal(Validate(valid).status()), "OK");
  for (const auto& [description, change, refusal] : cases) {
    SCOPED_TRACE(description);
    Request request = valid;
    change(request);
    EXPECT_EQ(Refusal(Validate(request).status()), refusal);
  }
}

TEST(RequestValidationTest, FillsAnAttendRequest) {
  auto proto = ValidAttend();
  proto.add_query_lengths(2);
  proto.add_query_lengths(4);
  proto.add_kv_lengths(7);
  proto.add_kv_lengths(3);
  proto.add_key_positions(100);
  proto.add_key_positions(0);
  proto.mutable_options()->set_softmax_scale(-0.5F);
  proto.mutable_options()->set_window_left(0);
  proto.mutable_execution()->set_priority(-3);
  proto.set_partial(true);
  const auto request = Validate(proto);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->kind, RequestKind::kAttend);
  EXPECT_EQ(request->data_type, kernels::DataType::kFp16);
  EXPECT_EQ(request->num_heads, 4);
  EXPECT_EQ(request->num_kv_heads, 2);
  EXPECT_EQ(request->head_dim, 8);
  EXPECT_EQ(testing::BytesOf(request->q.pieces), proto.q().data());
  EXPECT_EQ(testing::BytesOf(request->v.pieces), proto.v().data());
  EXPECT_NE(request->q.owner, nullptr);
  EXPECT_FALSE(request->bias.present);
  ASSERT_EQ(request->attend_sequences.size(), 2U);
  EXPECT_EQ(request->attend_sequences[0].query_length, 2);
  EXPECT_EQ(request->attend_sequences[0].kv_length, 7);
  EXPECT_EQ(request->attend_sequences[0].key_position, 100);
  EXPECT_EQ(request->attend_sequences[0].query_position, 105) << "bottom-right";
  EXPECT_EQ(request->attend_sequences[1].query_position, -1);
  EXPECT_EQ(request->options.softmax_scale, -0.5F);
  EXPECT_EQ(request->options.window_left, 0);
  EXPECT_FALSE(request->options.window_right.has_value());
  EXPECT_EQ(request->execution.priority, -3);
  EXPECT_TRUE(request->partial);
  EXPECT_TRUE(request->return_lse) << "partial implies it";
  EXPECT_EQ(request->request_bytes, static_cast<std::int64_t>(proto.ByteSizeLong()));
}

TEST(RequestValidationTest, FillsADecodeRequest) {
  auto proto = ValidDecode();
  proto.mutable_steps(1)->set_epoch(9);
  const auto request = Validate(proto);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->kind, RequestKind::kDecode);
  ASSERT_EQ(request->steps.size(), 3U);
  EXPECT_EQ(request->steps[2].layer, 2);
  EXPECT_EQ(request->steps[1].epoch, 9U);
  EXPECT_EQ(request->steps[0].position, 7);
  EXPECT_EQ(request->num_kv_heads, 2);
}

TEST(RequestValidationTest, AcceptsAppendOnlyAndAttendOnlyDecodes) {
  auto append_only = ValidDecode();
  append_only.clear_q();
  const auto append = Validate(append_only);
  ASSERT_TRUE(append.ok()) << append.status();
  EXPECT_FALSE(append->q.present);
  EXPECT_EQ(append->num_heads, 0);
  EXPECT_EQ(append->head_dim, 8);

  auto attend_only = ValidDecode();
  attend_only.clear_k();
  attend_only.clear_v();
  attend_only.mutable_steps(0)->set_query_position(123);
  const auto attend = Validate(attend_only);
  ASSERT_TRUE(attend.ok()) << attend.status();
  EXPECT_EQ(attend->num_kv_heads, 0);
  EXPECT_EQ(attend->steps[0].query_position, 123);
}

TEST(RequestValidationTest, AcceptsTensorsWithoutTokens) {
  v1::AttendRequest request;
  SetTensor(*request.mutable_q(), {0, 4, 8});
  SetTensor(*request.mutable_k(), {0, 2, 8});
  SetTensor(*request.mutable_v(), {0, 2, 8});
  EXPECT_EQ(Refusal(Validate(request).status()), "OK");
  SetTensor(*request.mutable_q(), {1, 4, 8});
  EXPECT_EQ(Refusal(Validate(request).status()), "OK");
}

TEST(RequestValidationTest, RefusesShapesThatNoTensorHas) {
  const auto q_shape = [](std::vector<std::int64_t> shape) {
    return [shape](v1::AttendRequest& request) {
      request.mutable_q()->mutable_shape()->Assign(shape.begin(), shape.end());
    };
  };
  const std::string refusal = "INVALID_ARGUMENT INVALID_FIELD q.shape";
  ExpectRefusals<v1::AttendRequest>(
      ValidAttend(), {{"negative", q_shape({-1, 4, 8}), refusal},
                      {"two negatives", q_shape({-6, -4, 8}), refusal},
                      {"smallest int64", q_shape({kMinInt64, 1, 1}), refusal},
                      {"rank 0", q_shape({}), refusal},
                      {"rank 2", q_shape({6, 32}), refusal},
                      {"rank 4", q_shape({6, 4, 8, 1}), refusal},
                      {"rank 9", q_shape({1, 1, 1, 1, 1, 1, 1, 1, 192}), refusal},
                      {"no heads", q_shape({6, 0, 8}), "INVALID_ARGUMENT INVALID_FIELD q.data"}});
}

TEST(RequestValidationTest, RefusesShapesWhoseSizeWrapsAroundToThePayloads) {
  for (const auto& [shape, payload_bytes] :
       {std::pair<std::vector<std::int64_t>, std::size_t>{{65'537, 65'536, 1}, 65'536 * 2},
        {{std::int64_t{1} << 33, std::int64_t{1} << 31, 1}, 0},
        {{std::int64_t{1} << 62, 1, 1}, 0},
        {{std::int64_t{1} << 62, 4, 1}, 0},
        {{kMaxInt64, 1, 1}, 0},
        {{0, kMaxInt64, kMaxInt64}, 0}}) {
    auto request = ValidAttend();
    request.mutable_q()->mutable_shape()->Assign(shape.begin(), shape.end());
    request.mutable_q()->set_data(std::string(payload_bytes, 'x'));
    const auto status = Validate(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << ::testing::PrintToString(shape) << " " << status;
  }
}

TEST(RequestValidationTest, RefusesPayloadsThatDoNotFitTheShape) {
  for (const int bytes : {0, 383, 385, 3840}) {
    auto request = ValidAttend();
    request.mutable_q()->set_data(std::string(bytes, 'x'));
    const auto status = Validate(request).status();
    EXPECT_EQ(Refusal(status), "INVALID_ARGUMENT INVALID_FIELD q.data") << bytes;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(bytes) + " bytes"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("need 384 bytes"));
  }
}

TEST(RequestValidationTest, RefusesTensorsThatDoNotFitTogether) {
  ExpectRefusals<v1::AttendRequest>(
      ValidAttend(),
      {{"no q", [](auto& r) { r.clear_q(); }, "INVALID_ARGUMENT INVALID_FIELD q"},
       {"no k", [](auto& r) { r.clear_k(); }, "INVALID_ARGUMENT INVALID_FIELD k"},
       {"no k and v", [](auto& r) { r.clear_k(), r.clear_v(); },
        "INVALID_ARGUMENT INVALID_FIELD k"},
       {"no v", [](auto& r) { r.clear_v(); }, "INVALID_ARGUMENT INVALID_FIELD v"},
       {"no data", [](auto& r) { r.mutable_k()->clear_data(); },
        "INVALID_ARGUMENT INVALID_FIELD k.data"},
       {"no type", [](auto& r) { r.mutable_k()->clear_data_type(); },
        "INVALID_ARGUMENT INVALID_FIELD k.data_type"},
       {"a cache type", [](auto& r) { r.mutable_q()->set_data_type(v1::DATA_TYPE_INT8); },
        "INVALID_ARGUMENT INVALID_FIELD q.data_type"},
       {"an unknown type",
        [](auto& r) { r.mutable_q()->set_data_type(static_cast<v1::DataType>(77)); },
        "UNIMPLEMENTED UNKNOWN_FIELD Tensor.1"},
       {"k of another type", [](auto& r) { r.mutable_k()->set_data_type(v1::DATA_TYPE_BF16); },
        "INVALID_ARGUMENT INVALID_FIELD v.data_type"},
       {"v of another type", [](auto& r) { r.mutable_v()->set_data_type(v1::DATA_TYPE_BF16); },
        "INVALID_ARGUMENT INVALID_FIELD v.data_type"},
       {"v of another length",
        [](auto& r) {
          SetTensor(*r.mutable_v(), {9, 2, 8});
        },
        "INVALID_ARGUMENT INVALID_FIELD v.shape"},
       {"q of another head_dim",
        [](auto& r) {
          SetTensor(*r.mutable_q(), {6, 4, 16});
        },
        "INVALID_ARGUMENT INVALID_FIELD k.shape"},
       {"heads not divisible",
        [](auto& r) {
          SetTensor(*r.mutable_q(), {6, 33, 8});
        },
        "INVALID_ARGUMENT INVALID_FIELD k.shape"},
       {"fewer heads than kv heads",
        [](auto& r) {
          SetTensor(*r.mutable_q(), {6, 1, 8});
        },
        "INVALID_ARGUMENT INVALID_FIELD k.shape"},
       {"zero heads",
        [](auto& r) {
          SetTensor(*r.mutable_q(), {6, 0, 8});
        },
        "INVALID_ARGUMENT INVALID_FIELD q.shape"},
       {"zero kv heads",
        [](auto& r) {
          SetTensor(*r.mutable_k(), {10, 0, 8}), SetTensor(*r.mutable_v(), {10, 0, 8});
        },
        "INVALID_ARGUMENT INVALID_FIELD k.shape"},
       {"zero head_dim",
        [](auto& r) {
          SetTensor(*r.mutable_q(), {6, 4, 0});
        },
        "INVALID_ARGUMENT INVALID_FIELD q.shape"},
       {"head_dim 257",
        [](auto& r) {
          SetTensor(*r.mutable_q(), {6, 4, 257});
        },
        "INVALID_ARGUMENT INVALID_FIELD q.shape"},
       {"65 heads",
        [](auto& r) {
          SetTensor(*r.mutable_q(), {6, 65, 8});
        },
        "OUT_OF_RANGE LIMIT q.shape"},
       {"shared memory",
        [](auto& r) { r.mutable_v()->mutable_shared_memory()->set_region("region"); },
        "UNIMPLEMENTED UNSUPPORTED v.shared_memory"},
       {"output in shared memory", [](auto& r) { r.mutable_output(); },
        "UNIMPLEMENTED UNSUPPORTED output"},
       {"lse in shared memory", [](auto& r) { r.mutable_lse_output(); },
        "UNIMPLEMENTED UNSUPPORTED lse_output"}});
}

TEST(RequestValidationTest, RefusesLengthsAndPositionsThatDoNotFit) {
  const auto lengths = [](std::vector<int> query, std::vector<int> kv) {
    return [query, kv](v1::AttendRequest& request) {
      request.mutable_query_lengths()->Assign(query.begin(), query.end());
      request.mutable_kv_lengths()->Assign(kv.begin(), kv.end());
    };
  };
  ExpectRefusals<v1::AttendRequest>(
      ValidAttend(),
      {{"zero-length members", lengths({0, 6, 0}, {4, 0, 6}), "OK"},
       {"query sum", lengths({2, 3}, {5, 5}), "INVALID_ARGUMENT INVALID_FIELD query_lengths"},
       {"kv sum", lengths({2, 4}, {5, 6}), "INVALID_ARGUMENT INVALID_FIELD kv_lengths"},
       {"one list", lengths({6}, {}), "INVALID_ARGUMENT INVALID_FIELD kv_lengths"},
       {"other count", lengths({6}, {5, 5}), "INVALID_ARGUMENT INVALID_FIELD kv_lengths"},
       {"negative that sums up", lengths({-1, 7}, {5, 5}),
        "INVALID_ARGUMENT INVALID_FIELD query_lengths[0]"},
       {"position count", [](auto& r) { r.add_key_positions(0), r.add_key_positions(0); },
        "INVALID_ARGUMENT INVALID_FIELD key_positions"},
       {"negative position", [](auto& r) { r.add_query_positions(-1); },
        "INVALID_ARGUMENT INVALID_FIELD query_positions[0]"},
       {"largest position", [](auto& r) { r.add_query_positions(std::int64_t{1} << 40); }, "OK"},
       {"position beyond", [](auto& r) { r.add_query_positions((std::int64_t{1} << 40) + 1); },
        "INVALID_ARGUMENT INVALID_FIELD query_positions[0]"},
       {"4096 keys",
        [](auto& r) {
          SetTensor(*r.mutable_k(), {4096, 2, 8}), SetTensor(*r.mutable_v(), {4096, 2, 8});
        },
        "OK"},
       {"4097 keys",
        [](auto& r) {
          SetTensor(*r.mutable_k(), {4097, 2, 8}), SetTensor(*r.mutable_v(), {4097, 2, 8});
        },
        "OUT_OF_RANGE LIMIT kv_lengths[0]"},
       {"4097 queries",
        [](auto& r) {
          SetTensor(*r.mutable_q(), {4097, 4, 8});
        },
        "OUT_OF_RANGE LIMIT query_lengths[0]"}});
}

TEST(RequestValidationTest, RefusesMoreSequencesThanTheLimit) {
  auto request = ValidAttend();
  request.add_query_lengths(static_cast<std::int32_t>(request.q().shape(0)));
  request.add_kv_lengths(static_cast<std::int32_t>(request.k().shape(0)));
  for (std::int64_t i = 1; i < kMaxAttendSequences; ++i) {
    request.add_query_lengths(0);
    request.add_kv_lengths(0);
  }
  EXPECT_EQ(kMaxAttendSequences, 131'072) << "as the contract says";
  EXPECT_TRUE(Validate(request).ok());
  request.add_query_lengths(0);
  request.add_kv_lengths(0);
  EXPECT_EQ(Refusal(Validate(request).status()), "OUT_OF_RANGE LIMIT query_lengths");
}

TEST(RequestValidationTest, RefusesOptionValuesOutOfRange) {
  const auto option = [](auto set) {
    return [set](v1::AttendRequest& request) { set(*request.mutable_options()); };
  };
  const auto list = [](std::vector<float> values, bool sinks) {
    return [values, sinks](v1::AttendRequest& request) {
      auto& options = *request.mutable_options();
      (sinks ? options.mutable_sink_logits() : options.mutable_alibi_slopes())
          ->Assign(values.begin(), values.end());
    };
  };
  const std::string invalid = "INVALID_ARGUMENT INVALID_FIELD options.";
  ExpectRefusals<v1::AttendRequest>(
      ValidAttend(),
      {{"scale 0", option([](auto& o) { o.set_softmax_scale(0); }), "OK"},
       {"scale NaN", option([](auto& o) { o.set_softmax_scale(NAN); }), invalid + "softmax_scale"},
       {"scale -Inf", option([](auto& o) { o.set_softmax_scale(-INFINITY); }),
        invalid + "softmax_scale"},
       {"cap < 0", option([](auto& o) { o.set_logits_soft_cap(-1); }), invalid + "logits_soft_cap"},
       {"cap NaN", option([](auto& o) { o.set_logits_soft_cap(NAN); }),
        invalid + "logits_soft_cap"},
       {"cap Inf", option([](auto& o) { o.set_logits_soft_cap(INFINITY); }),
        invalid + "logits_soft_cap"},
       {"window 0", option([](auto& o) { o.set_window_left(0); }), "OK"},
       {"window_left < 0", option([](auto& o) { o.set_window_left(-1); }), invalid + "window_left"},
       {"window_right < 0", option([](auto& o) { o.set_window_right(-1); }),
        invalid + "window_right"},
       {"4 slopes", list({1, 0, -1, 2}, false), "OK"},
       {"3 slopes", list({1, 2, 3}, false), invalid + "alibi_slopes"},
       {"slope NaN", list({1, 2, NAN, 3}, false), invalid + "alibi_slopes[2]"},
       {"slope Inf", list({1, 2, 3, INFINITY}, false), invalid + "alibi_slopes[3]"},
       {"sink -Inf", list({1, 2, 3, -INFINITY}, true), "OK"},
       {"5 sinks", list({1, 2, 3, 4, 5}, true), invalid + "sink_logits"},
       {"sink NaN", list({NAN, 2, 3, 4}, true), invalid + "sink_logits[0]"},
       {"sink +Inf", list({1, INFINITY, 3, 4}, true), invalid + "sink_logits[1]"}});
}

TEST(RequestValidationTest, RefusesBiasesThatDoNotFit) {
  const auto bias = [](std::vector<std::int64_t> shape, v1::DataType type = v1::DATA_TYPE_FP32) {
    return [shape, type](v1::AttendRequest& request) {
      SetTensor(*request.mutable_bias(), shape, type);
    };
  };
  ExpectRefusals<v1::AttendRequest>(
      ValidAttend(),
      {{"one for all heads", bias({1, 6, 10}), "OK"},
       {"one a head", bias({4, 6, 10}), "OK"},
       {"one a kv head", bias({2, 6, 10}), "INVALID_ARGUMENT INVALID_FIELD bias.shape"},
       {"transposed", bias({1, 10, 6}), "INVALID_ARGUMENT INVALID_FIELD bias.shape"},
       {"rank 2", bias({6, 10}), "INVALID_ARGUMENT INVALID_FIELD bias.shape"},
       {"FP16", bias({1, 6, 10}, v1::DATA_TYPE_FP16),
        "INVALID_ARGUMENT INVALID_FIELD bias.data_type"},
       {"two sequences",
        [&](auto& r) {
          bias({1, 6, 10})(r);
          r.add_query_lengths(3), r.add_query_lengths(3), r.add_kv_lengths(5), r.add_kv_lengths(5);
        },
        "INVALID_ARGUMENT INVALID_FIELD bias"}});
}

TEST(RequestValidationTest, RefusesExecutionOptionsOutOfRange) {
  const auto execution = [](auto set) {
    return [set](v1::AttendRequest& request) { set(*request.mutable_execution()); };
  };
  const std::string invalid = "INVALID_ARGUMENT INVALID_FIELD execution.";
  ExpectRefusals<v1::AttendRequest>(
      ValidAttend(),
      {{"naive", execution([](auto& e) { e.set_algorithm(v1::ALGORITHM_NAIVE); }), "OK"},
       {"priority 100", execution([](auto& e) { e.set_priority(100); }), "OK"},
       {"priority 101", execution([](auto& e) { e.set_priority(101); }), invalid + "priority"},
       {"priority -101", execution([](auto& e) { e.set_priority(-101); }), invalid + "priority"},
       {"timeout 0", execution([](auto& e) { e.mutable_timeout(); }), invalid + "timeout"},
       {"timeout < 0", execution([](auto& e) { e.mutable_timeout()->set_seconds(-1); }),
        invalid + "timeout"},
       {"timeout with 2e9 ns",
        execution([](auto& e) { e.mutable_timeout()->set_nanos(2'000'000'000); }),
        invalid + "timeout"},
       {"longest timeout", execution([](auto& e) { e.mutable_timeout()->set_seconds(kMaxInt64); }),
        "OK"}});
}

TEST(RequestValidationTest, RefusesComparisonWhereItIsNotAllowed) {
  RequestLimits limits = kLimits;
  limits.allow_comparison = false;
  auto naive = ValidAttend();
  naive.mutable_execution()->set_algorithm(v1::ALGORITHM_NAIVE);
  EXPECT_EQ(Refusal(Validate(naive, limits).status()),
            "PERMISSION_DENIED COMPARISON_DISABLED execution.algorithm");
  auto alone = ValidDecode();
  alone.mutable_execution()->set_alone(true);
  EXPECT_EQ(Refusal(Validate(alone, limits).status()),
            "PERMISSION_DENIED COMPARISON_DISABLED execution.alone");
  auto fused = ValidAttend();
  fused.mutable_execution()->set_algorithm(v1::ALGORITHM_FUSED);
  EXPECT_EQ(Refusal(Validate(fused, limits).status()), "OK");
}

TEST(RequestValidationTest, TheEarlierOfDeadlineAndTimeoutHolds) {
  const Clock::TimePoint received{seconds(100)};
  const auto deadline = [&](Clock::TimePoint call_deadline, milliseconds timeout,
                            milliseconds default_timeout) {
    auto request = ValidAttend();
    if (timeout > milliseconds::zero()) {
      request.mutable_execution()->mutable_timeout()->set_nanos(
          static_cast<int>(timeout.count() * 1'000'000));
    }
    const CallTiming timing{
        .received = received, .deadline = call_deadline, .default_timeout = default_timeout};
    return Validate(request, kLimits, timing)->deadline;
  };
  constexpr milliseconds kNone{0};
  EXPECT_EQ(deadline(Clock::kNever, kNone, kNone), Clock::kNever);
  EXPECT_EQ(deadline(received + seconds(1), kNone, kNone), received + seconds(1));
  EXPECT_EQ(deadline(Clock::kNever, milliseconds(300), kNone), received + milliseconds(300));
  EXPECT_EQ(deadline(received + seconds(1), milliseconds(300), kNone),
            received + milliseconds(300));
  EXPECT_EQ(deadline(received + milliseconds(200), milliseconds(300), kNone),
            received + milliseconds(200));
  EXPECT_EQ(deadline(Clock::kNever, kNone, milliseconds(500)), received + milliseconds(500));
  EXPECT_EQ(deadline(Clock::kNever, milliseconds(700), milliseconds(500)),
            received + milliseconds(700))
      << "the default stands in for a timeout that is not there";
  auto endless = ValidAttend();
  endless.mutable_execution()->mutable_timeout()->set_seconds(kMaxInt64);
  EXPECT_EQ(Validate(endless, kLimits, {received, Clock::kNever, kNone})->deadline, Clock::kNever);
}

TEST(RequestValidationTest, RefusesStepsThatNoServerCouldRun) {
  const std::string invalid = "INVALID_ARGUMENT INVALID_FIELD ";
  ExpectRefusals<v1::DecodeRequest>(
      ValidDecode(),
      {{"no steps", [](auto& r) { r.clear_steps(); }, invalid + "steps"},
       {"9 steps",
        [](auto& r) {
          while (r.steps_size() < 9) *r.add_steps() = r.steps(0);
        },
        "OUT_OF_RANGE LIMIT steps"},
       {"no id", [](auto& r) { r.mutable_steps(1)->clear_sequence_id(); },
        invalid + "steps[1].sequence_id"},
       {"negative layer", [](auto& r) { r.mutable_steps(2)->set_layer(-1); },
        invalid + "steps[2].layer"},
       {"negative position", [](auto& r) { r.mutable_steps(0)->set_position(-1); },
        invalid + "steps[0].position"},
       {"position that overflows", [](auto& r) { r.mutable_steps(0)->set_position(kMaxInt64); },
        invalid + "steps[0].position"},
       {"no tokens", [](auto& r) { r.mutable_steps(0)->set_num_tokens(0); },
        invalid + "steps[0].num_tokens"},
       {"negative tokens that sum up",
        [](auto& r) {
          r.mutable_steps(0)->set_num_tokens(-1), r.mutable_steps(1)->set_num_tokens(3);
        },
        invalid + "steps[0].num_tokens"},
       {"sum", [](auto& r) { r.mutable_steps(0)->set_num_tokens(2); }, invalid + "q.shape"},
       {"the same layer twice", [](auto& r) { r.mutable_steps(2)->set_layer(0); },
        invalid + "steps[2]"},
       {"another sequence's layer",
        [](auto& r) { r.mutable_steps(2)->set_layer(0), r.mutable_steps(2)->set_sequence_id("b"); },
        "OK"},
       {"k of other rows",
        [](auto& r) {
          SetTensor(*r.mutable_k(), {4, 2, 8}), SetTensor(*r.mutable_v(), {4, 2, 8});
        },
        invalid + "k.shape"},
       {"no tensor", [](auto& r) { r.clear_q(), r.clear_k(), r.clear_v(); }, invalid + "q"},
       {"query_position of new tokens", [](auto& r) { r.mutable_steps(0)->set_query_position(7); },
        invalid + "steps[0].query_position"},
       {"negative query_position",
        [](auto& r) { r.clear_k(), r.clear_v(), r.mutable_steps(0)->set_query_position(-7); },
        invalid + "steps[0].query_position"},
       {"append only, rows", [](auto& r) { r.clear_q(), r.mutable_steps(0)->set_num_tokens(2); },
        invalid + "k.shape"},
       {"shared memory",
        [](auto& r) { r.mutable_k()->mutable_shared_memory()->set_region("region"); },
        "UNIMPLEMENTED UNSUPPORTED k.shared_memory"}});
}

}  // namespace
}  // namespace attnd
