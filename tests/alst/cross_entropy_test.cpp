#include "trireme/alst/cross_entropy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;

void expect_formula(const Tensor& logits, const std::vector<int64_t>& labels, double tolerance) {
  const Tensor target = at::tensor(labels);
  Tensor exact = logits.to(at::kDouble).clone().requires_grad_(true);
  Tensor expected = at::cross_entropy_loss(exact, target, {}, at::Reduction::Sum, -100);
  torch::autograd::backward({expected});
  Tensor mine = logits.clone();
  const double loss = cross_entropy_(mine, target, /*gradient_wanted=*/true).item<double>();
  EXPECT_NEAR(loss, expected.item<double>(), tolerance * std::max(1.0, expected.item<double>()));
  // Each row's gradient is of the order of 1.
  EXPECT_LT((mine.to(at::kDouble) - exact.grad()).abs().max().item<double>(), tolerance);
  EXPECT_NEAR(cross_entropy_(logits.clone(), target, false).item<double>(), loss, 1e-6 * std::max(1.0, loss));
}

TEST(CrossEntropy, FollowsTheFormula) {
  at::manual_seed(5);
  const std::vector<int64_t> labels{0, -100, 0, -100, 0};
  for (int64_t V : {1, 3, 16, 17, 100, 5000})
    for (double scale : {1.0, 50.0}) {
      SCOPED_TRACE(testing::Message() << V << " tokens, scale " << scale);
      std::vector<int64_t> spread = labels;
      spread[0] = V - 1;
      spread[2] = V / 2;
      const Tensor logits = at::randn({5, V}, at::kDouble) * scale;
      expect_formula(logits, spread, 1e-13);
      expect_formula(logits.to(at::kFloat), spread, 2e-6);
      expect_formula(logits.to(at::kBFloat16), spread, 4e-3);
    }
}

TEST(CrossEntropy, HidesNoNan) {
  Tensor logits = at::zeros({2, 20});
  logits[1][7] = std::nanf("");
  EXPECT_TRUE(cross_entropy_(logits, at::tensor({3, 4}), true).isnan().item<bool>());
}

TEST(CrossEntropy, RefusesLabelsOutsideTheVocabulary) {
  for (int64_t label : {-1, 20, -101})
    EXPECT_THROW(cross_entropy_(at::zeros({1, 20}), at::tensor({label}), true), core::ValueError);
}

}  // namespace
}  // namespace trireme::alst
