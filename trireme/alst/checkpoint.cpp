#include "trireme/alst/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "trireme/alst/captured_gradients.h"
#include "trireme/alst/replay_state.h"
#include "trireme/alst/tile_inputs.h"
#include "trireme/core/capsule.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Plan {
  Region region;
  std::shared_ptr<Keeper> keeper;
  DefinedInputs defined;
  Anchor anchor;
};

struct Checkpoint : Function<Checkpoint> {
  struct Saved {
    Plan plan;
    ReplayState start;
    std::vector<bool> trained;  // which of the defined inputs require a gradient
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& anchor, at::TensorList inputs,
                               const Plan& plan) {
    Saved saved{plan, ReplayState(anchor.device()), {}};
    for (const auto& input : inputs) saved.trained.push_back(input.requires_grad());
    OwnCasts casts;
    Kept kept;
    auto outputs = plan.region(plan.defined.restored(inputs).whole, kept);
    if (plan.keeper) {
      // An output that is kept would hold the graph, which holds it.
      for (auto& tensor : kept.tensors)
        if (tensor.defined()) tensor = tensor.detach();
      ctx->save_for_backward({core::to_owning_tensor(plan.keeper->keep(inputs.vec(), kept.tensors))});
    } else {
      variable_list to_save(inputs.begin(), inputs.end());
      to_save.insert(to_save.end(), kept.tensors.begin(), kept.tensors.end());
      ctx->save_for_backward(to_save);
    }
    ctx->saved_data["saved"] = core::to_capsule(std::move(saved));
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& saved = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    auto all = ctx->get_saved_variables();
    if (saved.plan.keeper) all = core::from_owning_tensor<KeptTensors>(all[0]).get();
    variable_list inputs;
    for (size_t i = 0; i < saved.trained.size(); ++i)
      inputs.push_back(all[i].detach().requires_grad_(saved.trained[i]));
    Kept kept{.replaying = true, .tensors = {all.begin() + int64_t(saved.trained.size()), all.end()}};
    all.clear();
    variable_list outputs;
    const GraphMark start;
    {
      ReplayState state = saved.start;
      Replay replay(state);
      at::AutoGradMode with_graph(true);  // a backward function starts without
      outputs = saved.plan.region(saved.plan.defined.restored(inputs).whole, kept);
    }
    core::check_internal(outputs.size() == gradients.size(),
                         "[alst] a region must return as many outputs when replayed; got ", outputs.size(),
                         " for ", gradients.size());
    variable_list roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad()) continue;
      roots.push_back(std::move(outputs[i]));
      root_gradients.push_back(std::move(gradients[i]));
    }
    kept.tensors.clear();
    if (auto* outer = saved.plan.anchor.outer())
      outer->backward(std::move(roots), root_gradients, inputs, start);
    else if (!roots.empty())
      torch::autograd::backward(roots, root_gradients);
    variable_list result{Tensor()};
    for (auto& input : inputs) result.push_back(input.grad());
    result.emplace_back();
    return result;
  }
};

}  // namespace

std::vector<Tensor> checkpoint(const Region& region, const std::vector<Tensor>& inputs,
                               const std::shared_ptr<Keeper>& keeper) {
  if (!at::GradMode::is_enabled()) {
    Kept kept;
    return region(inputs, kept);
  }
  const TileInputs all{.tiled = {}, .whole = inputs};
  const variable_list defined = DefinedInputs::flat(all);
  const Plan plan{region, keeper, DefinedInputs(all), Anchor(device_of(all))};
  return Checkpoint::apply(plan.anchor.tensor(), at::TensorList(defined), plan);
}

}  // namespace trireme::alst
