// How often a parameter's hooks are called.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace trireme::tests {

/// Counts the gradients that arrive at a leaf, and how often it is told that one has been accumulated.
struct Arrivals {
  int gradients = 0, accumulations = 0;
};

namespace detail {

class CountAccumulations : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit CountAccumulations(std::shared_ptr<Arrivals> counts) : counts_(std::move(counts)) {}
  void operator()(const at::Tensor&) override { ++counts_->accumulations; }

 private:
  std::shared_ptr<Arrivals> counts_;
};

}  // namespace detail

/// Watches `leaf` from now on.
inline std::shared_ptr<const Arrivals> arrivals_at(const at::Tensor& leaf) {
  auto counts = std::make_shared<Arrivals>();
  leaf.register_hook([counts](const at::Tensor&) { ++counts->gradients; });
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<detail::CountAccumulations>(counts));
  return counts;
}

}  // namespace trireme::tests
