#include "trireme/alst/tiled_mlp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trireme/alst/gradient_sums.h"
#include "trireme/alst/tiles.h"
#include "trireme/core/capsule.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct TiledMlp : Function<TiledMlp> {
  struct Saved {
    std::function<Tensor(const Tensor&)> activated;
    int64_t tiles;
  };

  // `weights`: the parameters of `activated`, then down.
  static Tensor forward(AutogradContext* ctx, const Tensor& x, at::TensorList weights, const Saved& saved,
                        bool value_needed) {
    variable_list to_save{x};
    to_save.insert(to_save.end(), weights.begin(), weights.end());
    ctx->save_for_backward(to_save);
    ctx->saved_data["saved"] = core::to_capsule(saved);
    if (!value_needed) return at::empty({}, x.options().requires_grad(false)).expand(x.sizes());
    Tensor output = at::empty_like(x);
    const Tensor down = weights.back().t();
    each_tile(x.size(0), saved.tiles, [&](int64_t first, int64_t count) {
      Tensor place = output.narrow(0, first, count), tile = x.narrow(0, first, count);
      at::addmm_out(place, tile, saved.activated(tile), down);
    });
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& saved = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    const auto all = ctx->get_saved_variables();
    const Tensor x = all[0].detach();
    const variable_list weights(all.begin() + 1, all.end());
    const size_t inner = weights.size() - 1;
    const Tensor& grad_output = gradients[0];
    Tensor grad_x = at::empty_like(x);
    GradientSums sums(weights.size());
    each_tile(x.size(0), saved.tiles, [&](int64_t first, int64_t count) {
      Tensor tile = x.narrow(0, first, count).detach().requires_grad_(true), activated;
      const Tensor grad_tile = grad_output.narrow(0, first, count);
      {
        at::AutoGradMode with_graph(true);
        activated = saved.activated(tile);
      }
      Tensor grad_activated = at::mm(grad_tile, weights[inner]);
      if (weights[inner].requires_grad()) sums.add_product(inner, grad_tile.t(), activated.detach());
      variable_list wanted{tile};
      std::vector<size_t> indices;
      for (size_t i = 0; i < inner; ++i)
        if (weights[i].requires_grad()) {
          wanted.push_back(weights[i]);
          indices.push_back(i);
        }
      auto found = torch::autograd::grad({activated}, wanted, {grad_activated}, /*retain_graph=*/false,
                                         /*create_graph=*/false, /*allow_unused=*/true);
      Tensor place = grad_x.narrow(0, first, count);
      at::add_out(place, found[0], grad_tile);
      for (size_t i = 0; i < indices.size(); ++i) sums.add(indices[i], std::move(found[i + 1]));
    });
    variable_list result{grad_x};
    for (size_t i = 0; i < weights.size(); ++i) result.push_back(sums.take(i, weights[i].scalar_type()));
    result.resize(result.size() + 2);
    return result;
  }
};

}  // namespace

Tensor tiled_mlp(const Tensor& x, const Mlp& mlp, int64_t tiles, bool value_needed) {
  variable_list weights = mlp.parameters;
  weights.push_back(mlp.down);
  return TiledMlp::apply(x, at::TensorList(weights), TiledMlp::Saved{mlp.activated, tiles}, value_needed);
}

}  // namespace trireme::alst
