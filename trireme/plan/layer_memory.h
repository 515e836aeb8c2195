// Bytes of a decoder layer's activations on one rank: what it keeps, and what it holds while it runs.
//   B batch, S sequence, s a rank's slice, N = B s, E hidden size, H query heads, K key/value heads, D head
//   size, h and k the heads of a rank, I width of the MLP, P ranks that share a sequence.
// The tensors are those of model/decoder_layer.cpp; a change there that keeps or frees a tensor changes this.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/plan/setting.h"

namespace trireme::plan {

/// For the rank that has most heads.
class LayerMemory {
 public:
  /// `window`: of the layer, 0 for none. `checkpointed`: is it run again in the backward pass? Documents are
  /// taken to fill their rows.
  LayerMemory(const Setting& setting, int64_t window, bool checkpointed);

  /// [N, E]: the layer's input, which it keeps in any case.
  int64_t input() const { return hidden_; }
  /// Kept besides.
  int64_t kept() const;
  /// Of a checkpoint, tensor by tensor.
  std::vector<int64_t> kept_besides() const;
  /// Most bytes that the forward pass holds beyond its input, what it keeps included.
  int64_t forward() const;
  /// Most bytes that the backward pass holds beyond what the forward pass kept.
  int64_t backward() const;

 private:
  int64_t attention_kept() const;
  int64_t mlp_kept() const;
  int64_t replay() const;
  int64_t mlp_tile_forward() const;
  int64_t mlp_tile_backward() const;
  int64_t parameter_gradients() const;
  int64_t mlp_backward() const;
  int64_t attention_backward() const;
  int64_t exchange_backward() const;
  int64_t norm_backward() const;

  bool checkpointed_, keeps_attention_, exchanges_, by_tiles_, batched_, normed_heads_;
  int64_t hidden_, packed_, sent_, heads_packed_, heads_output_, spread_, output_, logsumexp_, deltas_,
      inverse_, inner_, tiles_, tile_rows_;
  int64_t scratch_ = 0, key_sums_ = 0;
  int64_t element_, E_, I_, Q_;
};

}  // namespace trireme::plan
