// Any loss over a long sequence, a tile of tokens at a time, with all gradients formed in the forward pass.
// ALST, arXiv:2506.13996, section 3.1.1; Liger Kernel, arXiv:2410.10989, section 3.2.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "trireme/alst/combined_output.h"
#include "trireme/alst/tile_inputs.h"

namespace trireme::alst {

/// From a tile's inputs to its part of the loss, a scalar.
using TileLoss = std::function<at::Tensor(const TileInputs& tile)>;

/// The sum of the tiles' losses, or their mean weighted by tokens: a scalar of their dtype.
///
/// Each tile is run forward and backward at once, and never again: the forward pass forms the gradients of
/// the inputs, of parameters given in `tiling.parameters`, and of other leaves that the tiles' graphs reach,
/// which are inputs of the loss's node as the former are. Those of whole inputs and parameters are summed
/// over tiles in fp32 at least. The backward pass multiplies all by the upstream gradient. So a loss that is
/// scaled, or divided by a count, inside the function or outside, has exactly its derivative.
///
/// What requires a gradient, and is neither a leaf nor an input or given, must not be captured: a ValueError.
/// Without grad mode the losses are computed alone. A second backward pass needs retain_graph, and adds up;
/// create_graph is a ValueError.
at::Tensor tiled_loss(const TileLoss& loss, const TileInputs& inputs, const Tiling& tiling,
                      const Combine& combine = Combine::sum());

}  // namespace trireme::alst
