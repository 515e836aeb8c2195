#include "trireme/plan/machine.h"

#include <gtest/gtest.h>

#include "tests/plan/small_setting.h"

namespace trireme::plan {
namespace {

Setting on_gpus(int64_t ranks) {
  Setting setting = small_setting();
  setting.config.layers = 10;
  setting.config.windows.assign(10, 0);
  setting.on_cpu = false;
  setting.ranks = setting.sequence_ranks = ranks;
  setting.optimizer_on = core::Residence::host;
  setting.activations.on = core::Residence::host;
  return setting;
}

TEST(Machine, SharesItsHostAndKeepsWhatIsTaken) {
  Setting setting = on_gpus(4);
  setting.sequence = 4096;
  const auto plan = plan_memory(setting);
  ASSERT_GT(plan.host.total(), 0);
  Machine machine{.device_bytes = plan.device.total() + 100,
                  .taken = 100,
                  .ranks = 4,
                  .host_bytes = 4 * plan.host.total()};
  EXPECT_TRUE(fits(plan, machine));
  machine.taken = 101;
  EXPECT_FALSE(fits(plan, machine));
  machine.taken = 100;
  machine.host_bytes -= 1;
  EXPECT_FALSE(fits(plan, machine));
  machine.ranks = 3;
  EXPECT_TRUE(fits(plan, machine));
}

TEST(Machine, TellsWhatLimitsTheLongestSequence) {
  Setting setting = on_gpus(4);
  setting.sequence = 40960;
  const auto plan = plan_memory(setting);
  Machine machine{.device_bytes = plan.device.total(), .ranks = 4};
  const auto expect_boundary = [&](Limit limit) {
    const auto longest = longest_sequence(setting, machine);
    EXPECT_EQ(longest.tokens % 4, 0);
    EXPECT_EQ(longest.limit, limit);
    Setting at = setting;
    at.sequence = longest.tokens;
    EXPECT_TRUE(fits(plan_memory(at), machine));
    at.sequence += 4;
    EXPECT_FALSE(fits(plan_memory(at), machine));
    return longest.tokens;
  };
  const int64_t by_device = expect_boundary(Limit::device);
  machine.host_bytes = 2 * plan.host.total();
  EXPECT_LT(expect_boundary(Limit::host), by_device);
  EXPECT_EQ(longest_sequence(setting, {.device_bytes = int64_t{1} << 60}).limit, Limit::none);
}

TEST(Machine, HasNoSequenceWhereTheStatesDoNotFit) {
  const auto longest = longest_sequence(on_gpus(2), {.device_bytes = kElements});
  EXPECT_EQ(longest.tokens, 0);
  EXPECT_EQ(longest.limit, Limit::device);
}

}  // namespace
}  // namespace trireme::plan
