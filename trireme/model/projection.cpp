#include "trireme/model/projection.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "trireme/core/host_kernel.h"
#include "trireme/model/gated_silu_kernel.h"
#include "trireme/model/norm.h"

namespace trireme::model {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Tensor product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return bias ? at::addmm(*bias, x, weight.t()) : at::mm(x, weight.t());
}

Tensor bias_gradient(const Tensor& upstream) {
  const auto dtype = upstream.scalar_type();
  return upstream.sum(0, /*keepdim=*/false, at::promoteTypes(dtype, at::kFloat)).to(dtype);
}

struct Projection : Function<Projection> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    return product(x, weight, bias);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor& upstream = gradients[0];
    Tensor grad_x, grad_weight, grad_bias;
    if (ctx->needs_input_grad(0)) grad_x = at::mm(upstream, saved[1]);
    if (ctx->needs_input_grad(1)) grad_weight = at::mm(upstream.t(), saved[0]);
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) grad_bias = bias_gradient(upstream);
    return {grad_x, grad_weight, grad_bias};
  }
};

struct NormalizedProjection : Function<NormalizedProjection> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& norm_weight, double epsilon,
                        const Tensor& weight, const std::optional<Tensor>& bias) {
    const auto normalized = normalize(x, norm_weight, epsilon);
    ctx->save_for_backward({x, norm_weight, normalized.inverse, weight});
    ctx->saved_data["epsilon"] = epsilon;
    ctx->saved_data["bias"] = bias.has_value();
    return product(normalized.output, weight, bias);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &norm_weight = saved[1], &upstream = gradients[0];
    Tensor grad_weight, grad_bias;
    if (ctx->needs_input_grad(2))
      grad_weight =
          at::mm(upstream.t(), normalize(x, norm_weight, ctx->saved_data["epsilon"].toDouble()).output);
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(3)) grad_bias = bias_gradient(upstream);
    NormGradients inner;
    if (ctx->needs_input_grad(0) || ctx->needs_input_grad(1))
      inner =
          normalize_backward(at::mm(upstream, saved[3]), x, norm_weight, saved[2], ctx->needs_input_grad(1));
    return {inner.x, inner.weight, Tensor(), grad_weight, grad_bias};
  }
};

bool has_kernel(const Tensor& gate_up) {
  return core::has_host_kernel(gate_up) && gate_up.dim() == 2 && gate_up.is_contiguous();
}

template <class T>
Tensor gate(const Tensor& gate_up) {
  const int64_t I = gate_up.size(1) / 2;
  Tensor output = at::empty({gate_up.size(0), I}, gate_up.options().requires_grad(false));
  const T* from = gate_up.const_data_ptr<T>();
  T* to = output.mutable_data_ptr<T>();
  core::parallel_rows(gate_up.size(0), 2 * I, [&](int64_t first, int64_t count) {
    gated_silu_rows(from + first * 2 * I, count, I, to + first * I);
  });
  return output;
}

template <class T>
Tensor gate_backward(const Tensor& upstream, const Tensor& gate_up) {
  const int64_t I = gate_up.size(1) / 2;
  Tensor gradient = at::empty_like(gate_up);
  const T *up = upstream.const_data_ptr<T>(), *from = gate_up.const_data_ptr<T>();
  T* to = gradient.mutable_data_ptr<T>();
  core::parallel_rows(gate_up.size(0), 2 * I, [&](int64_t first, int64_t count) {
    gated_silu_rows_backward(up + first * I, from + first * 2 * I, count, I, to + first * 2 * I);
  });
  return gradient;
}

Tensor apply_gate(const Tensor& gate_up) {
  if (has_kernel(gate_up))
    return core::with_element_type(gate_up, [&]<class T>(std::type_identity<T>) { return gate<T>(gate_up); });
  const auto half = gate_up.chunk(2, -1);
  return at::silu(half[0]).mul_(half[1]);
}

Tensor apply_gate_backward(const Tensor& upstream, const Tensor& gate_up) {
  if (has_kernel(gate_up)) {
    return core::with_element_type(gate_up, [&]<class T>(std::type_identity<T>) {
      return gate_backward<T>(upstream.contiguous(), gate_up);
    });
  }
  const auto half = gate_up.chunk(2, -1);
  Tensor gradient = at::empty_like(gate_up);
  auto out = gradient.chunk(2, -1);
  at::silu_out(out[1], half[0]);
  out[1].mul_(upstream);
  at::silu_backward_out(out[0], upstream.mul(half[1]), half[0]);
  return gradient;
}

struct GatedSilu : Function<GatedSilu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_up) {
    ctx->save_for_backward({gate_up});
    return apply_gate(gate_up);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    return {apply_gate_backward(gradients[0], ctx->get_saved_variables()[0])};
  }
};

struct GatedProjection : Function<GatedProjection> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_up, const Tensor& down) {
    ctx->save_for_backward({gate_up, down});
    return at::mm(apply_gate(gate_up), down.t());
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &gate_up = saved[0], &down = saved[1], &upstream = gradients[0];
    Tensor grad_gate_up, grad_down;
    if (ctx->needs_input_grad(1)) grad_down = at::mm(upstream.t(), apply_gate(gate_up));
    if (ctx->needs_input_grad(0)) grad_gate_up = apply_gate_backward(at::mm(upstream, down), gate_up);
    return {grad_gate_up, grad_down};
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

Tensor project_normalized(const Tensor& x, const Tensor& norm_weight, double epsilon, const Tensor& weight,
                          const Tensor& bias) {
  return NormalizedProjection::apply(x, norm_weight, epsilon, weight,
                                     bias.defined() ? std::optional(bias) : std::nullopt);
}

Tensor project_gated(const Tensor& gate_up, const Tensor& down) {
  return GatedProjection::apply(gate_up, down);
}

Tensor gated_silu(const Tensor& gate_up) { return GatedSilu::apply(gate_up); }

Tensor embed(const Tensor& tokens, const Tensor& weight, int64_t padding_token) {
  return Embedding::apply(tokens, weight, padding_token);
}

}  // namespace trireme::model
