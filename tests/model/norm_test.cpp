#include "trireme/model/norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"

namespace trireme::model {
namespace {

using at::Tensor;

struct Result {
  Tensor output, grad_x, grad_weight;
};

Result reference(const Tensor& x, const Tensor& weight, const Tensor& upstream, double epsilon) {
  Tensor leaf = x.to(at::kDouble).clone().requires_grad_(true);
  Tensor factors = weight.to(at::kDouble).clone().requires_grad_(true);
  Tensor output = leaf / (leaf.square().mean(-1, true) + epsilon).sqrt() * factors;
  torch::autograd::backward({output}, {upstream.to(at::kDouble)});
  return {output.detach(), leaf.grad(), factors.grad()};
}

// `view` makes the norm's input from a leaf: a slice of it has rows that are not dense.
template <class View>
void expect_formula(at::IntArrayRef shape, at::ScalarType dtype, double tolerance, const View& view) {
  at::manual_seed(3);
  Tensor leaf = at::randn(shape, at::kDouble).to(dtype).requires_grad_(true);
  Tensor x = view(leaf);
  Tensor weight = (at::randn({x.size(-1)}, at::kDouble) * 0.1 + 1).to(dtype).requires_grad_(true);
  Tensor upstream = at::randn(x.sizes(), at::kDouble).to(dtype);
  const Result expected = reference(x.detach(), weight.detach(), upstream, 1e-5);
  Tensor output = root_mean_square_norm(x, weight, 1e-5);
  EXPECT_EQ(output.scalar_type(), dtype);
  torch::autograd::backward({output}, {upstream});
  EXPECT_LT(tests::relative_difference(output, expected.output), tolerance);
  EXPECT_LT(tests::relative_difference(view(leaf.grad()), expected.grad_x), tolerance);
  EXPECT_LT(tests::relative_difference(weight.grad(), expected.grad_weight), tolerance);
}

TEST(RootMeanSquareNorm, FollowsTheFormula) {
  const auto whole = [](const Tensor& t) { return t; };
  for (int64_t rows : {1, 7, 300})  // 300: more than one partial sum of the weight's gradient
    for (int64_t size : {3, 5, 16, 33, 128}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << size);
      expect_formula({rows, size}, at::kDouble, 1e-13, whole);
      expect_formula({rows, size}, at::kFloat, 3e-6, whole);
      expect_formula({rows, size}, at::kBFloat16, 2e-2, whole);
    }
}

TEST(RootMeanSquareNorm, TakesHeadsOfALargerTensor) {
  const auto heads = [](const Tensor& t) { return t.narrow(1, 1, 3); };
  for (auto [dtype, tolerance] : {std::pair{at::kDouble, 1e-13}, {at::kFloat, 3e-6}, {at::kBFloat16, 2e-2}})
    expect_formula({11, 5, 24}, dtype, tolerance, heads);
}

TEST(RootMeanSquareNorm, WeightsWithoutGradientsGetNone) {
  Tensor x = at::randn({4, 8}).requires_grad_(true), weight = at::ones({8});
  torch::autograd::backward({root_mean_square_norm(x, weight, 1e-6).sum()});
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

}  // namespace
}  // namespace trireme::model
