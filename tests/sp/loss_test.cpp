#include "trireme/sp/loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "support/ranks.h"

namespace trireme::sp {
namespace {

using at::Tensor;

// Cross entropy of one process over all tokens, with its gradient.
std::pair<Tensor, Tensor> reference(const Tensor& logits, const Tensor& labels) {
  Tensor leaf = logits.clone().requires_grad_(true);
  Tensor sum = at::cross_entropy_loss(leaf, labels, {}, at::Reduction::Sum, -100);
  Tensor loss = sum / std::max<int64_t>(1, labels.ne(-100).sum().item<int64_t>());
  torch::autograd::backward({loss});
  return {loss.detach(), leaf.grad()};
}

void expect_reference(const std::vector<int64_t>& labels) {
  at::manual_seed(1);
  Tensor logits = at::randn({8, 5}, at::kDouble), targets = at::tensor(labels);
  const auto [loss, gradient] = reference(logits, targets);
  tests::run_ranks(2, [&, loss = loss, gradient = gradient](const comm::Connection& connection) {
    const comm::Group group = tests::world_of(connection);
    Tensor mine = logits.chunk(2)[size_t(group.rank())].clone().requires_grad_(true);
    Tensor my_targets = targets.chunk(2)[size_t(group.rank())];
    const int64_t count = my_targets.ne(-100).sum().item<int64_t>();
    Tensor mean =
        at::cross_entropy_loss(mine, my_targets, {}, at::Reduction::Mean, -100);  // NaN without targets
    EXPECT_EQ(mean.isnan().item<bool>(), count == 0);
    Tensor total = weighted_loss(mean, count, group);
    EXPECT_NEAR(total.item<double>(), loss.item<double>(), 1e-14);
    torch::autograd::backward({total});
    EXPECT_LT((mine.grad() - gradient.chunk(2)[size_t(group.rank())]).abs().max().item<double>(), 1e-14);
    EXPECT_EQ(count_targets(my_targets, group), targets.ne(-100).sum().item<int64_t>());
  });
}

TEST(WeightedLoss, IsThatOfOneProcess) {
  expect_reference({0, 1, 2, 3, 4, 0, 1, 2});
  expect_reference({-100, -100, -100, 3, 4, 0, 1, 2});        // skewed
  expect_reference({-100, -100, -100, -100, 1, 2, 3, -100});  // a rank without targets
  expect_reference(std::vector<int64_t>(8, -100));            // none anywhere
}

}  // namespace
}  // namespace trireme::sp
