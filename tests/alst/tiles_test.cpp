#include "trireme/alst/tiles.h"

#include <gtest/gtest.h>

namespace trireme::alst {
namespace {

TEST(Tiles, CoverEveryRowOnce) {
  for (int64_t rows : {0, 1, 2, 5, 7, 8, 100})
    for (int64_t tiles : {1, 2, 4, 9}) {
      int64_t next = 0;
      each_tile(rows, tiles, [&](int64_t first, int64_t count) {
        EXPECT_EQ(first, next);
        EXPECT_GT(count, 0);
        next += count;
      });
      EXPECT_EQ(next, rows);
    }
}

TEST(Tiles, OfAnMlpAreAsWideAsTheModel) {
  EXPECT_EQ(automatic_mlp_tiles(4096, 512), 8);
  EXPECT_EQ(automatic_mlp_tiles(4097, 512), 9);
  EXPECT_EQ(automatic_mlp_tiles(3, 512), 1);
}

TEST(Tiles, OfALossKeepLogitsSmall) {
  EXPECT_EQ(automatic_loss_tiles(4096, 8192), 8);     // 512 tokens of 32 KiB
  EXPECT_EQ(automatic_loss_tiles(1024, 128'256), 8);  // 128 tokens at least
  EXPECT_EQ(automatic_loss_tiles(1, 10), 1);
}

}  // namespace
}  // namespace trireme::alst
