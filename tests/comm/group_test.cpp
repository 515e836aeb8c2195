#include "trireme/comm/group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/check.h"

namespace trireme::comm {
namespace {

using at::Tensor;
using tests::run_ranks;
using tests::world_of;

// Distinct numbers for every rank, row and column.
Tensor numbered(int64_t rank, at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).view(shape) + 1000.0 * double(rank);
}

class EveryGroupSize : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EveryGroupSize, testing::Values(1, 2, 3, 4));

TEST_P(EveryGroupSize, AllToAllSendsRowPToRankP) {
  run_ranks(GetParam(), [&](const Connection& connection) {
    const Group group = world_of(connection);
    const int64_t P = group.size(), rank = group.rank();
    Tensor received = group.all_to_all(numbered(rank, {P, 3, 2}), "test");
    for (int64_t p = 0; p < P; ++p) EXPECT_TRUE(at::equal(received[p], numbered(p, {P, 3, 2})[rank]));
    EXPECT_EQ(group.traffic().bytes(Collective::all_to_all), (P - 1) * 6 * 8);
  });
}

TEST_P(EveryGroupSize, AllToAllWithCountsKeepsOrder) {
  run_ranks(GetParam(), [&](const Connection& connection) {
    const Group group = world_of(connection);
    const int64_t P = group.size(), rank = group.rank();
    // Rank r sends r + p rows to rank p: rank 0 sends itself none.
    std::vector<int64_t> sent, received;
    for (int64_t p = 0; p < P; ++p) {
      sent.push_back(rank + p);
      received.push_back(p + rank);
    }
    const int64_t rows = std::accumulate(sent.begin(), sent.end(), int64_t{0});
    Tensor output = group.all_to_all(numbered(rank, {rows, 2}), sent, received, "test");
    int64_t place = 0;
    for (int64_t p = 0; p < P; ++p) {
      const int64_t before =
          p * rank + rank * (rank - 1) / 2;  // rows that rank p sends to ranks below this one
      const int64_t rows_of_p = P * p + P * (P - 1) / 2;
      EXPECT_TRUE(at::equal(output.narrow(0, place, p + rank),
                            numbered(p, {rows_of_p, 2}).narrow(0, before, p + rank)));
      place += p + rank;
    }
    EXPECT_EQ(place, output.size(0));
    EXPECT_EQ(group.traffic().bytes(Collective::all_to_all), (rows - 2 * rank) * 2 * 8);
  });
}

TEST_P(EveryGroupSize, AllToAllOfTransposedAndHalfTensors) {
  run_ranks(GetParam(), [&](const Connection& connection) {
    const Group group = world_of(connection);
    const int64_t P = group.size(), rank = group.rank();
    const auto input_of = [&](int64_t p) { return numbered(p, {5, P}).t().to(at::kBFloat16); };
    ASSERT_TRUE(P == 1 || !input_of(rank).is_contiguous());
    Tensor received = group.all_to_all(input_of(rank), "test");
    for (int64_t p = 0; p < P; ++p) EXPECT_TRUE(at::equal(received[p], input_of(p)[rank]));
  });
}

TEST_P(EveryGroupSize, AllGatherOrdersByRank) {
  run_ranks(GetParam(), [&](const Connection& connection) {
    const Group group = world_of(connection);
    const int64_t P = group.size();
    Tensor whole = group.all_gather(numbered(group.rank(), {3, 2}).t(), "test");
    for (int64_t p = 0; p < P; ++p) EXPECT_TRUE(at::equal(whole[p], numbered(p, {3, 2}).t()));
    EXPECT_EQ(group.traffic().bytes(Collective::all_gather), (P - 1) * 6 * 8);
  });
}

TEST_P(EveryGroupSize, ReduceScatterSumsInTheWiderDtype) {
  run_ranks(GetParam(), [&](const Connection& connection) {
    const Group group = world_of(connection);
    const int64_t P = group.size(), rank = group.rank();
    // 256 + 1 is 256 in bf16: a sum in bf16 would lose the ones.
    Tensor whole = at::full({4 * P}, rank == 0 ? 256 : 1, at::kBFloat16);
    Tensor part = group.reduce_scatter(whole, at::kFloat, "test");
    EXPECT_EQ(part.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(part, at::full({4}, double(256 + P - 1), at::kFloat)));
    EXPECT_EQ(group.traffic().bytes(Collective::reduce_scatter), (P - 1) * 4 * 2);
  });
}

TEST_P(EveryGroupSize, AllReduceBroadcastAndBarrier) {
  run_ranks(GetParam(), [&](const Connection& connection) {
    const Group group = world_of(connection);
    const int64_t P = group.size(), rank = group.rank();
    Tensor sum = at::zeros({2, 3}, at::kDouble).t();  // written through, although it is not contiguous
    sum.fill_(double(rank + 1));
    group.all_reduce(sum, "test");
    EXPECT_TRUE(at::equal(sum, at::full({3, 2}, double(P * (P + 1) / 2), at::kDouble)));
    EXPECT_EQ(group.all_reduce(at::scalar_tensor(rank, at::kLong), "test", Reduction::max).item<int64_t>(),
              P - 1);
    Tensor value = numbered(rank, {3});
    group.broadcast(value, P - 1, "test");
    EXPECT_TRUE(at::equal(value, numbered(P - 1, {3})));
    Tensor sent = at::scalar_tensor(group.traffic().bytes(Collective::broadcast), at::kLong);
    EXPECT_EQ(group.all_reduce(sent, "test").item<int64_t>(), (P - 1) * 24);
    group.barrier("test");
  });
}

TEST(Group, RefusesWhatDoesNotDivide) {
  run_ranks(2, [&](const Connection& connection) {
    const Group group = world_of(connection);
    EXPECT_THROW(group.all_to_all(at::zeros({3, 2}), "test"), core::ValueError);
    EXPECT_THROW(group.reduce_scatter(at::zeros({3}), at::kFloat, "test"), core::ValueError);
  });
}

TEST(Group, ARankThatEndsIsAnErrorThatNamesTheCollective) {
  run_ranks(2, [&](const Connection& connection) {
    const Group group = world_of(connection);
    if (group.rank() == 1) return;
    try {
      group.all_reduce(at::zeros({3}), "the gradient norm");
      FAIL() << "did not throw";
    } catch (const core::CommunicationError& error) {
      EXPECT_THAT(error.what(),
                  testing::HasSubstr("rank 0 waits in all_reduce of group 'world' for the gradient norm"));
    }
  });
}

TEST(Group, AWaitThatTakesTooLongIsAnErrorThatNamesTheCollective) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> told = false;
  const auto rank_main = [&](int64_t rank) {
    Connection connection(store, rank, 2, at::kCPU, std::chrono::seconds(1), true);
    const Group group = world_of(connection);
    if (rank == 1) {
      while (!told) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    try {
      group.all_gather(at::zeros({3}), "unit 'layers.3'");
      ADD_FAILURE() << "did not throw";
    } catch (const core::CommunicationError& error) {
      EXPECT_THAT(error.what(),
                  testing::HasSubstr("rank 0 waits in all_gather of group 'world' for unit 'layers.3'"));
    }
    told = true;
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
}

TEST(Group, TellsWhereRanksMakeOtherCollectivesIfAsked) {
  run_ranks(
      3,
      [](const Connection& connection) {
        const Group group = world_of(connection);
        Tensor numbers = at::ones({3});
        group.all_reduce(numbers, "a sum");
        group.broadcast(numbers, 0, "a start");
        EXPECT_TRUE(numbers.eq(3).all().item<bool>());
        // Of one size: without the check each would get the other's numbers.
        const char* purpose = connection.rank() == 2 ? "block B" : "block A";
        std::string told;
        try {
          group.all_to_all(numbers, purpose);
        } catch (const core::CommunicationError& error) {
          told = error.what();
        }
        EXPECT_THAT(told, testing::AllOf(testing::HasSubstr("all_to_all for block A on its rank 0"),
                                         testing::HasSubstr("all_to_all for block B on its rank 2")));
      },
      /*checks_order=*/true);
}

TEST(Group, MayBeLeftAtOnceByOneWhileOthersConnect) {
  for (int round = 0; round < 30; ++round)
    run_ranks(3, [](const Connection& connection) { EXPECT_EQ(world_of(connection).size(), 3); });
}

}  // namespace
}  // namespace trireme::comm
