#include "trireme/model/norm_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/model/norm_kernel.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include "trireme/core/simd-inl.h"

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace trireme::model::HWY_NAMESPACE {

namespace simd = trireme::core::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;
using simd::Floats;
using simd::Vector;

template <class T>
float sum_of_squares(const T* row, size_t size) {
  const size_t lanes = simd::lanes();
  Vector sums = hn::Zero(Floats());
  for (size_t i = 0; i < size; i += lanes) {
    const Vector x = simd::load(row + i, std::min(lanes, size - i));
    sums = hn::MulAdd(x, x, sums);
  }
  return simd::sum(sums);
}

template <class T>
void forward(const T* x, const T* weight, int64_t rows, int64_t size, double epsilon, T* out,
             float* inverse) {
  const size_t lanes = simd::lanes(), E = size_t(size);
  for (int64_t r = 0; r < rows; ++r, x += E, out += E) {
    inverse[r] = float(1 / std::sqrt(double(sum_of_squares(x, E)) / double(size) + epsilon));
    const Vector factor = hn::Set(Floats(), inverse[r]);
    for (size_t i = 0; i < E; i += lanes) {
      const size_t n = std::min(lanes, E - i);
      const Vector normalized = simd::round_to(hn::Mul(simd::load(x + i, n), factor), out);
      simd::store(hn::Mul(normalized, simd::load(weight + i, n)), out + i, n);
    }
  }
}

// The mean of upstream * weight * x * inverse.
template <class T>
float mean_product(const T* upstream, const T* x, const T* weight, float inverse, size_t E) {
  const size_t lanes = simd::lanes();
  Vector sums = hn::Zero(Floats());
  for (size_t i = 0; i < E; i += lanes) {
    const size_t n = std::min(lanes, E - i);
    const Vector g = hn::Mul(simd::load(upstream + i, n), simd::load(weight + i, n));
    sums = hn::MulAdd(g, simd::load(x + i, n), sums);
  }
  return simd::sum(sums) * inverse / float(E);
}

template <class T>
void backward(const T* upstream, const T* x, const T* weight, const float* inverse, int64_t rows,
              int64_t size, T* grad_x, float* grad_weight) {
  const size_t lanes = simd::lanes(), E = size_t(size);
  for (int64_t r = 0; r < rows; ++r, upstream += E, x += E, grad_x += E) {
    const Vector factor = hn::Set(Floats(), inverse[r]);
    const Vector mean = hn::Set(Floats(), mean_product(upstream, x, weight, inverse[r], E));
    for (size_t i = 0; i < E; i += lanes) {
      const size_t n = std::min(lanes, E - i);
      const Vector up = simd::load(upstream + i, n), normalized = hn::Mul(simd::load(x + i, n), factor);
      const Vector g = hn::Mul(up, simd::load(weight + i, n));
      simd::store(hn::Mul(hn::NegMulAdd(normalized, mean, g), factor), grad_x + i, n);
      if (grad_weight)
        simd::store(hn::MulAdd(up, normalized, simd::load(grad_weight + i, n)), grad_weight + i, n);
    }
  }
}

void forward_fp32(const float* x, const float* weight, int64_t rows, int64_t size, double epsilon, float* out,
                  float* inverse) {
  forward(x, weight, rows, size, epsilon, out, inverse);
}
void forward_bf16(const c10::BFloat16* x, const c10::BFloat16* weight, int64_t rows, int64_t size,
                  double epsilon, c10::BFloat16* out, float* inverse) {
  forward(x, weight, rows, size, epsilon, out, inverse);
}
void backward_fp32(const float* upstream, const float* x, const float* weight, const float* inverse,
                   int64_t rows, int64_t size, float* grad_x, float* grad_weight) {
  backward(upstream, x, weight, inverse, rows, size, grad_x, grad_weight);
}
void backward_bf16(const c10::BFloat16* upstream, const c10::BFloat16* x, const c10::BFloat16* weight,
                   const float* inverse, int64_t rows, int64_t size, c10::BFloat16* grad_x,
                   float* grad_weight) {
  backward(upstream, x, weight, inverse, rows, size, grad_x, grad_weight);
}

}  // namespace trireme::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::model {

HWY_EXPORT(forward_fp32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(backward_fp32);
HWY_EXPORT(backward_bf16);

void norm_rows(const float* x, const float* weight, int64_t rows, int64_t size, double epsilon, float* out,
               float* inverse) {
  HWY_DYNAMIC_DISPATCH(forward_fp32)(x, weight, rows, size, epsilon, out, inverse);
}
void norm_rows(const c10::BFloat16* x, const c10::BFloat16* weight, int64_t rows, int64_t size,
               double epsilon, c10::BFloat16* out, float* inverse) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(x, weight, rows, size, epsilon, out, inverse);
}
void norm_rows_backward(const float* upstream, const float* x, const float* weight, const float* inverse,
                        int64_t rows, int64_t size, float* grad_x, float* grad_weight) {
  HWY_DYNAMIC_DISPATCH(backward_fp32)(upstream, x, weight, inverse, rows, size, grad_x, grad_weight);
}
void norm_rows_backward(const c10::BFloat16* upstream, const c10::BFloat16* x, const c10::BFloat16* weight,
                        const float* inverse, int64_t rows, int64_t size, c10::BFloat16* grad_x,
                        float* grad_weight) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(upstream, x, weight, inverse, rows, size, grad_x, grad_weight);
}

}  // namespace trireme::model
#endif
