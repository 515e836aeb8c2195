#include "trireme/zero/partitioned_init.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/files.h"
#include "support/ranks.h"
#include "support/units.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using tests::run_ranks;
using tests::world_of;

const std::vector<ParameterSpec> kSpecs{{"w", {30, 3}}, {"b", {3}, 1}, {"empty", {0}}};

TEST(PartitionedInit, RanksHoldTheirShardsOfRankZerosValues) {
  testing::TemporaryDirectory directory;
  for (auto remote : {core::Residence::device, core::Residence::host, core::Residence::disk})
    run_ranks(3, [&](const comm::Connection& connection) {
      auto pool = std::make_shared<core::BufferPool>();
      const Memory memory(pool, std::make_shared<core::DiskStore>(
                                    core::DiskStoreOptions{.directory = directory.path()}, pool));
      const PartitionedInit init({.remote_device = remote}, {}, world_of(connection), memory);
      const auto unit = init.make("layer", kSpecs, [&](const ParameterSpec& spec, Tensor& values) {
        EXPECT_EQ(connection.rank(), 0);
        EXPECT_EQ(values.sizes(), at::IntArrayRef(spec.shape));
        values.copy_(at::arange(values.numel()).view(values.sizes()));
      });
      EXPECT_EQ(unit->state(), State::not_available);
      EXPECT_LE(unit->stored(0).count(), 48);
      for (size_t i = 0; i < kSpecs.size(); ++i)
        EXPECT_TRUE(
            at::equal(tests::whole_value(*unit, i).view({-1}), at::arange(kSpecs[i].numel(), at::kFloat)));
      EXPECT_EQ(memory.parameter_disk->bytes_read() > 0, remote == core::Residence::disk);
    });
}

TEST(PartitionedInit, NotEnabledEveryRankHoldsAll) {
  run_ranks(2, [](const comm::Connection& connection) {
    const PartitionedInit init({.enabled = false}, {}, world_of(connection),
                               std::make_shared<core::BufferPool>());
    const auto unit = init.make("layer", kSpecs);
    EXPECT_EQ(unit->state(), State::available);
    EXPECT_EQ(unit->stored(0).count(), 90);
    EXPECT_TRUE(unit->parameter(0).eq(0).all().item<bool>());
  });
}

}  // namespace
}  // namespace trireme::zero
