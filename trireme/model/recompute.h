// What of a layer's forward pass is kept for its backward pass.
#pragma once

namespace trireme::model {

enum class Recompute {
  nothing,            ///< keep every activation
  layer,              ///< keep the layer's input, run the layer again
  all_but_attention,  ///< also keep attention's output: its quadratic part and the output's exchange are not
                      ///< run again
};

}  // namespace trireme::model
