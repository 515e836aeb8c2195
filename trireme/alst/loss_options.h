// What a loss over a vocabulary adds to the plain cross entropy.
//   l [V] a token's logits, y its label.
#pragma once

#include "trireme/core/check.h"

namespace trireme::alst {

/// With  l' = soft_cap tanh(l / soft_cap)  (Gemma 2, arXiv:2408.00118, section 2), or l' = l where soft_cap
/// is 0, and  L = logsumexp(l'):
///   token loss = L - (1 - label_smoothing) l'_y - label_smoothing / V sum_j l'_j + z_loss L^2.
/// Smoothing mixes the label with the uniform distribution (arXiv:1512.00567, section 7; the numbers are
/// those of torch's cross_entropy); the z-loss keeps L near 0 (PaLM, arXiv:2204.02311, section 5). An ignored
/// token's loss is 0. With p = softmax(l'), the gradient of l_j is
///   (p_j (1 + 2 z_loss L) - (1 - label_smoothing) [j = y] - label_smoothing / V) (1 - (l'_j / soft_cap)^2),
/// without the last factor where nothing is capped.
struct LossOptions {
  double z_loss = 0;           ///< at least 0
  double label_smoothing = 0;  ///< 0 to below 1
  double soft_cap = 0;         ///< at least 0; 0: none
  bool operator==(const LossOptions&) const = default;
};

/// Throws `core::ValueError` for a value out of its range.
inline void check_loss_options(const LossOptions& options) {
  core::check_value(
      options.z_loss >= 0 && options.soft_cap >= 0 && options.label_smoothing >= 0 &&
          options.label_smoothing < 1,
      "[alst] z_loss and soft_cap must be at least 0 and label_smoothing from 0 to below 1; got ",
      options.z_loss, ", ", options.soft_cap, " and ", options.label_smoothing);
}

}  // namespace trireme::alst
