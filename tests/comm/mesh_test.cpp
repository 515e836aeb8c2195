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

TEST(Connection, AGroupsNameMayBeUsedAgain) {
  tests::run_ranks(2, [](const Connection& connection) {
    for (int round = 0; round < 2; ++round) {
      const Group group = tests::world_of(connection);
      EXPECT_EQ(group.all_reduce(at::ones({}), "test").item<float>(), 2);
      group.barrier("test");
    }
  });
}

TEST(Connection, ARankThatDoesNotComeIsNamed) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const Connection alone(store, 0, 3, at::kCPU, std::chrono::milliseconds(300), true);
  try {
    alone.group("world", {0, 1, 2});
    FAIL() << "did not throw";
  } catch (const core::CommunicationError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("group 'world' failed: ranks [1, 2] did not come within 0.3 s"));
  }
}

TEST(Mesh, OneRankNeedsNoStore) {
  const Connection alone = Connection::open(Environment{}, at::kCPU, std::chrono::seconds(1));
  EXPECT_EQ(Mesh::create(alone, 1).world.size(), 1);
  EXPECT_THROW(Mesh::create(alone, 2), core::ValueError);
}

}  // namespace
}  // namespace trireme::comm
