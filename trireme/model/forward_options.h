// How a decoder computes, which changes its memory and speed but not its numbers.
#pragma once

#include <cstdint>
#include <optional>

namespace trireme::model {

/// What of a layer's forward pass is kept for its backward pass.
enum class Recompute {
  nothing,            ///< keep every activation
  layer,              ///< keep the layer's input, run the layer again
  all_but_attention,  ///< also keep attention's output: its quadratic part and the output's exchange are not
                      ///< run again
};

struct ForwardOptions {
  Recompute recompute = Recompute::layer;
  /// Tiles of a layer's MLP; nothing: as many as tokens per hidden size; 0: none, its activations are kept as
  /// any others.
  std::optional<int64_t> mlp_tiles;
  /// Tiles of the loss; nothing: by the size of a tile's logits.
  std::optional<int64_t> loss_tiles;
};

}  // namespace trireme::model
