#include "trireme/alst/fused_logits_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "support/autocast.h"
#include "support/differences.h"
#include "support/reference_loss.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;

Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  return at::randn(shape, at::kDouble).to(dtype).requires_grad_(true);
}

Tensor exact_leaf(const Tensor& t) { return t.detach().to(at::kDouble).requires_grad_(true); }

struct Case {
  Tensor labels;
  int64_t tiles = 1, E = 5, V = 11;
  double factor = 1;  // of the loss, from outside
  LossOptions options;
  at::ScalarType dtype = at::kDouble;
  double tolerance = 1e-13;
};

// Hidden states and head are of the size that makes logits of the order of 1.
void expect_plain_loss(const Case& c) {
  SCOPED_TRACE(core::concatenate(c.tiles, " tiles, V ", c.V, ", factor ", c.factor, ", z-loss ",
                                 c.options.z_loss, ", smoothing ", c.options.label_smoothing, ", soft cap ",
                                 c.options.soft_cap));
  at::manual_seed(4);
  Tensor h = leaf({c.labels.size(0), c.E}, c.dtype), w = leaf({c.V, c.E}, c.dtype);
  Tensor loss = fused_logits_loss(h, w, c.labels, 0.25, c.tiles, c.options);
  torch::autograd::backward({loss * c.factor});  // the upstream gradient multiplies both gradients
  Tensor g = exact_leaf(h), v = exact_leaf(w);
  Tensor expected = tests::reference_token_losses(at::matmul(g, v.t()), c.labels, c.options).sum() * 0.25;
  torch::autograd::backward({expected * c.factor});
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(),
              c.tolerance * std::max(1.0, expected.item<double>()));
  EXPECT_LE(tests::relative_difference(h.grad(), g.grad()), c.tolerance);
  EXPECT_LE(tests::relative_difference(w.grad(), v.grad()), c.tolerance);
}

TEST(FusedLogitsLoss, LossAndBothGradientsAreThoseOfThePlainLoss) {
  const Tensor skewed = at::tensor({3, -100, 10, 0, -100, -100, -100, -100, 7});
  const Tensor whole = at::tensor({1, 2, 3, 4, 5, 6, 7}), none = at::full({6}, -100, at::kLong);
  for (const auto& options : tests::kinds_of_loss())
    for (int64_t tiles : {1, 2, 3, 4, 9, 100})
      for (double factor : {1.0, 1.0 / 3, -2.0})
        for (const Tensor& labels : {skewed, whole, none})
          expect_plain_loss({.labels = labels, .tiles = tiles, .factor = factor, .options = options});
}

TEST(FusedLogitsLoss, TilesMayHoldUnevenNumbersOfTargets) {
  for (const auto& options : tests::kinds_of_loss())  // of 1, 3 and 0
    expect_plain_loss({.labels = at::tensor({-100, 5, -100, 1, 2, 3, -100, -100, -100}),
                       .tiles = 3,
                       .factor = 1.0 / 3,
                       .options = options});
}

TEST(FusedLogitsLoss, Fp32FollowsThePlainLoss) {
  for (int64_t V : {37, 1000}) {
    at::manual_seed(V);
    const Tensor labels = at::randint(V, {13}, at::kLong);
    Tensor one_ignored = labels.clone();
    one_ignored[4] = -100;
    for (const auto& options : tests::kinds_of_loss())
      for (int64_t tiles : {1, 3, 5, 20})
        for (const Tensor& masked : {labels, one_ignored, at::full_like(labels, -100)})
          expect_plain_loss({.labels = masked,
                             .tiles = tiles,
                             .V = V,
                             .factor = 1.0 / 3,
                             .options = options,
                             .dtype = at::kFloat,
                             .tolerance = 3e-6});
  }
}

TEST(FusedLogitsLoss, GradientsAreTheSlopes) {
  at::manual_seed(3);
  const Tensor labels = at::tensor({3, -100, 0, 6, 2});
  for (const auto& options : tests::kinds_of_loss()) {
    Tensor h = leaf({5, 3}), w = leaf({7, 3});
    torch::autograd::backward({fused_logits_loss(h, w, labels, 0.25, 2, options)});
    const auto of_hidden = [&](const Tensor& x) {
      return fused_logits_loss(x, w.detach(), labels, 0.25, 2, options).item<double>();
    };
    const auto of_head = [&](const Tensor& x) {
      return fused_logits_loss(h.detach(), x, labels, 0.25, 2, options).item<double>();
    };
    EXPECT_LT((h.grad() - tests::numerical_gradient(of_hidden, h)).abs().max().item<double>(), 1e-8);
    EXPECT_LT((w.grad() - tests::numerical_gradient(of_head, w)).abs().max().item<double>(), 1e-8);
  }
}

TEST(FusedLogitsLoss, OnlyIgnoredLabelsLeaveTheGraphWhole) {
  Tensor h = at::randn({4, 3}).requires_grad_(true), w = at::randn({5, 3}).requires_grad_(true);
  Tensor loss = fused_logits_loss(h, w, at::full({4}, -100, at::kLong), 1, 2);
  EXPECT_EQ(loss.item<float>(), 0);
  torch::autograd::backward({loss});
  EXPECT_TRUE(h.grad().eq(0).all().item<bool>() && w.grad().eq(0).all().item<bool>());
}

TEST(FusedLogitsLoss, GradientsGoWhereTheyAreWanted) {
  at::manual_seed(6);
  const Tensor labels = at::tensor({0, 1, -100, 3});
  const LossOptions options = tests::kinds_of_loss().back();
  Tensor h = leaf({4, 3}), w = leaf({5, 3});
  torch::autograd::backward({fused_logits_loss(h, w, labels, 1, 2, options)});
  Tensor only_h = h.detach().requires_grad_(true), only_w = w.detach().requires_grad_(true);
  Tensor frozen_head = w.detach(), frozen_hidden = h.detach();
  torch::autograd::backward({fused_logits_loss(only_h, frozen_head, labels, 1, 2, options)});
  torch::autograd::backward({fused_logits_loss(frozen_hidden, only_w, labels, 1, 2, options)});
  EXPECT_TRUE(at::equal(only_h.grad(), h.grad()));
  EXPECT_TRUE(at::equal(only_w.grad(), w.grad()));
  EXPECT_FALSE(frozen_head.grad().defined());
  EXPECT_FALSE(frozen_hidden.grad().defined());
}

TEST(FusedLogitsLoss, RunsBackwardTwiceAndForwardWithoutGradients) {
  Tensor h = at::randn({4, 3}).requires_grad_(true), w = at::randn({5, 3});
  const Tensor labels = at::tensor({0, 1, 2, 3});
  Tensor loss = fused_logits_loss(h, w, labels, 1, 2);
  torch::autograd::backward({loss * 3}, {}, /*retain_graph=*/true);
  Tensor once = h.grad().clone();
  torch::autograd::backward({loss * 3});
  EXPECT_TRUE(at::allclose(h.grad(), once * 2));
  EXPECT_FALSE(fused_logits_loss(h.detach(), w, labels, 1, 2).requires_grad());
  at::NoGradGuard evaluation;
  Tensor evaluated = fused_logits_loss(h, w, labels, 1, 2);
  EXPECT_FALSE(evaluated.requires_grad());
  EXPECT_EQ(evaluated.item<float>(), loss.item<float>());
}

TEST(FusedLogitsLoss, Bf16SumsInFp32) {
  at::manual_seed(4);
  Tensor h = leaf({600, 8}, at::kBFloat16), w = leaf({16, 8}, at::kBFloat16);
  Tensor labels = at::randint(16, {600}, at::kLong);
  for (const auto& options : tests::kinds_of_loss()) {
    h.mutable_grad().reset();
    w.mutable_grad().reset();
    Tensor loss = fused_logits_loss(h, w, labels, 1.0 / 600, 100, options);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    torch::autograd::backward({loss});
    Tensor g = exact_leaf(h), v = exact_leaf(w);
    torch::autograd::backward(
        {tests::reference_token_losses(at::matmul(g, v.t()), labels, options).sum() / 600});
    EXPECT_LT((w.grad().to(at::kDouble) - v.grad()).norm().item<double>(),
              6e-3 * v.grad().norm().item<double>());
    EXPECT_LT((h.grad().to(at::kDouble) - g.grad()).norm().item<double>(),
              6e-3 * g.grad().norm().item<double>());
  }
}

TEST(FusedLogitsLoss, RefusesShapesThatDisagree) {
  EXPECT_THROW(fused_logits_loss(at::zeros({4, 3}), at::zeros({5, 2}), at::zeros({4}, at::kLong), 1, 1),
               core::ValueError);
  EXPECT_THROW(fused_logits_loss(at::zeros({4, 3}), at::zeros({5, 3}), at::zeros({3}, at::kLong), 1, 1),
               core::ValueError);
}

TEST(FusedLogitsLoss, AutocastLeavesItExact) {
  const auto run = [](bool cast) {
    at::manual_seed(4);
    Tensor h = leaf({6, 8}, at::kFloat), w = leaf({5, 8}, at::kFloat);
    std::optional<tests::Autocast> autocast;
    if (cast) autocast.emplace();
    Tensor loss = fused_logits_loss(h, w, at::arange(6).remainder(5), 1, 2);
    torch::autograd::backward({loss});
    return at::cat({loss.detach().view({1}), h.grad().flatten(), w.grad().flatten()});
  };
  EXPECT_TRUE(at::equal(run(true), run(false)));
}

TEST(FusedLogitsLoss, TheUpstreamGradientIsNotRounded) {
  at::manual_seed(4);
  const Tensor h = leaf({64, 32}, at::kBFloat16), w = leaf({50, 32}, at::kBFloat16),
               labels = at::arange(64).remainder(50);
  const auto gradient = [&](double factor) {
    return torch::autograd::grad({fused_logits_loss(h, w, labels, 1, 2) * factor}, {h})[0].to(at::kDouble);
  };
  const Tensor once = gradient(1);
  for (double factor : {1.0029, 1.0 / 3}) {  // of which bf16 would be off by 0.3 and 0.2 %
    const Tensor projected = (gradient(factor) * once).sum() / once.square().sum();
    EXPECT_NEAR(projected.item<double>() / factor, 1, 5e-4);
  }
}

TEST(FusedLogitsLoss, HasNoSecondDerivative) {
  Tensor h = leaf({4, 3}), w = leaf({5, 3});
  Tensor loss = fused_logits_loss(h, w, at::tensor({0, 1, 2, 3}), 1, 2);
  EXPECT_THROW(torch::autograd::grad({loss}, {h}, {}, /*retain_graph=*/true, /*create_graph=*/true),
               core::ValueError);
}

}  // namespace
}  // namespace trireme::alst
