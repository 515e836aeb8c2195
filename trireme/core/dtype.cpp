#include "trireme/core/dtype.h"

#include <array>

#include "trireme/core/check.h"

namespace trireme::core {
namespace {

struct Description {
  DType dtype;
  std::string_view name;
  int64_t bits;
};

constexpr std::array kDescriptions{
    Description{DType::boolean, "BOOL", 8},
    Description{DType::u8, "U8", 8},
    Description{DType::i8, "I8", 8},
    Description{DType::u16, "U16", 16},
    Description{DType::i16, "I16", 16},
    Description{DType::f16, "F16", 16},
    Description{DType::bf16, "BF16", 16},
    Description{DType::u32, "U32", 32},
    Description{DType::i32, "I32", 32},
    Description{DType::f32, "F32", 32},
    Description{DType::u64, "U64", 64},
    Description{DType::i64, "I64", 64},
    Description{DType::f64, "F64", 64},
    Description{DType::c64, "C64", 64},
    Description{DType::f8_e5m2, "F8_E5M2", 8},
    Description{DType::f8_e4m3, "F8_E4M3", 8},
    Description{DType::f8_e8m0, "F8_E8M0", 8},
    Description{DType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    Description{DType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    Description{DType::f6_e2m3, "F6_E2M3", 6},
    Description{DType::f6_e3m2, "F6_E3M2", 6},
    Description{DType::f4, "F4", 4},
};

const Description& description(DType dtype) {
  for (const auto& entry : kDescriptions)
    if (entry.dtype == dtype) return entry;
  check_internal(false, "[core] unknown element type ", static_cast<int>(dtype));
  return kDescriptions[0];
}

}  // namespace

std::string_view dtype_name(DType dtype) { return description(dtype).name; }

std::optional<DType> dtype_named(std::string_view name) {
  for (const auto& entry : kDescriptions)
    if (entry.name == name) return entry.dtype;
  return std::nullopt;
}

int64_t dtype_bits(DType dtype) { return description(dtype).bits; }

std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t bits = dtype_bits(dtype);
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bits, size, &bits)) return std::nullopt;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace trireme::core
