#include "trireme/zero/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/units.h"
#include "trireme/core/check.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using tests::run_ranks;
using tests::world_of;

// Loshchilov and Hutter, algorithm 2, one parameter at a time.
struct Reference {
  Tensor value, first, second;
  int64_t steps = 0;
  void step(const Tensor& gradient, double lr, double decay, const AdamWOptions& o) {
    ++steps;
    first = first * o.beta1 + gradient * (1 - o.beta1);
    second = second * o.beta2 + gradient * gradient * (1 - o.beta2);
    Tensor m = first / (1 - std::pow(o.beta1, steps)), v = second / (1 - std::pow(o.beta2, steps));
    value = value * (1 - lr * decay) - lr * m / (v.sqrt() + o.eps);
  }
};

std::vector<AdamWOptions> groups(AdamWOptions options, double learning_rate) {
  options.learning_rate = learning_rate;
  return decayed_and_not(options);
}

TEST(AdamW, IsTheFormulaAtEveryStage) {
  const AdamWOptions options{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.3};
  for (int stage = 0; stage < 4; ++stage)
    for (int64_t ranks : {1, 2, 3})
      run_ranks(ranks, [&](const comm::Connection& connection) {
        const comm::Group group = world_of(connection);
        Unit unit("u", {{"w", {7, 5}}, {"norm", {9}, 1}}, {.stage = Stage(stage), .dtype = at::kDouble},
                  group, std::make_shared<core::BufferPool>());
        std::vector<Reference> references;
        for (size_t i = 0; i < 2; ++i) {
          const auto& shape = unit.spec(i).shape;
          Tensor value = at::arange(c10::multiply_integers(shape), at::kDouble).view(shape).cos();
          unit.write(i, 0, value);
          references.push_back({value, at::zeros_like(value), at::zeros_like(value)});
        }
        unit.publish();
        AdamW optimizer({&unit});
        for (int step = 0; step < 3; ++step) {
          for (size_t i = 0; i < 2; ++i) {
            Tensor gradient = (references[i].value * (step + 2)).sin();
            unit.flats()[0]->collect(i, gradient / double(ranks));
            references[i].step(gradient * 0.5, 0.01 * (step + 1), i == 0 ? 0.3 : 0.0, options);
          }
          unit.start_reduction();
          unit.finish_gradients();
          optimizer.step(groups(options, 0.01 * (step + 1)), /*gradient_scale=*/0.5);
          EXPECT_FALSE(unit.flats()[0]->has_gradient());
          for (size_t i = 0; i < 2; ++i)
            EXPECT_LT((tests::whole_value(unit, i) - references[i].value).abs().max().item<double>(), 1e-13);
        }
      });
}

TEST(AdamW, MastersKeepWhatBf16Loses) {
  Unit unit("u", {{"w", {16}}}, {.dtype = at::kBFloat16}, comm::Group(),
            std::make_shared<core::BufferPool>());
  unit.write(0, 0, at::ones({16}));
  unit.publish();
  AdamW optimizer({&unit});
  for (int step = 0; step < 100; ++step) {
    unit.flats()[0]->collect(0, at::ones({16}, at::kBFloat16));
    unit.start_reduction();
    unit.finish_gradients();
    optimizer.step(groups({.weight_decay = 0}, 1e-4), 1);  // a hundredth of what bf16 tells from 1
  }
  EXPECT_NEAR(tests::whole_value(unit, 0)[0].item<double>(), 0.99, 0.004);
}

TEST(GradientNorm, IsTheSameAtEveryStage) {
  for (int stage = 0; stage < 4; ++stage)
    for (int64_t ranks : {1, 2, 4})
      run_ranks(ranks, [&](const comm::Connection& connection) {
        const comm::Group group = world_of(connection);
        auto pool = std::make_shared<core::BufferPool>();
        const Options options{.stage = Stage(stage)};
        Unit a("a", {{"w", {3}}}, options, group, pool), b("b", {{"v", {2, 2}}}, options, group, pool);
        a.flats()[0]->collect(0, at::full({3}, 2.0 / double(ranks)));
        b.flats()[0]->collect(0, at::full({2, 2}, 1.0 / double(ranks)));
        for (Unit* unit : {&a, &b}) {
          unit->start_reduction();
          unit->finish_gradients();
        }
        EXPECT_NEAR(gradient_norm({&a, &b}, group), 4.0, 1e-6);  // sqrt(3 * 4 + 4 * 1)
      });
}

// fp32 sums over so many elements would be off in the fourth digit.
TEST(GradientNorm, IsExactOverManyElements) {
  const int64_t count = 20'000'003;
  Unit unit("u", {{"w", {count}}}, {}, comm::Group(), std::make_shared<core::BufferPool>());
  at::manual_seed(1);
  const Tensor gradient = at::randn({count});
  const double expected = std::sqrt(gradient.to(at::kDouble).square().sum().item<double>());
  unit.flats()[0]->collect(0, gradient);
  unit.start_reduction();
  unit.finish_gradients();
  EXPECT_NEAR(gradient_norm({&unit}, comm::Group()) / expected, 1, 1e-6);
}

TEST(ClippingFactor, LeavesSmallGradientsAlone) {
  EXPECT_EQ(clipping_factor(0.5, 1), 1);
  EXPECT_EQ(clipping_factor(5, 0), 1);
  EXPECT_NEAR(clipping_factor(4, 1), 0.25, 1e-6);
}

TEST(AdamW, NeedsFinishedGradients) {
  Unit unit("u", {{"w", {16}}}, {}, comm::Group(), std::make_shared<core::BufferPool>());
  AdamW optimizer({&unit});
  EXPECT_THROW(optimizer.step(groups({}, 0.1), 1), core::ValueError);
}

}  // namespace
}  // namespace trireme::zero
