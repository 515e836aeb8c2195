#include "trireme/zero/flat_layout.h"

#include <gtest/gtest.h>

#include "trireme/core/check.h"

namespace trireme::zero {
namespace {

TEST(FlatLayout, ShardsAreEqualAndParametersDoNotOverlap) {
  for (int64_t ranks : {1, 2, 3, 4, 7}) {
    const FlatLayout layout({{"a", {3, 5}}, {"empty", {4, 0}}, {"b", {1}}, {"c", {40}}}, ranks);
    EXPECT_EQ(layout.numel(), 15 + 0 + 1 + 40);
    EXPECT_EQ(layout.shard_size() * ranks, layout.padded());
    int64_t place = 0;
    for (size_t i = 0; i < layout.size(); ++i) {
      EXPECT_GE(layout.parameter(i).begin, place);
      EXPECT_EQ(layout.parameter(i).begin % 16, 0);  // aligned
      place = layout.parameter(i).end;
    }
    EXPECT_LE(place, layout.padded());
    EXPECT_EQ(layout.shard(ranks - 1).end, layout.padded());
  }
}

TEST(FlatLayout, FewerElementsThanRanks) {
  const FlatLayout layout({{"bias", {3}}}, 4);
  EXPECT_EQ(layout.padded(), 64);
  EXPECT_EQ(intersection(layout.shard(0), layout.parameter(0)).count(), 3);
  for (int64_t rank = 1; rank < 4; ++rank)
    EXPECT_EQ(intersection(layout.shard(rank), layout.parameter(0)).count(), 0);
}

TEST(FlatLayout, GroupPiecesCoverARangeOnce) {
  const FlatLayout layout({{"w", {20}}, {"v", {20}}, {"norm", {8}, 1}, {"u", {16}}}, 2);
  const auto pieces = layout.group_pieces({0, layout.padded()});
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].range, (Range{0, 64}));
  EXPECT_EQ(pieces[1].range, (Range{64, 80}));
  EXPECT_EQ(pieces[2].range, (Range{80, layout.padded()}));
  EXPECT_TRUE(pieces[0].group == 0 && pieces[1].group == 1 && pieces[2].group == 0);
  EXPECT_EQ(layout.group_pieces({70, 75}).at(0).range, (Range{70, 75}));
}

TEST(FlatLayout, Int64Offsets) {
  const FlatLayout layout({{"huge", {3'000'000, 4096}}, {"next", {1}}}, 8);
  EXPECT_EQ(layout.parameter(1).begin, int64_t{3'000'000} * 4096);
}

TEST(FlatLayout, RefusesNegativeSizes) { EXPECT_THROW(FlatLayout({{"a", {-1}}}, 1), core::ValueError); }

}  // namespace
}  // namespace trireme::zero
