#include "trireme/plan/state_memory.h"

#include <gtest/gtest.h>

#include "tests/plan/small_setting.h"
#include "trireme/core/check.h"
#include "trireme/plan/memory_plan.h"

namespace trireme::plan {
namespace {

using core::Residence;

enum class Numbers { fp32, bf16, autocast };

Setting setting_of(int64_t stage, int64_t ranks, Numbers numbers) {
  Setting setting = small_setting();
  setting.stage = stage;
  setting.ranks = ranks;
  setting.bf16 = numbers != Numbers::fp32;
  setting.stored_fp32 = numbers == Numbers::autocast;
  return setting;
}

struct States {
  int64_t parameters, optimizer, gradients;
};

void expect_states(const Amount& amount, const States& states, const std::string& what) {
  EXPECT_EQ(amount[Part::parameters], states.parameters) << what;
  EXPECT_EQ(amount[Part::optimizer], states.optimizer) << what;
  EXPECT_EQ(amount[Part::gradients], states.gradients) << what;
}

// ZeRO's table of bytes a parameter (arXiv:1910.02054, figure 1), with gradients in fp32: K = 8 for the
// moments, and 4 more for masters where the values that are kept are not fp32.
TEST(StateMemory, IsPartitionedByStages) {
  for (int64_t ranks : {1, 2, 4})
    for (const Numbers numbers : {Numbers::fp32, Numbers::bf16, Numbers::autocast})
      for (int64_t stage : {0, 2, 3}) {
        const int64_t part = kElements / ranks, mine = stage == 0 ? kElements : part;
        // Autocast keeps fp32 shards, which only stage 3 has.
        const bool is_fp32 = numbers == Numbers::fp32 || (numbers == Numbers::autocast && stage == 3);
        const States states{.parameters = (stage == 3 ? part : kElements) * (is_fp32 ? 4 : 2),
                            .optimizer = mine * (is_fp32 ? 8 : 12),
                            .gradients = mine * 4};
        const auto plan = plan_memory(setting_of(stage, ranks, numbers));
        expect_states(plan.device, states,
                      core::concatenate("stage ", stage, ", ranks ", ranks, ", numbers ", int(numbers)));
        EXPECT_EQ(plan.host.total(), 0);
        EXPECT_EQ(plan.disk, 0);
      }
}

TEST(StateMemory, HasWholeGradientsUnderStageOneWhileItSteps) {
  for (int64_t ranks : {1, 2, 4}) {
    Places parameters, optimizer, gradients;
    int64_t whole = 0;
    for (const auto& unit : unit_memory(setting_of(1, ranks, Numbers::bf16))) {
      parameters.device += unit.parameters.device;
      optimizer.device += unit.optimizer.device;
      gradients.device += unit.gradients.device;
      whole += unit.whole_gradient;
    }
    EXPECT_EQ(parameters.device, kElements * 2);
    EXPECT_EQ(optimizer.device, kElements * 12 / ranks);
    EXPECT_EQ(gradients.device, 0);
    EXPECT_EQ(whole, kElements * 4);
  }
}

// Whole gradients come on the device; the reduced ones go where the optimizer is.
TEST(StateMemory, HasBothGradientsUnderStageOneWhereTheOptimizerIsElsewhere) {
  Setting setting = setting_of(1, 2, Numbers::bf16);
  setting.on_cpu = false;
  const auto sums = [&] {
    UnitMemory all;
    for (const auto& unit : unit_memory(setting)) {
      all.gradients.host += unit.gradients.host;
      all.gradients.disk += unit.gradients.disk;
      all.whole_gradient += unit.whole_gradient;
    }
    return all;
  };
  setting.optimizer_on = Residence::host;
  EXPECT_EQ(sums().gradients.host, kElements * 4 / 2);
  EXPECT_EQ(sums().whole_gradient, kElements * 4);
  setting.optimizer_on = Residence::disk;
  EXPECT_EQ(sums().gradients.disk, kElements * 4 / 2);
  EXPECT_EQ(sums().whole_gradient, kElements * 4);
  setting.on_cpu = true;
  EXPECT_EQ(sums().gradients.disk, kElements * 4 / 2);
  setting.optimizer_on = Residence::host;  // which is where the whole ones are
  EXPECT_EQ(sums().gradients.host, 0);
}

TEST(StateMemory, ReceivesGradientsInTheTypeOfTheirSumOnAGpu) {
  Setting setting = setting_of(2, 2, Numbers::bf16);
  const auto received = [&] {
    int64_t bytes = 0;
    for (const auto& unit : unit_memory(setting)) bytes += unit.received;
    return bytes;
  };
  EXPECT_EQ(received(), kElements * 2 + kElements / 2 * 4);
  setting.on_cpu = false;
  EXPECT_EQ(received(), kElements * 4 + kElements / 2 * 4);
  setting.bf16 = false;  // as they are
  EXPECT_EQ(received(), kElements / 2 * 4);
}

TEST(StateMemory, LiesWhereItIsPut) {
  constexpr int64_t kPart = kElements / 2;
  Setting setting = setting_of(3, 2, Numbers::bf16);
  setting.on_cpu = false;
  setting.optimizer_on = Residence::host;
  auto plan = plan_memory(setting);
  expect_states(plan.device, {2 * kPart, 0, 0}, "optimizer on the host");
  expect_states(plan.host, {0, 12 * kPart, 4 * kPart}, "optimizer on the host");

  setting.parameters_on = Residence::host;
  plan = plan_memory(setting);
  expect_states(plan.device, {0, 0, 0}, "all on the host");
  expect_states(plan.host, {2 * kPart, 12 * kPart, 4 * kPart}, "all on the host");

  setting.optimizer_on = setting.parameters_on = Residence::disk;
  plan = plan_memory(setting);
  expect_states(plan.device, {0, 0, 0}, "all on a disk");
  expect_states(plan.host, {0, 0, 0}, "all on a disk");
  EXPECT_EQ(plan.disk, (2 + 12 + 4) * kPart);

  setting.on_cpu = true;
  EXPECT_EQ(plan_memory(setting).disk, (2 + 12 + 4) * kPart);
  setting.optimizer_on = setting.parameters_on = Residence::host;
  plan = plan_memory(setting);
  expect_states(plan.device, {2 * kPart, 12 * kPart, 4 * kPart}, "on the host of a CPU");
  EXPECT_EQ(plan.host.total(), 0);
}

// fp32 shards are their own masters where the optimizer can reach them.
TEST(StateMemory, NeedsMastersOnTheHostForValuesOnAGpu) {
  constexpr int64_t kPart = kElements / 2;
  Setting setting = setting_of(3, 2, Numbers::fp32);
  setting.on_cpu = false;
  EXPECT_EQ(plan_memory(setting).device[Part::optimizer], 8 * kPart);
  setting.optimizer_on = Residence::host;
  EXPECT_EQ(plan_memory(setting).host[Part::optimizer], 12 * kPart);
  setting.parameters_on = Residence::host;
  EXPECT_EQ(plan_memory(setting).host[Part::optimizer], 8 * kPart);
}

TEST(StateMemory, CountsNoStatesOfFrozenTensors) {
  Setting setting = setting_of(3, 2, Numbers::bf16);
  setting.rules.frozen = {"model.layers.*"};
  const int64_t trained = kElements - 2 * kLayerElements;
  const auto plan = plan_memory(setting);
  expect_states(plan.device, {kElements, 12 * trained / 2, 4 * trained / 2}, "frozen layers");
}

}  // namespace
}  // namespace trireme::plan
