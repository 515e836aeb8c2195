#include "trireme/core/text.h"

#include <gtest/gtest.h>

#include <string>

namespace trireme::core {
namespace {

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(printable(std::string("model.norm")), "'model.norm'");
  EXPECT_EQ(printable("a\n\x1b\xc3\xa9"), "'a\\x0a\\x1b\\xc3\\xa9'");
  EXPECT_EQ(printable(std::string(100, 'x')), "'" + std::string(100, 'x') + "'");
  EXPECT_EQ(printable(std::string(101, 'x')), "'" + std::string(100, 'x') + "...'");
}

TEST(Counted, KnowsThePlural) {
  EXPECT_EQ(counted(0, "file"), "0 files");
  EXPECT_EQ(counted(1, "file"), "1 file");
  EXPECT_EQ(counted(2, "file"), "2 files");
}

TEST(IntegerRule, NamesTheUpperLimitWhereItWasPassed) {
  EXPECT_EQ(integer_rule(1, 9, false), "an integer of at least 1");
  EXPECT_EQ(integer_rule(1, 9, true), "an integer from 1 to 9");
}

}  // namespace
}  // namespace trireme::core
