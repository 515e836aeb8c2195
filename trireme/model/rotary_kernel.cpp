#include "trireme/model/rotary_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/model/rotary_kernel.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include "trireme/core/simd-inl.h"

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace trireme::model::HWY_NAMESPACE {

namespace simd = trireme::core::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;
using simd::Floats;
using simd::Vector;

template <class T>
void rotate_head(const T* from, const T* cosine, const T* sine, size_t half, float sign, T* to) {
  const size_t lanes = simd::lanes();
  const Vector signs = hn::Set(Floats(), sign);
  for (size_t i = 0; i < half; i += lanes) {
    const size_t n = std::min(lanes, half - i);
    const Vector c = simd::load(cosine + i, n), s = hn::Mul(signs, simd::load(sine + i, n));
    const Vector a = simd::load(from + i, n), b = simd::load(from + half + i, n);
    simd::store(hn::NegMulAdd(b, s, hn::Mul(a, c)), to + i, n);
    simd::store(hn::MulAdd(a, s, hn::Mul(b, c)), to + half + i, n);
  }
}

template <class T>
void rotate(const T* from, const T* cosine, const T* sine, int64_t tokens, int64_t width, int64_t count,
            int64_t head_size, float sign, T* to) {
  const int64_t half = head_size / 2, turned = count * head_size;
  for (int64_t t = 0; t < tokens; ++t, from += width, to += width, cosine += half, sine += half) {
    for (int64_t first = 0; first < turned; first += head_size)
      rotate_head(from + first, cosine, sine, size_t(half), sign, to + first);
    if (to != from) std::copy(from + turned, from + width, to + turned);
  }
}

void rotate_fp32(const float* from, const float* cosine, const float* sine, int64_t tokens, int64_t width,
                 int64_t count, int64_t head_size, float sign, float* to) {
  rotate(from, cosine, sine, tokens, width, count, head_size, sign, to);
}
void rotate_bf16(const c10::BFloat16* from, const c10::BFloat16* cosine, const c10::BFloat16* sine,
                 int64_t tokens, int64_t width, int64_t count, int64_t head_size, float sign,
                 c10::BFloat16* to) {
  rotate(from, cosine, sine, tokens, width, count, head_size, sign, to);
}

}  // namespace trireme::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::model {

HWY_EXPORT(rotate_fp32);
HWY_EXPORT(rotate_bf16);

void rotate_tokens(const float* from, const float* cosine, const float* sine, int64_t tokens, int64_t width,
                   int64_t count, int64_t head_size, float sign, float* to) {
  HWY_DYNAMIC_DISPATCH(rotate_fp32)(from, cosine, sine, tokens, width, count, head_size, sign, to);
}
void rotate_tokens(const c10::BFloat16* from, const c10::BFloat16* cosine, const c10::BFloat16* sine,
                   int64_t tokens, int64_t width, int64_t count, int64_t head_size, float sign,
                   c10::BFloat16* to) {
  HWY_DYNAMIC_DISPATCH(rotate_bf16)(from, cosine, sine, tokens, width, count, head_size, sign, to);
}

}  // namespace trireme::model
#endif
