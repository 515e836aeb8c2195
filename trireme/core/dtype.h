// The element types of the safetensors format, without LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace trireme::core {

/// Every element type of the format. Those below 8 bits, the 8-bit floats and the complex numbers are known
/// so that files that hold them can be listed; who reads values refuses them.
enum class DType {
  boolean,
  u8,
  i8,
  u16,
  i16,
  f16,
  bf16,
  u32,
  i32,
  f32,
  u64,
  i64,
  f64,
  c64,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  f6_e2m3,
  f6_e3m2,
  f4,
};

/// As the format spells it: "BF16", "I64", "BOOL".
std::string_view dtype_name(DType dtype);

/// The type of that exact name, or nothing.
std::optional<DType> dtype_named(std::string_view name);

/// Bits of one element.
int64_t dtype_bits(DType dtype);

/// Bytes of a tensor, or nothing where a size is negative, the product overflows, or the elements do not fill
/// whole bytes. An empty shape is one element.
std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape);

}  // namespace trireme::core
