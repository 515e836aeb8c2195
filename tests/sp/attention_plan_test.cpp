#include "trireme/sp/attention_plan.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/attention_reference.h"
#include "trireme/core/check.h"

namespace trireme::sp {
namespace {

// The pairs that the plan's tiles read, put together: [S, S] for each row. Fails where a query is in two
// tiles.
at::Tensor pairs_of_plan(const AttentionContext& context, int64_t B, int64_t S) {
  at::Tensor pairs = at::zeros({B, S, S}, at::kBool);
  at::Tensor seen = at::zeros({B, S}, at::kLong);
  for (const auto& tile : plan_attention(context, B, S)) {
    at::Tensor mask = tile_mask(tile, context, at::kFloat);
    if (tile.mask == AttentionTile::Mask::none) {
      EXPECT_TRUE(mask.eq(0).all().item<bool>());
    }
    for (int64_t row = tile.first_row; row < tile.first_row + tile.rows; ++row) {
      seen[row].narrow(0, tile.queries.first, tile.queries.count).add_(1);
      int64_t place = 0;
      for (const auto& keys : tile.keys) {
        pairs[row]
            .narrow(0, tile.queries.first, tile.queries.count)
            .narrow(1, keys.first, keys.count)
            .copy_(mask.narrow(1, place, keys.count).eq(0));
        place += keys.count;
      }
    }
  }
  EXPECT_TRUE(seen.le(1).all().item<bool>());
  return pairs;
}

void expect_rules(const AttentionContext& context, int64_t B, int64_t S) {
  at::Tensor pairs = pairs_of_plan(context, B, S);
  for (int64_t row = 0; row < B; ++row) EXPECT_TRUE(at::equal(pairs[row], tests::reads(context, row, S)));
}

TEST(AttentionPlan, FollowsEveryRule) {
  for (bool causal : {true, false}) {
    expect_rules({.causal = causal}, 2, 37);
    expect_rules({.document_lengths = {{5, 0, 30, 2}, {37}}, .causal = causal}, 2, 37);
    expect_rules({.document_lengths = {{190, 10}, {190, 10}}, .causal = causal, .window = 7}, 2, 200);
    expect_rules({.document_lengths = {{5, 20}, {}}, .causal = causal}, 2, 37);
    expect_rules({.document_lengths = {{190}}, .causal = causal, .window = 7}, 1, 200);
    expect_rules({.causal = causal, .window = 150}, 1, 400);
    expect_rules({.causal = causal, .window = 400}, 1, 37);
    const BlockLayout blocks{8, {{0}, {0, 1}, {0, 2}, {1, 3}, {}}};
    expect_rules({.causal = causal, .blocks = blocks}, 1, 37);
    expect_rules({.document_lengths = {{20, 17}, {3, 34}}, .causal = causal, .blocks = blocks}, 2, 37);
    expect_rules({.document_lengths = {{20, 10}}, .causal = causal, .blocks = blocks}, 1, 37);
  }
}

TEST(AttentionPlan, MasksStaySmallHoweverLongTheRow) {
  const AttentionContext context{.window = 4096};
  for (const auto& tile : plan_attention(context, 1, 1'000'000)) {
    EXPECT_LE(tile.queries.count, 1024);
    EXPECT_LE(tile.key_count(), 4096 + 1024);
  }
  // Offsets past 2^31: nothing is allocated for a plan.
  const int64_t long_row = int64_t{5'000'000'000};
  EXPECT_EQ(plan_attention({}, 1, long_row)[0].queries.count, long_row);
}

TEST(AttentionPlan, RowsWithEqualDocumentsShareTiles) {
  EXPECT_EQ(plan_attention({.document_lengths = {{4, 6}, {4, 6}}}, 2, 10).size(), 2u);
  EXPECT_EQ(plan_attention({.document_lengths = {{4, 6}, {6, 4}}}, 2, 10).size(), 4u);
}

TEST(AttentionPlan, RefusesContradictions) {
  EXPECT_THROW(plan_attention({.document_lengths = {{4, 7}}}, 1, 10), core::ValueError);
  EXPECT_THROW(plan_attention({.document_lengths = {{10}}}, 2, 10), core::ValueError);
  EXPECT_THROW(plan_attention({.document_lengths = {{-1, 11}}}, 1, 10), core::ValueError);
  EXPECT_THROW(plan_attention({.window = -1}, 1, 10), core::ValueError);
  EXPECT_THROW(plan_attention({.window = 2, .blocks = BlockLayout{5, {{0}, {1}}}}, 1, 10), core::ValueError);
  EXPECT_THROW(plan_attention({.blocks = BlockLayout{4, {{0}, {1}}}}, 1, 10), core::ValueError);
}

}  // namespace
}  // namespace trireme::sp
