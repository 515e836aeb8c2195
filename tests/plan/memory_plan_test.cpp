#include "trireme/plan/memory_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/plan/small_setting.h"
#include "trireme/core/check.h"

namespace trireme::plan {
namespace {

using core::Residence;
using model::Recompute;

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const bool on_cpu : {true, false})
    for (const int64_t ranks : {1, 4})
      for (const Recompute recompute : {Recompute::nothing, Recompute::layer, Recompute::all_but_attention})
        for (const Residence place : {Residence::device, Residence::host, Residence::disk}) {
          if (recompute == Recompute::nothing && place != Residence::device) continue;
          Setting setting = small_setting();
          setting.on_cpu = on_cpu;
          setting.ranks = setting.sequence_ranks = ranks;
          setting.bf16 = !on_cpu;
          setting.recompute = recompute;
          setting.activations = {.on = place, .inputs_only = false, .leaving_at_once = 1, .keep_last = 0};
          all.push_back(setting);
        }
  return all;
}

TEST(MemoryPlan, GrowsWithTheSequence) {
  for (Setting setting : settings()) {
    MemoryPlan before;
    std::vector<int64_t> lengths;  // where tiles, too, begin to be more
    for (int64_t tiles = 1; tiles <= 1 << 14; tiles *= 2)
      for (const int64_t more : {0, 1}) lengths.push_back(setting.sequence_ranks * (64 * tiles + more));
    for (const int64_t length : lengths) {
      setting.sequence = length;
      const MemoryPlan plan = plan_memory(setting);
      EXPECT_GT(plan.device.total(), before.device.total()) << setting.sequence;
      EXPECT_GE(plan.host.total(), before.host.total()) << setting.sequence;
      EXPECT_GE(plan.disk, before.disk) << setting.sequence;
      before = plan;
    }
  }
}

TEST(MemoryPlan, SumsItsParts) {
  Amount amount;
  int64_t sum = 0;
  for (size_t part = 0; part < kParts; ++part) sum += amount[Part(part)] = int64_t{1} << (3 * part);
  EXPECT_EQ(amount.total(), sum);
}

// A layer keeps its input, 64 numbers a token; checkpoints away from the device are there, but for those that
// stay or come back.
TEST(MemoryPlan, MovesCheckpointsAway) {
  Setting setting = small_setting();
  setting.config.layers = 10;
  setting.config.windows.assign(10, 0);
  setting.on_cpu = false;
  setting.bf16 = true;
  setting.sequence = 4096;
  const int64_t input = setting.sequence * 64 * 2;
  EXPECT_EQ(plan_memory(setting).device[Part::activations], 10 * input);
  setting.activations = {.on = Residence::disk, .inputs_only = false, .leaving_at_once = 1, .keep_last = 1};
  const int64_t stays = plan_memory(setting).device[Part::activations];
  EXPECT_LE(stays, 3 * input);
  EXPECT_EQ(plan_memory(setting).disk, 9 * input);  // the newest stays
  setting.activations.min_bytes = input + 1;
  EXPECT_EQ(plan_memory(setting).disk, 0);
  EXPECT_EQ(plan_memory(setting).device[Part::activations], 10 * input);
  setting.activations.min_bytes = input;
  setting.activations.on = Residence::host;
  EXPECT_EQ(plan_memory(setting).device[Part::activations], stays);
  EXPECT_GE(plan_memory(setting).host[Part::activations], 7 * input);
  EXPECT_LE(plan_memory(setting).host[Part::activations], 9 * input);
}

TEST(LongestSequence, IsTheLastThatFits) {
  for (Setting setting : settings())
    for (const int64_t multiple : {1, 4, 100}) {
      setting.sequence = 5000;
      const auto limits = plan_memory(setting);
      const int64_t device = limits.device.total(), host = limits.host.total();
      const auto fits = [&](int64_t tokens) {
        setting.sequence = tokens;
        const auto plan = plan_memory(setting);
        return plan.device.total() <= device && plan.host.total() <= host;
      };
      const int64_t longest = longest_sequence(setting, device, host, multiple);
      EXPECT_GE(longest, 5000 / multiple * multiple / 2);
      EXPECT_EQ(longest % multiple, 0);
      EXPECT_TRUE(fits(longest));
      EXPECT_FALSE(fits(longest + multiple));
    }
}

TEST(MemoryPlan, CountsKeysAgainWhereEachQueryHeadHasItsOwn) {
  Setting setting = small_setting();
  setting.sequence = 6000;
  setting.recompute = Recompute::nothing;
  setting.config.windows.assign(2, 64);
  setting.ranks = setting.sequence_ranks = 3;  // 4 query heads: 2, 1 and 1
  setting.config.kv_heads = 2;
  const auto kept = [&](int64_t ranks) {
    setting.ranks = setting.sequence_ranks = ranks;
    return double(plan_memory(setting).device[Part::activations]) * double(ranks);
  };
  EXPECT_GT(kept(3), 1.2 * kept(2));
}

TEST(MemoryPlan, RefusesWhatNoSumOfBytesHolds) {
  Setting setting = small_setting();
  setting.sequence = kMostTokens / 4;
  setting.batch = 2;
  setting.micro_batches = 2;
  EXPECT_GT(plan_memory(setting).device.total(), 0);
  setting.sequence += 1;
  EXPECT_THROW(plan_memory(setting), core::ValueError);
}

TEST(LongestSequence, EndsAtWhatIsPlannedAtMost) {
  Setting setting = small_setting();
  setting.micro_batches = 3;
  EXPECT_EQ(longest_sequence(setting, std::numeric_limits<int64_t>::max(), 0, 5), kMostTokens / 3 / 5 * 5);
}

TEST(LongestSequence, IsNoneWhereTheStatesAloneTakeMore) {
  const Setting setting = small_setting();
  EXPECT_EQ(longest_sequence(setting, kElements * 4, int64_t{1} << 40, 1), 0);
}

}  // namespace
}  // namespace trireme::plan
