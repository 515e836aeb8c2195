// Any function over a long sequence, a tile of tokens at a time.
// ALST, arXiv:2506.13996, section 3.1 (sequence tiling).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "trireme/alst/combined_output.h"
#include "trireme/alst/tile_inputs.h"

namespace trireme::alst {

/// From a tile's inputs to one or several outputs, as many for each tile. What it does with a token must not
/// depend on the tile's other tokens, unless its outputs are combined accordingly. Anything that is no tensor
/// is captured. It must not write to its inputs, and what it captures must outlive the graph.
using TileFunction = std::function<std::vector<at::Tensor>(const TileInputs& tile)>;

/// Runs `function` on each tile and combines the outputs: `combine` has one entry for all of them, or one
/// each. Keeps the inputs alone: the backward pass runs each tile again, forward with a graph under the
/// random and autocast state of the first time, and backward, before it goes on to the next.
///
/// Gradients of whole inputs and of parameters are summed over tiles in fp32 at least, and handed over once,
/// after the last tile. Parameters are captured:
///   - those given in `tiling.parameters` are inputs of the node: all is as if the function had been called
///     once, torch::autograd::grad included;
///   - other leaves that require a gradient are found in the graphs of the tiles. Theirs are accumulated from
///     inside the node, each once for the call, in a whole backward pass; a pass for some inputs alone leaves
///     them out, since no edge leads to them.
/// Whatever else requires a gradient must be an input or given; captured, it is a ValueError in the backward
/// pass.
///
/// Outputs require a gradient, as those of a checkpoint, whatever the inputs do; without grad mode the
/// function just runs. A second backward pass needs retain_graph, as everywhere, and adds up. There is no
/// second derivative: create_graph is a ValueError.
std::vector<at::Tensor> tiled_compute(const TileFunction& function, const TileInputs& inputs,
                                      const Tiling& tiling,
                                      const std::vector<Combine>& combine = {Combine::concatenate()});

}  // namespace trireme::alst
