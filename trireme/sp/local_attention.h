// Attention over whole sequences for this rank's heads.
//   B batch, S sequence, h query heads, k key/value heads, D head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "trireme/sp/attention_context.h"

namespace trireme::sp {

/// Any function from query [B, S, h, D], key and value [B, S, k, D] to [B, S, h, D] that autograd can follow.
using LocalAttention = std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key,
                                                const at::Tensor& value, const AttentionContext& context)>;

/// softmax(query key^T / sqrt(D)) value by fused kernels, tile by tile of the context's plan: documents never
/// see each other, and no tensor of [S, S] is made. Queries that read nothing get zeros. Differentiable by
/// the formula's gradient.
at::Tensor fused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const AttentionContext& context);

}  // namespace trireme::sp
