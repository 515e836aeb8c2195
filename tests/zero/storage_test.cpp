#include "trireme/zero/storage.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace trireme::zero {
namespace {

using at::Tensor;

const std::string kMessage = "parameter 'layers.3.weight' is elsewhere";

template <class Use>
void expect_guarded(const Use& use) {
  try {
    use();
    FAIL() << "a use without memory did not throw";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr(kMessage));
  }
}

TEST(Storage, AnyUseWithoutMemoryIsTheGivenError) {
  Tensor weight = tensor_without_memory({4, 3}, at::kFloat, at::kCPU, kMessage);
  EXPECT_EQ(weight.sizes(), (at::IntArrayRef{4, 3}));
  Tensor x = at::randn({2, 3});
  expect_guarded([&] { at::matmul(x, weight.t()); });
  expect_guarded([&] { weight.sum(); });
  expect_guarded([&] { weight.add_(1); });
  expect_guarded([&] { weight.clone(); });
  expect_guarded([&] { at::embedding(weight, at::arange(2)); });
  expect_guarded([&] { weight[0][0].item<float>(); });
  expect_guarded([&] { (x + weight[0]).sum(); });  // no silent broadcast
}

TEST(Storage, MemoryComesAndGoesUnderASavedGraph) {
  Tensor weight = tensor_without_memory({4, 3}, at::kFloat, at::kCPU, kMessage).requires_grad_(true);
  Tensor flat = at::randn({20}), x = at::randn({2, 3}).requires_grad_(true);
  lend_memory(weight, flat, 5);
  EXPECT_TRUE(at::equal(weight.detach().view({-1}), flat.narrow(0, 5, 12)));
  Tensor y = at::matmul(x, weight.t()).sum();
  drop_memory(weight, kMessage);
  expect_guarded([&] { torch::autograd::backward({y}, {}, /*retain_graph=*/true); });
  lend_memory(weight, flat.clone(), 5);
  torch::autograd::backward({y});
  EXPECT_TRUE(at::allclose(weight.grad(), x.detach().sum(0).expand({4, 3})));
  EXPECT_TRUE(at::allclose(x.grad(), weight.detach().sum(0).expand({2, 3})));
}

TEST(Storage, HoldsTheFlatBufferOnlyWhileLent) {
  Tensor weight = tensor_without_memory({2}, at::kFloat, at::kCPU, kMessage), flat = at::zeros({2});
  lend_memory(weight, flat, 0);
  EXPECT_EQ(flat.use_count(), 2u);
  drop_memory(weight, kMessage);
  EXPECT_EQ(flat.use_count(), 1u);
}

}  // namespace
}  // namespace trireme::zero
