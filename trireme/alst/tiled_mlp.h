// An MLP over a long sequence, a tile of tokens at a time.
//   N tokens, E hidden size, I width of the MLP.
// ALST, arXiv:2506.13996, section 3.1.2 (TiledMLP).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace trireme::alst {

/// The residual block  output = x + activated(x) down^T.
struct Mlp {
  /// [n, E] -> [n, I], each row by itself: norm, gate and up projections, activation. Runs without a graph in
  /// the forward pass, with one in the backward pass.
  std::function<at::Tensor(const at::Tensor& tile)> activated;
  /// What `activated` reads and gradients are wanted of.
  std::vector<at::Tensor> parameters;
  at::Tensor down;  ///< [E, I]
};

/// x [N, E] -> [N, E]. Keeps x alone; the backward pass computes each tile's activations again, but not their
/// projection down. Parameter gradients are summed over tiles in fp32 at least and handed over once, after
/// the last. Tiles need not divide N, nor be fewer than it: the result does not depend on their number beyond
/// rounding. Computes in the tensors' own dtype, also under autocast (which `tiled_compute` follows).
///
/// `value_needed` false returns a tensor of the right shape and graph with arbitrary values, for a replayed
/// checkpoint whose last operation this is.
at::Tensor tiled_mlp(const at::Tensor& x, const Mlp& mlp, int64_t tiles, bool value_needed = true);

}  // namespace trireme::alst
