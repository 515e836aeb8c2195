#include "trireme/alst/tiled_loss.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "trireme/alst/captured_gradients.h"
#include "trireme/alst/replay_state.h"
#include "trireme/alst/scale_gradients.h"
#include "trireme/alst/tile_gradients.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// A value and its gradients.
struct Formed {
  Tensor value;
  variable_list gradients;
};

struct WithGradients : Function<WithGradients> {
  static Tensor forward(AutogradContext* ctx, at::TensorList /*inputs*/, const Formed& formed) {
    ctx->save_for_backward(formed.gradients);
    return formed.value;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    core::check_value(!at::GradMode::is_enabled(),
                      "[alst] a tiled loss has no second derivative; got create_graph");
    auto result = scaled_gradients(ctx->get_saved_variables(), upstream[0]);
    result.emplace_back();
    return result;
  }
};

Tensor checked(const Tensor& loss) {
  core::check_value(loss.defined() && loss.dim() == 0 && at::isFloatingType(loss.scalar_type()),
                    "[alst] the loss of a tile must be a floating scalar; got ",
                    loss.defined() ? loss.sizes() : at::IntArrayRef(), "; reduce it inside the function");
  return loss;
}

}  // namespace

Tensor tiled_loss(const TileLoss& loss, const TileInputs& inputs, const Tiling& tiling,
                  const Combine& combine) {
  core::check_value(combine.kind != Combine::Kind::concatenate,
                    "[alst] a tiled loss is a sum or a mean; got concatenate; use tiled_compute");
  const Cut cut = cut_of(inputs, tiling);
  CombinedOutput value(combine, cut);
  if (!at::GradMode::is_enabled()) {
    OwnCasts casts;
    for (int64_t tile = 0; tile < cut.tiles; ++tile)
      value.add(checked(loss(inputs_of_tile(inputs, cut, tile))));
    return value.take();
  }
  const variable_list defined = DefinedInputs::flat(inputs), given = requiring_gradient(tiling.parameters);
  std::vector<bool> wanted;
  for (const auto& input : defined) wanted.push_back(input.requires_grad());
  const auto captured = std::make_shared<CapturedGradients>(given, std::vector<bool>(given.size(), true),
                                                            /*found_wanted=*/true);
  TileGradients gradients(inputs, cut, wanted, captured);
  for (int64_t tile = 0; tile < cut.tiles; ++tile)
    gradients.add_tile(
        [&](const TileInputs& leaves) -> variable_list {
          Tensor part = checked(loss(leaves));
          value.add(part.detach());
          return {std::move(part)};
        },
        [&](size_t, const Tensor& part) { return value.gradient_of_part(at::ones_like(part), tile); });
  // Leaves that were found are known by now: edges lead to them too.
  variable_list into = defined;
  Formed formed{value.take(), gradients.take()};
  for (size_t i = 0; i < captured->size(); ++i) {
    into.push_back(captured->tensor(i));
    formed.gradients.push_back(captured->take(i));
  }
  return WithGradients::apply(at::TensorList(into), formed);
}

}  // namespace trireme::alst
