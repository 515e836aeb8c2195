#include "trireme/core/check.h"

#include <gtest/gtest.h>

#include <array>

namespace trireme::core {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Nearest, FindsTheWordThatWasMeant) {
  const std::array<std::string_view, 3> keys{"steps", "seed", "sequence_parallel_size"};
  EXPECT_EQ(nearest("step", keys), "steps");
  EXPECT_EQ(nearest("sequence_paralel_size", keys), "sequence_parallel_size");
  EXPECT_EQ(nearest("zzzzzz", keys), "");
}

TEST(CheckValue, ThrowsTheConcatenatedParts) {
  EXPECT_NO_THROW(check_value(true, "never"));
  try {
    check_value(false, "[core] got ", 3, " of ", 4);
    FAIL() << "did not throw";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "[core] got 3 of 4");
  }
}

}  // namespace
}  // namespace trireme::core
