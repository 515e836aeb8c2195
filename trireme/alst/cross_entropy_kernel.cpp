#include "trireme/alst/cross_entropy_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/alst/cross_entropy_kernel.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include "trireme/core/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace trireme::alst::HWY_NAMESPACE {

namespace simd = trireme::core::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;
using simd::Floats;
using simd::Vector;

template <class T>
float largest(const T* row, size_t count) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const size_t lanes = simd::lanes();
  Vector best = hn::Set(Floats(), kLowest);
  for (size_t i = 0; i < count; i += lanes)
    best = hn::Max(best, simd::load(row + i, std::min(lanes, count - i), kLowest));
  return simd::maximum(best);
}

// The sum of exp(row - largest). `largest` may have missed a NaN: the sum does not.
template <class T>
float sum_of_powers(const T* row, size_t count, float largest) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const size_t lanes = simd::lanes();
  const Floats f;
  const Vector shift = hn::Set(f, largest);
  Vector sums = hn::Zero(f);
  for (size_t i = 0; i < count; i += lanes) {
    const Vector x = hn::Sub(simd::load(row + i, std::min(lanes, count - i), kLowest), shift);
    sums = hn::Add(sums, hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(f, x)));
  }
  return simd::sum(sums);
}

// exp(row - largest) / sum
template <class T>
void to_probabilities(T* row, size_t count, float largest, float sum) {
  const size_t lanes = simd::lanes();
  const Floats f;
  const Vector shift = hn::Set(f, largest), factor = hn::Set(f, 1 / sum);
  for (size_t i = 0; i < count; i += lanes) {
    const size_t n = std::min(lanes, count - i);
    simd::store(hn::Mul(hn::Exp(f, hn::Sub(simd::load(row + i, n), shift)), factor), row + i, n);
  }
}

template <class T>
void rows(T* logits, const int64_t* labels, int64_t rows, int64_t vocabulary, bool gradient_wanted,
          float* losses) {
  const auto count = size_t(vocabulary);
  for (int64_t r = 0; r < rows; ++r) {
    T* row = logits + r * vocabulary;
    losses[r] = 0;
    if (labels[r] < 0) {
      if (gradient_wanted) std::fill_n(row, count, T(0.0f));
      continue;
    }
    const float shift = largest(row, count), sum = sum_of_powers(row, count, shift);
    T& target = row[labels[r]];
    const float distance = float(target) - shift;
    losses[r] = std::log(sum) - distance;
    if (!gradient_wanted) continue;
    to_probabilities(row, count, shift, sum);
    target = T(std::exp(distance) / sum - 1);
  }
}

void rows_fp32(float* logits, const int64_t* labels, int64_t count, int64_t vocabulary, bool gradient_wanted,
               float* losses) {
  rows(logits, labels, count, vocabulary, gradient_wanted, losses);
}
void rows_bf16(c10::BFloat16* logits, const int64_t* labels, int64_t count, int64_t vocabulary,
               bool gradient_wanted, float* losses) {
  rows(logits, labels, count, vocabulary, gradient_wanted, losses);
}

}  // namespace trireme::alst::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::alst {

HWY_EXPORT(rows_fp32);
HWY_EXPORT(rows_bf16);

void cross_entropy_rows(float* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        bool gradient_wanted, float* losses) {
  HWY_DYNAMIC_DISPATCH(rows_fp32)(logits, labels, rows, vocabulary, gradient_wanted, losses);
}
void cross_entropy_rows(c10::BFloat16* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        bool gradient_wanted, float* losses) {
  HWY_DYNAMIC_DISPATCH(rows_bf16)(logits, labels, rows, vocabulary, gradient_wanted, losses);
}

}  // namespace trireme::alst
#endif
