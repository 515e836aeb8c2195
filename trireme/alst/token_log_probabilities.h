// From hidden states to each token's log probability, for losses over whole sequences, such as DPO's
// (arXiv:2305.18290).
//   N tokens, E hidden size, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::alst {

/// log softmax(l')[label] of each token, [N] in fp32 or wider, 0 where the label is ignored;
/// l = head h, l' = soft_cap tanh(l / soft_cap), or l where soft_cap is 0.
///   hidden [N, E], head [V, E] of one dtype; labels [N], integers, -100: ignored; any other must be in [0,
///   V). `tiles` need not divide N: the result does not depend on it beyond rounding.
///
/// Gradients for any upstream u [N]: that of l_j is  u ([j = label] - softmax(l')_j) (1 - (l'_j /
/// soft_cap)^2), 0 where the label is ignored. Keeps hidden, head, labels and log-sum-exps [N]: the backward
/// pass forms each tile's logits again, and no tensor of [N, V] is ever made. The head's gradient is summed
/// over tiles in fp32 at least. Computes in the tensors' dtype, also under autocast. No second derivative.
at::Tensor token_log_probabilities(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& labels,
                                   int64_t tiles, double soft_cap = 0);

}  // namespace trireme::alst
