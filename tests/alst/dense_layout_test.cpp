#include "trireme/alst/dense_layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace trireme::alst {
namespace {

using at::Tensor;

Tensor round_trip(const Tensor& tensor) {
  const DenseLayout layout(tensor);
  Tensor row = at::empty({layout.numel()}, tensor.options());
  layout.copy_to(row, tensor);
  return layout.view_of(row);
}

TEST(DenseLayout, BringsEveryKindOfTensorBackAsItWas) {
  const Tensor x = at::arange(60).view({3, 4, 5}).to(at::kFloat);
  for (const Tensor& tensor :
       {x, x.transpose(0, 2), x.permute({1, 2, 0}), at::scalar_tensor(7.0), x.narrow(0, 1, 1), x.select(1, 2),
        x.slice(2, 0, 5, 2), x.unsqueeze(0), at::arange(4).expand({3, 4}), at::zeros({1}).expand({2, 3, 4}),
        x.to(at::kBFloat16), x.gt(3), at::empty({0, 3}), at::zeros({3, 1}).t()}) {
    const Tensor back = round_trip(tensor);
    EXPECT_TRUE(at::equal(back, tensor)) << tensor.sizes();
    EXPECT_EQ(back.scalar_type(), tensor.scalar_type());
  }
}

TEST(DenseLayout, KeepsTheStridesOfTensorsWithoutGaps) {
  const Tensor x = at::arange(60).view({3, 4, 5});
  for (const Tensor& tensor : {x, x.transpose(0, 2), x.permute({1, 2, 0}), at::arange(4).expand({3, 4})})
    EXPECT_EQ(round_trip(tensor).strides(), tensor.strides());
}

TEST(DenseLayout, HoldsASliceAloneAndRepeatedElementsOnce) {
  const Tensor x = at::arange(60).view({3, 4, 5});
  EXPECT_EQ(DenseLayout(x.narrow(1, 1, 2)).numel(), 30);
  EXPECT_EQ(DenseLayout(x.select(0, 1)).numel(), 20);
  EXPECT_EQ(DenseLayout(at::zeros({4, 1}).expand({2, 4, 7})).numel(), 4);
}

}  // namespace
}  // namespace trireme::alst
