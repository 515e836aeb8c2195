#include "trireme/plan/published.h"

#include <gtest/gtest.h>

#include "trireme/plan/shapes.h"

namespace trireme::plan {
namespace {

TEST(Published, SequencesFit) {
  const auto all = published_sequences();
  ASSERT_EQ(all.size(), 3u);
  for (const auto& published : all) {
    EXPECT_EQ(published.setting.sequence, published.tokens);
    EXPECT_TRUE(fits(plan_memory(published.setting), published.machine)) << published.tokens;
    EXPECT_GE(longest_sequence(published.setting, published.machine).tokens, published.tokens);
    // What the sentences say of 32-bit indices.
    EXPECT_LT(published.setting.slice() * published.setting.config.hidden_size, int64_t{1} << 31);
  }
  EXPECT_GT(555'000 * all[0].setting.config.hidden_size, int64_t{1} << 31);
}

// 256 KiB of checkpoints a token.
TEST(Published, SequencesTakeHalfOfTheHost) {
  for (const auto& published : published_sequences()) {
    if (published.setting.ranks == 1) continue;
    const double tokens = double(published.tokens) / double(published.setting.ranks / 8);
    EXPECT_NEAR(tokens * 256 * 1024 / double(published.machine.host_bytes), 0.51, 0.01);
    const auto host = plan_memory(published.setting).host[Part::activations] * published.machine.ranks;
    EXPECT_NEAR(double(host) / (tokens * 256 * 1024), 1, 0.1);
  }
}

TEST(Published, ModelsHaveTheirSizeAndFitAsSaid) {
  const auto all = published_models();
  ASSERT_EQ(all.size(), 3u);
  const double sizes[] = {13e9, 40e9, 1e12};
  const bool fit[] = {true, true, false};
  for (size_t i = 0; i < all.size(); ++i) {
    const auto plan = plan_memory(all[i].setting);
    EXPECT_NEAR(double(parameter_count(all[i].setting.config)) / sizes[i], 1, 0.04) << all[i].name;
    EXPECT_EQ(fits(plan, all[i].machine), fit[i]) << all[i].name;
    EXPECT_LE(plan.host.total(), all[i].machine.host_share()) << all[i].name;
  }
}

}  // namespace
}  // namespace trireme::plan
