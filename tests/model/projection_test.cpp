#include "trireme/model/projection.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"
#include "trireme/model/norm.h"

namespace trireme::model {
namespace {

using at::Tensor;

void expect_gate(int64_t rows, int64_t width, at::ScalarType dtype, double scale, double tolerance) {
  at::manual_seed(3);
  Tensor gate_up = (at::randn({rows, 2 * width}, at::kDouble) * scale).to(dtype).requires_grad_(true);
  Tensor upstream = at::randn({rows, width}, at::kDouble).to(dtype);
  Tensor exact = gate_up.detach().to(at::kDouble).clone().requires_grad_(true);
  const auto half = exact.chunk(2, -1);
  Tensor expected = half[0] * at::sigmoid(half[0]) * half[1];
  torch::autograd::backward({expected}, {upstream.to(at::kDouble)});
  Tensor output = gated_silu(gate_up);
  EXPECT_EQ(output.scalar_type(), dtype);
  torch::autograd::backward({output}, {upstream});
  EXPECT_LT(tests::relative_difference(output, expected), tolerance);
  EXPECT_LT(tests::relative_difference(gate_up.grad(), exact.grad()), tolerance);
}

TEST(GatedSilu, FollowsTheFormula) {
  for (int64_t rows : {1, 9})
    for (int64_t width : {1, 7, 16, 43}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << width);
      expect_gate(rows, width, at::kDouble, 1, 1e-14);
      expect_gate(rows, width, at::kFloat, 1, 2e-6);
      expect_gate(rows, width, at::kBFloat16, 1, 2e-2);
    }
}

TEST(GatedSilu, HoldsForGatesFarFromZero) {
  expect_gate(5, 40, at::kFloat, 100, 2e-6);
  expect_gate(5, 40, at::kBFloat16, 100, 2e-2);
  Tensor extreme = at::tensor({-1e30f, 2.0f}).view({1, 2});
  EXPECT_EQ(gated_silu(extreme).item<float>(), 0);
  EXPECT_TRUE(gated_silu(at::tensor({std::nanf(""), 2.0f}).view({1, 2})).isnan().all().item<bool>());
}

TEST(Projection, HasTheGradientsOfALinearMap) {
  at::manual_seed(3);
  const auto leaf = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble).requires_grad_(true); };
  Tensor x = leaf({6, 5}), weight = leaf({4, 5}), bias = leaf({4}), upstream = at::randn({6, 4}, at::kDouble);
  torch::autograd::backward({project(x, weight, bias)}, {upstream});
  EXPECT_LT(tests::relative_difference(x.grad(), at::matmul(upstream, weight)), 1e-14);
  EXPECT_LT(tests::relative_difference(weight.grad(), at::matmul(upstream.t(), x)), 1e-14);
  EXPECT_LT(tests::relative_difference(bias.grad(), upstream.sum(0)), 1e-14);
}

// Values and all gradients of `one`, a single node, against `several`, and what the graph of `one` holds.
struct Run {
  Tensor output;
  std::vector<Tensor> gradients;
};

template <class Function>
Run run(std::vector<Tensor> leaves, const Tensor& upstream, const Function& function) {
  for (auto& leaf : leaves) leaf = leaf.detach().clone().requires_grad_(true);
  Tensor output = function(leaves);
  torch::autograd::backward({output}, {upstream});
  Run result{output.detach(), {}};
  for (const auto& leaf : leaves) result.gradients.push_back(leaf.grad());
  return result;
}

void expect_same(const Run& one, const Run& several, double tolerance) {
  EXPECT_LE(tests::relative_difference(one.output, several.output), tolerance);
  for (size_t i = 0; i < one.gradients.size(); ++i)
    EXPECT_LE(tests::relative_difference(one.gradients[i], several.gradients[i]), tolerance) << "input " << i;
}

TEST(NormalizedProjection, IsTheNormAndThenTheProjection) {
  at::manual_seed(3);
  const double epsilon = 1e-5;
  for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto random = [&](at::IntArrayRef shape) { return at::randn(shape, at::kDouble).to(dtype); };
    const std::vector<Tensor> leaves{random({7, 5}), random({5}), random({4, 5}), random({4})};
    const Tensor upstream = random({7, 4});
    // By the formula, in plain autograd.
    const auto several = [&](const std::vector<Tensor>& in) {
      const Tensor wide = in[0].to(at::promoteTypes(dtype, at::kFloat));
      const Tensor inverse = (wide.square().mean(-1, true) + epsilon).rsqrt();
      return at::addmm(in[3], (wide * inverse).to(dtype) * in[1], in[2].t());
    };
    const auto one = [&](const std::vector<Tensor>& in) {
      return project_normalized(in[0], in[1], epsilon, in[2], in[3]);
    };
    expect_same(run(leaves, upstream, one), run(leaves, upstream, several),
                dtype == at::kDouble  ? 1e-13
                : dtype == at::kFloat ? 2e-6
                                      : 2e-2);
  }
}

TEST(NormalizedProjection, GivesOnlyTheGradientsThatAreWanted) {
  at::manual_seed(3);
  const Tensor norm = at::randn({5}), weight = at::randn({4, 5}).requires_grad_(true), x = at::randn({7, 5});
  torch::autograd::backward({project_normalized(x, norm, 1e-5, weight).sum()});
  EXPECT_LE(tests::relative_difference(weight.grad(), at::ones({4, 7}).mm(normalize(x, norm, 1e-5).output)),
            1e-6);
  EXPECT_FALSE(norm.grad().defined());
}

TEST(GatedProjection, IsTheGateAndThenTheProjection) {
  at::manual_seed(3);
  for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto random = [&](at::IntArrayRef shape) { return at::randn(shape, at::kDouble).to(dtype); };
    const std::vector<Tensor> leaves{random({7, 6}), random({5, 3})};
    const Tensor upstream = random({7, 5});
    const auto several = [&](const std::vector<Tensor>& in) {
      const auto half = in[0].chunk(2, -1);
      return at::mm(at::silu(half[0]) * half[1], in[1].t());
    };
    const auto one = [&](const std::vector<Tensor>& in) { return project_gated(in[0], in[1]); };
    expect_same(run(leaves, upstream, one), run(leaves, upstream, several),
                dtype == at::kDouble  ? 1e-13
                : dtype == at::kFloat ? 2e-6
                                      : 2e-2);
  }
}

TEST(Embedding, GradientsOfRepeatedTokensAddUpAndPaddingGetsNone) {
  Tensor weight = at::zeros({4, 2}).requires_grad_(true);
  torch::autograd::backward(
      {embed(at::tensor({1, 3, 1, 0}).view({2, 2}), weight, /*padding_token=*/3).sum()});
  EXPECT_TRUE(at::equal(weight.grad().select(1, 0), at::tensor({1.0f, 2.0f, 0.0f, 0.0f})));
}

}  // namespace
}  // namespace trireme::model
