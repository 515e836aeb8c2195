#include "trireme/core/checksum.h"

#include <gtest/gtest.h>

#include <vector>

namespace trireme::core {
namespace {

TEST(Checksum, TellsEveryChangedByte) {
  for (size_t size : {1u, 17u, 1000u}) {
    std::vector<std::byte> bytes(size, std::byte{3});
    const uint64_t before = checksum(bytes);
    EXPECT_EQ(checksum(bytes), before);
    for (auto& byte : bytes) {
      byte = std::byte{4};
      EXPECT_NE(checksum(bytes), before);
      byte = std::byte{3};
    }
  }
}

}  // namespace
}  // namespace trireme::core
