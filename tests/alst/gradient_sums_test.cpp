#include "trireme/alst/gradient_sums.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace trireme::alst {
namespace {

using at::Tensor;

TEST(GradientSums, AddUpInFp32AtLeast) {
  for (auto [dtype, wide] :
       {std::pair{at::kBFloat16, at::kFloat}, {at::kFloat, at::kFloat}, {at::kDouble, at::kDouble}}) {
    GradientSums sums(2);
    for (int i = 0; i < 300; ++i) sums.add(1, at::ones({2}, dtype));
    sums.add(1, Tensor());
    EXPECT_FALSE(sums.take(0, dtype).defined());
    const Tensor sum = sums.take(1, wide);
    EXPECT_EQ(sum.scalar_type(), wide);
    EXPECT_TRUE(at::equal(sum, at::full({2}, 300, wide)));
    EXPECT_FALSE(sums.take(1, wide).defined());
  }
}

TEST(GradientSums, NeverWriteToWhatOthersSee) {
  const Tensor base = at::ones({2, 3}), kept = at::ones({3});
  for (const Tensor& shared : {kept, base.select(0, 1), at::ones({1}).expand({3})}) {
    GradientSums sums(1);
    for (int i = 0; i < 3; ++i) sums.add(0, shared);
    EXPECT_TRUE(at::equal(sums.take(0, at::kFloat), at::full({3}, 3.0f)));
    GradientSums first_alone(1);
    first_alone.add(0, base.select(0, 0));  // the only handle of a view
    first_alone.add(0, at::ones({3}));
  }
  EXPECT_TRUE(at::equal(base, at::ones({2, 3})));
  EXPECT_TRUE(at::equal(kept, at::ones({3})));
}

TEST(GradientSums, Products) {
  at::manual_seed(1);
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor a = at::randn({4, 3}).to(dtype), b = at::randn({3, 2}).to(dtype);
    GradientSums sums(1);
    for (int i = 0; i < 2; ++i) sums.add_product(0, a, b);
    const Tensor expected = at::mm(a, b).to(at::kFloat) * 2;
    EXPECT_TRUE(at::allclose(sums.take(0, at::kFloat), expected, 1e-6, 1e-6));
  }
}

}  // namespace
}  // namespace trireme::alst
