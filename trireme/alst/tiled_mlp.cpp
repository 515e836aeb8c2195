#include "trireme/alst/tiled_mlp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "trireme/alst/captured_gradients.h"
#include "trireme/alst/gradient_sums.h"
#include "trireme/alst/replay_state.h"
#include "trireme/alst/tile_inputs.h"
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
    const AutocastOff exact(x.device());
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
    const variable_list inner(all.begin() + 1, all.end() - 1), given = requiring_gradient(inner);
    const Tensor &down = all.back(), &grad_output = gradients[0];
    const auto captured = std::make_shared<CapturedGradients>(given, std::vector<bool>(given.size(), true),
                                                              /*found_wanted=*/false);
    const AutocastOff exact(x.device());
    Tensor grad_x = at::empty_like(x);
    GradientSums grad_down(1);
    each_tile(x.size(0), saved.tiles, [&](int64_t first, int64_t count) {
      const Tensor tile = x.narrow(0, first, count).detach().requires_grad_(true),
                   grad_tile = grad_output.narrow(0, first, count);
      const GraphMark start;
      Tensor activated;
      {
        at::AutoGradMode with_graph(true);
        activated = saved.activated(tile);
      }
      const Tensor grad_activated = at::mm(grad_tile, down);
      if (down.requires_grad()) grad_down.add_product(0, grad_tile.t(), activated.detach());
      captured->backward({std::move(activated)}, {grad_activated}, {tile}, start);
      Tensor place = grad_x.narrow(0, first, count);
      at::add_out(place, tile.grad(), grad_tile);
    });
    variable_list result{grad_x};
    size_t next = 0;  // of those given
    for (const auto& weight : inner)
      result.push_back(weight.requires_grad() ? captured->take(next++) : Tensor());
    result.push_back(grad_down.take(0, down.scalar_type()));
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
