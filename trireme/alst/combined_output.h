// How the outputs of a function's tiles become one.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "trireme/alst/tile_inputs.h"

namespace trireme::alst {

/// What becomes of the outputs of several tiles.
struct Combine {
  enum class Kind { concatenate, sum, mean };
  Kind kind;
  std::optional<int64_t> dim;

  /// One after the other along `dim` of the output, by default the one in which inputs are cut. A tile's part
  /// may have any length; where that is the tile's tokens, the whole is allocated at once.
  static Combine concatenate(std::optional<int64_t> dim = std::nullopt) { return {Kind::concatenate, dim}; }
  /// Added up, in fp32 at least, integers in int64. All of one shape.
  static Combine sum() { return {Kind::sum, std::nullopt}; }
  /// Added up in fp32 at least, each times its tile's share of all tokens: the mean over tokens, if a tile's
  /// output is the mean over its own. All of one shape. A tile without tokens counts for nothing.
  static Combine mean() { return {Kind::mean, std::nullopt}; }
};

/// One output, put together from those of the tiles in order.
class CombinedOutput {
 public:
  CombinedOutput(const Combine& combine, const Cut& cut) : combine_(combine), cut_(cut) {}

  /// Adds the output of the next tile. ValueError where it does not fit the ones before.
  void add(const at::Tensor& part);

  /// The whole. What is left knows about gradients only.
  at::Tensor take();

  /// From the gradient of the whole to that of a tile's output.
  at::Tensor gradient_of_part(const at::Tensor& gradient, int64_t tile) const;

 private:
  void append(const at::Tensor& part);
  void reserve(int64_t length);
  void accumulate(const at::Tensor& part, double weight);
  bool passes_over(int64_t tile) const;

  Combine combine_;
  Cut cut_;
  int64_t dim_ = 0;
  at::Tensor whole_;
  at::ScalarType dtype_ = at::kFloat;  // of the output
  std::vector<int64_t> ends_;          // of the parts of a concatenation
  int64_t parts_ = 0;
};

}  // namespace trireme::alst
