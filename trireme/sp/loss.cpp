#include "trireme/sp/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace trireme::sp {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct WeightedLoss : Function<WeightedLoss> {
  static Tensor forward(AutogradContext* ctx, const Tensor& mean, int64_t count, const comm::Group& group) {
    Tensor share =
        count > 0 ? mean.detach().to(at::kDouble) * double(count) : at::zeros_like(mean, at::kDouble);
    Tensor sums = at::stack({share, at::full_like(share, double(count))});
    group.all_reduce(sums, "the weighted loss");
    Tensor total = sums[1].clamp_min(1);
    ctx->saved_data["weight"] = double(count) / total.item<double>();
    return (sums[0] / total).to(mean.scalar_type());
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    return {gradients[0] * ctx->saved_data["weight"].toDouble(), Tensor(), Tensor()};
  }
};

}  // namespace

int64_t count_targets(const Tensor& labels, const comm::Group& group) {
  return group.all_reduce(labels.ne(-100).sum(), "the number of targets").item<int64_t>();
}

Tensor weighted_loss(const Tensor& mean, int64_t count, const comm::Group& group) {
  return WeightedLoss::apply(mean, count, group);
}

}  // namespace trireme::sp
