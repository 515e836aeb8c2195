#include "trireme/alst/cross_entropy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"
#include "support/reference_loss.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;

std::string describe(const LossOptions& options) {
  return core::concatenate("z-loss ", options.z_loss, ", smoothing ", options.label_smoothing, ", soft cap ",
                           options.soft_cap);
}

void expect_formula(const Tensor& logits, const Tensor& labels, const LossOptions& options,
                    double tolerance) {
  SCOPED_TRACE(core::concatenate(describe(options), ", ", logits.dtype().name()));
  Tensor exact = logits.to(at::kDouble).clone().requires_grad_(true);
  Tensor expected = tests::reference_token_losses(exact, labels, options).sum();
  torch::autograd::backward({expected});
  Tensor mine = logits.clone();
  const double loss = cross_entropy_(mine, labels, /*gradient_wanted=*/true, options).item<double>();
  const double size = std::max(1.0, expected.item<double>());
  EXPECT_NEAR(loss, expected.item<double>(), std::min(tolerance, 2e-6) * size);  // in fp32 at least
  // Without a z-loss each row's gradient is of the order of 1.
  const double largest = std::max(1.0, exact.grad().abs().max().item<double>());
  EXPECT_LT((mine.to(at::kDouble) - exact.grad()).abs().max().item<double>(), tolerance * largest);
  EXPECT_NEAR(cross_entropy_(logits.clone(), labels, false, options).item<double>(), loss, 1e-6 * size);
}

void expect_formula_of_every_kind(const Tensor& logits, const Tensor& labels, double fp64_tolerance = 1e-13) {
  for (const auto& options : tests::kinds_of_loss()) {
    expect_formula(logits, labels, options, fp64_tolerance);
    expect_formula(logits.to(at::kFloat), labels, options, 2e-6);
    expect_formula(logits.to(at::kBFloat16), labels, options, 4e-3);
  }
}

TEST(CrossEntropy, FollowsTheFormula) {
  at::manual_seed(5);
  for (int64_t V : {1, 3, 16, 17, 37, 100, 1000, 5000})
    for (double scale : {1.0, 50.0}) {
      SCOPED_TRACE(testing::Message() << V << " tokens, scale " << scale);
      expect_formula_of_every_kind(at::randn({5, V}, at::kDouble) * scale,
                                   at::tensor({V - 1, int64_t{-100}, V / 2, int64_t{-100}, int64_t{0}}));
    }
}

TEST(CrossEntropy, IgnoresAnyNumberOfRows) {
  at::manual_seed(6);
  const Tensor logits = at::randn({13, 37}, at::kDouble), labels = at::randint(37, {13}, at::kLong);
  Tensor one = labels.clone();
  one[12] = -100;
  for (const Tensor& masked : {labels, one, at::full_like(labels, -100)})
    expect_formula_of_every_kind(logits, masked);
}

TEST(CrossEntropy, SmoothsLabelsAsTorchDoes) {
  at::manual_seed(7);
  Tensor logits = at::randn({4, 9}, at::kDouble).requires_grad_(true);
  const Tensor labels = at::tensor(std::vector<int64_t>{3, -100, 0, 8});
  Tensor expected = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -100, 0.3);
  torch::autograd::backward({expected});
  Tensor mine = logits.detach().clone();
  const Tensor loss = cross_entropy_(mine, labels, true, {.label_smoothing = 0.3});
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-13);
  EXPECT_LT((mine - logits.grad()).abs().max().item<double>(), 1e-14);
}

TEST(CrossEntropy, GradientsAreTheSlopes) {
  at::manual_seed(8);
  const Tensor logits = at::randn({4, 7}, at::kDouble) * 2, labels = at::tensor({2, -100, 6, 0});
  for (const auto& options : tests::kinds_of_loss()) {
    SCOPED_TRACE(describe(options));
    const auto loss = [&](const Tensor& at_these) {
      return cross_entropy_(at_these.clone(), labels, false, options).item<double>();
    };
    Tensor gradient = logits.clone();
    cross_entropy_(gradient, labels, true, options);
    EXPECT_LT((gradient - tests::numerical_gradient(loss, logits)).abs().max().item<double>(), 1e-8);
  }
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  at::manual_seed(9);
  const Tensor signs = at::randint(2, {6, 37}, at::kLong).mul_(2).sub_(1).to(at::kDouble);
  for (double noise : {0, 1})  // 0: all of a sign are equal
    expect_formula_of_every_kind(signs * 1e4 + at::randn({6, 37}, at::kDouble) * noise,
                                 at::tensor({0, 36, 5, -100, 7, 8}), 1e-11);
}

TEST(CrossEntropy, HidesNoNan) {
  for (const auto& options : tests::kinds_of_loss())
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      Tensor logits = at::zeros({2, 20}, dtype);
      logits[1][7] = std::nanf("");
      EXPECT_TRUE(cross_entropy_(logits, at::tensor({3, 4}), true, options).isnan().item<bool>());
    }
}

TEST(CrossEntropy, RefusesLabelsOutsideTheVocabulary) {
  for (int64_t label : {-1, 20, -101})
    for (auto dtype : {at::kFloat, at::kDouble})
      EXPECT_THROW(cross_entropy_(at::zeros({1, 20}, dtype), at::tensor({label}), true), core::ValueError);
}

TEST(CrossEntropy, RefusesOptionsOutOfTheirRange) {
  for (const LossOptions& options : std::vector<LossOptions>{{.z_loss = -1},
                                                             {.label_smoothing = -0.1},
                                                             {.label_smoothing = 1},
                                                             {.soft_cap = -1},
                                                             {.z_loss = std::nan("")}})
    EXPECT_THROW(cross_entropy_(at::zeros({1, 20}), at::tensor({3}), true, options), core::ValueError);
}

}  // namespace
}  // namespace trireme::alst
