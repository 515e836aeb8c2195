#include "trireme/model/decoder.h"

#include "trireme/alst/fused_logits_loss.h"
#include "trireme/alst/soft_cap.h"
#include "trireme/alst/tiles.h"
#include "trireme/model/norm.h"
#include "trireme/model/projection.h"

namespace trireme::model {

using at::Tensor;
using zero::BackwardNeeds;

Decoder::Decoder(Config config, const zero::Options& options, const comm::Mesh& mesh)
    : Decoder(std::move(config), options, mesh, Settings()) {}

Decoder::Decoder(Config config, const zero::Options& options, const comm::Mesh& mesh,
                 const Settings& settings)
    : config_(std::move(config)),
      options_(options),
      mesh_(mesh),
      plans_(plan_units(config_)),
      coordinator_(settings.schedule, settings.timeline) {
  apply_rules(settings.rules, plans_);
  for (const auto& plan : plans_) {
    units_.push_back(
        std::make_unique<zero::Unit>(plan.name, plan.specs(), options_, mesh_.world, settings.memory));
    order_.push_back(units_.back().get());
  }
  coordinator_.adopt(order_);
  for (int64_t index = 0; index < config_.layers; ++index)
    layers_.emplace_back(config_, index, *units_[size_t(index) + 1], mesh_.sequence);
}

Tensor Decoder::hidden(const sp::SlicedBatch& batch, const ForwardOptions& options) {
  auto inputs = std::make_shared<LayerInputs>();
  inputs->batch = batch.tokens.size(0);
  inputs->rotary = rotary_tables(config_, batch.positions, batch.longest_document, options_.dtype);
  inputs->attention = batch.context;
  inputs->options = options;
  Tensor x = coordinator_.around(
      {order_.front()}, BackwardNeeds::gradients, batch.tokens, [&](const Tensor& tokens) {
        return embed(tokens, order_.front()->parameter(0), config_.padding_token.value_or(-1))
            .view({-1, config_.hidden_size});
      });
  for (const auto& layer : layers_) x = layer.forward(x, inputs, coordinator_);
  return coordinator_.around({&norm()}, BackwardNeeds::values, x, [&](const Tensor& in) {
    return root_mean_square_norm(in, norm().parameter(0), config_.norm_epsilon);
  });
}

Tensor Decoder::loss(const sp::SlicedBatch& batch, double scale, const ForwardOptions& options) {
  const Tensor labels = batch.labels.view({-1});
  const int64_t tiles =
      options.loss_tiles.value_or(alst::automatic_loss_tiles(labels.size(0), config_.vocabulary_size));
  return coordinator_.around(
      {&head()}, BackwardNeeds::gradients, hidden(batch, options), [&](const Tensor& x) {
        return alst::fused_logits_loss(x, head().parameter(0), labels, scale, tiles, options.loss);
      });
}

Tensor Decoder::logits(const sp::SlicedBatch& batch, const ForwardOptions& options) {
  return coordinator_.around({&head()}, BackwardNeeds::values, hidden(batch, options), [&](const Tensor& x) {
    return alst::soft_capped(project(x, head().parameter(0)), options.loss.soft_cap);
  });
}

}  // namespace trireme::model
