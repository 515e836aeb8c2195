#include "trireme/model/projection.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"

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

TEST(Embedding, GradientsOfRepeatedTokensAddUpAndPaddingGetsNone) {
  Tensor weight = at::zeros({4, 2}).requires_grad_(true);
  torch::autograd::backward(
      {embed(at::tensor({1, 3, 1, 0}).view({2, 2}), weight, /*padding_token=*/3).sum()});
  EXPECT_TRUE(at::equal(weight.grad().select(1, 0), at::tensor({1.0f, 2.0f, 0.0f, 0.0f})));
}

}  // namespace
}  // namespace trireme::model
