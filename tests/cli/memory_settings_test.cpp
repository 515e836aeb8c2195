#include "cli/memory_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cli/exit_codes.h"
#include "program.h"

namespace trireme::cli {
namespace {

constexpr const char* kOld = "PYTORCH_CUDA_ALLOC_CONF";
constexpr const char* kNew = "PYTORCH_ALLOC_CONF";

class AllocatorSettings : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    ::unsetenv(kOld);
    ::unsetenv(kNew);
  }
  static std::string value(const char* name) {
    const char* found = std::getenv(name);
    return found ? found : "";
  }
};

TEST_F(AllocatorSettings, AreSetWhereNothingIs) {
  prefer_tight_allocation();
  EXPECT_EQ(value(kOld), "expandable_segments:True,pinned_max_round_threshold_mb:1");
}

TEST_F(AllocatorSettings, AreLeftToTheUserWhoSetEitherName) {
  ::setenv(kNew, "max_split_size_mb:64", 1);
  prefer_tight_allocation();
  EXPECT_EQ(value(kOld), "");
  ::unsetenv(kNew);
  ::setenv(kOld, "expandable_segments:False", 1);
  prefer_tight_allocation();
  EXPECT_EQ(value(kOld), "expandable_segments:False");
}

TEST(HostAllocator, IsTold) {
  Program program({"info"});
  ASSERT_EQ(program.wait(), kSuccess) << program.err();
  EXPECT_THAT(program.out(), ::testing::HasSubstr("\nallocator      "));
}

}  // namespace
}  // namespace trireme::cli
