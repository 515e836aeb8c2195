#include "trireme/alst/fused_logits_loss.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trireme/alst/add_product.h"
#include "trireme/alst/cross_entropy.h"
#include "trireme/alst/labels.h"
#include "trireme/alst/replay_state.h"
#include "trireme/alst/scale_gradients.h"
#include "trireme/alst/tiles.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct FusedLogitsLoss : Function<FusedLogitsLoss> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& head, const Tensor& labels,
                        double scale, int64_t tiles, const LossOptions& options) {
    const auto dtype = hidden.scalar_type(), wide = at::promoteTypes(dtype, at::kFloat);
    const AutocastOff exact(hidden.device());
    const bool for_hidden = hidden.requires_grad(), for_head = head.requires_grad();
    Tensor total = at::zeros({}, hidden.options().dtype(wide).requires_grad(false));
    Tensor grad_hidden, grad_head;
    if (for_hidden) grad_hidden = at::empty_like(hidden);
    if (for_head) grad_head = at::zeros(head.sizes(), total.options());
    each_tile(hidden.size(0), tiles, [&](int64_t first, int64_t count) {
      const Tensor h = hidden.narrow(0, first, count);
      const Tensor logits = at::mm(h, head.t());
      total.add_(cross_entropy_(logits, labels.narrow(0, first, count), for_hidden || for_head, options));
      const Tensor& grad_logits = logits;  // what they have become
      if (for_hidden) {
        Tensor place = grad_hidden.narrow(0, first, count);
        at::addmm_out(place, place, grad_logits, head, /*beta=*/0, /*alpha=*/scale);
      }
      if (for_head) add_product(grad_head, grad_logits.t(), h, scale);
    });
    if (for_head) grad_head = grad_head.to(dtype);
    ctx->save_for_backward({grad_hidden, grad_head});
    return total.mul_(scale);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    core::check_value(!at::GradMode::is_enabled(),
                      "[alst] the loss has no second derivative; got create_graph");
    const auto formed = scaled_gradients(ctx->get_saved_variables(), gradients[0]);
    return {formed[0], formed[1], Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor fused_logits_loss(const Tensor& hidden, const Tensor& head, const Tensor& labels, double scale,
                         int64_t tiles, const LossOptions& options) {
  check_logits_of(hidden, head, labels, "the loss");
  // Without a graph nothing asks for gradients, whatever the tensors require.
  const bool with_graph = at::GradMode::is_enabled();
  return FusedLogitsLoss::apply(with_graph ? hidden : hidden.detach(), with_graph ? head : head.detach(),
                                labels, scale, tiles, options);
}

}  // namespace trireme::alst
