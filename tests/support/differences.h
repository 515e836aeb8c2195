// How far a tensor is from its reference.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme::tests {

/// The largest difference over the largest magnitude of the reference; both compared in fp64.
inline double relative_difference(const at::Tensor& actual, const at::Tensor& reference) {
  const at::Tensor exact = reference.detach().to(at::kDouble);
  const double scale = exact.abs().max().item<double>();
  return (actual.detach().to(at::kDouble) - exact).abs().max().item<double>() / std::max(scale, 1e-30);
}

}  // namespace trireme::tests
