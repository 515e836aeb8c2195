#include "trireme/model/rotary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"

namespace trireme::model {
namespace {

using at::Tensor;

// [N, heads, D]: pairs (i, i + D / 2) as complex numbers, times e^(i angle).
Tensor turned(const Tensor& x, const Tensor& angle, int64_t count) {
  const auto half = x.narrow(1, 0, count).chunk(2, -1);
  Tensor c = angle.cos().unsqueeze(1), s = angle.sin().unsqueeze(1);
  Tensor heads = at::cat({half[0] * c - half[1] * s, half[1] * c + half[0] * s}, -1);
  return at::cat({heads, x.narrow(1, count, x.size(1) - count)}, 1);
}

void expect_turn(int64_t tokens, int64_t heads, int64_t count, int64_t D, at::ScalarType dtype,
                 double tolerance) {
  at::manual_seed(3);
  Tensor leaf = at::randn({tokens, heads, D}, at::kDouble).to(dtype).requires_grad_(true);
  Tensor angle = at::randn({tokens, D / 2}, at::kDouble),
         upstream = at::randn({tokens, heads, D}, at::kDouble).to(dtype);
  Tensor exact = leaf.detach().to(at::kDouble).clone().requires_grad_(true);
  Tensor expected = turned(exact, angle, count);
  torch::autograd::backward({expected}, {upstream.to(at::kDouble)});
  const RotaryTables tables{angle.cos().unsqueeze(1).to(dtype), angle.sin().unsqueeze(1).to(dtype)};
  Tensor output = rotate_heads_(leaf * 1, count, tables);
  torch::autograd::backward({output}, {upstream});
  EXPECT_LT(tests::relative_difference(output, expected), tolerance);
  EXPECT_LT(tests::relative_difference(leaf.grad(), exact.grad()), tolerance);
  EXPECT_TRUE(
      at::equal(leaf.grad().narrow(1, count, heads - count), upstream.narrow(1, count, heads - count)));
}

TEST(RotateHeads, TurnsTheFirstHeadsAndTheirGradients) {
  for (int64_t D : {2, 6, 32, 80}) {
    SCOPED_TRACE(testing::Message() << "head size " << D);
    expect_turn(5, 3, 2, D, at::kDouble, 1e-14);
    expect_turn(5, 3, 2, D, at::kFloat, 1e-6);
    expect_turn(5, 3, 3, D, at::kFloat, 1e-6);
    expect_turn(5, 3, 2, D, at::kBFloat16, 2e-2);
  }
}

}  // namespace
}  // namespace trireme::model
