// Losses over a vocabulary by their formulas, for plain autograd.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "trireme/alst/loss_options.h"

namespace trireme::tests {

/// Each option by itself, none, and all together.
inline std::vector<alst::LossOptions> kinds_of_loss() {
  return {{},
          {.z_loss = 0.1},
          {.label_smoothing = 0.2},
          {.soft_cap = 3},
          {.z_loss = 0.1, .label_smoothing = 0.2, .soft_cap = 3}};
}

inline at::Tensor capped(const at::Tensor& logits, double soft_cap) {
  return soft_cap > 0 ? at::tanh(logits / soft_cap) * soft_cap : logits;
}

/// logits [N, V], labels [N], -100: ignored -> log probabilities of the labels [N], 0 for ignored ones.
inline at::Tensor reference_log_probabilities(const at::Tensor& logits, const at::Tensor& labels,
                                              double soft_cap = 0) {
  const at::Tensor index = labels.clamp_min(0).unsqueeze(1);
  return at::log_softmax(capped(logits, soft_cap), 1)
      .gather(1, index)
      .squeeze(1)
      .masked_fill(labels.eq(-100), 0);
}

/// logits [N, V], labels [N], -100: ignored -> the token losses of alst/loss_options.h, [N].
inline at::Tensor reference_token_losses(const at::Tensor& logits, const at::Tensor& labels,
                                         const alst::LossOptions& options = {}) {
  const at::Tensor scores = capped(logits, options.soft_cap), log_sum = scores.logsumexp({1});
  const at::Tensor of_label = scores.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor losses = log_sum - (1 - options.label_smoothing) * of_label -
                            options.label_smoothing * scores.mean(1) + options.z_loss * log_sum.square();
  return losses.masked_fill(labels.eq(-100), 0);
}

}  // namespace trireme::tests
