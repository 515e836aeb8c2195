#include "trireme/train/engine.h"

#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "trireme/core/check.h"

namespace trireme::train {

using at::Tensor;

Engine::Engine(model::Decoder& decoder, const comm::Mesh& mesh, const model::ForwardOptions& forward,
               double gradient_clipping, const zero::Streaming& streaming)
    : decoder_(decoder),
      mesh_(mesh),
      forward_(forward),
      optimizer_(decoder.units(), streaming),
      gradient_clipping_(gradient_clipping) {}

StepResult Engine::accumulate(const std::vector<sp::SlicedBatch>& micro_batches) {
  core::check_value(!micro_batches.empty(), "[train] a step needs at least one micro-batch; got none");
  Tensor targets = at::zeros({}, at::kLong);
  for (const auto& batch : micro_batches) targets.add_(batch.labels.ne(sp::kIgnored).sum().to(at::kCPU));
  mesh_.world.all_reduce(targets, "the number of targets");
  StepResult result{.targets = targets.item<int64_t>()};
  const double scale = 1.0 / double(std::max<int64_t>(1, result.targets));
  Tensor total = at::zeros({}, at::kDouble);
  for (const auto& batch : micro_batches) {
    Tensor loss = decoder_.loss(batch, scale, forward_);
    torch::autograd::backward({loss});
    decoder_.coordinator().end_pass();
    total.add_(loss.detach().to(at::kCPU, at::kDouble));
  }
  for (auto* unit : decoder_.units()) unit->finish_gradients();
  mesh_.world.all_reduce(total, "the loss");
  result.loss = total.item<double>();
  return result;
}

double Engine::update(const std::vector<zero::AdamWOptions>& groups) {
  const double norm = zero::gradient_norm(decoder_.units(), mesh_.world);
  if (!std::isfinite(norm)) {
    for (auto* unit : decoder_.units()) unit->clear_gradients();
    // A stream would write the sign of a nan, which says nothing.
    throw core::RunError(core::concatenate(
        "[train] the gradient norm must be finite; got ", std::isnan(norm) ? "nan" : "inf", " at step ",
        optimizer_.steps() + 1, "; lower the learning rate, clip lower, or see what the data hold"));
  }
  optimizer_.step(groups, zero::clipping_factor(norm, gradient_clipping_));
  return norm;
}

StepResult Engine::step(const std::vector<sp::SlicedBatch>& micro_batches,
                        const std::vector<zero::AdamWOptions>& groups) {
  StepResult result = accumulate(micro_batches);
  result.gradient_norm = update(groups);
  return result;
}

}  // namespace trireme::train
