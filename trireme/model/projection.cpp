#include "trireme/model/projection.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

namespace trireme::model {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Projection : Function<Projection> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    return bias ? at::addmm(*bias, x, weight.t()) : at::mm(x, weight.t());
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor& upstream = gradients[0];
    Tensor grad_x, grad_weight, grad_bias;
    if (ctx->needs_input_grad(0)) grad_x = at::mm(upstream, saved[1]);
    if (ctx->needs_input_grad(1)) grad_weight = at::mm(upstream.t(), saved[0]);
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2))
      grad_bias = upstream.sum(0, /*keepdim=*/false, at::promoteTypes(upstream.scalar_type(), at::kFloat))
                      .to(upstream.scalar_type());
    return {grad_x, grad_weight, grad_bias};
  }
};

struct GatedSilu : Function<GatedSilu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_up) {
    ctx->save_for_backward({gate_up});
    const auto half = gate_up.chunk(2, -1);
    return at::silu(half[0]).mul_(half[1]);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const Tensor gate_up = ctx->get_saved_variables()[0];
    const auto half = gate_up.chunk(2, -1);
    Tensor gradient = at::empty_like(gate_up);
    auto out = gradient.chunk(2, -1);
    at::silu_out(out[1], half[0]);
    out[1].mul_(gradients[0]);
    at::silu_backward_out(out[0], gradients[0].mul(half[1]), half[0]);
    return {gradient};
  }
};

struct Embedding : Function<Embedding> {
  static Tensor forward(AutogradContext* ctx, const Tensor& tokens, const Tensor& weight,
                        int64_t padding_token) {
    ctx->save_for_backward({tokens});
    ctx->saved_data["rows"] = weight.size(0);
    ctx->saved_data["padding"] = padding_token;
    return at::embedding(weight, tokens);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto dtype = gradients[0].scalar_type();
    Tensor gradient = at::embedding_dense_backward(
        gradients[0].to(at::promoteTypes(dtype, at::kFloat)), ctx->get_saved_variables()[0],
        ctx->saved_data["rows"].toInt(), ctx->saved_data["padding"].toInt(), /*scale_grad_by_freq=*/false);
    return {Tensor(), gradient.to(dtype), Tensor()};
  }
};

}  // namespace

Tensor project(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return Projection::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

Tensor gated_silu(const Tensor& gate_up) { return GatedSilu::apply(gate_up); }

Tensor embed(const Tensor& tokens, const Tensor& weight, int64_t padding_token) {
  return Embedding::apply(tokens, weight, padding_token);
}

}  // namespace trireme::model
