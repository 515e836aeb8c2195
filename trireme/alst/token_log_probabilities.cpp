#include "trireme/alst/token_log_probabilities.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trireme/alst/add_product.h"
#include "trireme/alst/cross_entropy_kernel.h"
#include "trireme/alst/labels.h"
#include "trireme/alst/loss_options.h"
#include "trireme/alst/replay_state.h"
#include "trireme/alst/soft_cap.h"
#include "trireme/alst/tiles.h"
#include "trireme/core/check.h"
#include "trireme/core/host_kernel.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Of a tile of n tokens.
struct Targets {
  Tensor labels;    // [n]
  Tensor log_sums;  // [n], in fp32 at least
  double soft_cap;
};

// Writes the log probabilities of the labels to `values` [n], and `targets.log_sums`.
void find_values(const Tensor& logits, const Targets& targets, Tensor values) {
  if (core::has_host_kernel(logits)) {
    core::with_element_type(logits, [&]<class T>(std::type_identity<T>) {
      const int64_t V = logits.size(1);
      const T* row = logits.const_data_ptr<T>();
      const auto* label = targets.labels.const_data_ptr<int64_t>();
      auto *value = values.mutable_data_ptr<float>(), *log_sum = targets.log_sums.mutable_data_ptr<float>();
      core::parallel_rows(logits.size(0), V, [&](int64_t first, int64_t count) {
        log_probability_rows(row + first * V, label + first, count, V, targets.soft_cap, value + first,
                             log_sum + first);
      });
    });
    return;
  }
  const Tensor scores = soft_capped(logits.to(values.scalar_type()), targets.soft_cap);
  const Tensor index = targets.labels.clamp_min(0).unsqueeze(1), ignored = targets.labels.eq(kIgnored);
  targets.log_sums.copy_(at::logsumexp(scores, at::IntArrayRef{1}));
  values.copy_(scores.gather(1, index).squeeze(1).sub_(targets.log_sums).masked_fill_(ignored, 0));
}

// Puts in place of the logits the gradient that `upstream` [n], of the dtype of log_sums, is to them.
void to_gradient_(const Tensor& logits, const Targets& targets, const Tensor& upstream) {
  if (core::has_host_kernel(logits)) {
    core::with_element_type(logits, [&]<class T>(std::type_identity<T>) {
      const int64_t V = logits.size(1);
      T* row = logits.mutable_data_ptr<T>();
      const auto* label = targets.labels.const_data_ptr<int64_t>();
      const auto *log_sum = targets.log_sums.const_data_ptr<float>(), *up = upstream.const_data_ptr<float>();
      core::parallel_rows(logits.size(0), V, [&](int64_t first, int64_t count) {
        log_probability_rows_backward(row + first * V, label + first, log_sum + first, up + first, count, V,
                                      targets.soft_cap);
      });
    });
    return;
  }
  const Tensor scores = soft_capped(logits.to(upstream.scalar_type()), targets.soft_cap);
  const Tensor index = targets.labels.clamp_min(0).unsqueeze(1),
               ignored = targets.labels.eq(kIgnored).unsqueeze(1);
  const Tensor factors = upstream.unsqueeze(1);
  Tensor gradient = scores.sub(targets.log_sums.unsqueeze(1)).exp_().mul_(factors.neg());
  gradient.scatter_add_(1, index, factors);
  if (targets.soft_cap > 0) gradient.mul_(scores.div(targets.soft_cap).square_().neg_().add_(1));
  logits.copy_(gradient.masked_fill_(ignored, 0));
}

struct TokenLogProbabilities : Function<TokenLogProbabilities> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& head, const Tensor& labels,
                        int64_t tiles, double soft_cap) {
    const AutocastOff exact(hidden.device());
    const auto wide = at::promoteTypes(hidden.scalar_type(), at::kFloat);
    Tensor values = at::empty(labels.sizes(), hidden.options().dtype(wide).requires_grad(false));
    Tensor log_sums = at::empty_like(values);
    each_tile(hidden.size(0), tiles, [&](int64_t first, int64_t count) {
      const Tensor logits = at::mm(hidden.narrow(0, first, count), head.t());
      find_values(logits,
                  {checked_labels(labels.narrow(0, first, count), head.size(0)),
                   log_sums.narrow(0, first, count), soft_cap},
                  values.narrow(0, first, count));
    });
    ctx->save_for_backward({hidden, head, labels, log_sums});
    ctx->saved_data["tiles"] = tiles;
    ctx->saved_data["soft_cap"] = soft_cap;
    return values;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    core::check_value(!at::GradMode::is_enabled(),
                      "[alst] a log probability has no second derivative; got create_graph");
    const auto saved = ctx->get_saved_variables();
    const AutocastOff exact(saved[0].device());
    const Tensor &hidden = saved[0], &head = saved[1], &labels = saved[2], &log_sums = saved[3];
    const Tensor upstream = gradients[0].contiguous();
    const double soft_cap = ctx->saved_data["soft_cap"].toDouble();
    Tensor grad_hidden, grad_head;
    if (ctx->needs_input_grad(0)) grad_hidden = at::empty_like(hidden);
    if (ctx->needs_input_grad(1)) grad_head = at::zeros(head.sizes(), log_sums.options());
    each_tile(hidden.size(0), ctx->saved_data["tiles"].toInt(), [&](int64_t first, int64_t count) {
      const Tensor h = hidden.narrow(0, first, count);
      const Tensor logits = at::mm(h, head.t());
      to_gradient_(logits,
                   {labels.narrow(0, first, count).to(at::kLong).contiguous(),
                    log_sums.narrow(0, first, count), soft_cap},
                   upstream.narrow(0, first, count));
      const Tensor& grad_logits = logits;  // what they have become
      if (grad_hidden.defined()) {
        Tensor place = grad_hidden.narrow(0, first, count);
        at::mm_out(place, grad_logits, head);
      }
      if (grad_head.defined()) add_product(grad_head, grad_logits.t(), h);
    });
    if (grad_head.defined()) grad_head = grad_head.to(head.scalar_type());
    return {grad_hidden, grad_head, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor token_log_probabilities(const Tensor& hidden, const Tensor& head, const Tensor& labels, int64_t tiles,
                               double soft_cap) {
  check_logits_of(hidden, head, labels, "a log probability");
  check_loss_options({.soft_cap = soft_cap});
  return TokenLogProbabilities::apply(hidden, head, labels, tiles, soft_cap);
}

}  // namespace trireme::alst
