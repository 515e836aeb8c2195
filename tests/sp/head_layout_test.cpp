#include "trireme/sp/head_layout.h"

#include <gtest/gtest.h>

#include "trireme/core/check.h"

namespace trireme::sp {
namespace {

TEST(HeadLayout, SharesOutEveryQueryHeadOnceWithItsKeyHead) {
  for (auto [H, K] : {std::pair{8, 8}, {8, 2}, {8, 1}, {6, 3}, {5, 5}, {3, 1}, {40, 8}})
    for (int64_t P : {1, 2, 3, 4, 7}) {
      const HeadLayout layout(H, K, P);
      int64_t next = 0;
      for (int64_t rank = 0; rank < P; ++rank) {
        const auto& queries = layout.queries()[size_t(rank)];
        const auto& keys = layout.keys()[size_t(rank)];
        EXPECT_EQ(queries.first, next);
        next += queries.count;
        const auto place = layout.key_of_query(rank);
        for (int64_t i = 0; i < queries.count; ++i) {
          const int64_t local = place.empty() ? i / (queries.count / keys.count) : place[size_t(i)];
          EXPECT_EQ(keys.first + local, (queries.first + i) / (H / K));
          EXPECT_LT(local, keys.count);
        }
      }
      EXPECT_EQ(next, H);
    }
}

TEST(HeadLayout, SendsOnlyTheKeyHeadsThatARankReads) {
  const HeadLayout multi_query(8, 1, 4), grouped(8, 2, 4);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(multi_query.keys()[rank], (HeadRange{0, 1}));
    EXPECT_EQ(grouped.keys()[rank], (HeadRange{int64_t(rank / 2), 1}));
  }
  EXPECT_EQ(HeadLayout(2, 2, 4).keys()[0].count, 0);  // fewer heads than ranks: some have none
}

TEST(HeadLayout, RefusesHeadsThatDoNotGroup) {
  EXPECT_THROW(HeadLayout(6, 4, 2), core::ValueError);
  EXPECT_THROW(HeadLayout(0, 1, 2), core::ValueError);
}

}  // namespace
}  // namespace trireme::sp
