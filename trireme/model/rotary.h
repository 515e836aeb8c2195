// Rotary position embedding, its frequencies as Transformers computes them.
//   B batch, s tokens, N = B s, D head size.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/model/config.h"

namespace trireme::model {

/// [D / 2]: the angle of each pair of a head's elements per position, in `dtype`. `longest` is the longest
/// document of the batch over all ranks: `dynamic` stretches the frequencies where it is beyond the model's
/// positions. RoFormer, arXiv:2104.09864; yarn: arXiv:2309.00071, equations 17 to 23.
at::Tensor rope_frequencies(const Config& config, int64_t longest, at::ScalarType dtype);

/// What cosines and sines are multiplied by: 1 but for yarn.
double rope_attention_factor(const RopeOptions& options);

/// Cosines and sines of this rank's tokens, [N, 1, D / 2].
struct RotaryTables {
  at::Tensor cosine, sine;
};

/// positions [B, s], int64. Angles are formed in fp32 at least, and rounded to `dtype`.
RotaryTables rotary_tables(const Config& config, const at::Tensor& positions, int64_t longest,
                           at::ScalarType dtype);

/// Turns the first `count` heads of each token of x, [N, heads, D] or [N, heads D], in place: element i with
/// element i + D / 2 by the token's angle. Returns x, which must be no view, and whose former values nothing
/// saved for backward may need. The gradient is turned back.
at::Tensor rotate_heads_(const at::Tensor& x, int64_t count, const RotaryTables& tables);

}  // namespace trireme::model
