// What a function gets that is run a tile of tokens at a time, and how its inputs are cut.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "trireme/alst/tiles.h"
#include "trireme/comm/group.h"

namespace trireme::alst {

/// A function's tensors, of any dtype, with or without gradient; undefined ones stay so.
struct TileInputs {
  std::vector<at::Tensor> tiled;  ///< a tile at a time: cut along one dimension, of one size in all of them
  std::vector<at::Tensor> whole;  ///< the same for every tile
};

struct Tiling {
  int64_t tiles = 1;  ///< at least 1; no more are made than there are tokens
  int64_t dim = 0;    ///< along which inputs are cut; negative ones count from the end, in each input
  /// What the function captures, where that is known: then these are inputs of the graph's node like any
  /// other. Leaves or not; those that require no gradient are passed over.
  std::vector<at::Tensor> parameters;
  /// Ranks that run the function equally often: as often as the rank that needs it most. For functions in
  /// which there are collectives. Ranks with fewer tokens get tiles of none, of which the function has to
  /// make finite numbers. Without it no tile is empty, unless there are no tokens at all: then there is one.
  std::optional<comm::Group> group;
};

/// Tokens in tiles.
struct Cut {
  int64_t dim;
  int64_t tokens;
  int64_t tiles;

  Tile tile(int64_t index) const { return tile_at(tokens, tiles, index); }
  /// The part of all tokens that a tile has: 1 in all.
  double share(int64_t index) const {
    return tokens > 0 ? double(tile(index).count) / double(tokens) : 1.0 / double(tiles);
  }
};

/// Checks, and agrees with `tiling.group`. ValueError for tiled inputs that have no such dimension or unlike
/// sizes along it, or where there is none.
Cut cut_of(const TileInputs& inputs, const Tiling& tiling);

/// The inputs of one tile.
TileInputs inputs_of_tile(const TileInputs& inputs, const Cut& cut, int64_t index);

/// The device of the first input that is defined.
at::Device device_of(const TileInputs& inputs);

/// The tensors of `tensors` that are defined, and require a gradient.
std::vector<at::Tensor> requiring_gradient(const std::vector<at::Tensor>& tensors);

/// Which of a function's tensors there are: undefined ones cannot cross autograd, and are left out on the way
/// in and put back inside.
class DefinedInputs {
 public:
  explicit DefinedInputs(const TileInputs& inputs);

  /// The tensors that there are: tiled ones, then whole ones.
  static std::vector<at::Tensor> flat(const TileInputs& inputs);
  /// From the first tensors of `tensors`, which are those of `flat`.
  TileInputs restored(at::TensorList tensors) const;

 private:
  std::vector<bool> tiled_, whole_;
};

}  // namespace trireme::alst
