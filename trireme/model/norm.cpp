#include "trireme/model/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme::model {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::ScalarType wide(const Tensor& t) { return at::promoteTypes(t.scalar_type(), at::kFloat); }

struct RootMeanSquareNorm : Function<RootMeanSquareNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double epsilon) {
    Tensor inverse =
        at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, /*keepdim=*/true, wide(x));  // [..., 1]
    inverse.square_().div_(double(x.size(-1))).add_(epsilon).rsqrt_();
    ctx->save_for_backward({x, weight, inverse});
    return x.mul(inverse).to(x.scalar_type()).mul_(weight);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &inverse = saved[2];
    const Tensor& upstream = gradients[0];
    Tensor normalized = x * inverse;  // in fp32 at least, as everything below
    Tensor grad_weight;
    if (ctx->needs_input_grad(1)) {
      Tensor products = (upstream * normalized).reshape({-1, x.size(-1)});
      grad_weight = products.sum(0, /*keepdim=*/false, wide(x)).to(weight.scalar_type());
    }
    Tensor grad_normalized = upstream.to(wide(x)) * weight;
    Tensor mean = (grad_normalized * normalized).mean(-1, /*keepdim=*/true);
    Tensor grad_x = grad_normalized.sub_(normalized.mul_(mean)).mul_(inverse);
    return {grad_x.to(x.scalar_type()), grad_weight, Tensor()};
  }
};

}  // namespace

Tensor root_mean_square_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  return RootMeanSquareNorm::apply(x, weight, epsilon);
}

}  // namespace trireme::model
