// The expected values are DeepSpeed 0.19.8's own: its schedulers over a torch optimizer with rate 0.01 and
// betas (0.9, 0.95), read before each `step()`.
#include "trireme/train/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace trireme::train {
namespace {

constexpr double kLr = 0.01;
constexpr Betas kBetas{0.9, 0.95};

void expect_rates(const Scheduler& scheduler, const std::vector<double>& expected) {
  for (size_t step = 0; step < expected.size(); ++step)
    EXPECT_NEAR(learning_rate(scheduler, int64_t(step)), expected[step], 1e-12) << "step " << step;
}

void expect_momenta(const Scheduler& scheduler, const std::vector<double>& expected, double second) {
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(betas(scheduler, int64_t(step), kBetas).first, expected[step], 1e-12) << "step " << step;
    EXPECT_EQ(betas(scheduler, int64_t(step), kBetas).second, second);
  }
}

TEST(ConstantLR, NeverMoves) {
  expect_rates(ConstantLR{kLr}, {kLr, kLr, kLr});
  EXPECT_EQ(betas(ConstantLR{kLr}, 3, kBetas), kBetas);
}

TEST(WarmupLR, RisesByTheLogarithm) {
  expect_rates(
      WarmupLR{0.001, 0.02, {5, WarmupType::log}},
      {0.001, 0.001, 0.009182854603394467, 0.013969517695233722, 0.017365709206788937, 0.02, 0.02, 0.02});
}

TEST(WarmupLR, RisesStraight) {
  expect_rates(WarmupLR{0.001, 0.02, {5, WarmupType::linear}},
               {0.001, 0.001, 0.0048, 0.0086, 0.0124, 0.0162, 0.02, 0.02});
}

TEST(WarmupLR, TakesTwoStepsAtLeast) {
  expect_rates(WarmupLR{0, kLr, {1, WarmupType::log}}, {0, 0, 0.01, 0.01, 0.01});
}

TEST(WarmupDecayLR, FallsToTheMinimum) {
  expect_rates(
      WarmupDecayLR{0.001, 0.02, {4, WarmupType::log}, 10},
      {0.001, 0.001, 0.0105, 0.016057143756850984, 0.02, 0.02, 0.016833333333333336, 0.013666666666666667,
       0.0105, 0.007333333333333333, 0.004166666666666667, 0.001, 0.001, 0.001});
  expect_rates(WarmupDecayLR{0, 0.001, {4, WarmupType::linear}, 10},
               {0, 0, 0.00025, 0.0005, 0.00075, 0.001, 0.0008333333333333334, 0.0006666666666666666, 0.0005,
                0.0003333333333333333, 0.00016666666666666666, 0, 0, 0});
}

TEST(WarmupCosineLR, FallsToItsFloorAndStays) {
  expect_rates(WarmupCosineLR{kLr, 0.1, 0.2, {4, WarmupType::log}, 10},
               {0, 0.001, 0.0055, 0.008132331253245204, 0.01, 0.009464101615137758, 0.008, 0.006, 0.004,
                0.0025358983848622453, 0.002, 0.002, 0.002, 0.002});
  expect_rates(WarmupCosineLR{kLr, 0, 1e-4, {4, WarmupType::linear}, 10},
               {0, 0, 0.0025, 0.005, 0.0075, 0.009330194006220302, 0.00750025, 0.0050005,
                0.0025007500000000012, 0.0006708059937796987, 1e-6, 1e-6, 1e-6, 1e-6});
}

TEST(WarmupCosineLR, MayEndWithItsWarmup) {
  expect_rates(WarmupCosineLR{kLr, 0, 1e-4, {4, WarmupType::log}, 4},
               {0, 0, 0.005, 0.007924812503605782, 0.01, 1e-6});
}

TEST(OneCycle, CyclesRateAndMomentumThenDecays) {
  OneCycle cycle{.min_lr = 0.001, .max_lr = 0.01, .first_steps = 4, .second_steps = 6};
  cycle.decay_step_size = 2;
  cycle.decay_lr_rate = 0.5;
  cycle.decay_momentum_rate = 0.02;
  expect_rates(cycle, {0.001, 0.00325, 0.0055, 0.00775, 0.01, 0.0085, 0.007, 0.0055, 0.004, 0.0025, 0.001,
                       0.0008, 0.0006666666666666666, 0.0005714285714285715});
  expect_momenta(cycle,
                 {0.8, 0.875, 0.85, 0.825, 0.8, 0.8166666666666667, 0.8333333333333334, 0.85,
                  0.8666666666666667, 0.8833333333333333, 0.9, 0.909, 0.918, 0.927},
                 0.99);
}

TEST(OneCycle, ClimbsStairs) {
  OneCycle cycle{.min_lr = 0.001, .max_lr = 0.01, .first_steps = 3, .second_steps = 5, .first_stairs = 2};
  cycle.second_stairs = 3;
  cycle.cycle_momentum = false;
  expect_rates(cycle, {0.001, 0.001, 0.0055, 0.01, 0.007, 0.004, 0.004, 0.001, 0.001, 0.001, 0.001});
  expect_momenta(cycle, {0.9, 0.9, 0.9, 0.9}, 0.95);
}

TEST(OneCycle, MayHaveNoSecondHalf) {
  const OneCycle cycle{.min_lr = 0.001, .max_lr = 0.01, .first_steps = 3, .second_steps = 0};
  expect_rates(cycle, {0.001, 0.004, 0.007, 0.001, 0.001});
  expect_momenta(cycle, {0.8, 0.8666666666666667, 0.8333333333333334, 0.9, 0.9}, 0.99);
}

TEST(Schedulers, StayFiniteForManySteps) {
  const int64_t late = int64_t{1} << 40;
  const Scheduler schedulers[] = {WarmupLR{0, 1, {late}}, WarmupDecayLR{0, 1, {late}, late},
                                  WarmupCosineLR{1, 0, 0, {late}, late},
                                  OneCycle{.first_steps = late, .first_stairs = late}};
  for (const Scheduler& scheduler : schedulers)
    for (const int64_t step : {late - 1, late, late + 1, 4 * late})
      EXPECT_TRUE(std::isfinite(learning_rate(scheduler, step)));
}

}  // namespace
}  // namespace trireme::train
