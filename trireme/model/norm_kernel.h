// The host's kernels of norm.h: one pass over memory each.
//   n rows, E elements of a row, dense.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace trireme::model {

/// inverse[r] = 1 / sqrt(mean(x[r]^2) + epsilon); out[r] = weight * round(x[r] * inverse[r]). out is not x.
void norm_rows(const float* x, const float* weight, int64_t rows, int64_t size, double epsilon, float* out,
               float* inverse);
void norm_rows(const c10::BFloat16* x, const c10::BFloat16* weight, int64_t rows, int64_t size,
               double epsilon, c10::BFloat16* out, float* inverse);

/// The gradients of `norm_rows`: with n = x * inverse and g = upstream * weight,
///   grad_x = (g - n * mean(g * n)) * inverse;   grad_weight [E] += sum over rows of upstream * n.
/// `grad_weight` may be null.
void norm_rows_backward(const float* upstream, const float* x, const float* weight, const float* inverse,
                        int64_t rows, int64_t size, float* grad_x, float* grad_weight);
void norm_rows_backward(const c10::BFloat16* upstream, const c10::BFloat16* x, const c10::BFloat16* weight,
                        const float* inverse, int64_t rows, int64_t size, c10::BFloat16* grad_x,
                        float* grad_weight);

}  // namespace trireme::model
