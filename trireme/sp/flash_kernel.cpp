#include "trireme/sp/flash_kernel.h"

#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>

#include "trireme/core/check.h"

namespace trireme::sp {
namespace {

using at::Tensor;

// ATen's kernels take [b, heads, tokens, D] with any strides.
Tensor heads_first(const Tensor& t) { return t.transpose(1, 2); }

// The CUDA kernel knows no grouped heads: each key/value head is repeated for its readers, and gradients are
// summed.
Tensor repeat_heads(const Tensor& t, int64_t heads) {  // [b, n, k, D] -> [b, n, heads, D]
  if (t.size(2) == heads) return t;
  const int64_t readers = heads / t.size(2);
  return t.unsqueeze(3)
      .expand({t.size(0), t.size(1), t.size(2), readers, t.size(3)})
      .reshape({t.size(0), t.size(1), heads, t.size(3)});
}

Tensor sum_repeated(const Tensor& t, int64_t heads) {  // [b, n, h, D] -> [b, n, heads, D]
  if (t.size(2) == heads) return t;
  return t.reshape({t.size(0), t.size(1), heads, t.size(2) / heads, t.size(3)}).sum(3);
}

// The CUDA kernel reads biases per row and head.
std::optional<Tensor> expanded_bias(const FlashMask& mask, const Tensor& query) {
  if (!mask.bias) return std::nullopt;
  return mask.bias->expand({query.size(0), query.size(2), mask.bias->size(0), mask.bias->size(1)});
}

void check_device(const Tensor& query) {
  core::check_value(query.is_cpu() || query.is_cuda(),
                    "[sp] fused attention runs on CPU and CUDA; got a tensor on ", query.device(),
                    "; give DistributedAttention a local attention of your own");
}

}  // namespace

FlashOutput flash_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                          const FlashMask& mask) {
  check_device(query);
  if (query.is_cpu()) {
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        heads_first(query), heads_first(key), heads_first(value), /*dropout_p=*/0.0, mask.causal, mask.bias);
    return {heads_first(output), logsumexp.transpose(1, 2)};
  }
  const int64_t heads = query.size(2);
  auto [output, logsumexp, seed, offset] = at::_scaled_dot_product_efficient_attention(
      heads_first(query), heads_first(repeat_heads(key, heads)), heads_first(repeat_heads(value, heads)),
      expanded_bias(mask, query), /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, mask.causal);
  // The kernel pads its log-sum-exp to a multiple of 32 queries.
  return {heads_first(output), logsumexp.narrow(2, 0, query.size(1)).transpose(1, 2)};
}

FlashGradients flash_backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                              const Tensor& value, const FlashOutput& forward, const FlashMask& mask) {
  check_device(query);
  if (query.is_cpu()) {
    auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        heads_first(grad_output), heads_first(query), heads_first(key), heads_first(value),
        heads_first(forward.output), forward.logsumexp.transpose(1, 2), /*dropout_p=*/0.0, mask.causal,
        mask.bias);
    return {heads_first(grad_query), heads_first(grad_key), heads_first(grad_value)};
  }
  const int64_t heads = query.size(2), queries = query.size(1), padded = (queries + 31) / 32 * 32;
  Tensor logsumexp = at::empty({query.size(0), heads, padded}, forward.logsumexp.options());
  logsumexp.narrow(2, 0, queries).copy_(forward.logsumexp.transpose(1, 2));
  const Tensor no_dropout = at::empty({}, at::TensorOptions(at::kLong));
  auto [grad_query, grad_key, grad_value, grad_bias] = at::_scaled_dot_product_efficient_attention_backward(
      heads_first(grad_output), heads_first(query), heads_first(repeat_heads(key, heads)),
      heads_first(repeat_heads(value, heads)), expanded_bias(mask, query).value_or(Tensor()),
      heads_first(forward.output), logsumexp, no_dropout, no_dropout, /*dropout_p=*/0.0,
      {true, true, true, false}, mask.causal);
  return {heads_first(grad_query), sum_repeated(heads_first(grad_key), key.size(2)),
          sum_repeated(heads_first(grad_value), value.size(2))};
}

}  // namespace trireme::sp
