#include "trireme/model/gated_silu_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/model/gated_silu_kernel.cpp"
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
void forward(const T* gate_up, int64_t rows, int64_t width, T* out) {
  const size_t lanes = simd::lanes(), I = size_t(width);
  for (int64_t r = 0; r < rows; ++r, gate_up += 2 * I, out += I)
    for (size_t i = 0; i < I; i += lanes) {
      const size_t n = std::min(lanes, I - i);
      const Vector gate = simd::load(gate_up + i, n);
      const Vector silu = simd::round_to(hn::Mul(gate, simd::sigmoid(gate)), out);
      simd::store(hn::Mul(silu, simd::load(gate_up + I + i, n)), out + i, n);
    }
}

template <class T>
void backward(const T* upstream, const T* gate_up, int64_t rows, int64_t width, T* gradient) {
  const size_t lanes = simd::lanes(), I = size_t(width);
  const Vector one = hn::Set(Floats(), 1.0f);
  for (int64_t r = 0; r < rows; ++r, gate_up += 2 * I, gradient += 2 * I, upstream += I)
    for (size_t i = 0; i < I; i += lanes) {
      const size_t n = std::min(lanes, I - i);
      const Vector gate = simd::load(gate_up + i, n), s = simd::sigmoid(gate);
      const Vector up = simd::load(gate_up + I + i, n), grad = simd::load(upstream + i, n);
      const Vector slope = hn::Mul(s, hn::MulAdd(gate, hn::Sub(one, s), one));
      simd::store(hn::Mul(hn::Mul(grad, up), slope), gradient + i, n);
      simd::store(hn::Mul(grad, hn::Mul(gate, s)), gradient + I + i, n);
    }
}

void forward_fp32(const float* gate_up, int64_t rows, int64_t width, float* out) {
  forward(gate_up, rows, width, out);
}
void forward_bf16(const c10::BFloat16* gate_up, int64_t rows, int64_t width, c10::BFloat16* out) {
  forward(gate_up, rows, width, out);
}
void backward_fp32(const float* upstream, const float* gate_up, int64_t rows, int64_t width,
                   float* gradient) {
  backward(upstream, gate_up, rows, width, gradient);
}
void backward_bf16(const c10::BFloat16* upstream, const c10::BFloat16* gate_up, int64_t rows, int64_t width,
                   c10::BFloat16* gradient) {
  backward(upstream, gate_up, rows, width, gradient);
}

}  // namespace trireme::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::model {

HWY_EXPORT(forward_fp32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(backward_fp32);
HWY_EXPORT(backward_bf16);

void gated_silu_rows(const float* gate_up, int64_t rows, int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(forward_fp32)(gate_up, rows, width, out);
}
void gated_silu_rows(const c10::BFloat16* gate_up, int64_t rows, int64_t width, c10::BFloat16* out) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(gate_up, rows, width, out);
}
void gated_silu_rows_backward(const float* upstream, const float* gate_up, int64_t rows, int64_t width,
                              float* gradient) {
  HWY_DYNAMIC_DISPATCH(backward_fp32)(upstream, gate_up, rows, width, gradient);
}
void gated_silu_rows_backward(const c10::BFloat16* upstream, const c10::BFloat16* gate_up, int64_t rows,
                              int64_t width, c10::BFloat16* gradient) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(upstream, gate_up, rows, width, gradient);
}

}  // namespace trireme::model
#endif
