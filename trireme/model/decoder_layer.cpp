#include "trireme/model/decoder_layer.h"

#include "trireme/alst/checkpoint.h"
#include "trireme/alst/tiles.h"
#include "trireme/model/norm.h"
#include "trireme/model/parameters.h"
#include "trireme/model/projection.h"

namespace trireme::model {

using at::Tensor;

DecoderLayer::DecoderLayer(const Config& config, int64_t index, zero::Unit& unit, comm::Group sequence)
    : config_(config),
      index_(index),
      window_(config.windows[size_t(index)]),
      unit_(unit),
      sequence_(std::move(sequence)) {
  size_t next = kOptional;
  if (config.qkv_bias) qkv_bias_ = next++;
  if (config.qk_norm) {
    query_norm_ = next++;
    key_norm_ = next++;
  }
}

Tensor DecoderLayer::forward(const Tensor& x, const std::shared_ptr<const LayerInputs>& inputs,
                             zero::Coordinator& coordinator) const {
  return coordinator.around({&unit_}, zero::BackwardNeeds::values, x, [&](const Tensor& in) {
    if (is_recomputed(inputs->options)) return checkpointed(in, inputs);
    return after_mlp(after_attention(in, *inputs, nullptr), inputs->options, /*value_needed=*/true);
  });
}

bool DecoderLayer::is_recomputed(const ForwardOptions& options) const {
  return options.recompute != Recompute::nothing && index_ % options.recompute_every == 0;
}

Tensor DecoderLayer::checkpointed(const Tensor& x, const std::shared_ptr<const LayerInputs>& inputs) const {
  const alst::Region region = [this, inputs](const std::vector<Tensor>& in,
                                             alst::Kept& kept) -> std::vector<Tensor> {
    const bool keep = inputs->options.recompute == Recompute::all_but_attention;
    sp::KeptAttention attention;
    if (keep && kept.replaying) attention = {kept.tensors.at(0), kept.tensors.at(1)};
    Tensor middle = after_attention(in[0], *inputs, keep ? &attention : nullptr);
    if (keep && !kept.replaying) kept.tensors = {attention.output, attention.logsumexp};
    return {after_mlp(middle, inputs->options, /*value_needed=*/!kept.replaying)};
  };
  return alst::checkpoint(region, {x}, inputs->options.keeper)[0];
}

Tensor DecoderLayer::after_attention(const Tensor& x, const LayerInputs& inputs,
                                     sp::KeptAttention* kept) const {
  const Tensor bias = qkv_bias_ ? unit_.parameter(qkv_bias_) : Tensor();
  Tensor qkv =
      project_normalized(x, unit_.parameter(kInputNorm), config_.norm_epsilon, unit_.parameter(kQkv), bias);
  return project(attend(std::move(qkv), inputs, kept), unit_.parameter(kOutput)).add_(x);
}

// [N, (H + 2 K) D] -> [N, H D]
Tensor DecoderLayer::attend(Tensor qkv, const LayerInputs& inputs, sp::KeptAttention* kept) const {
  const int64_t H = config_.heads, K = config_.kv_heads, D = config_.head_size, B = inputs.batch,
                s = qkv.size(0) / B;
  sp::AttentionContext context = inputs.attention;
  context.window = window_;
  Tensor output;
  if (query_norm_) {
    const auto parts = qkv.view({B * s, -1, D}).split_with_sizes({H, K, K}, 1);
    const auto placed = [&](const Tensor& heads, size_t norm, int64_t count) {
      const Tensor normalized = root_mean_square_norm(heads, unit_.parameter(norm), config_.norm_epsilon);
      return rotate_heads_(normalized, count, inputs.rotary).view({B, s, count, D});
    };
    output = sp::ulysses_attention(
        {placed(parts[0], query_norm_, H), placed(parts[1], key_norm_, K), parts[2].view({B, s, K, D})},
        context, sequence_, kept);
  } else {
    qkv = rotate_heads_(qkv, H + K, inputs.rotary).view({B, s, H + 2 * K, D});
    output = sp::ulysses_attention(qkv, H, context, sequence_, kept);
  }
  return output.reshape({B * s, H * D});
}

alst::Mlp DecoderLayer::mlp() const {
  const Tensor norm = unit_.parameter(kPostNorm), gate_up = unit_.parameter(kGateUp);
  return {[norm, gate_up, epsilon = config_.norm_epsilon](const Tensor& tile) {
            return gated_silu(project_normalized(tile, norm, epsilon, gate_up));
          },
          {norm, gate_up},
          unit_.parameter(kDown)};
}

Tensor DecoderLayer::after_mlp(const Tensor& x, const ForwardOptions& options, bool value_needed) const {
  const int64_t tiles = options.mlp_tiles.value_or(alst::automatic_mlp_tiles(x.size(0), config_.hidden_size));
  // What is recomputed anyway is one tile at least: its backward pass then spares the last product.
  if (tiles > 0 || is_recomputed(options))
    return alst::tiled_mlp(x, mlp(), std::max<int64_t>(1, tiles), value_needed);
  const Tensor gate_up =
      project_normalized(x, unit_.parameter(kPostNorm), config_.norm_epsilon, unit_.parameter(kGateUp));
  return project_gated(gate_up, unit_.parameter(kDown)).add_(x);
}

}  // namespace trireme::model
