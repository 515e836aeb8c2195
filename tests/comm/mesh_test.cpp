#include "trireme/comm/mesh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/check.h"

namespace trireme::comm {
namespace {

TEST(Mesh, SequenceRanksAreNeighbours) {
  tests::run_ranks(4, [](const Connection& connection) {
    const Mesh mesh = Mesh::create(connection, 2);
    const int64_t rank = connection.rank();
    EXPECT_EQ(mesh.world.rank(), rank);
    EXPECT_EQ(mesh.sequence.rank(), rank % 2);
    EXPECT_EQ(mesh.data.rank(), rank / 2);
    at::Tensor mine = at::scalar_tensor(rank, at::kLong);
    EXPECT_TRUE(
        at::equal(mesh.sequence.all_gather(mine, "test"), at::tensor({rank / 2 * 2, rank / 2 * 2 + 1})));
    EXPECT_TRUE(at::equal(mesh.data.all_gather(mine, "test"), at::tensor({rank % 2, rank % 2 + 2})));
    EXPECT_EQ(mesh.world.traffic().total(), 0);
    EXPECT_EQ(mesh.sequence.traffic().total(), 8);
  });
}

TEST(Mesh, OneRankNeedsNoStore) {
  const Connection alone = Connection::open(Environment{}, at::kCPU, std::chrono::seconds(1));
  EXPECT_EQ(Mesh::create(alone, 1).world.size(), 1);
  EXPECT_THROW(Mesh::create(alone, 2), core::ValueError);
}

}  // namespace
}  // namespace trireme::comm
