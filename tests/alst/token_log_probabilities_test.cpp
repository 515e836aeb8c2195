#include "trireme/alst/token_log_probabilities.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "support/autocast.h"
#include "support/differences.h"
#include "support/recording_allocator.h"
#include "support/reference_loss.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;

constexpr double kCaps[] = {0, 3};

Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  return at::randn(shape, at::kDouble).to(dtype).requires_grad_(true);
}

Tensor exact_leaf(const Tensor& t) { return t.detach().to(at::kDouble).requires_grad_(true); }

struct Case {
  Tensor labels;
  int64_t tiles = 1, E = 5, V = 11;
  double soft_cap = 0;
  at::ScalarType dtype = at::kDouble;
  double tolerance = 1e-13, gradient_tolerance = 1e-13;
};

// Under an upstream gradient of its own for each token.
void expect_plain_values(const Case& c) {
  SCOPED_TRACE(core::concatenate(c.tiles, " tiles, V ", c.V, ", soft cap ", c.soft_cap));
  at::manual_seed(4);
  const int64_t N = c.labels.size(0);
  Tensor h = leaf({N, c.E}, c.dtype), w = leaf({c.V, c.E}, c.dtype);
  const auto wide = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor upstream = at::randn({N}, at::kDouble).to(wide);
  Tensor values = token_log_probabilities(h, w, c.labels, c.tiles, c.soft_cap);
  EXPECT_EQ(values.scalar_type(), wide);
  torch::autograd::backward({values}, {upstream});
  Tensor g = exact_leaf(h), v = exact_leaf(w);
  Tensor expected = tests::reference_log_probabilities(at::matmul(g, v.t()), c.labels, c.soft_cap);
  torch::autograd::backward({expected}, {upstream.to(at::kDouble)});
  EXPECT_LE(tests::relative_difference(values, expected), c.tolerance);
  EXPECT_TRUE(values.masked_select(c.labels.eq(-100)).eq(0).all().item<bool>());
  EXPECT_EQ(h.grad().scalar_type(), c.dtype);
  EXPECT_LE(tests::relative_difference(h.grad(), g.grad()), c.gradient_tolerance);
  EXPECT_LE(tests::relative_difference(w.grad(), v.grad()), c.gradient_tolerance);
}

void expect_plain_values_everywhere(at::ScalarType dtype, double tolerance, double gradient_tolerance) {
  for (int64_t V : {37, 1000}) {
    at::manual_seed(V);
    const Tensor labels = at::randint(V, {13}, at::kLong);
    Tensor one_ignored = labels.clone();
    one_ignored[4] = -100;
    // By three tiles: of 1, 3 and 0 targets.
    const Tensor uneven = at::tensor({-100, 5, -100, -100, -100, 1, 2, 3, -100, -100, -100, -100, -100});
    for (double soft_cap : kCaps)
      for (int64_t tiles : {1, 3, 5, 20})
        for (const Tensor& masked : {labels, one_ignored, uneven, at::full_like(labels, -100)})
          expect_plain_values({.labels = masked,
                               .tiles = tiles,
                               .V = V,
                               .soft_cap = soft_cap,
                               .dtype = dtype,
                               .tolerance = tolerance,
                               .gradient_tolerance = gradient_tolerance});
  }
}

TEST(TokenLogProbabilities, FollowPlainAutogradInFp64) {
  expect_plain_values_everywhere(at::kDouble, 1e-13, 1e-12);
}

TEST(TokenLogProbabilities, FollowPlainAutogradInFp32) {
  expect_plain_values_everywhere(at::kFloat, 2e-6, 4e-6);
}

TEST(TokenLogProbabilities, FollowPlainAutogradInBf16) {
  expect_plain_values_everywhere(at::kBFloat16, 1e-2, 2e-2);
}

TEST(TokenLogProbabilities, GradientsAreTheSlopes) {
  at::manual_seed(3);
  const Tensor labels = at::tensor({3, -100, 0, 6, 2}), upstream = at::randn({5}, at::kDouble);
  for (double soft_cap : kCaps) {
    Tensor h = leaf({5, 3}), w = leaf({7, 3});
    torch::autograd::backward({token_log_probabilities(h, w, labels, 2, soft_cap)}, {upstream});
    const auto of_hidden = [&](const Tensor& x) {
      return (token_log_probabilities(x, w.detach(), labels, 2, soft_cap) * upstream).sum().item<double>();
    };
    const auto of_head = [&](const Tensor& x) {
      return (token_log_probabilities(h.detach(), x, labels, 2, soft_cap) * upstream).sum().item<double>();
    };
    EXPECT_LT((h.grad() - tests::numerical_gradient(of_hidden, h)).abs().max().item<double>(), 1e-8);
    EXPECT_LT((w.grad() - tests::numerical_gradient(of_head, w)).abs().max().item<double>(), 1e-8);
  }
}

// -logsigmoid(beta (log p(chosen) - log p(rejected))): the upstream gradient of a token depends on all
// others.
template <class Values>
Tensor preference_loss(const Values& values_of, const Tensor& hidden, const Tensor& labels) {
  constexpr double kBeta = 0.1;
  const int64_t chosen = 6, rejected = hidden.size(0) - chosen;
  const Tensor margin =
      values_of(hidden.narrow(0, 0, chosen), labels.narrow(0, 0, chosen)).sum() -
      values_of(hidden.narrow(0, chosen, rejected), labels.narrow(0, chosen, rejected)).sum();
  return -at::log_sigmoid(margin * kBeta);
}

TEST(TokenLogProbabilities, TrainOnPreferences) {
  at::manual_seed(11);
  const Tensor labels = at::tensor({-100, -100, 3, 0, 9, 4, -100, -100, 3, 8, 10, 1, 2});
  for (auto [dtype, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 5e-6}})
    for (double soft_cap : kCaps) {
      Tensor h = leaf({13, 5}, dtype), w = leaf({11, 5}, dtype);
      const auto tiled = [&](const Tensor& x, const Tensor& y) {
        return token_log_probabilities(x, w, y, 3, soft_cap);
      };
      Tensor loss = preference_loss(tiled, h, labels);
      torch::autograd::backward({loss});
      Tensor g = exact_leaf(h), v = exact_leaf(w);
      const auto plain = [&](const Tensor& x, const Tensor& y) {
        return tests::reference_log_probabilities(at::matmul(x, v.t()), y, soft_cap);
      };
      Tensor expected = preference_loss(plain, g, labels);
      torch::autograd::backward({expected});
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), tolerance);
      EXPECT_LE(tests::relative_difference(h.grad(), g.grad()), tolerance);
      EXPECT_LE(tests::relative_difference(w.grad(), v.grad()), tolerance);
    }
}

TEST(TokenLogProbabilities, SumTheHeadsGradientOverTilesInFp32) {
  at::manual_seed(4);
  Tensor h = leaf({600, 8}, at::kBFloat16), w = leaf({16, 8}, at::kBFloat16);
  const Tensor labels = at::randint(16, {600}, at::kLong);
  torch::autograd::backward({token_log_probabilities(h, w, labels, 100).sum()});
  Tensor g = exact_leaf(h), v = exact_leaf(w);
  torch::autograd::backward({tests::reference_log_probabilities(at::matmul(g, v.t()), labels).sum()});
  // Tile by tile, but added up by autograd in bf16.
  Tensor u = w.detach().requires_grad_(true);
  for (int64_t first = 0; first < 600; first += 6)
    torch::autograd::backward(
        {token_log_probabilities(h.detach().narrow(0, first, 6), u, labels.narrow(0, first, 6), 1).sum()});
  const auto error = [&](const Tensor& gradient) {
    return (gradient.to(at::kDouble) - v.grad()).norm().item<double>() / v.grad().norm().item<double>();
  };
  EXPECT_LT(error(w.grad()), 6e-3);
  EXPECT_LT(error(w.grad()), error(u.grad()) / 2);
  EXPECT_LT((h.grad().to(at::kDouble) - g.grad()).norm().item<double>(),
            6e-3 * g.grad().norm().item<double>());
}

TEST(TokenLogProbabilities, LargeLogitsDoNotOverflow) {
  // Logits of 1e4, -1e4 and 0, exact in every dtype.
  const Tensor hidden = at::tensor({1.0, -1.0, 1.0}, at::kDouble).unsqueeze(1);
  const Tensor head = at::tensor({9984.0, -9984.0, 0.0, 9984.0, 0.0}, at::kDouble).unsqueeze(1);
  const Tensor labels = at::tensor({0, 0, 1});
  for (double soft_cap : {0.0, 30.0})
    for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      Tensor h = hidden.detach().to(dtype).requires_grad_(true),
             w = head.detach().to(dtype).requires_grad_(true);
      Tensor values = token_log_probabilities(h, w, labels, 2, soft_cap);
      torch::autograd::backward({values.sum()});
      Tensor g = exact_leaf(h), v = exact_leaf(w);
      Tensor expected = tests::reference_log_probabilities(at::matmul(g, v.t()), labels, soft_cap);
      torch::autograd::backward({expected.sum()});
      EXPECT_LE(tests::relative_difference(values, expected), 1e-6);
      // Log-sum-exps of 1e4 are known to 5e-4 in fp32.
      EXPECT_LT((w.grad().to(at::kDouble) - v.grad()).abs().max().item<double>(), 1e-2);
      EXPECT_TRUE(h.grad().isfinite().all().item<bool>());
    }
}

TEST(TokenLogProbabilities, GradientsGoWhereTheyAreWanted) {
  at::manual_seed(6);
  const Tensor labels = at::tensor({0, 1, -100, 3});
  Tensor h = leaf({4, 3}), w = leaf({5, 3});
  torch::autograd::backward({token_log_probabilities(h, w, labels, 2).sum()});
  Tensor only_h = h.detach().requires_grad_(true), only_w = w.detach().requires_grad_(true);
  torch::autograd::backward({token_log_probabilities(only_h, w.detach(), labels, 2).sum()});
  torch::autograd::backward({token_log_probabilities(h.detach(), only_w, labels, 2).sum()});
  EXPECT_TRUE(at::equal(only_h.grad(), h.grad()));
  EXPECT_TRUE(at::equal(only_w.grad(), w.grad()));
  EXPECT_FALSE(token_log_probabilities(h.detach(), w.detach(), labels, 2).requires_grad());
}

TEST(TokenLogProbabilities, LogitsOfMoreThanATileNeverExist) {
  const int64_t N = 400, E = 4, V = 1000, tiles = 20;
  for (auto dtype : {at::kFloat, at::kDouble}) {
    Tensor h = leaf({N, E}, dtype), w = leaf({V, E}, dtype);
    const Tensor labels = at::randint(V, {N}, at::kLong);
    tests::RecordingAllocator allocator;
    allocator.reset();
    torch::autograd::backward({token_log_probabilities(h, w, labels, tiles, 3).sum()});
    EXPECT_EQ(allocator.largest(), N / tiles * V * int64_t(h.element_size()));
    h.mutable_grad().reset();
    w.mutable_grad().reset();
  }
}

TEST(TokenLogProbabilities, RefuseWhatDoesNotFit) {
  const Tensor hidden = at::zeros({4, 3}), head = at::zeros({5, 3}), labels = at::zeros({4}, at::kLong);
  EXPECT_THROW(token_log_probabilities(hidden, at::zeros({5, 2}), labels, 1), core::ValueError);
  EXPECT_THROW(token_log_probabilities(hidden, head.to(at::kBFloat16), labels, 1), core::ValueError);
  EXPECT_THROW(token_log_probabilities(hidden, head, at::zeros({3}, at::kLong), 1), core::ValueError);
  EXPECT_THROW(token_log_probabilities(hidden, head, labels + 5, 1), core::ValueError);
  EXPECT_THROW(token_log_probabilities(hidden, head, labels - 1, 1), core::ValueError);
  EXPECT_THROW(token_log_probabilities(hidden, head, labels, 1, -30), core::ValueError);
}

TEST(TokenLogProbabilities, AutocastLeavesThemExact) {
  const auto run = [](bool forward_cast, bool backward_cast) {
    at::manual_seed(4);
    Tensor h = leaf({6, 8}, at::kFloat), w = leaf({5, 8}, at::kFloat), values;
    {
      std::optional<tests::Autocast> cast;
      if (forward_cast) cast.emplace();
      values = token_log_probabilities(h, w, at::arange(6).remainder(5), 2);
    }
    std::optional<tests::Autocast> cast;
    if (backward_cast) cast.emplace();
    torch::autograd::backward({values.sum()});
    return at::cat({values.detach(), h.grad().flatten(), w.grad().flatten()});
  };
  EXPECT_TRUE(at::equal(run(true, false), run(false, false)));
  EXPECT_TRUE(at::equal(run(false, true), run(false, false)));
}

TEST(TokenLogProbabilities, HaveNoSecondDerivative) {
  Tensor h = leaf({4, 3}), w = leaf({5, 3});
  Tensor sum = token_log_probabilities(h, w, at::tensor({0, 1, 2, 3}), 2).sum();
  EXPECT_THROW(torch::autograd::grad({sum}, {w}, {}, /*retain_graph=*/true, /*create_graph=*/true),
               core::ValueError);
}

}  // namespace
}  // namespace trireme::alst
