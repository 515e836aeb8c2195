// The fused attention kernels that ATen has for each device, under one pair of functions.
//   b rows, h query heads, k key/value heads (k divides h), q queries, n keys, D head size.
// FlashAttention-2, arXiv:2307.08691: no [q, n] tensor, only the log-sum-exp of each query's scores is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace trireme::sp {

struct FlashMask {
  bool causal = false;             ///< queries and keys are the same tokens; each reads what is not after it
  std::optional<at::Tensor> bias;  ///< [q, n], added to the scores; not together with `causal`
};

struct FlashOutput {
  at::Tensor output;     ///< [b, q, h, D]
  at::Tensor logsumexp;  ///< [b, q, h], fp32 at least
};

struct FlashGradients {
  at::Tensor query, key, value;  ///< like the inputs
};

/// softmax(query key^T / sqrt(D) + mask) value, for query [b, q, h, D], key and value [b, n, k, D], any
/// strides whose last is 1. Every query must read at least one key. CPU: fp64, fp32, bf16; CUDA: fp32, bf16.
FlashOutput flash_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const FlashMask& mask);

/// Gradients of the sum of `grad_output` * output, given what `flash_forward` returned.
FlashGradients flash_backward(const at::Tensor& grad_output, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const FlashOutput& forward, const FlashMask& mask);

}  // namespace trireme::sp
