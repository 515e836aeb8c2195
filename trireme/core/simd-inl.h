// Vectors of fp32 over memory of fp32 or bf16, for kernels that Highway compiles once for each instruction
// set and chooses among at run time. Included once for each (hwy/foreach_target.h), hence the guard that
// toggles.
#if defined(TRIREME_CORE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_CORE_SIMD_INL_H_
#undef TRIREME_CORE_SIMD_INL_H_
#else
#define TRIREME_CORE_SIMD_INL_H_
#endif

#include <c10/util/BFloat16.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace trireme::core::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Bits = hn::RebindToUnsigned<Floats>;
using HalfBits = hn::Rebind<uint16_t, Floats>;
using Vector = hn::Vec<Floats>;

/// Elements of a vector.
HWY_INLINE size_t lanes() { return hn::Lanes(Floats()); }

HWY_INLINE Vector load_all(const float* from) { return hn::LoadU(Floats(), from); }
HWY_INLINE Vector load_all(const c10::BFloat16* from) {
  const auto halves = hn::LoadU(HalfBits(), reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Bits(), halves)));
}

HWY_INLINE void store_all(Vector v, float* to) { hn::StoreU(v, Floats(), to); }

/// The bits of bf16, in the lower halves. Rounds to the nearest, ties to even; NaN stays NaN.
HWY_INLINE hn::Vec<Bits> bf16_bits(Vector v) {
  const Bits bits;
  const auto wide = hn::BitCast(bits, v);
  const auto odd = hn::And(hn::ShiftRight<16>(wide), hn::Set(bits, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(wide, odd), hn::Set(bits, 0x7fff)));
  return hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(v)), hn::Set(bits, 0x7fc0), rounded);
}

HWY_INLINE void store_all(Vector v, c10::BFloat16* to) {
  const hn::RebindToSigned<Floats> integers;
  const auto halves = hn::DemoteTo(HalfBits(), hn::BitCast(integers, bf16_bits(v)));
  hn::StoreU(halves, HalfBits(), reinterpret_cast<uint16_t*>(to));
}

/// What a store and a load would give.
HWY_INLINE Vector round_to(Vector v, const float*) { return v; }
HWY_INLINE Vector round_to(Vector v, const c10::BFloat16*) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(bf16_bits(v)));
}

/// The first `count` elements, at most lanes(); `fill` in what is left of the vector.
template <class T>
HWY_INLINE Vector load(const T* from, size_t count, float fill = 0) {
  if (HWY_LIKELY(count == lanes())) return load_all(from);
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
  for (size_t i = 0; i < lanes(); ++i) buffer[i] = i < count ? float(from[i]) : fill;
  return hn::Load(Floats(), buffer);
}

/// Stores the first `count` elements, at most lanes().
template <class T>
HWY_INLINE void store(Vector v, T* to, size_t count) {
  if (HWY_LIKELY(count == lanes())) return store_all(v, to);
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(float)];
  store_all(v, buffer);
  std::memcpy(static_cast<void*>(to), buffer, count * sizeof(T));
}

/// The first `count` elements, at most lanes(), and 0 in place of the others.
HWY_INLINE Vector first(Vector v, size_t count) {
  if (HWY_LIKELY(count == lanes())) return v;
  return hn::IfThenElseZero(hn::FirstN(Floats(), count), v);
}

HWY_INLINE float sum(Vector v) { return hn::GetLane(hn::SumOfLanes(Floats(), v)); }
HWY_INLINE float maximum(Vector v) { return hn::GetLane(hn::MaxOfLanes(Floats(), v)); }

/// 1 / (1 + exp(-v)): 0 far below zero, where the power is infinite.
HWY_INLINE Vector sigmoid(Vector v) {
  const Floats f;
  const auto one = hn::Set(f, 1.0f);
  const auto power = hn::Exp(f, hn::Min(hn::Neg(v), hn::Set(f, 104.0f)));  // beyond, Exp knows no infinity
  return hn::Div(one, hn::Add(one, power));
}

}  // namespace trireme::core::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
