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

}  // namespace
}  // namespace trireme::core
