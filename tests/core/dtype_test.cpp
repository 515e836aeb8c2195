#include "trireme/core/dtype.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace trireme::core {
namespace {

std::optional<int64_t> bytes(DType dtype, std::vector<int64_t> shape) { return tensor_bytes(dtype, shape); }

TEST(DType, NamesGoBothWays) {
  for (const auto* name :
       {"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
        "I16",  "U16", "F16", "BF16",    "I32",     "U32",     "F32",         "C64",
        "F64",  "I64", "U64", "F4",      "F6_E2M3", "F6_E3M2"}) {
    const auto dtype = dtype_named(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
  }
  EXPECT_FALSE(dtype_named("f32").has_value());
  EXPECT_FALSE(dtype_named("").has_value());
}

TEST(TensorBytes, MultipliesSizes) {
  EXPECT_EQ(bytes(DType::f32, {}), 4);
  EXPECT_EQ(bytes(DType::f32, {3, 5}), 60);
  EXPECT_EQ(bytes(DType::bf16, {3, 0, 5}), 0);
  EXPECT_EQ(bytes(DType::f4, {3, 2}), 3);
  EXPECT_EQ(bytes(DType::f6_e2m3, {4}), 3);
}

TEST(TensorBytes, RefusesWhatNoMemoryHolds) {
  EXPECT_EQ(bytes(DType::f32, {-1}), std::nullopt);
  EXPECT_EQ(bytes(DType::f4, {3}), std::nullopt);
  EXPECT_EQ(bytes(DType::u8, {INT64_MAX, INT64_MAX}), std::nullopt);
  EXPECT_EQ(bytes(DType::f64, {int64_t{1} << 60}), std::nullopt);
  EXPECT_EQ(bytes(DType::u8, {(int64_t{1} << 60) - 1}), (int64_t{1} << 60) - 1);
}

}  // namespace
}  // namespace trireme::core
