#include "trireme/alst/fused_logits_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;

void expect_plain_loss(const std::vector<int64_t>& labels, int64_t tiles, double factor) {
  at::manual_seed(4);
  const auto N = int64_t(labels.size());
  const int64_t E = 5, V = 11;
  Tensor h = at::randn({N, E}, at::kDouble).requires_grad_(true),
         w = at::randn({V, E}, at::kDouble).requires_grad_(true);
  Tensor target = at::tensor(labels);
  Tensor loss = fused_logits_loss(h, w, target, 0.25, tiles);
  torch::autograd::backward({loss * factor});  // the upstream gradient multiplies both gradients
  Tensor g = h.detach().requires_grad_(true), v = w.detach().requires_grad_(true);
  Tensor expected = at::cross_entropy_loss(at::matmul(g, v.t()), target, {}, at::Reduction::Sum, -100) * 0.25;
  torch::autograd::backward({expected * factor});
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
  EXPECT_LT((h.grad() - g.grad()).abs().max().item<double>(), 1e-13);
  EXPECT_LT((w.grad() - v.grad()).abs().max().item<double>(), 1e-13);
}

TEST(FusedLogitsLoss, LossAndBothGradientsAreThoseOfThePlainLoss) {
  const std::vector<int64_t> skewed{3, -100, 10, 0, -100, -100, -100, -100, 7};
  for (int64_t tiles : {1, 2, 3, 4, 9, 100})
    for (double factor : {1.0, 1.0 / 9, -2.0}) {
      expect_plain_loss(skewed, tiles, factor);
      expect_plain_loss({1, 2, 3, 4, 5, 6, 7}, tiles, factor);
      expect_plain_loss(std::vector<int64_t>(6, -100), tiles, factor);
    }
}

TEST(FusedLogitsLoss, OnlyIgnoredLabelsLeaveTheGraphWhole) {
  Tensor h = at::randn({4, 3}).requires_grad_(true), w = at::randn({5, 3}).requires_grad_(true);
  Tensor loss = fused_logits_loss(h, w, at::full({4}, -100, at::kLong), 1, 2);
  EXPECT_EQ(loss.item<float>(), 0);
  torch::autograd::backward({loss});
  EXPECT_TRUE(h.grad().eq(0).all().item<bool>() && w.grad().eq(0).all().item<bool>());
}

TEST(FusedLogitsLoss, RunsBackwardTwiceAndForwardWithoutGradients) {
  Tensor h = at::randn({4, 3}).requires_grad_(true), w = at::randn({5, 3});
  Tensor loss = fused_logits_loss(h, w, at::tensor({0, 1, 2, 3}), 1, 2);
  torch::autograd::backward({loss * 3}, {}, /*retain_graph=*/true);
  Tensor once = h.grad().clone();
  torch::autograd::backward({loss * 3});
  EXPECT_TRUE(at::allclose(h.grad(), once * 2));
  EXPECT_FALSE(fused_logits_loss(h.detach(), w, at::tensor({0, 1, 2, 3}), 1, 2).requires_grad());
}

TEST(FusedLogitsLoss, Bf16SumsInFp32) {
  at::manual_seed(4);
  Tensor h = at::randn({600, 8}).to(at::kBFloat16).requires_grad_(true);
  Tensor w = at::randn({16, 8}).to(at::kBFloat16).requires_grad_(true);
  Tensor labels = at::randint(16, {600}, at::kLong);
  Tensor loss = fused_logits_loss(h, w, labels, 1.0 / 600, 100);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  torch::autograd::backward({loss});
  Tensor g = h.detach().to(at::kDouble).requires_grad_(true),
         v = w.detach().to(at::kDouble).requires_grad_(true);
  torch::autograd::backward({at::cross_entropy_loss(at::matmul(g, v.t()), labels)});
  EXPECT_LT((w.grad().to(at::kDouble) - v.grad()).norm().item<double>(),
            6e-3 * v.grad().norm().item<double>());
  EXPECT_LT((h.grad().to(at::kDouble) - g.grad()).norm().item<double>(),
            6e-3 * g.grad().norm().item<double>());
}

TEST(FusedLogitsLoss, TilesKeepLogitsSmall) {
  EXPECT_EQ(automatic_loss_tiles(4096, 8192), 8);     // 512 tokens of 32 KiB
  EXPECT_EQ(automatic_loss_tiles(1024, 128'256), 8);  // 128 tokens at least
  EXPECT_EQ(automatic_loss_tiles(1, 10), 1);
}

TEST(FusedLogitsLoss, RefusesShapesThatDisagree) {
  EXPECT_THROW(fused_logits_loss(at::zeros({4, 3}), at::zeros({5, 2}), at::zeros({4}, at::kLong), 1, 1),
               core::ValueError);
  EXPECT_THROW(fused_logits_loss(at::zeros({4, 3}), at::zeros({5, 3}), at::zeros({3}, at::kLong), 1, 1),
               core::ValueError);
}

}  // namespace
}  // namespace trireme::alst
