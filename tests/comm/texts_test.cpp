#include "trireme/comm/texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace trireme::comm {
namespace {

TEST(Texts, OfEveryRankReachEveryRank) {
  tests::run_ranks(3, [](const Connection& connection) {
    const std::string mine =
        connection.rank() == 1 ? "" : std::string(size_t(connection.rank()) * 50 + 1, 'x') + "\n";
    EXPECT_THAT(all_gather_texts(mine, tests::world_of(connection), "a test"),
                testing::ElementsAre("x\n", "", std::string(101, 'x') + "\n"));
  });
  EXPECT_THAT(all_gather_texts("alone", Group(), "a test"), testing::ElementsAre("alone"));
}

}  // namespace
}  // namespace trireme::comm
