#include "trireme/core/aligned_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

#include "tests/support/errors.h"

namespace trireme::core {
namespace {

using ::testing::HasSubstr;
using testing::value_error;

TEST(AlignedMemory, IsAlignedAndRoundedUp) {
  for (const auto& [bytes, size] : {std::pair{1, 4096}, {4096, 4096}, {4097, 8192}, {1'000'000, 1'003'520}}) {
    AlignedMemory memory(bytes);
    EXPECT_EQ(memory.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.bytes().data()) % AlignedMemory::kAlignment, 0);
    std::ranges::fill(memory.bytes(), std::byte{7});  // all of it is ours
    EXPECT_EQ(std::as_const(memory).bytes().back(), std::byte{7});
  }
}

TEST(AlignedMemory, MayHoldNothing) {
  EXPECT_EQ(AlignedMemory().size(), 0);
  EXPECT_TRUE(AlignedMemory(0).bytes().empty());
}

TEST(AlignedMemory, MovesWithItsBytes) {
  AlignedMemory first(4096);
  first.bytes()[5] = std::byte{5};
  const std::byte* address = first.bytes().data();
  AlignedMemory second(std::move(first));
  EXPECT_EQ(second.bytes().data(), address);
  EXPECT_EQ(first.size(), 0);
  AlignedMemory third(8192);
  third = std::move(second);
  EXPECT_EQ(third.bytes().data(), address);
  EXPECT_EQ(third.bytes()[5], std::byte{5});
  EXPECT_EQ(third.size(), 4096);
}

TEST(AlignedMemory, RefusesWhatCannotBe) {
  EXPECT_THAT(value_error([] { AlignedMemory(-1); }), HasSubstr("got -1"));
  EXPECT_THROW(AlignedMemory(std::numeric_limits<int64_t>::max()), std::bad_alloc);
#ifndef __SANITIZE_ADDRESS__  // which ends the process where there is no memory
  EXPECT_THROW(AlignedMemory(int64_t{1} << 60), std::bad_alloc);
#endif
}

}  // namespace
}  // namespace trireme::core
