// Attention by the tiles of a plan, forward and backward, without a graph.
//   B batch, S sequence, h query heads, k key/value heads (k divides h), D head size.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/sp/attention_context.h"
#include "trireme/sp/flash_kernel.h"

namespace trireme::sp {

/// query [B, S, h, D], key and value [B, S, k, D] -> output [B, S, h, D] and log-sum-exp [B, S, h]; zeros for
/// queries that read nothing. No tensor of [S, S] is made.
FlashOutput attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const AttentionContext& context);

/// What a backward pass knows of the forward pass: the output, or what it is needed for.
struct KnownOutput {
  at::Tensor output;     ///< [B, S, h, D]; or undefined, and then
  at::Tensor delta;      ///< [B, S, h], fp32 at least: sum over D of grad_output * output
  at::Tensor logsumexp;  ///< [B, S, h]
};

/// Gradients of the sum of `grad_output` * output. Where the plan has more than one tile they lie side by
/// side in one tensor [B, S, h + 2 k, D].
FlashGradients attend_backward(const at::Tensor& grad_output, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const KnownOutput& known,
                               const AttentionContext& context);

}  // namespace trireme::sp
