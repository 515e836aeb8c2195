// From hidden states to the loss without the logits of more than a tile of tokens.
//   N tokens, E hidden size, V vocabulary.
// ALST, arXiv:2506.13996, section 3.1.1; Liger Kernel, arXiv:2410.10989, section 3.2 (both gradients formed
// forward).
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/alst/loss_options.h"

namespace trireme::alst {

/// The sum of token losses (loss_options.h, of logits head h) times `scale`: a scalar in fp32 or wider.
///   hidden [N, E], head [V, E] of one dtype; labels [N], integers, -100: ignored; any other must be in [0,
///   V).
///
/// Both gradients are formed in the forward pass, where they are wanted, the head's summed over tiles in fp32
/// at least; backward multiplies both by the upstream gradient. No tensor of [N, V] is made. Where every
/// label is ignored the loss is 0 and so are the gradients, which are there all the same. Computes in the
/// tensors' dtype, also under autocast. No second derivative.
at::Tensor fused_logits_loss(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& labels,
                             double scale, int64_t tiles, const LossOptions& options = {});

}  // namespace trireme::alst
