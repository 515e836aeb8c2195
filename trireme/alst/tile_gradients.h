// The gradients of a function's inputs, formed a tile at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "trireme/alst/captured_gradients.h"
#include "trireme/alst/gradient_sums.h"
#include "trireme/alst/tile_inputs.h"

namespace trireme::alst {

class TileGradients {
 public:
  /// From a tile's inputs to its outputs; called with grad mode on.
  using Function = std::function<std::vector<at::Tensor>(const TileInputs& tile)>;
  /// The gradient of the tile's output `index`, undefined where there is none.
  using Upstream = std::function<at::Tensor(size_t index, const at::Tensor& output)>;

  /// `wanted`: which of the inputs' gradients, one for each input that is defined. `captured` gets those of
  /// what the function captures.
  TileGradients(const TileInputs& inputs, const Cut& cut, const std::vector<bool>& wanted,
                std::shared_ptr<CapturedGradients> captured);

  /// Runs the function on the next tile, forward and backward. The graph is gone after it.
  void add_tile(const Function& function, const Upstream& upstream);

  /// One for each input that is defined: undefined where it is not wanted, or was not used. Those of whole
  /// inputs are summed over tiles in fp32 at least.
  std::vector<at::Tensor> take();

 private:
  TileInputs leaves_of_tile();
  void collect(const TileInputs& leaves);

  TileInputs inputs_;
  Cut cut_;
  std::vector<bool> tiled_wanted_, whole_wanted_;
  std::vector<at::Tensor> tiled_;
  GradientSums whole_;
  std::shared_ptr<CapturedGradients> captured_;
  int64_t tile_ = 0;
};

}  // namespace trireme::alst
