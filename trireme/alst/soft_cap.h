// The soft cap of logits, by ATen's operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tanh.h>

namespace trireme::alst {

/// soft_cap tanh(logits / soft_cap), computed in fp32 at least, in the dtype of `logits`, of any shape;
/// `logits` itself where soft_cap is 0. Gemma 2, arXiv:2408.00118, section 2. Autograd sees each operator.
inline at::Tensor soft_capped(const at::Tensor& logits, double soft_cap) {
  if (soft_cap == 0) return logits;
  const auto dtype = logits.scalar_type();
  return at::tanh(logits.to(at::promoteTypes(dtype, at::kFloat)).div(soft_cap)).mul(soft_cap).to(dtype);
}

}  // namespace trireme::alst
