// Gradients that were formed forward, times the upstream gradient that the backward pass brings.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>

#include <vector>

namespace trireme::alst {

/// Multiplies each gradient that is defined by `upstream`, a scalar, which is not rounded to their dtype
/// first.
inline std::vector<at::Tensor> scaled_gradients(std::vector<at::Tensor> formed, const at::Tensor& upstream) {
  // On a host the common factor of 1 is seen for free; elsewhere looking would stall the device.
  if (upstream.is_cpu() && upstream.item<double>() == 1) return formed;
  for (auto& gradient : formed)
    if (gradient.defined()) gradient = gradient.mul(upstream).to(gradient.scalar_type());
  return formed;
}

}  // namespace trireme::alst
