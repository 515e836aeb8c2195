// The host's kernels of projection.h's gate: one pass over memory each.
//   n rows, I width of the MLP; gate_up [n, 2 I], the others [n, I], dense.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace trireme::model {

/// out = round(silu(gate)) * up.
void gated_silu_rows(const float* gate_up, int64_t rows, int64_t width, float* out);
void gated_silu_rows(const c10::BFloat16* gate_up, int64_t rows, int64_t width, c10::BFloat16* out);

/// With s = sigmoid(gate): gradient of gate = upstream * up * s (1 + gate (1 - s)), of up = upstream * gate *
/// s; both into gradient [n, 2 I].
void gated_silu_rows_backward(const float* upstream, const float* gate_up, int64_t rows, int64_t width,
                              float* gradient);
void gated_silu_rows_backward(const c10::BFloat16* upstream, const c10::BFloat16* gate_up, int64_t rows,
                              int64_t width, c10::BFloat16* gradient);

}  // namespace trireme::model
