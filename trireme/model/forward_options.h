// How a decoder computes: what changes its memory and speed but not its numbers, and the loss.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/alst/kept_tensors.h"
#include "trireme/alst/loss_options.h"
#include "trireme/model/recompute.h"

namespace trireme::model {

struct ForwardOptions {
  Recompute recompute = Recompute::layer;
  /// That is done with each so many-th layer, from the first; the others keep every activation.
  int64_t recompute_every = 1;
  /// Where the layers' checkpoints put what they keep; null: in memory.
  std::shared_ptr<alst::Keeper> keeper;
  /// Tiles of a layer's MLP; nothing: as many as tokens per hidden size; 0: none, its activations are kept as
  /// any others.
  std::optional<int64_t> mlp_tiles;
  /// Tiles of the loss; nothing: by the size of a tile's logits.
  std::optional<int64_t> loss_tiles;
  /// The terms of the loss. Its soft cap is of `Decoder::logits` too.
  alst::LossOptions loss;
};

}  // namespace trireme::model
