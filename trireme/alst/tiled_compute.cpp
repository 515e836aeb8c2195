#include "trireme/alst/tiled_compute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "trireme/alst/captured_gradients.h"
#include "trireme/alst/replay_state.h"
#include "trireme/alst/tile_gradients.h"
#include "trireme/core/capsule.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Plan {
  TileFunction function;
  DefinedInputs defined;
  Cut cut;
  std::vector<Combine> combine;
  bool is_agreed;  // do other ranks run it with this one?
  Anchor anchor;
};

std::vector<CombinedOutput> outputs_of(const std::vector<Combine>& combine, const Cut& cut, size_t count) {
  core::check_value(combine.size() == 1 || combine.size() == count,
                    "[alst] how to combine outputs is said once, or for each of them; got ", combine.size(),
                    " ways for ", count, " outputs");
  std::vector<CombinedOutput> outputs;
  for (size_t i = 0; i < count; ++i) outputs.emplace_back(combine[combine.size() == 1 ? 0 : i], cut);
  return outputs;
}

void check_count(size_t count, size_t expected) {
  core::check_value(count == expected, "[alst] a function must return as many outputs for each tile; got ",
                    count, " after ", expected);
}

std::vector<CombinedOutput> run_tiles(const TileFunction& function, const TileInputs& inputs, const Cut& cut,
                                      const std::vector<Combine>& combine) {
  OwnCasts casts;
  std::vector<CombinedOutput> outputs;
  for (int64_t tile = 0; tile < cut.tiles; ++tile) {
    const auto parts = function(inputs_of_tile(inputs, cut, tile));
    if (tile == 0) outputs = outputs_of(combine, cut, parts.size());
    check_count(parts.size(), outputs.size());
    for (size_t i = 0; i < parts.size(); ++i) outputs[i].add(parts[i]);
  }
  return outputs;
}

variable_list taken(std::vector<CombinedOutput>& outputs) {
  variable_list result;
  for (auto& output : outputs) result.push_back(output.take());
  return result;
}

struct TiledCompute : Function<TiledCompute> {
  struct Saved {
    Plan plan;
    ReplayState start;
    std::vector<CombinedOutput> outputs;
    size_t inputs;
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& anchor, at::TensorList defined,
                               at::TensorList parameters, const Plan& plan) {
    Saved saved{plan, ReplayState(anchor.device()), {}, defined.size()};
    saved.outputs = run_tiles(plan.function, plan.defined.restored(defined), plan.cut, plan.combine);
    auto result = taken(saved.outputs);
    variable_list to_save(defined.begin(), defined.end());
    to_save.insert(to_save.end(), parameters.begin(), parameters.end());
    ctx->save_for_backward(to_save);
    ctx->saved_data["saved"] = core::to_capsule(std::move(saved));
    // Ranks that agree on tiles run them alike, though an output of one of them may be used by no loss.
    ctx->set_materialize_grads(plan.is_agreed);
    return result;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    core::check_value(!at::GradMode::is_enabled(),
                      "[alst] a tiled function has no second derivative; got create_graph");
    const auto& [plan, start, outputs, count] = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    const auto all = ctx->get_saved_variables();
    const auto given = variable_list(all.begin() + int64_t(count), all.end());
    const auto wanted = [&](size_t first, size_t number) {  // of the inputs of this node
      std::vector<bool> flags;
      for (size_t i = first; i < first + number; ++i) flags.push_back(ctx->needs_input_grad(i));
      return flags;
    };
    const auto captured =
        std::make_shared<CapturedGradients>(given, wanted(1 + count, given.size()), ctx->needs_input_grad(0));
    TileGradients gradients(plan.defined.restored(all), plan.cut, wanted(1, count), captured);
    ReplayState state = start;
    for (int64_t tile = 0; tile < plan.cut.tiles; ++tile)
      gradients.add_tile(
          [&](const TileInputs& inputs) {
            Replay replay(state);
            auto parts = plan.function(inputs);
            check_count(parts.size(), outputs.size());
            return parts;
          },
          [&](size_t index, const Tensor&) {
            return upstream[index].defined() ? outputs[index].gradient_of_part(upstream[index], tile)
                                             : Tensor();
          });
    variable_list result{Tensor()};
    for (auto& gradient : gradients.take()) result.push_back(std::move(gradient));
    for (size_t i = 0; i < given.size(); ++i) result.push_back(captured->take(i));
    captured->hand_over(plan.anchor.outer());
    result.emplace_back();
    return result;
  }
};

}  // namespace

std::vector<Tensor> tiled_compute(const TileFunction& function, const TileInputs& inputs,
                                  const Tiling& tiling, const std::vector<Combine>& combine) {
  const Cut cut = cut_of(inputs, tiling);
  if (!at::GradMode::is_enabled()) {
    auto outputs = run_tiles(function, inputs, cut, combine);
    return taken(outputs);
  }
  const bool is_agreed = tiling.group && tiling.group->size() > 1;
  Plan plan{function, DefinedInputs(inputs), cut, combine, is_agreed, Anchor(device_of(inputs))};
  return TiledCompute::apply(plan.anchor.tensor(), at::TensorList(DefinedInputs::flat(inputs)),
                             at::TensorList(requiring_gradient(tiling.parameters)), plan);
}

}  // namespace trireme::alst
