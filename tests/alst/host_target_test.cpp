#include "trireme/alst/host_target.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace trireme::alst {
namespace {

using at::Tensor;

// On a CPU copies are plain, and everything around them is as on an accelerator.
TEST(HostTarget, BringsTensorsBackAsTheyWere) {
  HostTarget target({.pinned = false});
  const Tensor x = at::arange(24).view({4, 6}).to(at::kFloat);
  for (const Tensor& tensor : {x, x.t(), x.narrow(1, 2, 3), x.gt(4), x.to(at::kBFloat16)}) {
    Tensor source = tensor.clone(at::MemoryFormat::Preserve);
    auto away = target.move_away(source);
    source.zero_();
    away->finish_leaving();
    EXPECT_TRUE(away->has_left());
    away->start_return();
    for (int again = 0; again < 2; ++again) {
      const Tensor back = away->take_back();
      EXPECT_TRUE(at::equal(back, tensor));
      EXPECT_EQ(back.scalar_type(), tensor.scalar_type());
    }
  }
}

TEST(HostTarget, HoldsTheSourceUntilItHasLeft) {
  HostTarget target({.pinned = false});
  Tensor source = at::ones({5});
  auto away = target.move_away(source);
  EXPECT_EQ(source.use_count(), 2u);
  away->finish_leaving();
  EXPECT_EQ(source.use_count(), 1u);
}

TEST(HostTarget, KeepsSoManyBuffersForTheNextTensor) {
  HostTarget target({.pinned = false, .idle_buffers = 2});
  {
    std::vector<std::unique_ptr<OffloadedTensor>> away;
    for (int i = 0; i < 3; ++i) away.push_back(target.move_away(at::ones({5})));
    EXPECT_EQ(target.idle_buffers(), 0);
  }
  EXPECT_EQ(target.idle_buffers(), 2);
  const auto again = target.move_away(at::ones({5}));
  EXPECT_EQ(target.idle_buffers(), 1);
}

TEST(HostTarget, TakesNothingThatIsOnTheHost) { EXPECT_FALSE(HostTarget({}).accepts(at::ones({5}))); }

}  // namespace
}  // namespace trireme::alst
