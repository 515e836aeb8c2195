#include "trireme/zero/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "trireme/core/check.h"

namespace trireme::zero {

using at::Tensor;

AdamW::AdamW(std::vector<Unit*> units) : units_(std::move(units)) {
  core::check_value(!units_.empty(), "[zero] an optimizer needs at least one unit; got none");
  for (const Unit* unit : units_)
    moments_.push_back({at::zeros_like(unit->master()), at::zeros_like(unit->master())});
  step_ = at::zeros({}, units_[0]->master().options().dtype(at::kFloat));
}

void AdamW::step(const AdamWOptions& options, double learning_rate, double gradient_scale) {
  ++steps_;
  step_.add_(1);  // the fused operator reads the step, and leaves counting to its caller
  for (size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = *units_[i];
    core::check_value(unit.gradient().defined(),
                      "[zero] a step needs the gradient of every unit; got none for unit '", unit.name(),
                      "'; call finish_gradients first");
    if (gradient_scale != 1) unit.gradient().mul_(gradient_scale);
    update(unit, moments_[i], options, learning_rate);
    unit.clear_gradients();
    unit.publish();
  }
}

void AdamW::update(Unit& unit, const Moments& moments, const AdamWOptions& options, double learning_rate) {
  const Range mine = unit.optimizer_range();
  for (const auto& [range, decay] : unit.layout().decay_pieces(mine)) {
    const auto part = [&, first = range.begin - mine.begin, count = range.count()](const Tensor& flat) {
      return flat.narrow(0, first, count);
    };
    at::_fused_adamw_({part(unit.master())}, {part(unit.gradient())}, {part(moments.first)},
                      {part(moments.second)},
                      /*max_exp_avg_sqs=*/{}, {step_}, learning_rate, options.beta1, options.beta2,
                      decay ? options.weight_decay : 0.0, options.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

double gradient_norm(const std::vector<Unit*>& units, const comm::Group& world) {
  Tensor square = at::zeros({}, units.at(0)->gradient().options().dtype(at::kDouble));
  bool partitioned = false;
  for (const Unit* unit : units) {
    square.add_(at::linalg_vector_norm(unit->gradient(), 2).to(at::kDouble).square_());
    partitioned = unit->options().partitions_optimizer();
  }
  if (partitioned) world.all_reduce(square, "the gradient norm");
  return square.sqrt_().item<double>();
}

double clipping_factor(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

}  // namespace trireme::zero
