// One decoder layer: attention over the whole sequence, then an MLP, each on top of a residual stream.
//   B batch, s this rank's tokens, N = B s, E hidden size, H query heads, K key/value heads, D head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "trireme/alst/tiled_mlp.h"
#include "trireme/comm/group.h"
#include "trireme/model/config.h"
#include "trireme/model/forward_options.h"
#include "trireme/model/rotary.h"
#include "trireme/sp/attention_context.h"
#include "trireme/sp/distributed_attention.h"
#include "trireme/zero/coordinator.h"
#include "trireme/zero/unit.h"

namespace trireme::model {

/// What all layers of a forward pass share. Held by the graph, so that a backward pass finds it unchanged.
struct LayerInputs {
  int64_t batch = 0;  ///< B
  RotaryTables rotary;
  sp::AttentionContext attention;  ///< without a window: that is the layer's
  ForwardOptions options;
};

class DecoderLayer {
 public:
  /// Both must outlive the layer. `unit` holds the parameters of `plan_layer(config, index)`.
  DecoderLayer(const Config& config, int64_t index, zero::Unit& unit, comm::Group sequence);

  /// x [N, E] -> [N, E]. Gathers and releases the unit. The layer must outlive the graph.
  at::Tensor forward(const at::Tensor& x, const std::shared_ptr<const LayerInputs>& inputs,
                     zero::Coordinator& coordinator) const;

 private:
  // The steps of a layer, while its unit is gathered.
  at::Tensor checkpointed(const at::Tensor& x, const std::shared_ptr<const LayerInputs>& inputs) const;
  at::Tensor after_attention(const at::Tensor& x, const LayerInputs& inputs, sp::KeptAttention* kept) const;
  at::Tensor attend(at::Tensor qkv, const LayerInputs& inputs, sp::KeptAttention* kept) const;
  at::Tensor after_mlp(const at::Tensor& x, const ForwardOptions& options, bool value_needed) const;
  alst::Mlp mlp() const;

  bool is_recomputed(const ForwardOptions& options) const;

  const Config& config_;
  int64_t index_;
  int64_t window_;
  zero::Unit& unit_;
  comm::Group sequence_;
  size_t qkv_bias_ = 0, query_norm_ = 0, key_norm_ = 0;  // places in the unit; 0: not there
};

}  // namespace trireme::model
