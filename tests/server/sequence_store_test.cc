#include "server/sequence_store.h"

#include <gtest/gtest.h>

#include "server/error_status.h"
#include "tests/support/engine_requests.h"

namespace attnd {
namespace {

using std::chrono::seconds;

constexpr std::int64_t kPoolBytes = 4 * PagePool::kSlabBytes;

class SequenceStoreTest : public testing::Test {
 protected:
  SequenceStoreTest() : pool_({nullptr, kPoolBytes, false}), store_(StoreOptions(), pool_) {}
  static SequenceStore::Options StoreOptions() {
    SequenceStore::Options options;
    options.server_name = "attnd";
    options.start_key = "key1";
    options.default_lease = seconds(10);
    options.max_lease = seconds(100);
    options.max_sequences = 1'000'000;
    options.max_tokens = 100'000;
    options.window_slack_tokens = 16;
    return options;
  }
  Sequence& Create(const CreateSequenceSpec& spec) {
    const auto created = store_.Create(spec, now_);
    EXPECT_TRUE(created.ok()) << created.status();
    return **created;
  }
  void EndAndFree(Sequence& sequence) {
    store_.End(sequence, SequenceEnd::kDeleted);
    store_.Free(sequence);
  }
  Clock::TimePoint now_{std::chrono::hours(1)};
  PagePool pool_;
  SequenceStore store_;
};

TEST_F(SequenceStoreTest, IdIs24BytesAndFindsItsSequence) {
  Sequence& sequence = Create(MakeSequenceSpec({}));
  const std::string id = store_.IdOf(sequence);
  EXPECT_EQ(id.size(), 24U);
  EXPECT_EQ(*store_.Find("default", id), &sequence);
  EXPECT_FALSE(store_.Find("other", id).ok());
}

TEST_F(SequenceStoreTest, IdsDifferInTheirRandomPartOnly) {
  const std::string a = store_.IdOf(Create(MakeSequenceSpec({})));
  const std::string b = store_.IdOf(Create(MakeSequenceSpec({})));
  EXPECT_EQ(a.substr(0, 8), b.substr(0, 8));
  EXPECT_NE(a.substr(8), b.substr(8));
  EXPECT_EQ(a.substr(4, 4), "key1");
}

TEST_F(SequenceStoreTest, ServerKeyDoesNotChangeBetweenBuilds) {
  // FNV-1a of "attnd"; ids that clients hold must mean the same server after an upgrade.
  const std::string id = store_.IdOf(Create(MakeSequenceSpec({})));
  std::uint32_t hash = 0x811C9DC5;
  for (const char c : std::string("attnd")) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
  }
  std::string expected(4, '\0');
  for (std::size_t i = 0; i < 4; ++i) expected[i] = static_cast<char>(hash >> (8 * i));
  EXPECT_EQ(id.substr(0, 4), expected);
}

TEST_F(SequenceStoreTest, OldestEndingIsForgottenAfter65536) {
  const auto reason_of = [&](const std::string& id) {
    return ErrorDetailOf(store_.Find("default", id).status()).reason();
  };
  const auto create_and_end = [&] {
    Sequence& sequence = Create(MakeSequenceSpec({}));
    std::string id = store_.IdOf(sequence);
    EndAndFree(sequence);
    return id;
  };
  const std::string first = create_and_end();
  const std::string second = create_and_end();
  for (std::size_t i = 0; i < kRememberedEndings - 2; ++i) create_and_end();
  EXPECT_EQ(reason_of(first), v1::REASON_DELETED);
  create_and_end();
  EXPECT_EQ(reason_of(first), v1::REASON_UNKNOWN_SEQUENCE);
  EXPECT_EQ(reason_of(second), v1::REASON_DELETED);
}

TEST_F(SequenceStoreTest, PageTokensFollowTheShape) {
  const auto page_tokens = [&](const HeadShape& shape) {
    CreateSequenceSpec spec = MakeSequenceSpec(shape);
    spec.max_tokens = 1;
    return Create(spec).shape->page_layout.page_tokens;
  };
  EXPECT_EQ(page_tokens({1, 1, 32}), 64);      // 256 bytes a token
  EXPECT_EQ(page_tokens({8, 8, 32}), 32);      // 2 KiB
  EXPECT_EQ(page_tokens({8, 8, 128}), 16);     // 8 KiB
  EXPECT_EQ(page_tokens({256, 256, 256}), 4);  // 512 KiB: 16 would not fit a slab
  EXPECT_EQ(page_tokens({1024, 1024, 256}), 1);
}

// 8 MiB of FP32 keys and values, 256 bytes a token, KV head and 32 elements.
TEST_F(SequenceStoreTest, MaxTokensIsWhatThePoolHoldsInAllLayers) {
  const auto granted = [&](const HeadShape& shape, std::int32_t num_layers) {
    CreateSequenceSpec spec = MakeSequenceSpec(shape, num_layers);
    spec.max_tokens = 0;
    return Create(spec).shape->max_tokens;
  };
  EXPECT_EQ(granted({1, 1, 32}, 1), 32'768);
  EXPECT_EQ(granted({8, 1, 32}, 1), 32'768) << "queries are not cached";
  EXPECT_EQ(granted({8, 8, 32}, 1), 4'096);
  EXPECT_EQ(granted({1, 1, 32}, 4), 8'192);
  // 128 pages of 64 KiB in 3 layers are 42 each.
  EXPECT_EQ(granted({8, 8, 32}, 3), 42 * 32);
}

TEST_F(SequenceStoreTest, MaxTokensThatCannotBeHeldAreRefused) {
  const auto refusal = [&](std::int64_t max_tokens, std::int64_t reserve_tokens,
                           std::int32_t num_layers) {
    CreateSequenceSpec spec = MakeSequenceSpec({8, 8, 32}, num_layers);
    spec.max_tokens = max_tokens;
    spec.reserve_tokens = reserve_tokens;
    const absl::Status status = store_.Create(spec, now_).status();
    EXPECT_EQ(status.ok() ? 0 : ErrorDetailOf(status).reason(), status.ok() ? 0 : v1::REASON_LIMIT);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(2'048, 0, 2), "");
  EXPECT_EQ(refusal(2'049, 0, 2),
            "max_tokens: got 2049, need at most 2048, what the cache holds of a sequence of this "
            "shape");
  EXPECT_EQ(refusal(0, 2'049, 2),
            "reserve_tokens: got 2049, need at most 2048, what the cache holds of a sequence of "
            "this shape");
  EXPECT_EQ(refusal(0, 0, 129), "num_layers: got 129, the cache does not hold one token in each");
  EXPECT_EQ(pool_.usage().pages, 0);
}

TEST_F(SequenceStoreTest, LayersWithAWindowHoldNoMoreThanThatAndItsSlack) {
  CreateSequenceSpec spec = MakeSequenceSpec({8, 8, 32}, 4);
  spec.max_tokens = 0;
  LayerGroupValues windowed;
  windowed.layers = {0, 1, 2};
  windowed.options.window_left = 31;
  spec.layer_groups = {windowed};
  // 32 tokens and 16 of slack lie in 3 pages of 32 at most, in 3 layers; 119 pages are left.
  EXPECT_EQ(Create(spec).shape->max_tokens, 119 * 32);
  spec.layer_groups[0].layers = {0, 1, 2, 3};
  EXPECT_EQ(Create(spec).shape->max_tokens, 100'000) << "the server's limit";
}

TEST_F(SequenceStoreTest, LayersGetTheirGroupsOptions) {
  CreateSequenceSpec spec = MakeSequenceSpec({}, 4);
  LayerGroupValues windowed;
  windowed.layers = {1, 3};
  windowed.options.window_left = 7;
  LayerGroupValues rest;
  rest.options.logits_soft_cap = 30;
  rest.rope = RopeOptionValues{10'000, 32};
  spec.layer_groups = {windowed, rest};
  const SequenceShape& shape = *Create(spec).shape;
  EXPECT_EQ(shape.options(1).options.window_left, 7);
  EXPECT_EQ(shape.options(3).options.window_left, 7);
  EXPECT_FALSE(shape.options(1).rope.enabled);
  EXPECT_EQ(shape.options(0).options.logits_soft_cap, 30);
  EXPECT_TRUE(shape.options(2).rope.enabled);
  EXPECT_EQ(shape.options(2).options.window_left, kernels::kUnlimitedWindow);
}

TEST_F(SequenceStoreTest, LayersOfNoGroupGetDefaults) {
  CreateSequenceSpec spec = MakeSequenceSpec({}, 2);
  LayerGroupValues capped;
  capped.layers = {1};
  capped.options.logits_soft_cap = 30;
  spec.layer_groups = {capped};
  const SequenceShape& shape = *Create(spec).shape;
  EXPECT_EQ(shape.options(0).options.logits_soft_cap, 0);
  EXPECT_EQ(shape.options(1).options.logits_soft_cap, 30);
}

TEST_F(SequenceStoreTest, RestartedLeaseOutlivesItsFirstTimer) {
  Sequence& sequence = Create(MakeSequenceSpec({}));
  now_ += seconds(6);
  store_.RestartLease(sequence, now_);
  now_ += seconds(4);
  EXPECT_EQ(store_.NextExpired(now_), nullptr);
  EXPECT_EQ(store_.NextLeaseCheck(), now_ + seconds(6));
  now_ += seconds(6);
  EXPECT_EQ(store_.NextExpired(now_), &sequence);
}

TEST_F(SequenceStoreTest, ShorterLeaseBringsTheEndForward) {
  Sequence& sequence = Create(MakeSequenceSpec({}));
  store_.SetLease(sequence, seconds(1), now_);
  EXPECT_EQ(store_.NextLeaseCheck(), now_ + seconds(1));
  now_ += seconds(1);
  EXPECT_EQ(store_.NextExpired(now_), &sequence);
  EndAndFree(sequence);
  now_ += seconds(100);
  EXPECT_EQ(store_.NextExpired(now_), nullptr);  // its other timer finds nothing
}

TEST_F(SequenceStoreTest, BusySequenceIsLookedAtAgain) {
  Sequence& sequence = Create(MakeSequenceSpec({}));
  sequence.steps_unfinished = 1;
  now_ += seconds(50);
  EXPECT_EQ(store_.NextExpired(now_), nullptr);
  EXPECT_GT(store_.NextLeaseCheck(), now_);
  sequence.steps_unfinished = 0;
  now_ = store_.NextLeaseCheck();
  EXPECT_EQ(store_.NextExpired(now_), &sequence);
}

TEST_F(SequenceStoreTest, ForkNeedsTheKeysItsWindowShows) {
  CreateSequenceSpec spec = MakeSequenceSpec({});
  LayerGroupValues group;
  group.options.window_left = 32;
  spec.layer_groups = {group};
  Sequence& parent = Create(spec);
  parent.layer(0).applied = parent.layer(0).projected = {200, 0, 128};
  ForkSequenceSpec fork;
  fork.num_tokens = 159;
  EXPECT_EQ(ErrorDetailOf(store_.CheckFork(parent, fork, false)).reason(),
            v1::REASON_WINDOW_PASSED);
  fork.num_tokens = 160;
  EXPECT_TRUE(store_.CheckFork(parent, fork, false).ok());
}

}  // namespace
}  // namespace attnd
