// How far a tensor is from its reference, and gradients by differences.
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

/// The gradient of `function`, from a tensor like `x` to a number, by central differences. `x` is fp64 and
/// dense; the error is about 1e-9 where values and derivatives are of the order of 1.
template <class Function>
at::Tensor numerical_gradient(const Function& function, const at::Tensor& x) {
  constexpr double kStep = 1e-5;
  const at::Tensor place = x.detach().clone(), flat = place.view({-1});
  at::Tensor gradient = at::empty_like(flat);
  auto* element = flat.mutable_data_ptr<double>();
  auto* slope = gradient.mutable_data_ptr<double>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const double here = element[i];
    element[i] = here + kStep;
    const double above = function(place);
    element[i] = here - kStep;
    slope[i] = (above - function(place)) / (2 * kStep);
    element[i] = here;
  }
  return gradient.view(x.sizes());
}

}  // namespace trireme::tests
