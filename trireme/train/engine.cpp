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
               double gradient_clipping, const zero::Streaming& streaming,
               std::shared_ptr<core::Timeline> timeline)
    : decoder_(decoder),
      mesh_(mesh),
      forward_(forward),
      optimizer_(decoder.units(), streaming, std::move(timeline)),
      gradient_clipping_(gradient_clipping) {}

StepResult Engine::accumulate(const std::vector<sp::SlicedBatch>& micro_batches) {
  core::check_value(!micro_batches.empty(), "[train] a step needs at least one micro-batch; got none");
  const comm::Position& position = mesh_.world.position();
  Tensor targets = at::zeros({}, at::kLong);
  for (const auto& batch : micro_batches) targets.add_(batch.labels.ne(sp::kIgnored).sum().to(at::kCPU));
  mesh_.world.all_reduce(targets, "the number of targets");
  StepResult result{.targets = targets.item<int64_t>()};
  const double scale = 1.0 / double(std::max<int64_t>(1, result.targets));
  Tensor total = at::zeros({}, at::kDouble);
  comm::Position::Scope here;
  for (const auto& batch : micro_batches) {
    here = position.enter("forward");
    Tensor loss = decoder_.loss(batch, scale, forward_);
    here = position.enter("backward");
    torch::autograd::backward({loss});
    decoder_.coordinator().end_pass();
    total.add_(loss.detach().to(at::kCPU, at::kDouble));
  }
  here = position.enter("gradients");
  for (auto* unit : decoder_.units()) unit->finish_gradients();
  mesh_.world.all_reduce(total, "the loss");
  result.loss = total.item<double>();
  return result;
}

double Engine::update(const std::vector<zero::AdamWOptions>& groups) {
  const auto here = mesh_.world.position().enter("optimizer");
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
